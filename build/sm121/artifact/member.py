"""What every artifact gives: named members whose bytes can be streamed or looked at in memory."""

from __future__ import annotations

import io
import mmap
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self, TypeAlias

from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sm121.findings import Finding

Buffer: TypeAlias = bytes | bytearray | mmap.mmap | memoryview
Wanted: TypeAlias = "Callable[[str], bool]"

CHUNK = 1 << 20
MOST_PROBLEMS = 1000
"""Findings kept of one kind of fault: a hostile archive can have millions."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a hostile artifact may cost at most; all in bytes, `entries` in files."""

    member: int = 8 << 30
    total: int = 128 << 30
    entries: int = 1_000_000
    document: int = 16 << 20
    """JSON documents of an image, METADATA, WHEEL, entry points: all that is read whole."""
    record: int = 256 << 20
    """RECORD, which has a row for each file."""


LIMITS = Limits()


class Kind(StrEnum):
    """What an artifact is."""

    WHEEL = "wheel"
    FILE = "file"
    FOLDER = "folder"
    ENVIRONMENT = "environment"
    IMAGE = "image"


class Content(Protocol):
    """Where a member's bytes come from."""

    def open(self) -> BinaryIO:
        """Stream the bytes from the start."""

    def mapped(self) -> Mapped | None:
        """The bytes as they lie on disk, where they lie there unchanged."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A range of a memory-mapped file. `own` says that nobody else uses the map."""

    memory: mmap.mmap
    offset: int
    size: int
    own: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file of an artifact.

    `path` is relative with forward slashes and comes from the artifact: it may hold anything, so it is never
    used to write a file, and is made printable before it is shown. `size` is in bytes. `link` names a member
    that has the same bytes (a hard link). `layer` is the digest of the image layer it is from. `packed` is how many bytes
    it takes in the artifact, where that is known: what reading it costs follows from these.
    """

    path: str
    size: int
    content: Content
    executable: bool = False
    link: str = ""
    layer: str = ""
    packed: int = 0

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def open(self) -> BinaryIO:
        """Stream the bytes. Raises ArtifactError, here or while reading, if they are damaged."""
        return self.content.open()

    def read(self, limit: int = LIMITS.document) -> bytes:
        """All bytes; raises ArtifactError if there are more than `limit`."""
        if self.size > limit:
            raise ArtifactError(f"{printable(self.path)} has {self.size} bytes; at most {limit} are read of it.")
        with self.open() as stream:
            data = stream.read(limit + 1)
        if len(data) != self.size:
            raise ArtifactError(f"{printable(self.path)} ends after {len(data)} of {self.size} bytes.")
        return data

    @contextmanager
    def buffer(self) -> Iterator[Buffer]:
        """The bytes as one buffer: the mapped file where possible, else inflated into anonymous memory.

        The buffer ends with the block: keep no slice of it. Raises ArtifactError if the bytes are damaged.
        """
        mapped = self.content.mapped() if self.size else None
        if mapped is not None:
            yield from _of_map(mapped)
        elif self.size:
            yield from _of_map(Mapped(self._inflated(), 0, self.size, own=True))
        else:
            yield b""

    def memory(self) -> mmap.mmap:
        """Empty memory of this size, the process's own; raises ArtifactError if there may not be so much."""
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        try:
            return mmap.mmap(-1, self.size, **private)
        except OSError as error:
            raise ArtifactError(
                f"{printable(self.path)} claims {self.size} bytes, more than this process may hold: {error.strerror}."
            ) from error

    def _inflated(self) -> mmap.mmap:
        if self.size > LIMITS.member:
            raise ArtifactError(
                f"{printable(self.path)} claims {self.size} bytes; at most {LIMITS.member} are inflated."
            )
        memory = self.memory()
        try:
            with self.open() as stream:
                complete = _fill(memory, stream)
        except BaseException:
            memory.close()
            raise
        if not complete:
            memory.close()
            raise ArtifactError(f"{printable(self.path)} does not have the {self.size} bytes that it claims.")
        return memory


class Artifact(Protocol):
    """Something that was made elsewhere, opened for reading.

    `problems` are the faults of the container itself (a duplicated path, a name that leaves the folder, a
    truncated layer); it is complete once `members()` has been exhausted.
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def name(self) -> str: ...
    @property
    def problems(self) -> list[Finding]: ...

    def members(self, wanted: Wanted | None = None) -> Iterator[Member]:
        """Its regular files, or those whose path `wanted` accepts.

        Read a member when you are handed it. Later is allowed, but in a compressed image layer it means to
        stream the layer once more.
        """

    def find(self, path: str) -> Member | None:
        """The regular file at `path`, through symbolic links inside the artifact; None if there is none."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...


class RawReader(io.RawIOBase):
    """A raw stream made of `readinto`; subclasses fill the buffer and return 0 at the end."""

    def readable(self) -> bool:
        return True


def buffered(raw: io.RawIOBase, size: int = CHUNK) -> BinaryIO:
    """Wrap a raw stream of `size` bytes for reading in large pieces."""
    return io.BufferedReader(raw, max(min(size, CHUNK), io.DEFAULT_BUFFER_SIZE))


def give_back(memory: mmap.mmap, start: int, position: int) -> int:
    """Give back the pages of a mapped file between `start` and `position`, once they make a piece.

    What lies behind a reader would count as its own memory. Returns where the pages that are kept begin.
    """
    if position - start < CHUNK or not hasattr(mmap, "MADV_DONTNEED"):
        return start
    first, end = (offset // mmap.PAGESIZE * mmap.PAGESIZE for offset in (start, position))
    memory.madvise(mmap.MADV_DONTNEED, first, end - first)
    return end


def printable(text: str) -> str:
    """Text of unknown origin, safe to print on a terminal: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text
    )


def _fill(memory: mmap.mmap, stream: BinaryIO) -> bool:
    """Read `stream` into `memory`; say whether it filled it and ended there."""
    done = 0
    with memoryview(memory) as view:
        while count := stream.readinto(view[done : done + CHUNK]):  # type: ignore[attr-defined]
            done += count
    return done == len(memory) and not stream.read(1)


def _of_map(mapped: Mapped) -> Iterator[Buffer]:
    whole = mapped.offset == 0 and mapped.size == len(mapped.memory)
    view = None if whole else memoryview(mapped.memory)[mapped.offset : mapped.offset + mapped.size]
    try:
        yield mapped.memory if view is None else view
    finally:
        if view is not None:
            _release(view.release)
        if mapped.own:
            _release(mapped.memory.close)


def _release(action: Callable[[], None]) -> None:
    try:
        action()
    except BufferError:
        # A slice is still in use somewhere: the memory goes with the last of them.
        return
