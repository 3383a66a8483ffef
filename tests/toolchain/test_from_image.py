"""A toolkit out of an image: what is taken, from which platform, and what is refused."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from oci_layouts import layout
from sm121.errors import ToolchainError, UsageError
from sm121.toolchain.from_image import ImageToolkit, require_fixed
from sm121.toolchain.layout import header_version
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

RELEASE = CudaVersion(12, 9)
HOME = "usr/local/cuda-12.9"


def toolkit(target: str, *, without: str = "") -> dict[str, tuple[str, int]]:
    """Path to content and mode, as the vendor's image has them, apart from links."""
    files = {
        "bin/nvcc": ("nvcc", 0o755), "bin/ptxas": ("ptxas", 0o755), "bin/cudafe++": ("cudafe", 0o755),
        "bin/nvcc.profile": ("profile", 0o644), "nvvm/bin/cicc": ("cicc", 0o755),
        "nvvm/lib64/libnvvm.so.4.0.0": ("nvvm", 0o644), "nvvm/libdevice/libdevice.10.bc": ("bc", 0o644),
        f"targets/{target}/include/cuda.h": ("#define CUDA_VERSION 12090\n", 0o644),
        f"targets/{target}/include/cccl/cub/cub.cuh": ("", 0o644),
        f"targets/{target}/lib/libcudart.so.12.9.79": (f"cudart for {target}", 0o644),
        f"targets/{target}/lib/libnvrtc.so.12.9.86": (f"nvrtc for {target}", 0o644),
        f"targets/{target}/lib/libcublas.so.12.9.1": ("half a gigabyte", 0o644),
        f"targets/{target}/lib/libcudart_static.a": ("static", 0o644),
        f"targets/{target}/lib/stubs/libcuda.so": ("stub", 0o644),
    }  # fmt: skip
    kept = {f"{HOME}/{name}": content for name, content in files.items() if not without or without not in name}
    return kept | {"etc/passwd": ("root", 0o644), "usr/local/cuda-11.8/bin/nvcc": ("old nvcc", 0o755)}


def layer(files: dict[str, tuple[str, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("usr/local/cuda")
        link.type, link.linkname = tarfile.SYMTYPE, "cuda-12.9"
        archive.addfile(link)
        for name, (text, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text.encode()), mode
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.fixture
def both(tmp_path: Path) -> str:
    return layout(tmp_path / "image", amd64=layer(toolkit("x86_64-linux")), arm64=layer(toolkit("sbsa-linux")))


def laid_out(reference: str, into: Path, host: str, target: str) -> set[str]:
    into.mkdir()
    ImageToolkit(reference, RELEASE, host, target).lay_out(into)
    return {path.relative_to(into).as_posix() for path in into.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize(
    ("host", "target", "library"),
    [
        ("x86_64", "aarch64", "sbsa-linux"),
        ("aarch64", "aarch64", "sbsa-linux"),
        ("x86_64", "x86_64", "x86_64-linux"),
    ],
)
def test_programs_of_this_machine_and_libraries_of_the_target(
    both: str, tmp_path: Path, host: str, target: str, library: str
) -> None:
    root = tmp_path / "cuda"
    assert laid_out(both, root, host, target) == {
        "bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/nvcc.profile", "nvvm/bin/cicc", "nvvm/lib64/libnvvm.so.4.0.0",
        "nvvm/lib64/libnvvm.so", "nvvm/libdevice/libdevice.10.bc", "include/cuda.h", "include/cccl/cub/cub.cuh",
        "lib/libcudart.so.12.9.79", "lib/libcudart.so", "lib/libnvrtc.so.12.9.86", "lib/libnvrtc.so",
    }  # fmt: skip
    assert (root / "lib" / "libcudart.so").read_text() == f"cudart for {library}"
    assert (root / "bin" / "nvcc").read_text() == "nvcc"
    assert (root / "bin" / "nvcc").stat().st_mode & 0o111
    assert not (root / "bin" / "nvcc.profile").stat().st_mode & 0o111
    assert header_version(root / "include") == (12, 9)


@pytest.mark.parametrize("without", ["bin/nvcc", "cicc", "cuda.h", "libcudart.so"])
def test_what_an_image_lacks_is_named(tmp_path: Path, without: str) -> None:
    reference = layout(tmp_path / "image", arm64=layer(toolkit("sbsa-linux", without=without)))
    with pytest.raises(ToolchainError) as caught:
        laid_out(reference, tmp_path / "cuda", "aarch64", "aarch64")
    assert without.rpartition("/")[2] in " ".join(caught.value.problems)
    assert "12.9" in caught.value.do


def test_an_image_of_another_release_lacks_everything(both: str, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        ImageToolkit(both, CudaVersion(13, 0), "aarch64", "aarch64").lay_out(tmp_path)
    assert len(caught.value.problems) == 6


def test_a_platform_that_the_image_lacks_is_told(tmp_path: Path) -> None:
    reference = layout(tmp_path / "image", amd64=layer(toolkit("x86_64-linux")))
    (tmp_path / "cuda").mkdir()
    with pytest.raises(ToolchainError, match="arm64"):
        ImageToolkit(reference, RELEASE, "x86_64", "aarch64").lay_out(tmp_path / "cuda")


def test_a_path_that_leaves_the_folder_is_not_followed(tmp_path: Path) -> None:
    files = toolkit("sbsa-linux") | {f"{HOME}/bin/../../../../escape": ("x", 0o644)}
    reference = layout(tmp_path / "image", arm64=layer(files))
    made = laid_out(reference, tmp_path / "cuda", "aarch64", "aarch64")
    assert "bin/nvcc" in made
    assert not list(tmp_path.rglob("escape"))


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize("reference", [f"docker://docker.io/nvidia/cuda@{DIGEST}", f"nvidia/cuda@{DIGEST}"])
def test_an_image_by_digest_is_fixed(reference: str) -> None:
    require_fixed(reference)


def test_a_layout_is_fixed_by_its_path(both: str, tmp_path: Path) -> None:
    require_fixed(both)
    require_fixed(str(tmp_path / "image"))


@pytest.mark.parametrize(
    "reference",
    ["nvidia/cuda:12.9.1-devel-ubuntu24.04", "docker://docker.io/nvidia/cuda:12.9.1-devel", "docker-daemon:cuda", "",
     "oci:/nothing/there", "nvidia/cuda@sha256:abc"],
)  # fmt: skip
def test_an_image_that_may_change_is_refused(reference: str) -> None:
    with pytest.raises(UsageError, match="--cuda-image"):
        require_fixed(reference)
