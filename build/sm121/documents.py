"""Documents that a user asked for: to standard output, into a file that appears whole or not at all, into a device."""

from __future__ import annotations

import sys
from pathlib import Path

from sm121.errors import StorageError

STANDARD_OUTPUT = "-"


def write_document(target: str, text: str) -> None:
    """Write `text` to `target`, `-` being standard output. Raises StorageError."""
    if target == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    path = Path(target).resolve()
    if path.exists() and not path.is_file():
        _write_into(path, text)
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{target} cannot be written: {error.strerror}.", do="name another place.") from error


def _write_into(path: Path, text: str) -> None:
    """Write into a device or pipe, which must not be replaced by a file."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", do="name another place.") from error
