"""The step that compiles: a build tree from finished steps, CMake, ninja, the target's loader."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.compile import tree as build_tree
from sm121.compile.answers import write_answers
from sm121.compile.build import Cost, Schedule, build, configure, planned_units
from sm121.compile.loading import unresolved
from sm121.compile.ninja import object_name
from sm121.errors import CompileError
from sm121.inspector.policy import policy
from sm121.plan.cache import CacheProgram
from sm121.plan.components import HEAVY, costs
from sm121.plan.steps import COMPILERS
from sm121.preflight import loader_emulator
from sm121.progress import plural
from sm121.steps import caching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sm121.steps.run import Run


_TREE = (
    ("source", "source", "tree"),
    ("cuda", "toolkit", "cuda"),
    ("torch", "torch", "wheel"),
    ("cutlass", "cutlass", "headers"),
    ("tools", "tools", "."),
)
"""Folder of the build tree, the step that made it, and where in that step's result it is."""


@dataclass(frozen=True, slots=True)
class Edited:
    """Sources that take the place of the pinned ones, in a build tree of their own.

    `name` is added to the tree's name. `place` brings the folder that it is given up to date, touching only what
    changed, and returns a digest of all that CMake reads: another digest is configured anew.
    """

    name: str
    place: Callable[[Path], str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configured build tree, and how its compilers are run."""

    tree: Path
    env: Mapping[str, str]
    schedule: Schedule


def build_tree_of(run: Run, edited: str = "") -> Path:
    """The folder of a plan's build tree; with the name of edited sources, of the tree that is theirs."""
    plan = run.plan
    name = f"{plan.project}-{plan.version}-{plan.line}-{plan.target_cpu}"
    return run.work.tree(f"{name}-{edited}" if edited else name).resolve()


def prepare(run: Run, edited: Edited | None = None) -> Prepared:
    """Lay out the build tree and configure it; what is in place already is kept."""
    plan, step = run.plan, run.plan.step("libraries")
    tree = build_tree_of(run, edited.name if edited else "")
    parts = [
        build_tree.Part(name, run.result(made_by) / folder, plan.step(made_by).key, writable=name == "source")
        for name, made_by, folder in (*_TREE, *((("trees", "trees", "."),) if plan.trees else ()))
        if not (edited and name == "source")
    ]
    if build_tree.lay_out(tree, parts) - {"source"}:
        # Their files carry one time, so ninja would not see that they changed; the compiler cache will.
        shutil.rmtree(tree / "obj", ignore_errors=True)
    (tree / "obj").mkdir(exist_ok=True)
    _write_helpers(tree)
    values = {"tree": str(tree), "system": process.SYSTEM_PATH, "python": python()}
    values["launcher"] = ";".join(launcher(run, tree, values["python"]))
    env = process.environment({name: value.format(**values) for name, value in step.env.items()})
    prepared = Prepared(tree, {**env, **cache_environment(run)}, _schedule(run))
    state = f"{step.key} {edited.place(tree / 'source')}" if edited else step.key
    if (program := caching.cache_of(run).program) is not CacheProgram.CCACHE:
        state = f"{state} {program}"  # it stands in every command
    configured = tree / "obj" / "configured.json"
    if not configured.exists() or configured.read_text() != state:
        configured.unlink(missing_ok=True)
        log = run.work.log("configure")
        run.progress.say(f"  configuring, log: {log}")
        argv = [word.format(**values) for word in step.argv]
        lines = configure(tree, argv, env, log, prepared.schedule)
        (tree / "obj" / "status.json").write_text(json.dumps(lines, indent=1) + "\n")
        configured.write_text(state)
    return prepared


def make(
    run: Run, prepared: Prepared, targets: Sequence[str], *, listen: Callable[[str], None] | None = None
) -> list[Cost]:
    """Run ninja for `targets` (extensions, or objects of one) and return what each command cost.

    With `listen`, ninja goes on after a failure as far as it can, and `listen` gets every line that it prints.
    """
    log = run.work.log("compile")
    run.progress.say(f"  compiling with {run.plan.jobs} jobs, log: {log}")
    tools = prepared.tree / "tools" / "bin"
    named = {object_name(target) for target in targets if target.endswith(".o")}
    schedule = prepared.schedule
    if named:
        seconds = {name: cost for name, cost in schedule.seconds.items() if name in named}
        schedule = replace(schedule, seconds=seconds)
    argv = [str(tools / "ninja"), "-j", str(run.plan.jobs), *(["-k", "0"] if listen else []), *targets]
    with caching.caching(run, tools, dict(prepared.env), prepared.tree / "obj" / caching.RECORD) as env:
        return build(
            prepared.tree, argv, env, log, schedule=schedule, progress=run.progress, listen=listen
        )  # fmt: skip


def libraries(run: Run, into: Path) -> None:
    targets = [*run.plan.step("libraries").inputs["targets"]]
    prepared = prepare(run)
    made = make(run, prepared, targets)
    for name in targets:
        shutil.copy2(next((prepared.tree / "obj").rglob(f"{name}.abi3.so")), into / f"{name}.abi3.so")
    require_loading(
        run,
        [into / f"{name}.abi3.so" for name in targets],
        [prepared.tree / "torch" / "torch" / "lib", prepared.tree / "cuda" / "lib"],
    )
    status = json.loads((prepared.tree / "obj" / "status.json").read_text())
    trace = {
        "requested": run.plan.arch_list,
        "configured": [line for line in status if "architectures" in line],
        "units": {
            unit.name: list(unit.gencodes)
            for unit in planned_units(prepared.tree)
            if unit.name.split("/")[0] in targets
        },
    }
    (into / "trace.json").write_text(json.dumps(trace, indent=1) + "\n")
    (into / "costs.json").write_text(json.dumps([asdict(cost) for cost in made], indent=1) + "\n")
    caching.keep_record(prepared.tree / "obj", into)


def require_loading(
    run: Run, libraries: Sequence[Path], search: Sequence[Path], preloaded: Sequence[Path] = ()
) -> None:
    """The target's dynamic loader must find every symbol of every library, in `search` or in what is `preloaded`."""
    host, target = run.plan.host.cpu, run.plan.target_cpu
    faults = unresolved(
        libraries, search=search, preloaded=preloaded, cpu=target, compiler=COMPILERS[host, target],
        emulator=None if host == target else loader_emulator(target),
        uncalled=lambda symbol: policy().libraries.never_called(symbol) is not None,
    )  # fmt: skip
    if faults:
        raise CompileError(faults, do="the build is incomplete; look for skipped kernels in the configure log.")
    run.progress.say(
        f"  the dynamic loader for {target} resolves {plural(len(libraries), 'library', 'libraries')}"
    )


def _write_helpers(tree: Path) -> None:
    """What the build reads of ours, and of this machine's Python."""
    compile_files = resources.files("sm121.compile")
    for name in ("hook.cmake", "launcher.py"):
        (tree / name).write_text(compile_files.joinpath(name).read_text(encoding="utf-8"))
    shutil.rmtree(tree / "answers", ignore_errors=True)
    write_answers(tree / "torch" / "torch", tree / "answers")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise CompileError(
            f"{headers / 'Python.h'} does not exist.", do="install the headers of this Python (python3-dev)."
        )
    (tree / "python").unlink(missing_ok=True)
    (tree / "python").symlink_to(headers)


def launcher(run: Run, tree: Path, interpreter: str) -> list[str]:
    """What stands in front of every compile command: the one that measures, and the compiler cache."""
    measured = [interpreter, "-I", "-S", str(tree / "launcher.py")]
    program = caching.cache_of(run).program
    return [*measured, str(tree / "tools" / "bin" / program)] if program else measured


def cache_environment(run: Run) -> dict[str, str]:
    """The variables of the compiler cache."""
    return caching.environment(run)


def _schedule(run: Run) -> Schedule:
    measured = costs(run.plan.version)
    return Schedule(
        jobs=run.plan.jobs, heavy_jobs=run.plan.heavy_jobs, seconds=measured.seconds,
        heavy=frozenset(name for name, peak in measured.peak.items() if peak > HEAVY),
    )  # fmt: skip


def python() -> str:
    """The interpreter behind a virtual environment: CMake wants the one that has the headers."""
    return str(Path(sys.executable).resolve())
