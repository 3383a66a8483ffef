"""The newest line, compiled for real in part: nvcc 13.5, torch and runtime of 13.0. Minutes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from oci_layouts import layout, tree_layer
from pinned_wheels import PINS, ROOT, STORE, fetched
from sm121.artifact import open_artifact
from sm121.device import payload, read_cubin, read_device_code, read_host
from sm121.findings import Verdict, overall
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.inspector.judge.runtime import judge_runtime
from sm121.inspector.judge.symbols import Needs
from sm121.inspector.policy import policy
from sm121.inspector.runtimes import read_runtime
from sm121.plan.model import Request
from sm121.plan.steps import COMPILERS
from sm121.plan.vllm import plan_vllm
from sm121.preflight import lacks
from sm121.preflight import read_host as read_machine
from sm121.progress import Progress
from sm121.sources.patches import planned_patches
from sm121.steps import Build, Context
from sm121.toolchain.check import check
from sm121.toolchain.from_image import ImageToolkit
from sm121.toolchain.layout import fix_up
from sm121.values import ArchSpec, CudaVersion
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.pack.publish import Published
    from sm121.plan.model import Plan

pytestmark = [pytest.mark.real, pytest.mark.network]

NEWEST = "cu135"
FOLDER = "CMakeFiles/_C_stable_libtorch.dir/csrc"
OBJECTS = [f"{FOLDER}/quantization/fp4/nvfp4_quant_kernels.cu.o", f"{FOLDER}/cuda_utils_kernels.cu.o"]
"""Two of the cheapest: six seconds and two. The first has FP4 conversions, the second asks the runtime for most."""
HOST_CODE = ("cumem_allocator", "spinloop", "fs_io_C")


def plan_for(*extensions: str) -> Plan:
    host = read_machine("aarch64")
    if missing := lacks(host, "aarch64"):
        pytest.skip(f"this machine lacks {', '.join(lack.what for lack in missing)}")
    patches = planned_patches(ROOT / "patches", "vllm", PINS.vllm().version)
    return plan_vllm(Request(line=NEWEST, extensions=extensions, finish=False), PINS, host, patches)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One scratch folder for both tests: toolkit, torch and tools are laid out once."""
    folder = tmp_path_factory.mktemp("real") / "work"
    folder.mkdir()
    STORE.mkdir(parents=True, exist_ok=True)
    (folder / "files").symlink_to(STORE)
    return folder


def build_in(folder: Path, plan: Plan) -> Build:
    context = Context(
        work=Workspace(folder),
        dist=folder / "dist",
        progress=Progress(Console(stderr=True)),
        patches=ROOT / "patches",
    )
    return Build(plan, context)


def test_the_line_is_the_newest_that_is_pinned() -> None:
    line = PINS.line(NEWEST)
    assert line.compiler == max(kit.cuda for kit in PINS.toolkits)
    assert line.compiler > line.cuda


def test_genuine_sources_become_code_for_gb10_and_ask_the_older_runtime_for_nothing_new(work: Path) -> None:
    plan = plan_for()
    build = build_in(work, plan)
    build.run(until="tools")
    prepared = build.prepare()
    build.make(prepared, OBJECTS)
    (pin,) = (download.pin for download in plan.downloads if download.role == "runtime")
    runtime = read_runtime(str(fetched(pin)[pin.filename]))
    assert pin.version == "13.0.96"
    asked: set[str] = set()
    for name in OBJECTS:
        data = (prepared.tree / "obj" / name).read_bytes()
        code = read_device_code(data)
        assert (code.machine, code.damage) == ("aarch64", ())
        (image,) = code.images
        assert image.target == "sm_120f"
        cubin = read_cubin(payload(data, image))
        assert cubin.kernels or name == OBJECTS[1]
        if cubin.toolkit:
            assert cubin.toolkit.version.startswith("13.5")
        asked |= {symbol for symbol in read_host(data).undefined if symbol.lstrip("_").startswith("cuda")}
    assert asked
    needs = Needs("objects", frozenset(asked), ("libcudart.so.13",))
    assert overall(judge_runtime(needs, policy().runtimes, None, runtime)) is Verdict.PASS


@pytest.mark.long
def test_the_same_toolkit_out_of_an_image_compiles(work: Path, tmp_path: Path) -> None:
    """As in the vendor's images, with links left out: what `--cuda-image` takes makes code for GB10."""
    plan = plan_for()
    build_in(work, plan).run(until="toolkit")
    (made,) = (work / "steps" / "toolkit").glob("*/cuda")
    host = plan.host.cpu
    folders = {"aarch64": "sbsa-linux", "x86_64": "x86_64-linux"}
    names = {"bin/cudafe++.real": "bin/cudafe++"}
    layers = {}
    for cpu, architecture in (("x86_64", "amd64"), ("aarch64", "arm64")):
        target = f"targets/{folders[cpu]}"
        files = {
            path.relative_to(made).as_posix(): path
            for path in sorted(made.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.relative_to(made).parts[0] != "lib64"
        }
        places = {
            names.get(name, name) if name.startswith(("bin/", "nvvm/")) else f"{target}/{name}": path
            for name, path in files.items()
            if name != "bin/cudafe++" and (cpu == host or name.startswith("lib/"))
        }
        layers[architecture] = tree_layer(
            {f"usr/local/cuda-{plan.compiler}/{place}": path for place, path in places.items()},
            tmp_path / architecture,
        )
    root = tmp_path / "cuda"
    root.mkdir()
    ImageToolkit(layout(tmp_path / "image", **layers), CudaVersion.parse(plan.compiler), host, "aarch64").lay_out(
        root
    )
    compiler = COMPILERS[host, "aarch64"]
    fix_up(root, cuda_major=13, target_compiler=compiler.replace("g++", "gcc"))
    found = check(
        root,
        wanted=CudaVersion.parse(plan.compiler),
        arch=ArchSpec(12, 0, "f"),
        host_compiler=compiler,
        machine="aarch64",
    )
    assert found.version == CudaVersion(13, 5, 37)


def test_a_partial_wheel_of_the_newest_line_is_inspected_and_published(work: Path) -> None:
    plan = plan_for(*HOST_CODE)
    result = build_in(work, plan).run()
    assert isinstance(result, list)
    published: Published = result[0]
    assert "+cu135.sm121.partial-" in published.wheel.name
    manifest = json.loads(published.manifest.read_text())
    assert manifest["inspection"]["verdict"] in {"pass", "info", "warn"}
    origins = {each["path"].rsplit("/", 1)[1].split(".")[0]: each["origin"] for each in manifest["libraries"]}
    assert {name: origins[name] for name in HOST_CODE} == dict.fromkeys(HOST_CODE, "source")
    report = json.loads(published.wheel.with_name(f"{published.wheel.name}.report.json").read_text())
    found = [finding for finding in report["findings"] if finding["check"] == "line.runtime"]
    assert found
    assert {finding["verdict"] for finding in found} == {"pass"}
    assert all("13.0.96" in finding["got"] for finding in found)


def test_the_wheel_fails_where_torch_is_of_another_major(work: Path) -> None:
    (wheel,) = (work / "dist").glob("*.whl")
    options = Options(torch="2.14.0+cu129", kernels=False)
    with open_artifact(wheel) as artifact:
        report = inspect_artifact(artifact, options)
    assert report.verdict is Verdict.FAIL
    assert any(finding.check == "line.torch" for finding in report.findings if finding.verdict is Verdict.FAIL)


def test_done_twice_the_verdict_is_told_again(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = plan_for(*HOST_CODE)
    build_in(work, plan).run()
    said = capfd.readouterr().err
    assert said.count("already done") == len(plan.steps)
    assert any(line.startswith(("PASS", "INFO", "WARN")) for line in said.splitlines())
