"""FlashInfer's modules from the pinned wheels: upstream's own list, and a module compiled for GB10. Minutes."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121 import pins
from sm121.compile.flashinfer.configure import generate
from sm121.device import read_device_code
from sm121.plan.flashinfer import plan_flashinfer
from sm121.plan.flashinfer_modules import all_modules
from sm121.plan.model import Plan, Request
from sm121.preflight import lacks, read_host
from sm121.progress import Progress
from sm121.steps import Build, Context
from sm121.steps import modules as steps
from sm121.steps.run import Run
from sm121.values import ArchSpec
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from sm121.pack.publish import Published

pytestmark = [pytest.mark.real, pytest.mark.network]

ROOT = Path(__file__).resolve().parents[2]
PINS = pins.load(ROOT / "pins")
GB10 = ArchSpec.parse("12.1a")


def plan_for(*modules: str, vllm: str | None = None) -> Plan:
    host = read_host("aarch64")
    if missing := lacks(host, "aarch64"):
        pytest.skip(f"this machine lacks {', '.join(lack.what for lack in missing)}")
    return plan_flashinfer(Request(line="cu130", vllm=vllm, modules=modules), PINS, host)


def context_in(folder: Path) -> Context:
    """A scratch folder of its own; downloads are kept between runs."""
    files = ROOT / "work" / "files"
    files.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    (folder / "files").symlink_to(files)
    return Context(
        work=Workspace(folder), dist=folder / "dist", progress=Progress(Console(stderr=True)),
        patches=ROOT / "patches",
    )  # fmt: skip


def published(plan: Plan, context: Context) -> list[Published]:
    results = Build(plan, context).run()
    assert isinstance(results, list)
    return results


@pytest.mark.parametrize("vllm", ["0.33.0", "0.26.0"])
def test_the_list_of_modules_is_what_upstreams_scripts_write_down(tmp_path: Path, vllm: str) -> None:
    """Every module with every source, by flashinfer/aot.py of the pinned wheel."""
    plan, context = plan_for("page", vllm=vllm), context_in(tmp_path / "work")
    Build(plan, context).run(until="tvm-ffi")
    run = Run(plan, context)
    tree = tmp_path / "tree"
    for name, step, folder in (
        ("source", "source", "tree"),
        ("tools", "tools", "."),
        ("tvm-ffi", "tvm-ffi", "wheel"),
    ):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).symlink_to(run.result(step) / folder)
    steps.write_scripts(tree)
    (tree / "obj").mkdir()
    known = list(all_modules(plan.version, GB10))
    wanted = steps.modules_of(run, tree)
    everything = replace(
        wanted,
        sources={module.name: list(module.sources) for module in known},
        extra=tuple(sorted({module.extra for module in known if module.extra})),
    )
    generate(tree, everything, sys.executable, tmp_path / "log")
    written = {row["name"] for row in json.loads((tree / "obj" / "modules.json").read_text())["modules"]}
    assert written == {module.name for module in known}


@pytest.mark.long
def test_a_module_becomes_wheels_with_the_same_bytes_in_any_folder(tmp_path: Path) -> None:
    """Hermetic toolkit, cross to aarch64, the target's loader, inspection; compiled once and taken from the cache once."""
    plan = plan_for("page")
    one = context_in(tmp_path / "one")
    made, finder = published(plan, one)
    other = context_in(tmp_path / "another folder")
    shutil.copytree(one.work.cache, other.work.cache)
    again, _ = published(plan, other)
    assert again.sha256 == made.sha256
    assert finder.wheel.name == "flashinfer_jit_cache-0.7.2.post1+cu130.sm121.partial-py3-none-any.whl"
    with zipfile.ZipFile(made.wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("page.so")]
        code = read_device_code(archive.read(member))
    assert code.machine == "aarch64"
    images = [image.target for container in code.containers for image in container.images]
    assert images == ["sm_121a", "sm_121a"]
    manifest = json.loads(made.manifest.read_text())
    assert {output["name"] for output in manifest["outputs"]} == {made.wheel.name, finder.wheel.name}
    assert manifest["inspection"]["verdict"] in {"pass", "info", "warn"}
