from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from sm121.errors import ToolchainError
from sm121.toolchain.check import check
from sm121.toolchain.examine import examine, installed_toolkits, nvcc_release
from sm121.toolchain.installed import InstalledToolkit
from sm121.toolchain.layout import _CUDAFE_WRAPPER, fix_up, header_version
from sm121.toolchain.wheels import Part, Role, WheelToolkit
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

COMPILER = {
    "nvidia/cu13/bin/nvcc": "nvcc", "nvidia/cu13/bin/ptxas": "ptxas", "nvidia/cu13/bin/cudafe++": "cudafe",
    "nvidia/cu13/nvvm/bin/cicc": "cicc", "nvidia/cu13/include/crt/host_config.h": "",
    "nvidia/cu13/include/cccl/cub/cub.cuh": "", "nvidia/cu13/lib/libnvvm.so.4": "for this machine",
    "x.dist-info/METADATA": "Name: x",
}  # fmt: skip
TARGET = {"nvidia/cu13/include/cuda.h": "#define CUDA_VERSION 13000\n", "nvidia/cu13/lib/libcudart.so.13": "lib"}
HEADERS = {"nvidia/cu13/include/cublas_v2.h": "", "nvidia/cu13/lib/libcublas.so.13": "large"}


def wheel(tmp_path: Path, name: str, files: dict[str, str]) -> Path:
    path = tmp_path / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


def parts(tmp_path: Path, **more: dict[str, str]) -> list[Part]:
    return [
        Part(wheel(tmp_path, "compiler", COMPILER), Role.COMPILER),
        Part(wheel(tmp_path, "target", TARGET), Role.TARGET),
        Part(wheel(tmp_path, "headers", HEADERS), Role.HEADERS),
        *(Part(wheel(tmp_path, name, files), Role.COMPILER) for name, files in more.items()),
    ]


def test_each_part_gives_what_its_role_says(tmp_path: Path) -> None:
    root = tmp_path / "cuda"
    root.mkdir()
    WheelToolkit(parts(tmp_path)).lay_out(root)
    assert sorted(path.name for path in (root / "lib").iterdir()) == ["libcudart.so.13"]
    assert (root / "include" / "cublas_v2.h").exists()
    assert not (root / "x.dist-info").exists()
    assert header_version(root / "include") == (13, 0)


def test_parts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "cuda"
    root.mkdir()
    other = {"nvidia/cu13/bin/nvcc": "another nvcc"}
    with pytest.raises(ToolchainError, match="another bin/nvcc"):
        WheelToolkit(parts(tmp_path, other=other)).lay_out(root)


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    root = tmp_path / "cuda"
    root.mkdir()
    with pytest.raises(ToolchainError) as caught:
        WheelToolkit([Part(wheel(tmp_path, "target", TARGET), Role.TARGET)]).lay_out(root)
    assert {"bin/nvcc", "nvvm/bin/cicc", "include/cublas_v2.h"} <= {
        p.split()[-1].rstrip(".") for p in caught.value.problems
    }


def home(tmp_path: Path, *targets: str) -> Path:
    root = tmp_path / "cuda-12.9"
    for name in ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/nvcc.profile", "nvvm/bin/cicc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for target in targets:
        (root / "targets" / target / "include").mkdir(parents=True)
        (root / "targets" / target / "lib").mkdir()
        (root / "targets" / target / "include" / "cuda.h").write_text("#define CUDA_VERSION 12090\n")
        (root / "targets" / target / "lib" / "libcudart.so").write_text(target)
    return root


def test_an_installed_toolkit_is_seen_and_not_touched(tmp_path: Path) -> None:
    root = home(tmp_path, "x86_64-linux", "sbsa-linux")
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    view = tmp_path / "view"
    view.mkdir()
    InstalledToolkit(root, "aarch64").lay_out(view)
    assert (view / "lib" / "libcudart.so").read_text() == "sbsa-linux"
    assert not (view / "bin" / "nvcc").is_symlink()
    assert (view / "bin" / "ptxas").is_symlink()
    (view / "bin" / "cudafe++").write_text("wrapped")
    assert before == sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))


def test_a_toolkit_without_the_target_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="x86_64-linux") as caught:
        InstalledToolkit(home(tmp_path, "x86_64-linux"), "aarch64").lay_out(tmp_path / "view")
    assert "cuda-cross-sbsa" in caught.value.do


def test_an_incomplete_toolkit_is_refused_with_every_gap(tmp_path: Path) -> None:
    root = home(tmp_path, "x86_64-linux")
    shutil.rmtree(root / "nvvm")
    (root / "bin" / "ptxas").unlink()
    with pytest.raises(ToolchainError) as caught:
        InstalledToolkit(root, "x86_64").lay_out(tmp_path / "view")
    assert len(caught.value.problems) == 2


def telling(root: Path, release: str, headers: str = "12090") -> Path:
    """Let the toolkit's nvcc tell a release."""
    (root / "bin" / "nvcc").write_text(
        f"#!/bin/sh\necho 'Cuda compilation tools, release {release[:4]}, V{release}'\n"
    )
    (root / "bin" / "nvcc").chmod(0o755)
    for header in root.glob("targets/*/include/cuda.h"):
        header.write_text(f"#define CUDA_VERSION {headers}\n")
    return root


@pytest.mark.programs
def test_an_installed_toolkit_is_asked_before_anything_is_fetched(tmp_path: Path) -> None:
    root = telling(home(tmp_path, "sbsa-linux"), "12.9.86")
    assert examine(root, CudaVersion(12, 9), "aarch64") == CudaVersion(12, 9, 86)
    assert nvcc_release(root / "bin" / "ptxas") is None
    with pytest.raises(ToolchainError) as caught:
        examine(root, CudaVersion(13, 0), "aarch64", advice="install it.")
    assert len(caught.value.problems) == 2
    assert "12.9.86" in caught.value.problems[0]
    assert "12.9" in caught.value.problems[1]
    assert caught.value.do == "install it."


@pytest.mark.programs
def test_every_fault_of_an_installed_toolkit_comes_at_once(tmp_path: Path) -> None:
    root = telling(home(tmp_path, "x86_64-linux"), "12.8.93", "12080")
    (root / "bin" / "ptxas").unlink()
    with pytest.raises(ToolchainError) as caught:
        examine(root, CudaVersion(12, 9), "aarch64")
    for word in ("bin/ptxas", "x86_64-linux", "12.8.93"):
        assert word in str(caught.value)
    assert "--cuda-home" in caught.value.do


@pytest.mark.programs
@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho release 12.9\n", "no program", "#!/nothing\n"]
)
def test_an_nvcc_that_tells_nothing_is_refused(tmp_path: Path, script: str) -> None:
    root = telling(home(tmp_path, "sbsa-linux"), "12.9.86")
    (root / "bin" / "nvcc").write_text(script)
    with pytest.raises(ToolchainError, match="does not tell its version"):
        examine(root, CudaVersion(12, 9), "aarch64")


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_a_home_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolchainError, match="is no folder"):
        examine(tmp_path / name, CudaVersion(12, 9), "aarch64")


@pytest.mark.programs
def test_toolkits_are_found_where_they_are_installed_and_each_once(tmp_path: Path) -> None:
    root = telling(home(tmp_path, "sbsa-linux"), "12.9.86")
    (tmp_path / "cuda").symlink_to(root.name)
    (tmp_path / "cuda-empty").mkdir()
    broken = tmp_path / "cuda-13.0"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "nvcc").write_text("")
    found = installed_toolkits([tmp_path, tmp_path / "nothing"])
    assert {each.home.name: each.nvcc for each in found} == {
        "cuda-12.9": CudaVersion(12, 9, 86),
        "cuda-13.0": None,
    }
    assert sorted(map(str, found)) == sorted([f"{root} (12.9.86)", f"{broken} (of unknown release)"])


@pytest.mark.programs
def test_a_toolkit_of_another_release_is_refused(tmp_path: Path) -> None:
    """The nvcc that would run is asked, whatever its folder is called."""
    root = tmp_path / "cuda-13.0"
    (root / "bin").mkdir(parents=True)
    (root / "include").mkdir()
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.5, V11.5.119'\n")
    nvcc.chmod(0o755)
    (root / "include" / "cuda.h").write_text("#define CUDA_VERSION 11050\n")
    with pytest.raises(ToolchainError) as caught:
        check(root, wanted=CudaVersion(13, 0), arch=ArchSpec(12, 0, "f"), host_compiler="gcc", machine="x86_64")
    assert "11.5" in str(caught.value)
    assert "13.0" in str(caught.value)
    assert len(caught.value.problems) == 2


@pytest.mark.programs
def test_fix_ups_complete_a_toolkit(tmp_path: Path) -> None:
    root = tmp_path / "cuda"
    for folder in ("bin", "nvvm/bin", "include", "lib"):
        (root / folder).mkdir(parents=True)
    (root / "bin" / "cudafe++").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (root / "lib" / "libcudart.so.13").write_text("")
    declared = "".join(f"CUresult cuFunction{n}(int);\n" for n in range(150))
    (root / "include" / "cuda.h").write_text(
        f"typedef int CUresult;\n#define cuFunction0 cuFunction0_v2\n{declared}"
    )
    fix_up(root, cuda_major=13, target_compiler="gcc")
    fix_up(root, cuda_major=13, target_compiler="gcc")  # a second time changes nothing
    assert (root / "lib64").resolve() == root / "lib"
    assert (root / "lib" / "libcudart.so").resolve().name == "libcudart.so.13"
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", root / "lib" / "stubs" / "libcuda.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cuFunction0_v2" in symbols
    assert "cuFunction149" in symbols


@pytest.mark.programs
def test_the_wrapper_hides_the_folder_and_nothing_else(tmp_path: Path) -> None:
    """Names of internal symbols are made from this path; it must not depend on where the build runs."""
    tools = tmp_path / "tools with spaces"
    tools.mkdir()
    (tools / "cudafe++").write_text(_CUDAFE_WRAPPER)
    (tools / "cudafe++.real").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)

    def told(folder: Path) -> list[str]:
        (folder / "obj").mkdir(parents=True)
        done = subprocess.run(
            [tools / "cudafe++", "--orig_src_path_name", folder / "source" / "a b.cu", "-D", str(folder), ""],
            cwd=folder / "obj", capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        return done.stdout.split("\n")[:-1]

    for folder in (tmp_path / "one", tmp_path / "two $x"):
        assert told(folder) == ["--orig_src_path_name", "/sm121/source/a b.cu", "-D", str(folder), ""]
