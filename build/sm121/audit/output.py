"""What the audit's verbs share: the console, plain data, a verdict as exit status, files that a user names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.console import Console

from sm121.errors import ArtifactError, StorageError, VerdictFail, VerdictUnknown, VerdictWarning
from sm121.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def standard_output() -> Console:
    """Where results go."""
    return Console(highlight=False)


def print_json(data: Mapping[str, Any]) -> None:
    """Plain data, sorted, as it is compared and kept."""
    print(as_json(data))


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False)


def exit_status(verdict: Verdict, *, strict: bool) -> int:
    """The exit status that says a verdict."""
    if verdict is Verdict.WARN:
        return VerdictWarning.exit_code if strict else 0
    return {Verdict.FAIL: VerdictFail.exit_code, Verdict.UNKNOWN: VerdictUnknown.exit_code}.get(verdict, 0)


def open_log(path: Path) -> BinaryIO:
    """Open a log for reading. Raises ArtifactError."""
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> ArtifactError:
    """The error for a log that cannot be opened, with the ways to get one."""
    return ArtifactError(
        f"{path} cannot be read: {error.strerror or error}.",
        do="name the file that holds the server's output (docker logs NAME > FILE 2>&1), or - for standard input.",
    )


def write_text(path: Path, text: str) -> None:
    """Write a result. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}.", do="name another file, or free space."
        ) from error
