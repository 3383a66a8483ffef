"""A CUDA toolkit out of a container image, read layer by layer: no engine runs, nothing is installed.

The vendor's images `nvidia/cuda:X.Y.Z-devel-…` hold a whole toolkit below /usr/local/cuda-X.Y. Programs and headers come
from the image for this machine's CPU, libraries from the one for the target's: an image index has both.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sm121.artifact import Platform, open_artifact
from sm121.device import read_host
from sm121.errors import ArtifactError, DamagedError, ImageError, ToolchainError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.artifact import Member
    from sm121.values import CudaVersion

_PLATFORMS = {"aarch64": Platform("linux", "arm64"), "x86_64": Platform("linux", "amd64")}
_TARGETS = {"aarch64": "sbsa-linux", "x86_64": "x86_64-linux"}
_LINKED = re.compile(r"lib(cudart|nvrtc|nvrtc-builtins)\.so(\.[\d.]+)?")
"""The libraries that extensions are linked with; the stand-ins of `layout.py` serve for the rest."""
_PROGRAMS = ("bin", "nvvm")
_LOCAL = re.compile(r"(?:oci:|docker-archive:)?([^@]+?)(?::[\w.-]+)?")


def require_fixed(reference: str) -> None:
    """Refuse an image that may be another one tomorrow. Raises UsageError.

    An image of a registry or an engine is named by digest; a layout or archive is a path that exists.
    """
    if re.search(r"@sha256:[0-9a-f]{64}$", reference):
        return
    match = _LOCAL.fullmatch(reference)
    if not reference.startswith(("docker://", "docker-daemon:")) and match and Path(match[1]).exists():
        return
    raise UsageError(
        f"--cuda-image {reference} is neither an image by digest nor a layout or archive that exists.",
        do="name it like docker://docker.io/nvidia/cuda@sha256:…, oci:FOLDER or docker-archive:FILE.",
    )


@dataclass(frozen=True, slots=True)
class ImageToolkit:
    """Lays out the toolkit `release` that lies in the image `reference`."""

    reference: str
    release: CudaVersion
    host_cpu: str
    target_cpu: str
    kind: str = "image"

    def lay_out(self, into: Path) -> None:
        """Copy programs, headers and the target's libraries; raises ToolchainError naming all that is missing."""
        found = self._copy(self.host_cpu, into, programs=True)
        if self.target_cpu != self.host_cpu:
            found += self._copy(self.target_cpu, into, programs=False)
        _name_libraries(into)
        missing = [
            f"{self.reference} has no {needed} of CUDA {self.release.release} below /{self._home}."
            for needed in ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc", "include/cuda.h", "lib/libcudart.so")
            if not (into / needed).exists()
        ]  # fmt: skip
        if missing or not found:
            raise ToolchainError(
                missing, do=f"name an image nvidia/cuda:{self.release.release}.*-devel with --cuda-image."
            )

    @property
    def _home(self) -> str:
        return f"usr/local/cuda-{self.release.release}"

    def _copy(self, cpu: str, into: Path, *, programs: bool) -> int:
        count = 0
        try:
            with open_artifact(self.reference, platform=_PLATFORMS[cpu]) as image:
                for member, place in self._wanted(image.members(self._below), programs=programs):
                    path = into / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with member.open() as source, path.open("wb") as copy:
                        while piece := source.read(1 << 20):
                            copy.write(piece)
                    path.chmod(0o755 if member.executable else 0o644)
                    count += 1
        except (ArtifactError, ImageError) as error:
            raise ToolchainError(
                [f"--cuda-image {self.reference}: {problem}" for problem in error.problems], do=error.do
            ) from error
        return count

    def _below(self, path: str) -> bool:
        return path.startswith(f"{self._home}/") and ".." not in PurePosixPath(path).parts

    def _wanted(self, members: Iterator[Member], *, programs: bool) -> Iterator[tuple[Member, str]]:
        """What is copied, with its place in the toolkit folder."""
        target = f"targets/{_TARGETS[self.target_cpu]}"
        own = f"targets/{_TARGETS[self.host_cpu]}/include/"
        for member in members:
            place = member.path.removeprefix(f"{self._home}/")
            if programs and place.split("/")[0] in _PROGRAMS:
                yield member, place
            elif programs and place.startswith(own):
                yield member, "include/" + place.removeprefix(own)
            elif place.startswith(f"{target}/lib/") and _LINKED.fullmatch(member.name):
                yield member, f"lib/{member.name}"


def _name_libraries(root: Path) -> None:
    """Links are not copied, so every library gets its soname and its plain name."""
    for folder in (root / "lib", root / "nvvm" / "lib64"):
        for library in sorted(folder.glob("lib*.so.*")) if folder.is_dir() else ():
            names = [library.name.split(".so.")[0] + ".so"]
            with suppress(DamagedError):
                names.append(read_host(library.read_bytes()).soname)
            for name in names:
                if name and "/" not in name and not (folder / name).exists():
                    (folder / name).symlink_to(library.name)
