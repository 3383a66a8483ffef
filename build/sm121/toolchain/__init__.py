"""One interface for every way to come by a CUDA compiler.

A provider lays out a *toolkit folder*: a CUDA_HOME whose `bin` runs on this machine and whose `lib` serves the
target CPU. Whatever provided it, the same fix-ups and the same check follow (`layout.py`, `check.py`), so the
compile room never asks where a toolkit came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.values import CudaVersion


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A toolkit folder that has passed its check."""

    root: Path
    version: CudaVersion
    """What nvcc says of itself, with its build number."""
    host_compiler: str
    """The C++ compiler nvcc uses, as a program name or path."""
    host_compiler_version: str

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"

    @property
    def ptxas(self) -> Path:
        return self.root / "bin" / "ptxas"


class Provider(Protocol):
    """Lays out a toolkit folder; raises ToolchainError if it cannot."""

    @property
    def kind(self) -> str: ...

    def lay_out(self, into: Path) -> None:
        """Fill the empty folder `into` with bin, nvvm, include and lib."""
        ...
