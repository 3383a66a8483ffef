"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sm121.sources.disk import writing
from sm121.values import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def completed_file(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name beside `path`; it gets its name when the block ends well.

    The bytes are on the disk before the name is. When the block raises, nothing is left behind. What the
    operating system refuses becomes a StorageError.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        sync_folder(path.parent)


def pieces(path: Path) -> Iterator[bytes]:
    """The file in pieces of bounded size."""
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def sync_folder(folder: Path) -> None:
    """Put the names in `folder` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
