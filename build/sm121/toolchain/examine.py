"""Installed toolkits, before anything is fetched: where they are, of which release, and what one lacks for a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import ProgramError, ToolchainError
from sm121.toolchain.installed import InstalledToolkit
from sm121.toolchain.layout import header_version
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACES = (Path("/usr/local"), Path("/opt"), Path("/opt/nvidia"))
"""Where toolkits are installed, as `cuda` or `cuda-12.9`."""
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class InstalledAt:
    """A toolkit's folder, and the release that its nvcc tells; None if it does not tell."""

    home: Path
    nvcc: CudaVersion | None

    def __str__(self) -> str:
        return f"{self.home} ({self.nvcc or 'of unknown release'})"


def nvcc_release(nvcc: Path) -> CudaVersion | None:
    """What an nvcc says of itself, None if it says nothing that can be read."""
    try:
        said = process.run([nvcc, "--version"], timeout=_SECONDS, check=False).stdout
    except (ProgramError, OSError):
        return None
    match = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return CudaVersion.parse(match[1]) if match else None


def installed_toolkits(places: Iterable[Path] = PLACES) -> list[InstalledAt]:
    """The toolkits in the usual places, each once."""
    homes: dict[Path, Path] = {}
    for place in places:
        for home in sorted(place.glob("cuda*"), reverse=True):  # cuda-12.9 before the link cuda
            if (home / "bin" / "nvcc").is_file():
                homes.setdefault(home.resolve(), home)
    return [InstalledAt(home, nvcc_release(home / "bin" / "nvcc")) for home in homes.values()]


def examine(home: Path, wanted: CudaVersion, target_cpu: str, *, advice: str = "") -> CudaVersion:
    """Make sure that the toolkit at `home` is of release `wanted` and complete for `target_cpu`; return nvcc's version.

    Raises ToolchainError with every fault and `advice`. A kernel is compiled later, when the toolkit is laid out.
    """
    toolkit = InstalledToolkit(home, target_cpu)
    problems = toolkit.faults()
    nvcc = home / "bin" / "nvcc"
    found = nvcc_release(nvcc) if nvcc.exists() else None
    if nvcc.exists() and found is None:
        problems.append(f"{nvcc} does not tell its version.")
    if found and found.release != wanted.release:
        problems.append(f"the plan wants nvcc {wanted.release}, {nvcc} is {found}.")
    if not toolkit.faults():
        headers = CudaVersion(*header_version(toolkit.include))
        if headers != wanted.release:
            problems.append(
                f"the plan wants CUDA {wanted.release} headers, {toolkit.include / 'cuda.h'} is of {headers}."
            )
    if problems or found is None:
        raise ToolchainError(
            problems, do=advice or f"name the folder of a CUDA {wanted.release} toolkit with --cuda-home."
        )
    return found
