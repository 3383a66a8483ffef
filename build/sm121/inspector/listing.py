"""What cuobjdump prints, read: the list of images, and the dump with their symbols.

The names of a list show no `f`, and before 13.1 not always an `a` (measured on 12.8.55, 13.1.80, 13.2.86, 13.5.37).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.inspector.facts import ImageFacts, LibraryFacts, UnitFacts
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm121.target import Kind

_LISTED = re.compile(r"(?:(?:ELF|PTX) file\s+\d+:\s*)?(\S+\.sm_(\d{2,3}[af]?)\.(cubin|ptx))\s*")
_VERSION = re.compile(r"release (\d+)\.(\d+), V[\d.]+")
NOTHING = "does not contain device code"


@dataclass(frozen=True, slots=True)
class Shown:
    """An image as cuobjdump shows it; `kernels` is None where it prints none."""

    kind: Kind
    arch: ArchSpec
    kernels: frozenset[str] | None = None


def read_listing(lines: Iterable[str]) -> list[Shown]:
    """The images of `--list-elf` and `--list-ptx` output; lines about anything else are passed over."""
    found = []
    for line in lines:
        match = _LISTED.fullmatch(line)
        if match:
            found.append(Shown("cubin" if match[3] == "cubin" else "ptx", ArchSpec.from_sm(match[2])))
    return found


def read_dump(text: str) -> list[Shown]:
    """The images of `-symbols` output in their order. ValueError if an image is without a target."""
    return [_shown(kind, block) for kind, block in _blocks(text)]


def read_tool_version(text: str) -> tuple[int, int] | None:
    """Major and minor of `cuobjdump --version`."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2])) if match else None


def as_library(name: str, images: Iterable[Shown]) -> LibraryFacts:
    """Images that were only listed, each as a unit of its own: a list does not tell which belong together."""
    units = tuple(
        UnitFacts("", index, (ImageFacts(image.kind, image.arch, 0, 0, suffix_known=bool(image.arch.suffix)),))
        for index, image in enumerate(images)
    )
    return LibraryFacts(name, 0, "elf", "", units, looked_into=False)


def _blocks(text: str) -> Iterator[tuple[Kind, list[str]]]:
    kind: Kind | None = None
    block: list[str] = []
    for line in text.splitlines():
        match = re.fullmatch(r"Fatbin (elf|ptx) code:\s*", line)
        if match:
            if kind is not None:
                yield kind, block
            kind, block = "cubin" if match[1] == "elf" else "ptx", []
        else:
            block.append(line)
    if kind is not None:
        yield kind, block


def _shown(kind: Kind, block: list[str]) -> Shown:
    arch = next((line.partition("=")[2].strip() for line in block if line.startswith("arch =")), "")
    kernels = None
    if kind == "cubin":
        rows = (line.split() for line in block)
        kernels = frozenset(row[-1] for row in rows if row and row[0] == "FUNC" and "ENTRY" in row[1:-1])
    return Shown(kind, ArchSpec.from_sm(arch), kernels)
