"""Steps that lay out what a build reads: sources, toolkit, torch, CUTLASS, tools."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.pins import Role
from sm121.plan.steps import COMPILERS
from sm121.plan.vllm_steps import CUTLASS_FOLDER
from sm121.sources.external import External, clone
from sm121.sources.patches import apply
from sm121.sources.series import load_patches
from sm121.sources.unpack import unpack
from sm121.toolchain.check import check
from sm121.toolchain.from_image import ImageToolkit
from sm121.toolchain.installed import InstalledToolkit
from sm121.toolchain.layout import fix_up
from sm121.toolchain.wheels import Part, WheelToolkit
from sm121.toolchain.wheels import Role as PartRole
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm121.steps.run import Run
    from sm121.toolchain import Provider


def source(run: Run, into: Path) -> None:
    sources = run.file_pin("sources")
    # A source distribution has one folder of its name; a wheel has none.
    unpack(run.file("sources"), into / "tree", strip=0 if sources.filename.endswith(".whl") else 1)
    ledger = apply(
        load_patches(run.context.patches, run.plan.project, run.plan.version, run.plan.patches),
        into / "tree",
    )
    (into / "patches.json").write_text(json.dumps(ledger.data, indent=1) + "\n")


def toolkit(run: Run, into: Path) -> None:
    root = into / "cuda"
    root.mkdir()
    release = CudaVersion.parse(run.plan.compiler)
    provider: Provider
    image = next((each.path for each in run.plan.brought if each.option == "--cuda-image"), "")
    if image:
        provider = ImageToolkit(image, release, run.plan.host.cpu, run.plan.target_cpu)
    elif run.context.cuda_home:
        provider = InstalledToolkit(run.context.cuda_home, run.plan.target_cpu)
    else:
        provider = WheelToolkit(_toolkit_parts(run))
    provider.lay_out(root)
    compiler = COMPILERS[run.plan.host.cpu, run.plan.target_cpu]
    fix_up(
        root, cuda_major=release.major, target_compiler=compiler.replace("g++", "gcc"),
        called=run.plan.step("toolkit").inputs.get("called", ()),
    )  # fmt: skip
    arch = next(archs[0] for name, archs in run.plan.archs.items() if name != "generic" and archs)
    toolkit = check(
        root, wanted=release, arch=ArchSpec.parse(arch), host_compiler=compiler, machine=run.plan.target_cpu
    )
    found = {
        "nvcc": str(toolkit.version),
        "kind": provider.kind,
        "host compiler": toolkit.host_compiler_version,
    }
    (into / "toolkit.json").write_text(json.dumps(found, indent=1) + "\n")


def _toolkit_parts(run: Run) -> list[Part]:
    parts = []
    for download in run.plan.downloads:
        roles = download.pin.roles
        if download.role.startswith("toolkit"):
            role = (
                PartRole.TARGET if Role.TARGET in roles
                else PartRole.COMPILER if Role.HOST in roles
                else PartRole.HEADERS
            )  # fmt: skip
            parts.append(Part(run.files[download.pin.filename], role))
    return parts


def torch(run: Run, into: Path) -> None:
    home = run.plan.torch_home
    if home:
        (into / "wheel").mkdir()
        shutil.copytree(
            home.path, into / "wheel" / "torch", symlinks=True, ignore=_only_torch(Path(home.path)),
            copy_function=_link,
        )  # fmt: skip
    else:
        unpack(run.file("torch"), into / "wheel", members=_torch_member)


def cutlass(run: Run, into: Path) -> None:
    if run.plan.cutlass_home:
        for name in ("include", "tools/util/include"):
            shutil.copytree(Path(run.plan.cutlass_home.path) / name, into / "headers" / name)
        return
    folder = f"{CUTLASS_FOLDER}/"
    unpack(
        run.file("official wheel"), into / "headers",
        members=lambda name: name.startswith(folder) and name.endswith((".h", ".hpp", ".cuh", ".inl")),
        strip=folder.count("/"),
    )  # fmt: skip


def trees(run: Run, into: Path) -> None:
    """Source trees from git hosts, each at upstream's ref."""
    for tree in run.plan.trees:
        commit = clone(External(tree.name, tree.repository, tree.ref), into / tree.name)
        run.progress.say(f"  {tree.name} at {commit}")


def tools(run: Run, into: Path) -> None:
    programs = into / "bin"
    programs.mkdir()
    for download in run.plan.downloads:
        if download.role != "tool":
            continue
        wheel = run.files[download.pin.filename]
        folder = into / download.pin.name
        unpack(wheel, folder, executable=lambda name: "/bin/" in name or "/scripts/" in name)
        for program in folder.glob("*.data/scripts/*"):
            os.link(program, programs / program.name)
    if (into / "cmake").exists():
        shutil.move(into / "cmake" / "cmake", into / "cmake.parts")
        shutil.rmtree(into / "cmake")
        (into / "cmake.parts").rename(into / "cmake")
    python = into / "python"
    python.mkdir()
    for name in ("jinja2", "markupsafe", "packaging"):
        if (into / name).exists():
            shutil.move(into / name / name, python / name)
            shutil.rmtree(into / name)


def tvm_ffi(run: Run, into: Path) -> None:
    """Headers that FlashInfer's modules are compiled with, and the target's library that they call."""
    unpack(
        run.file("tvm-ffi"), into / "wheel",
        members=lambda name: name.startswith("tvm_ffi/include/") or name == "tvm_ffi/lib/libtvm_ffi.so",
    )  # fmt: skip


def _torch_member(name: str) -> bool:
    """What compiling and linking read: headers, CMake files and the libraries they name, two scripts."""
    return name.startswith(("torch/include/", "torch/share/cmake/", "torch/lib/")) or name in {
        "torch/version.py", "torch/utils/cpp_extension.py",
    }  # fmt: skip


def _only_torch(home: Path) -> Callable[[str, list[str]], set[str]]:
    """For a copy of the installed torch at `home`: what `_torch_member` would not take."""
    kept = {home: {"include", "share", "lib", "utils", "version.py"}, home / "utils": {"cpp_extension.py"}}

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {*names} - kept.get(Path(folder), {*names})

    return ignored


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)
