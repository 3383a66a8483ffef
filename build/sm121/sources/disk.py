"""Faults of the disk, told as what they are."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sm121.errors import StorageError
from sm121.progress import size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT}
_SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}


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
    return StorageError(f"{path} could not be written: {error.strerror or error}.")
