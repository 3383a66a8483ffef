"""Reading files in pieces; how they are written stands in `sm121.sources.disk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.sources.disk import completed_file, sync_folder
from sm121.values import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["completed_file", "pieces", "sync_folder"]


def pieces(path: Path) -> Iterator[bytes]:
    """The file in pieces of bounded size."""
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece
