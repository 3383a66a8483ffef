"""Real compilers on real sources, through the same plan and steps as a user's build. Minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121 import pins
from sm121.device import payload, read_cubin, read_device_code
from sm121.errors import PackError
from sm121.plan.model import Plan, Request
from sm121.plan.vllm import plan_vllm
from sm121.preflight import lacks, read_host
from sm121.progress import Progress
from sm121.sources.patches import planned_patches
from sm121.steps import Build, Context
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from sm121.pack.publish import Published

pytestmark = [pytest.mark.real, pytest.mark.network]

ROOT = Path(__file__).resolve().parents[2]
ARCH = "0001-Support-12.1-as-a-CUDA-architecture-from-CUDA-13-on"
POSITIONS = "CMakeFiles/_C_stable_libtorch.dir/csrc/pos_encoding_kernels.cu.o"
NVFP4 = "CMakeFiles/_C_stable_libtorch.dir/csrc/quantization/fp4/nvfp4_scaled_mm_sm120_kernels.cu.o"
HOST_CODE = ("cumem_allocator", "spinloop", "fs_io_C")


@pytest.fixture(scope="session")
def files() -> Path:
    """Downloads are kept between runs."""
    return ROOT / "work" / "files"


def plan_for(*extensions: str) -> Plan:
    host = read_host("aarch64")
    if missing := lacks(host, "aarch64"):
        pytest.skip(f"this machine lacks {', '.join(lack.what for lack in missing)}")
    loaded = pins.load(ROOT / "pins")
    version = loaded.vllm().version
    patches = planned_patches(ROOT / "patches", "vllm", version)
    return plan_vllm(Request(line="cu130", extensions=extensions, finish=False), loaded, host, patches)


def build_in(folder: Path, plan: Plan, files: Path) -> Build:
    files.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    (folder / "files").symlink_to(files)
    progress = Progress(Console(stderr=True))
    return Build(
        plan, Context(work=Workspace(folder), dist=folder / "dist", progress=progress, patches=ROOT / "patches")
    )


def test_a_genuine_nvfp4_source_becomes_code_for_gb10(tmp_path: Path, files: Path) -> None:
    """Hermetic toolkit, cross to aarch64, and the FP4 instructions are there."""
    build = build_in(tmp_path / "work", plan_for(), files)
    build.run(until="tools")
    prepared = build.prepare()
    costs = build.make(prepared, [NVFP4])
    assert [cost.name.rsplit("/", 1)[1] for cost in costs] == ["nvfp4_scaled_mm_sm120_kernels.cu"]
    data = (prepared.tree / "obj" / NVFP4).read_bytes()
    code = read_device_code(data)
    assert code.machine == "aarch64"
    assert not code.damage
    images = [image for container in code.containers for image in container.images]
    assert [image.target for image in images] == ["sm_120f"]
    cubin = read_cubin(payload(data, images[0]))
    gemms = [kernel for kernel in cubin.kernels if "float_e2m1" in kernel.name]
    assert len(gemms) == 4
    assert all(kernel.code is not None and kernel.code.fp4 > 0 for kernel in gemms)
    assert cubin.toolkit is not None
    assert "13.0" in cubin.toolkit.version


@pytest.mark.long
def test_the_optional_patch_gives_code_of_12_1_itself(tmp_path: Path, files: Path) -> None:
    """The list is 12.1a; without the patch the same unit is sm_120 (`test_our_patches.py` asks upstream's CMake)."""
    loaded, host = pins.load(ROOT / "pins"), read_host("aarch64")
    applied = planned_patches(ROOT / "patches", "vllm", loaded.vllm().version, [ARCH])
    request = Request(line="cu130", arch_list="12.1a", patches=(ARCH,), finish=False)
    build = build_in(tmp_path / "work", plan_vllm(request, loaded, host, applied), files)
    build.run(until="tools")
    prepared = build.prepare()
    build.make(prepared, [POSITIONS])
    code = read_device_code((prepared.tree / "obj" / POSITIONS).read_bytes())
    assert [image.target for image in code.images] == ["sm_121a"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, files: Path) -> list[Published]:
    """Two wheels of one plan, made in two folders, one with blanks in its path."""
    plan = plan_for(*HOST_CODE)
    made = []
    for name in ("one", "another folder"):
        results = build_in(tmp_path_factory.mktemp("real") / name, plan, files).run()
        assert isinstance(results, list)
        made += results
    return made


def test_same_inputs_same_bytes(published: list[Published]) -> None:
    one, other = published
    assert one.sha256 == other.sha256
    assert one.wheel.name == other.wheel.name
    assert one.exact.read_bytes() == other.wheel.read_bytes()


def test_the_wheel_and_its_record_agree(published: list[Published]) -> None:
    wheel = published[0].wheel
    manifest = json.loads(published[0].manifest.read_text())
    assert manifest["outputs"] == [
        {"name": wheel.name, "sha256": published[0].sha256.hex, "size": wheel.stat().st_size}
    ]
    assert manifest["inspection"]["verdict"] in {"pass", "info", "warn"}
    origins = {each["path"].rsplit("/", 1)[1].split(".")[0]: each["origin"] for each in manifest["libraries"]}
    assert {name: origins[name] for name in HOST_CODE} == dict.fromkeys(HOST_CODE, "source")
    assert origins["_vllm_fa3_C"] == "left-out"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (patched,) = (name for name in names if name.endswith("fused_moe/oracle/nvfp4.py"))
        assert b"B12X" in archive.read(patched)
    assert not any("_vllm_fa3_C" in name for name in names)


def test_pip_takes_the_wheel(published: list[Published], tmp_path: Path) -> None:
    target = tmp_path / "site"
    platform = published[0].wheel.stem.rsplit("-", 1)[1]  # pip takes this option to the letter
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(target),
         "--platform", platform, "--implementation", "cp", "--python-version", "3.12",
         "--only-binary=:all:", str(published[0].wheel)],
        check=True, env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    (info,) = target.glob("vllm-*.dist-info")
    assert "Version: 0.33.0+cu130.sm121.partial" in (info / "METADATA").read_text()
    assert (target / "vllm" / "spinloop.abi3.so").exists()


def test_a_wheel_of_another_plan_is_not_replaced_silently(published: list[Published], files: Path) -> None:
    folder = published[0].wheel.parent.parent
    other = plan_for("spinloop")
    context = Context(
        work=Workspace(folder), dist=folder / "dist", progress=Progress(quiet=True), patches=ROOT / "patches"
    )
    with pytest.raises(PackError, match="made by another plan"):
        Build(other, context).run()


def test_nothing_is_done_twice(
    published: list[Published], files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = published[0].wheel.parent.parent
    plan = plan_for(*HOST_CODE)
    progress = Progress(Console(stderr=True, force_terminal=False))
    again = Build(
        plan, Context(work=Workspace(folder), dist=folder / "dist", progress=progress, patches=ROOT / "patches")
    )
    assert again.run() == [published[0]]
    said = capfd.readouterr().err
    assert "fetch" not in said
    assert said.count("already done") == len(plan.steps)
