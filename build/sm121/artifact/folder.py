"""Artifacts that lie on disk unpacked: one file, a folder, a Python environment."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from sm121.artifact.member import Kind, Mapped, Member, printable
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.artifact.member import Wanted


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file on disk."""

    path: Path

    def open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def mapped(self) -> Mapped | None:
        try:
            with self.path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: emptied since it was listed
            raise _unreadable(self.path, error) from error
        return Mapped(memory, 0, len(memory), own=True)


class FileArtifact:
    """One file: .so, .a, .o, .cubin, .fatbin, or anything else that is looked at by itself."""

    kind = Kind.FILE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.problems: list[Finding] = []
        try:
            self._status = path.stat()
        except OSError as error:
            raise _unreadable(path, error) from error

    def members(self, wanted: Wanted | None = None) -> Iterator[Member]:
        if wanted is None or wanted(self.name):
            yield _member(self.name, self.path, self._status)

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class FolderArtifact:
    """A folder with all that is in it; with Python's site folders, an environment."""

    def __init__(self, path: Path, kind: Kind = Kind.FOLDER) -> None:
        self.path = path
        self.kind = kind
        self.name = str(path)
        self.problems: list[Finding] = []

    def members(self, wanted: Wanted | None = None) -> Iterator[Member]:
        """Regular files in the order of their paths.

        A link to a file is a member where its target lies outside the folder (inside, the target is one
        itself). A link to a folder is not followed; outside the folder it is named in `problems`.
        """
        self.problems.clear()
        root = self.path.resolve()
        pending = [(root, "")]
        while pending:
            folder, prefix = pending.pop()
            below = []
            for entry in self._listed(folder, prefix):
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    below.append((folder / entry.name, path + "/"))
                elif (wanted is None or wanted(path)) and (status := self._status(entry, path, root)) is not None:
                    yield _member(path, folder / entry.name, status)
            pending.extend(reversed(below))

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _listed(self, folder: Path, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._problem(prefix or ".", Verdict.UNKNOWN, f"the folder cannot be listed: {error.strerror}")
            return []

    def _status(self, entry: os.DirEntry[str], path: str, root: Path) -> os.stat_result | None:
        """The state of a regular file that is to be read, None for anything else."""
        try:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):
                return status if stat.S_ISREG(status.st_mode) else None
            target = Path(os.path.realpath(entry.path))
            if target.is_relative_to(root):
                return None
            status = target.stat()
        except OSError as error:
            self._problem(path, Verdict.INFO, f"cannot be read: {error.strerror}")
            return None
        if stat.S_ISDIR(status.st_mode):
            self._problem(path, Verdict.INFO, f"links to the folder {target} outside, which is not looked at")
        return status if stat.S_ISREG(status.st_mode) else None

    def _problem(self, path: str, verdict: Verdict, got: str) -> None:
        self.problems.append(Finding("folder.entry", printable(path), verdict, got))


def _member(path: str, file: Path, status: os.stat_result) -> Member:
    return Member(path, status.st_size, FileContent(file), executable=bool(status.st_mode & 0o111))


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    reason = getattr(error, "strerror", None) or str(error)
    return ArtifactError(f"{path} cannot be read: {reason}.", do="check the path and its permissions.")
