"""The members of an archive, read and judged before one of them is written."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import stat
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Protocol

from sm121.errors import UnpackError
from sm121.progress import size as shown_size
from sm121.values import CHUNK, Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, gzip.BadGzipFile, EOFError,
    NotImplementedError, UnicodeError,
)  # fmt: skip
"""What the standard library raises for an archive whose bytes are not as they should be."""
_LINK_DEPTH = 40
_HEADER_LIMIT = 64 << 20
_SHOWN = 50


class Kind(StrEnum):
    """What a member becomes. Devices, pipes and the like are OTHER and never written."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Member:
    """One member. `name` is its path in the archive, `path` the one below the new folder; `target` a link's."""

    name: str
    kind: Kind
    size: int
    index: int
    path: str = ""
    executable: bool = False
    target: str = ""
    fault: str = ""


class Archive(Protocol):
    """An open archive: its name, all its members, and the bytes of a file member."""

    name: str
    members: tuple[Member, ...]

    def open(self, member: Member) -> IO[bytes]: ...


@contextmanager
def damage(name: str) -> Iterator[None]:
    """Turn what is raised for damaged bytes into an UnpackError."""
    try:
        yield
    except DAMAGE as error:
        raise UnpackError(
            f"{name} is damaged: {str(error) or type(error).__name__}.", do="remove the file and fetch it again."
        ) from error


@contextmanager
def open_archive(path: Path, *, limit: int, member_limit: int) -> Iterator[Archive]:
    """Open a zip or tar.gz by what its first bytes say, and read the list of its members.

    Raises UnpackError if it is neither, damaged, or would unpack to more than `limit` bytes or `member_limit`
    members.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UnpackError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        start = file.read(4)
        file.seek(0)
        if start[:2] == b"PK":
            with damage(path.name):
                archive: Archive = _Zip(path.name, file, limit, member_limit)
            yield archive
        elif start[:2] == b"\x1f\x8b":
            with damage(path.name):
                archive = _Tar(path.name, file, limit, member_limit)
            yield archive
        else:
            shown = start.decode("ascii", "replace") if start.isascii() and start else start.hex(" ")
            raise UnpackError(
                f"{path.name} is neither a zip nor a tar.gz: it begins with {shown!r}.",
                do="look at the file; an error page of a server often begins with '<'.",
            )


class _Zip:
    def __init__(self, name: str, file: IO[bytes], limit: int, member_limit: int) -> None:
        self.name = name
        self._archive = zipfile.ZipFile(file)
        self._infos = self._archive.infolist()
        bounds = _Bounds(name, limit, member_limit)
        for info in self._infos:
            bounds.add(info.file_size)
        self.members = tuple(self._member(index, info) for index, info in enumerate(self._infos))

    def _member(self, index: int, info: zipfile.ZipInfo) -> Member:
        mode = info.external_attr >> 16 if info.create_system == 3 else 0
        kind = {0: Kind.FILE, stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.LINK}.get(
            stat.S_IFMT(mode), Kind.OTHER
        )
        if info.is_dir() and kind is Kind.FILE:
            kind = Kind.FOLDER
        fault, target = "", ""
        if info.flag_bits & 0x1:
            fault = "is encrypted"
        elif kind is Kind.LINK and info.file_size > 4096:
            fault = f"is a link with a target of {info.file_size} bytes"
        elif kind is Kind.LINK:
            target = self._archive.read(info).decode("utf-8", "surrogateescape")
        # The standard library cuts a name at a NUL; what the archive really says is judged.
        return Member(
            info.orig_filename, kind, info.file_size, index,
            executable=bool(mode & 0o111), target=target, fault=fault,
        )  # fmt: skip

    def open(self, member: Member) -> IO[bytes]:
        return self._archive.open(self._infos[member.index])


class _Tar:
    def __init__(self, name: str, file: IO[bytes], limit: int, member_limit: int) -> None:
        self.name = name
        bounds = _Bounds(name, limit, member_limit)
        stream = _Bounded(fileobj=file, mode="rb")
        self._archive = tarfile.open(fileobj=stream, mode="r:")  # noqa: SIM115
        self._infos: list[tarfile.TarInfo] = []
        members, files = [], dict[str, int]()
        for index, info in enumerate(self._archive):
            member = self._member(index, info, files)
            bounds.add(member.size)
            if member.kind is Kind.FILE and not member.fault:
                files[info.name] = member.size
            self._infos.append(info)
            members.append(member)
        self._require_end(stream, bounds)
        self.members = tuple(members)

    def _require_end(self, stream: gzip.GzipFile, bounds: _Bounds) -> None:
        """The standard library takes a broken header for the end; only zeros are one."""
        stream.seek(self._archive.offset)
        mark = stream.read(512)
        if len(mark) < 512 or any(mark):
            raise UnpackError(
                f"{self.name} is damaged: it breaks off after {len(self._infos)} members.",
                do="remove the file and fetch it again.",
            )
        while rest := stream.read(CHUNK):  # to the end, where gzip keeps its checksum
            bounds.add(len(rest), members=0)

    @staticmethod
    def _member(index: int, info: tarfile.TarInfo, files: dict[str, int]) -> Member:
        """`files` are the file members before this one: a hard link becomes a copy of one of them."""
        fault, target, size = "", "", info.size
        if info.isdir():
            kind = Kind.FOLDER
        elif info.isreg():
            kind = Kind.FILE
        elif info.islnk():
            kind, size = Kind.FILE, files.get(info.linkname, 0)
            if info.linkname not in files:
                fault = f"is a hard link to {info.linkname!r}, which is no file before it in the archive"
        elif info.issym():
            kind, target = Kind.LINK, info.linkname
        else:
            kind = Kind.OTHER
        executable = bool(info.mode & 0o111) and kind is Kind.FILE
        return Member(info.name, kind, size, index, executable=executable, target=target, fault=fault)

    def open(self, member: Member) -> IO[bytes]:
        stream: IO[bytes] | None = self._archive.extractfile(self._infos[member.index])
        assert stream is not None, member.name
        return stream


class _Bounded(gzip.GzipFile):
    """Refuses to hand out a huge piece at once: a header of a tar may claim any length."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _HEADER_LIMIT:
            raise EOFError(f"one of its headers claims {size} bytes")
        return super().read(size)


class _Bounds:
    """Adds up what an archive claims, and stops at once when it is absurd."""

    def __init__(self, name: str, limit: int, member_limit: int) -> None:
        self._name, self._limit, self._member_limit = name, limit, member_limit
        self._bytes = self._members = 0

    def add(self, count: int, *, members: int = 1) -> None:
        self._bytes += count
        self._members += members
        if self._bytes > self._limit:
            raise UnpackError(
                f"{self._name} unpacks to {shown_size(self._bytes)} or more; "
                f"the limit is {shown_size(self._limit)}."
            )
        if self._members > self._member_limit:
            raise UnpackError(f"{self._name} has more than {self._member_limit} members.")


def judge(archive: Archive, *, wanted: Callable[[str], bool] | None = None, strip: int = 0) -> list[Member]:
    """Return the wanted members with the path that each gets, in the archive's order, duplicates once.

    All members are judged, also those that are not wanted. Raises one UnpackError that names every bad one.
    """
    faults: list[str] = []
    taken: dict[str, Member] = {}
    for member in archive.members:
        fault = member.fault or _name_fault(member)
        if fault:
            faults.append(f"{member.name!r} {fault}.")
            continue
        if wanted is not None and not wanted(member.name.rstrip("/")):
            continue
        parts = [part for part in PurePosixPath(member.name).parts if part != "."][strip:]
        if not parts:
            if member.kind is not Kind.FOLDER:
                faults.append(f"{member.name!r} has too few folders to leave {strip} out.")
            continue
        placed = replace(member, path="/".join(parts))
        before = taken.setdefault(placed.path, placed)
        if before is not placed and not _same(archive, before, placed):
            faults.append(f"{member.name!r} occurs twice with different content (at {placed.path!r}).")
    faults += _place_faults(taken)
    if faults:
        more = [f"... and {len(faults) - _SHOWN} more."] if len(faults) > _SHOWN else []
        raise UnpackError(
            [f"{archive.name}: {fault}" for fault in [*faults[:_SHOWN], *more]],
            do="do not use this archive; nothing of it was written.",
        )
    return list(taken.values())


def _name_fault(member: Member) -> str:
    name = member.name
    if member.kind is Kind.OTHER:
        return "is a device or another thing that is neither file, folder nor link"
    if not name or "\0" in name or "\n" in name:
        return "is no usable name"
    if name.startswith("/") or "\\" in name or name[1:2] == ":":
        return "is an absolute or a Windows path"
    if ".." in name.split("/"):
        return "leaves the folder by '..'"
    if member.kind is Kind.LINK and (not member.target or "\0" in member.target):
        return "is a link to nothing"
    return ""


def _place_faults(taken: dict[str, Member]) -> Iterator[str]:
    links = {path: member.target for path, member in taken.items() if member.kind is Kind.LINK}
    for path, member in taken.items():
        for parent in PurePosixPath(path).parents:
            above = taken.get(str(parent))
            if above is not None and above.kind is not Kind.FOLDER:
                yield f"{member.name!r} lies below {above.name!r}, which is a {above.kind}."
                break
    for path, target in links.items():
        if _leaves(path, target, links):
            yield f"{taken[path].name!r} is a link to {target!r}, which leaves the folder."


def _leaves(path: str, target: str, links: dict[str, str]) -> bool:
    """Whether following the link at `path` gets above the folder, also by way of the archive's other links."""
    here: list[str] = path.split("/")[:-1]
    todo = target.split("/")[::-1]
    followed = 0
    if target.startswith("/"):
        return True
    while todo:
        part = todo.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            if not here:
                return True
            here.pop()
            continue
        here.append(part)
        onward = links.get("/".join(here))
        if onward is not None:
            followed += 1
            if onward.startswith("/") or followed > _LINK_DEPTH:
                return True
            here.pop()
            todo.extend(onward.split("/")[::-1])
    return False


def _same(archive: Archive, one: Member, other: Member) -> bool:
    if one.kind is not other.kind or one.target != other.target:
        return False
    return one.kind is not Kind.FILE or digest(archive, one) == digest(archive, other)


def digest(archive: Archive, member: Member) -> Sha256:
    """The sha256 of a file member."""
    state = hashlib.sha256()
    for piece in pieces(archive, member):
        state.update(piece)
    return Sha256(state.hexdigest())


def pieces(archive: Archive, member: Member) -> Iterator[bytes]:
    """The bytes of a file member, piece by piece."""
    with damage(f"{archive.name}: {member.name}"), archive.open(member) as stream:
        while piece := stream.read(CHUNK):
            yield piece
