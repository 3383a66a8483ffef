"""Files that appear complete or not at all, and faults of the disk told as what they are."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sm121.errors import StorageError
from sm121.progress import size

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = {errno.ENOSPC, errno.EDQUOT}
_SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP}


@contextmanager
def writing(path: Path, *, wanted: int | None = None) -> Iterator[None]:
    """Turn an OSError into a StorageError about `path`; `wanted` is how many bytes were to be written."""
    try:
        yield
    except OSError as error:
        raise fault(path, error, wanted=wanted) from error


def fault(path: Path, error: OSError, *, wanted: int | None = None) -> StorageError:
    """Describe why `path` could not be written."""
    if error.errno in _FULL:
        need = f" ({size(wanted)} are needed)" if wanted is not None else ""
        return StorageError(
            f"the disk is full: {path} could not be written{need}.", do="free space or name another folder."
        )
    if error.errno in _SHUT:
        return StorageError(
            f"{error.filename or path} cannot be written: {error.strerror}.",
            do="name a folder that you may write to.",
        )
    if error.errno in _IN_THE_WAY:
        return StorageError(
            f"{error.filename2 or error.filename or path} is in the way: {error.strerror}.",
            do="move it away, or name another folder.",
        )
    return StorageError(
        f"{path} could not be written: {error.strerror or error}.",
        do="look at the folder and its disk, or name another folder.",
    )


@contextmanager
def completed_file(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name beside `path`; it gets its name when the block ends well.

    The bytes are on the disk before the name is. When the block raises, nothing is left behind. What the
    operating system refuses becomes a StorageError.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            # A device or a pipe is written to; a rename would put a file in its place.
            with path.open("wb") as special:
                yield special
            return
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


def sync_folder(folder: Path) -> None:
    """Put the names in `folder` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
