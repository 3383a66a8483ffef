"""Named files of an image layout, in a folder or in a tar archive, read where they lie."""

from __future__ import annotations

import mmap
import posixpath
import tempfile
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Protocol

from sm121.artifact.folder import FileContent
from sm121.artifact.inflate import decompressed
from sm121.artifact.member import CHUNK, LIMITS, Mapped, RawReader, buffered, give_back, printable
from sm121.artifact.shadow import cleaned
from sm121.artifact.tarstream import BLOCK, TarEntry, TarKind, tar_entries
from sm121.errors import ArtifactError, StorageError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable
    from pathlib import Path

_MOST_HOPS = 8


class BlobFiles(Protocol):
    """Files by their relative path."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> BinaryIO: ...

    def mapped(self, name: str) -> Mapped | None: ...

    def close(self) -> None: ...


def read_document(files: BlobFiles, name: str, limit: int = LIMITS.document) -> bytes:
    """A small file whole; raises ArtifactError if it is missing or larger than `limit`."""
    if not files.has(name):
        raise ArtifactError(f"{printable(name)} is missing in the image layout.", do="export the image again.")
    with files.open(name) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise ArtifactError(f"{printable(name)} is larger than the {limit} bytes that are read of a document.")
    return data


class FolderFiles:
    """Files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._maps: dict[str, Mapped | None] = {}

    def has(self, name: str) -> bool:
        path = cleaned(name)
        return bool(path) and (self._root / str(path)).is_file()

    def open(self, name: str) -> BinaryIO:
        return self._content(name).open()

    def mapped(self, name: str) -> Mapped | None:
        if name not in self._maps:
            self._maps[name] = self._content(name).mapped()
        return self._maps[name]

    def close(self) -> None:
        close_maps(mapped.memory for mapped in self._maps.values() if mapped)

    def _content(self, name: str) -> FileContent:
        if not self.has(name):
            raise ArtifactError(f"{printable(name)} is missing in {self._root}.")
        return FileContent(self._root / str(cleaned(name)))


class TarFiles:
    """Files in a tar archive that is mapped, not unpacked."""

    def __init__(self, memory: mmap.mmap, name: str) -> None:
        self._memory = memory
        self._entries: dict[str, TarEntry] = {}
        try:
            for entry in islice(tar_entries(_MappedForward(memory)), LIMITS.entries):
                if (path := cleaned(entry.path)) and entry.kind is not TarKind.FOLDER:
                    self._entries[path] = entry
        except ArtifactError as error:
            memory.close()
            raise ArtifactError(f"{name}: {error.problems[0]}.", do="export or fetch it again.") from error

    def has(self, name: str) -> bool:
        return self._entry(name) is not None

    def open(self, name: str) -> BinaryIO:
        mapped = self.mapped(name)
        if mapped is None:
            raise ArtifactError(f"{printable(name)} is missing in the archive.")
        return buffered(MappedStream(mapped))

    def mapped(self, name: str) -> Mapped | None:
        entry = self._entry(name)
        return Mapped(self._memory, entry.offset, entry.size) if entry else None

    def close(self) -> None:
        close_maps([self._memory])

    def _entry(self, name: str) -> TarEntry | None:
        """The file of that name, through links: engines store equal layers once."""
        path = cleaned(name)
        for _ in range(_MOST_HOPS):
            entry = self._entries.get(path or "")
            if entry is None or entry.kind is TarKind.FILE:
                return entry if entry is not None and not entry.fault else None
            above = posixpath.dirname(path or "") if entry.kind is TarKind.SYMLINK else ""
            path = cleaned(posixpath.normpath(posixpath.join(above, entry.link)))
        return None


def open_tar(path: Path) -> tuple[TarFiles, int]:
    """Open an image archive. One that is compressed as a whole goes to an unnamed temporary file first.

    Returns the size of that file in bytes, 0 if there is none.
    """
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        plain, compression = decompressed(file)
        if not compression:
            return TarFiles(map_file(file), path.name), 0
        with spooled(plain) as copy:
            size = copy.tell()
            return TarFiles(map_file(copy), path.name), size


def is_tar(path: Path) -> bool:
    """Whether a file is a tar archive, by its bytes, or one compressed as a whole, by its bytes and name."""
    with path.open("rb") as file:
        start = file.read(BLOCK)
    named = ".tar" in path.name or path.suffix in {".tgz", ".tzst"}
    return start[257:262] == b"ustar" or (named and start.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")))


def spooled(stream: BinaryIO, most: int = LIMITS.total) -> BinaryIO:
    """Copy a stream to a temporary file without a name, which is gone with its last user."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 -- handed to the caller
    try:
        while piece := stream.read(CHUNK):
            if copy.tell() + len(piece) > most:
                break
            copy.write(piece)
        copy.flush()
    except OSError as error:
        copy.close()
        raise StorageError(
            f"A temporary copy of the image cannot be written: {error.strerror}.",
            do="set TMPDIR to a larger disk.",
        ) from error
    except BaseException:
        copy.close()
        raise
    if piece:
        copy.close()
        raise ArtifactError(f"The image has more than the {most} bytes that are read.")
    return copy


def map_file(file: BinaryIO | io.RawIOBase) -> mmap.mmap:
    """Map an opened file; the map outlives the file object. Raises ArtifactError if it is empty."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (ValueError, OSError) as error:
        raise ArtifactError(f"The file cannot be mapped: {error}.") from error


def close_maps(maps: Iterable[mmap.mmap]) -> None:
    """Close maps, those apart that a member's buffer still uses: they go with it."""
    for memory in maps:
        try:
            memory.close()
        except BufferError:
            continue


class _MappedForward:
    """A mapped file as a forward stream."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.position = 0

    def read(self, count: int) -> bytes:
        data = self._memory[self.position : self.position + count]
        self.position += len(data)
        return data

    def skip_to(self, position: int) -> bool:
        self.position = position
        return position <= len(self._memory)


class MappedStream(RawReader):
    """A range of a mapped file as a stream."""

    def __init__(self, mapped: Mapped) -> None:
        self._memory = mapped.memory
        self._position = self._released = mapped.offset
        self._end = mapped.offset + mapped.size

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        count = min(len(target), self._end - self._position, CHUNK)
        memoryview(target)[:count] = self._memory[self._position : self._position + count]
        self._position += count
        self._released = give_back(self._memory, self._released, self._position)
        return count
