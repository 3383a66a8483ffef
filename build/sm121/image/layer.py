"""Writes one layer, the same bytes on every machine: sorted paths, one time, numeric owners, no names of the host."""

from __future__ import annotations

import hashlib
import io
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, TYPE_CHECKING, BinaryIO, Protocol, cast

import zstandard
from zlib_ng import gzip_ng_threaded

from sm121.artifact.imagedocs import Descriptor
from sm121.errors import DigestError, PackError
from sm121.image.documents import OCI_LAYER, LayerDone
from sm121.values import CHUNK, Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm121.image.store import BlobStore


class Compression(StrEnum):
    """How a layer is stored. Every engine reads gzip; zstd needs Docker 23, containerd 1.5 or podman 4."""

    GZIP = "gzip"
    ZSTD = "zstd"


LEVELS = {Compression.GZIP: 6, Compression.ZSTD: 3}


class Source(Protocol):
    """Where the bytes of a file come from."""

    def open(self) -> BinaryIO: ...


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content that is held in memory."""

    data: bytes

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer, relative, with forward slashes.

    A file has a `source` of `size` bytes, and `sha256` if its bytes are known before; a symbolic link has `link`; a
    folder has neither. Folders above are made without being listed.
    """

    path: str
    mode: int = 0o644
    source: Source | None = None
    size: int = 0
    sha256: Sha256 | None = None
    link: str = ""
    owner: int = 0
    """Numeric user and group."""

    @classmethod
    def text(cls, path: str, data: bytes, *, mode: int = 0o644, owner: int = 0) -> Entry:
        """A file whose bytes are at hand."""
        return cls(path, mode, Bytes(data), len(data), Sha256.of_bytes(data), owner=owner)

    @classmethod
    def folder(cls, path: str, *, mode: int = 0o755, owner: int = 0) -> Entry:
        return cls(path, mode, owner=owner)


def write_layer(
    store: BlobStore, entries: Iterable[Entry], *, epoch: int, created_by: str, comment: str = "",
    compression: Compression = Compression.GZIP, level: int | None = None, threads: int = 2,
) -> LayerDone:  # fmt: skip
    """Write a layer into the store; `epoch` is the time of every path, in seconds since 1970.

    How many `threads` compress does not change the bytes. Raises PackError if a file is not what its entry says.
    """
    with store.writing() as (file, admit):
        stored = _Hashing(file)
        with _compressor(stored, compression, level or LEVELS[compression], threads) as packed:
            plain = _Hashing(packed)
            _write_tar(plain, entries, epoch)
        admit(stored.digest)
    return LayerDone(
        stored.digest, stored.count, plain.digest, f"{OCI_LAYER}+{compression}", created_by, comment
    )  # fmt: skip


def stored_stream(
    store: BlobStore, plain: BinaryIO, diff_id: Sha256 | None, compression: Compression, *, threads: int = 2
) -> Descriptor:
    """Store a layer that exists as a plain archive. Raises DigestError if it is not `diff_id`."""
    with store.writing() as (file, admit):
        stored = _Hashing(file)
        found = hashlib.sha256()
        with _compressor(stored, compression, LEVELS[compression], threads) as packed:
            while piece := plain.read(CHUNK):
                found.update(piece)
                packed.write(piece)
        if diff_id is not None and found.hexdigest() != diff_id.hex:
            raise DigestError(f"a layer should be {diff_id}, its content is sha256:{found.hexdigest()}.")
        admit(stored.digest)
    return Descriptor(f"{OCI_LAYER}+{compression}", stored.digest, stored.count)


def _write_tar(target: _Hashing, entries: Iterable[Entry], epoch: int) -> None:
    listed = {entry.path: entry for entry in entries}
    for path in [*listed]:
        while path := path.rpartition("/")[0]:
            listed.setdefault(path, Entry.folder(path))
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as archive:
        for path in sorted(listed, key=str.encode):
            entry = listed[path]
            header = _header(entry, epoch)
            if entry.source is None:
                archive.addfile(header)
                continue
            with entry.source.open() as stream:
                checked = _Checked(stream, entry)
                archive.addfile(header, checked)
                checked.verify()


def _header(entry: Entry, epoch: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(entry.path)
    header.mode, header.mtime = entry.mode, epoch
    header.uid = header.gid = entry.owner
    if entry.link:
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, entry.link, 0o777
    elif entry.source is None:
        header.type = tarfile.DIRTYPE
    else:
        header.size = entry.size
    return header


class _Hashing(io.RawIOBase):
    """Hashes and counts what passes."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target, self._hash, self.count = target, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._hash.update(data)
        self.count += len(data)
        self._target.write(data)
        return len(data)

    @property
    def digest(self) -> Sha256:
        return Sha256(self._hash.hexdigest())


class _Checked(io.RawIOBase):
    """Hashes a file while it goes into the archive, and gives exactly the bytes that its header announced."""

    def __init__(self, stream: BinaryIO, entry: Entry) -> None:
        self._stream, self._entry = stream, entry
        self._hash, self._left = hashlib.sha256(), entry.size

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        wanted = self._left if count < 0 else min(count, self._left)
        data = self._stream.read(wanted)
        while len(data) < wanted:
            piece = self._stream.read(wanted - len(data))
            if not piece:
                raise self._differs(f"it ends {self._left - len(data)} bytes early")
            data += piece
        self._hash.update(data)
        self._left -= len(data)
        return data

    def verify(self) -> None:
        """Raise PackError if more follows, or the bytes are others than the entry says."""
        if self._stream.read(1):
            raise self._differs("more bytes follow")
        found = Sha256(self._hash.hexdigest())
        if self._entry.sha256 not in {None, found}:
            raise self._differs(f"the bytes are {found}")

    def _differs(self, got: str) -> PackError:
        wanted = f"{self._entry.sha256 or 'any'}, {self._entry.size} bytes"
        return PackError(
            f"{self._entry.path}: {got}; wanted {wanted}.",
            do="fetch or build the wheel again: what it holds is not what its RECORD says.",
        )


@contextmanager
def _compressor(target: _Hashing, how: Compression, level: int, threads: int) -> Iterator[IO[bytes]]:
    if how is Compression.ZSTD:
        # One worker and more give the same bytes; none would give others.
        packer = zstandard.ZstdCompressor(level=level, threads=max(1, threads))
        with packer.stream_writer(cast("IO[bytes]", target), closefd=False) as packed:
            yield cast("IO[bytes]", packed)
        return
    opened: IO[bytes] = gzip_ng_threaded.open(  # type: ignore[no-untyped-call]
        target, "wb", compresslevel=level, threads=max(1, threads)
    )
    with opened as file:
        yield file
