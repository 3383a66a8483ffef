"""The step that compiles FlashInfer's modules: a build tree, upstream's own commands, ninja, the target's loader."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.compile import tree as build_tree
from sm121.compile.build import Schedule
from sm121.compile.flashinfer.configure import CONFIGURED, Modules, generate, read_modules, write_build_file
from sm121.errors import CompileError
from sm121.plan.components import HEAVY
from sm121.plan.flashinfer_modules import unit_cost
from sm121.steps import caching
from sm121.steps.libraries import (
    Prepared,
    build_tree_of,
    cache_environment,
    launcher,
    make,
    python,
    require_loading,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.compile.flashinfer.upstream import UpstreamModule
    from sm121.steps.run import Run

_TREE = (
    ("source", "source", "tree"),
    ("cuda", "toolkit", "cuda"),
    ("tools", "tools", "."),
    ("tvm-ffi", "tvm-ffi", "wheel"),
)
"""Folder of the build tree, the step that made it, and where in that step's result it is."""


def prepare(run: Run) -> Prepared:
    """Lay out the build tree and write its build file; what is in place already is kept."""
    plan, step = run.plan, run.plan.step("libraries")
    tree = build_tree_of(run)
    parts = [
        build_tree.Part(name, run.result(made_by) / folder, plan.step(made_by).key)
        for name, made_by, folder in _TREE
    ]
    if build_tree.lay_out(tree, parts):
        # Their files carry one time, so ninja would not see that they changed; the compiler cache will.
        shutil.rmtree(tree / "obj", ignore_errors=True)
    (tree / "obj").mkdir(exist_ok=True)
    write_scripts(tree)
    values = {"tree": str(tree), "system": process.SYSTEM_PATH}
    env = process.environment({name: value.format(**values) for name, value in step.env.items()})
    # The key leaves out how many jobs there are, which the order and the pool in the build file follow from.
    state = f"{step.key} {plan.cache} {plan.jobs} {plan.heavy_jobs}"
    configured = tree / "obj" / CONFIGURED
    modules = modules_of(run, tree)
    if not configured.exists() or configured.read_text() != state:
        configured.unlink(missing_ok=True)
        log = run.work.log("generate")
        run.progress.say(f"  FlashInfer writes down its build commands, log: {log}")
        generate(tree, modules, sys.executable, log)
    found = read_modules(tree, modules)
    schedule = _schedule(run, found)
    gencodes = write_build_file(tree, found, modules, schedule)
    (tree / "obj" / "gencodes.json").write_text(json.dumps(gencodes, indent=0) + "\n")
    configured.write_text(state)
    return Prepared(tree, {**env, **cache_environment(run)}, schedule)


def modules(run: Run, into: Path) -> None:
    """Compile every module of the plan into `into`/NAME.so."""
    names = [extension.name for extension in run.plan.extensions]
    prepared = prepare(run)
    made = make(run, prepared, names)
    tree = prepared.tree
    for name in names:
        shutil.copy2(tree / "obj" / "modules" / name / f"{name}.so", into / f"{name}.so")
    library = tree / "tvm-ffi" / "tvm_ffi" / "lib" / "libtvm_ffi.so"
    require_loading(run, [into / f"{name}.so" for name in names], [tree / "cuda" / "lib"], [library])
    trace = {"requested": run.plan.arch_list, "units": json.loads((tree / "obj" / "gencodes.json").read_text())}
    (into / "trace.json").write_text(json.dumps(trace, indent=1) + "\n")
    (into / "costs.json").write_text(json.dumps([asdict(cost) for cost in made], indent=1) + "\n")
    caching.keep_record(tree / "obj", into)


def modules_of(run: Run, tree: Path) -> Modules:
    """What the plan asks to be compiled in `tree`, and how."""
    inputs = run.plan.step("libraries").inputs
    split = inputs["split compile"]
    return Modules(
        sources=inputs["modules"], extra=tuple(inputs["extra"]), arch_list=inputs["arch list"], cuda=inputs["cuda"],
        torch=inputs["torch"], compiler=inputs["compiler"], launcher=process.quoted(launcher(run, tree, python())),
        more_flags=f"--split-compile={split}" if split > 1 else "",
    )  # fmt: skip


def _schedule(run: Run, found: Iterable[UpstreamModule]) -> Schedule:
    costs = {
        unit.object: unit_cost(module.name, Path(unit.source).name)
        for module in found for unit in module.units
    }  # fmt: skip
    return Schedule(
        jobs=run.plan.jobs, heavy_jobs=run.plan.heavy_jobs,
        seconds={name: cost.seconds for name, cost in costs.items()},
        heavy=frozenset(name for name, cost in costs.items() if cost.peak > HEAVY),
    )  # fmt: skip


def write_scripts(tree: Path) -> None:
    """What the build reads of ours, and the headers of this machine's Python, which `spdlog` includes."""
    (tree / "launcher.py").write_text(
        resources.files("sm121.compile").joinpath("launcher.py").read_text(encoding="utf-8")
    )
    (tree / "generator").mkdir(exist_ok=True)
    scripts = resources.files("sm121.compile.flashinfer")
    for name in ("generate.py", "standins.py"):
        (tree / "generator" / name).write_text(scripts.joinpath(name).read_text(encoding="utf-8"))
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise CompileError(
            f"{headers / 'Python.h'} does not exist.", do="install the headers of this Python (python3-dev)."
        )
    (tree / "python").unlink(missing_ok=True)
    (tree / "python").symlink_to(headers)
