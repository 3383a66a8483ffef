"""A hermetic CUDA toolkit from the vendor's Python wheels.

The parts of one release are unpacked over each other: compilers for this machine, headers, and the libraries of
the target CPU (https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#pip-wheels).
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sm121.errors import ToolchainError
from sm121.sources.unpack import unpack

if TYPE_CHECKING:
    from collections.abc import Sequence


class Role(StrEnum):
    """What a wheel gives to the toolkit folder."""

    COMPILER = "compiler"
    """Programs that run on this machine, and headers."""
    TARGET = "target"
    """Libraries that the target's extensions link with, and headers."""
    HEADERS = "headers"
    """Headers only: the libraries beside them are large and never linked."""


@dataclass(frozen=True, slots=True)
class Part:
    """One downloaded wheel and its role."""

    wheel: Path
    role: Role


@dataclass(frozen=True, slots=True)
class WheelToolkit:
    """Lays out a toolkit folder from wheels."""

    parts: Sequence[Part]
    kind: str = "wheels"

    def lay_out(self, into: Path) -> None:
        """Unpack every part over `into`; two parts never bring one file with different contents."""
        problems: list[str] = []
        with tempfile.TemporaryDirectory(prefix=".parts-", dir=into.parent) as scratch:
            for number, part in enumerate(self.parts):
                unpacked = Path(scratch) / str(number)
                unpack(part.wheel, unpacked, members=partial(_wanted, role=part.role))
                for root in sorted((unpacked / "nvidia").iterdir()) if (unpacked / "nvidia").is_dir() else []:
                    problems += _merge(root, into, part.wheel.name)
        problems += [
            f"no part of the toolkit brings {needed}."
            for needed in ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc", "include/cuda.h", "include/crt",
                           "include/cublas_v2.h", "include/cccl", "lib")
            if not (into / needed).exists()
        ]  # fmt: skip
        if problems:
            raise ToolchainError(problems, do="check the toolkit parts of this line in pins/.")


def _wanted(name: str, role: Role) -> bool:
    parts = PurePosixPath(name).parts
    if len(parts) < 3 or parts[0] != "nvidia" or parts[2].startswith("."):
        return False
    if role is Role.HEADERS:
        return parts[2] == "include"
    # libnvvm and libnvrtc come as shared libraries for programs; a compiler part's own `lib` is for this machine
    # and would be taken for the target's.
    return role is Role.TARGET or parts[2] != "lib"


def _merge(source: Path, into: Path, wheel: str) -> list[str]:
    problems = []
    for path in sorted(source.rglob("*")):
        target = into / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
        elif target.read_bytes() != path.read_bytes():
            problems.append(f"{wheel} brings another {target.relative_to(into)} than an earlier part.")
    return problems
