"""Artifacts that lie on disk unpacked: one file, a folder, a Python environment."""

from __future__ import annotations

import mmap
import os
import re
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


_SITE_NAMES = ("site-packages", "dist-packages")
_SITES = tuple(f"{lib}/python3*/{site}" for lib in ("lib", "lib64", "local/lib") for site in _SITE_NAMES)


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

    def find(self, path: str) -> Member | None:
        """Itself, under its name."""
        return _member(self.name, self.path, self._status) if path == self.name else None

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class FolderArtifact:
    """A folder with all that is in it: an environment if Python finds packages there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.problems: list[Finding] = []
        self._root = path.resolve()

    @property
    def sites(self) -> tuple[str, ...]:
        """Its site folders, "" for itself: one for each Python of a virtual environment or prefix."""
        folders = sorted({found.resolve() for pattern in _SITES for found in self._root.glob(pattern)})
        inside = [
            folder.relative_to(self._root).as_posix() for folder in folders if folder.is_relative_to(self._root)
        ]
        if self._root.name in _SITE_NAMES or any(self._root.glob("*.dist-info")):
            inside.insert(0, "")
        return tuple(inside)

    @property
    def kind(self) -> Kind:
        """An environment if it has site folders or is a virtual environment without any."""
        return Kind.ENVIRONMENT if self.sites or (self._root / "pyvenv.cfg").is_file() else Kind.FOLDER

    def members(self, wanted: Wanted | None = None) -> Iterator[Member]:
        """Regular files in the order of their paths.

        A link to a file is a member where its target lies outside the folder (inside, the target is one
        itself). A link to a folder is not followed; outside the folder it is named in `problems`.
        """
        self.problems[:] = self._system_packages()
        pending = [(self._root, "")]
        while pending:
            folder, prefix = pending.pop()
            below = []
            for entry in self._listed(folder, prefix):
                path = prefix + _text(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    below.append((folder / entry.name, path + "/"))
                elif (wanted is None or wanted(path)) and (status := self._status(entry, path)) is not None:
                    yield _member(path, folder / entry.name, status)
            pending.extend(reversed(below))

    def find(self, path: str) -> Member | None:
        """The file at `path` below the folder, through links, also those that lead out of it."""
        place = self._root / path.lstrip("/")
        try:
            real = Path(os.path.realpath(place))
            status = real.stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return None
        if not stat.S_ISREG(status.st_mode) or ".." in Path(path).parts:
            return None
        inside = real.relative_to(self._root).as_posix() if real.is_relative_to(self._root) else path.lstrip("/")
        return _member(_text(inside), real, status)

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _system_packages(self) -> list[Finding]:
        """A virtual environment may show packages from outside itself; that is said."""
        try:
            settings = (self._root / "pyvenv.cfg").read_text("utf-8", "replace")
        except OSError:
            return []
        if not re.search(r"(?im)^\s*include-system-site-packages\s*=\s*true\s*$", settings):
            return []
        got = "shows the packages of the system's Python too, which are not looked at"
        return [Finding("folder.environment", "pyvenv.cfg", Verdict.INFO, got)]

    def _listed(self, folder: Path, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._problem(prefix or ".", Verdict.UNKNOWN, f"the folder cannot be listed: {error.strerror}")
            return []

    def _status(self, entry: os.DirEntry[str], path: str) -> os.stat_result | None:
        """The state of a regular file that is to be read, None for anything else."""
        try:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):
                return status if stat.S_ISREG(status.st_mode) else None
            target = Path(os.path.realpath(entry.path))
            if target.is_relative_to(self._root):
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


def _text(name: str) -> str:
    """A name of the file system as text: bytes that are no UTF-8 are written out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _member(path: str, file: Path, status: os.stat_result) -> Member:
    return Member(path, status.st_size, FileContent(file), executable=bool(status.st_mode & 0o111))


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    reason = getattr(error, "strerror", None) or str(error)
    return ArtifactError(f"{path} cannot be read: {reason}.", do="check the path and its permissions.")
