"""Documents that a user asked for: to standard output, into a file that appears whole or not at all, into a device."""

from __future__ import annotations

import contextlib
import errno
import sys
from pathlib import Path

from sm121.errors import StorageError

STANDARD_OUTPUT = "-"
_ERRORS = "backslashreplace"
"""As on standard output: names of files need not be UTF-8."""
_LARGEST = 64 << 20
"""Bytes of a document that a user names: what is larger is none, and may have no end."""


def read_document(path: Path) -> bytes:
    """The whole of a file that a user names. Raises OSError, also for one that is too large or never ends."""
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise OSError(errno.EFBIG, f"it is larger than the {_LARGEST >> 20} MiB that are read", str(path))
    return data


def read_text_document(path: Path) -> str:
    """The same as text. Raises OSError, UnicodeDecodeError."""
    return read_document(path).decode("utf-8")


def write_document(target: str, text: str) -> None:
    """Write `text` to `target`, `-` being standard output. Raises StorageError."""
    if target == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    partial = None
    try:
        path = Path(target).resolve()
        if path.exists() and not path.is_file():
            _write_into(path, text)
            return
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(text, encoding="utf-8", errors=_ERRORS)
        partial.replace(path)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()
        raise StorageError(f"{target} cannot be written: {error.strerror}.", do="name another place.") from error


def _write_into(path: Path, text: str) -> None:
    """Write into a device or pipe, which must not be replaced by a file."""
    try:
        with path.open("w", encoding="utf-8", errors=_ERRORS) as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", do="name another place.") from error
