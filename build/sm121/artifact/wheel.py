"""A wheel: its members, and what it says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sm121.artifact.member import Kind, Member
from sm121.artifact.zipreader import ZipArchive, ZipContent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sm121.artifact.member import Wanted
    from sm121.findings import Finding


class Wheel:
    """An opened wheel file. Raises ArtifactError if it is no readable zip file."""

    kind = Kind.WHEEL

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.archive = ZipArchive(path)
        self.problems: list[Finding] = self.archive.problems

    def members(self, wanted: Wanted | None = None) -> Iterator[Member]:
        """Its files in the order of the archive; of a path that stands there twice the last, as installers do."""
        last = {entry.path: entry for entry in self.archive.entries}
        for path, entry in last.items():
            if entry.folder or entry.symlink or (wanted is not None and not wanted(path)):
                continue
            yield Member(path, entry.size, ZipContent(self.archive, entry), executable=bool(entry.mode & 0o111))

    def close(self) -> None:
        self.archive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
