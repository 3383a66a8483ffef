"""What finishing did, as records that a manifest can hold: digests, sizes in bytes, processor time in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.finish.units import Deed

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.finish.ptxas import Ptxas
    from sm121.target import Capability
    from sm121.values import ArchSpec, Sha256


class Layout(StrEnum):
    """Where the containers of a finished library are."""

    UNCHANGED = "unchanged"
    """The library was as it should be."""
    IN_PLACE = "in-place"
    """Each where it was; the freed room is zero."""
    COMPACT = "compact"
    """One after the other; the freed room has left the file."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's digest and size."""

    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """PTX that became a cubin. `stored` is the cubin's size as it lies in the library."""

    ptx_target: str
    ptx: File
    target: str
    options: tuple[str, ...]
    cubin: File
    stored: int
    kernels: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FinishedUnit:
    """One translation unit: what was done, and the targets of the images that stayed and that went."""

    index: int
    deed: Deed
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    compiled: Compiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLibrary:
    """A library after finishing. `note` says why its layout is not compact, if that was wanted."""

    name: str
    path: Path
    before: File
    after: File
    target: Capability
    arch: ArchSpec
    ptxas: Ptxas
    zstd: str
    layout: Layout
    units: tuple[FinishedUnit, ...]
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.before.sha256 != self.after.sha256

    @property
    def seconds(self) -> float:
        """Processor time of ptxas, when the cubins were made."""
        return sum(unit.compiled.seconds for unit in self.units if unit.compiled)

    def count(self, deed: Deed) -> int:
        """How many units that was done with."""
        return sum(unit.deed is deed for unit in self.units)

    def to_data(self, *, times: bool = False) -> dict[str, object]:
        """For a manifest or a report. `times` adds the processor time, in which equal results differ."""
        return {
            "name": self.name,
            "before": _file(self.before),
            "after": _file(self.after),
            "target": str(self.target),
            "arch": self.arch.sm,
            "ptxas": {"version": str(self.ptxas.version), "sha256": self.ptxas.sha256.hex},
            "zstd": self.zstd,
            "layout": str(self.layout),
            "note": self.note,
            "counts": {str(deed): self.count(deed) for deed in Deed},
            "units": [_unit(unit, times=times) for unit in self.units],
        }


def _unit(unit: FinishedUnit, *, times: bool) -> dict[str, object]:
    made = unit.compiled
    compiled = made and {
        "ptx_target": made.ptx_target,
        "ptx": _file(made.ptx),
        "target": made.target,
        "options": list(made.options),
        "cubin": _file(made.cubin),
        "stored": made.stored,
        "kernels": made.kernels,
        **({"seconds": made.seconds} if times else {}),
    }
    return {
        "index": unit.index,
        "deed": str(unit.deed),
        "kept": list(unit.kept),
        "dropped": list(unit.dropped),
        **({"compiled": compiled} if compiled else {}),
    }


def _file(file: File) -> dict[str, object]:
    return {"sha256": file.sha256.hex, "size": file.size}
