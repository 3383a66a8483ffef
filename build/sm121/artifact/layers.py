"""One layer of an image as a stream: its entries, its content, its digests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from sm121.artifact.inflate import Hashed, decompressed
from sm121.artifact.member import CHUNK, LIMITS, Mapped, RawReader, buffered
from sm121.artifact.tarstream import tar_entries
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.artifact.member import Limits
    from sm121.artifact.tarstream import TarEntry
    from sm121.values import Sha256


_WASTE = memoryview(bytearray(CHUNK))
"""Where bytes go that are hashed and not looked at."""


@dataclass(frozen=True, slots=True)
class LayerBlob:
    """What the image's documents say about a layer.

    `digest` and `size` (bytes) are of the blob as it is stored, `diff_id` is of its plain content. `where` names
    the blob in its store. The number counts from the base layer, 0.
    """

    number: int
    where: str
    digest: Sha256 | None = None
    diff_id: Sha256 | None = None
    size: int | None = None
    media_type: str = ""

    @property
    def label(self) -> str:
        return f"layer {self.number} ({self.digest or self.diff_id or self.where})"


class Store(Protocol):
    """Where the blobs of an image lie. `notes` say what had to be copied to read them."""

    notes: list[Finding]

    def open(self, blob: LayerBlob, *, again: bool) -> BinaryIO:
        """Stream a blob from its start. `again` says that it was streamed and verified before."""

    def mapped(self, blob: LayerBlob) -> Mapped | None:
        """The blob as it lies on disk, if it does."""

    def close(self) -> None: ...


class Layer:
    """A layer that is streamed once to learn its entries, and again only for what was not read on the way."""

    def __init__(self, blob: LayerBlob, store: Store, limits: Limits = LIMITS) -> None:
        self.blob = blob
        self.entries: list[TarEntry] = []
        self.problems: list[Finding] = []
        self.compression = ""
        self._store = store
        self._limits = limits
        self._scan: _Plain | None = None
        self._late: _Plain | None = None

    def scan(self, most: int) -> Iterator[TarEntry]:
        """Give the entries, at most `most`; at the end the digests are verified.

        Damage goes to `problems`. While an entry is handed out its content can be read without cost.
        """
        self.entries.clear()
        try:
            stream = self._opened(again=False)
        except ArtifactError as error:
            self._problem("image.layer", f"cannot be read: {error.problems[0]}")
            return
        self._scan = stream
        try:
            yield from self._entries(stream, most)
            self._verify(stream)
        finally:
            self._scan = None
            stream.close()

    def read_at(self, offset: int, target: memoryview) -> int:
        """Read plain content at `offset` into `target`; returns the bytes read."""
        if self._scan is not None and self._scan.position == offset:
            return self._scan.readinto(target)
        if self._late is None or self._late.position > offset:
            if self._late is not None:
                self._late.close()
            self._late = self._opened(again=True)
        if not self._late.skip_to(offset):
            raise ArtifactError(f"it ends before byte {offset}")
        return self._late.readinto(target)

    def mapped(self, offset: int, size: int) -> Mapped | None:
        """A range of the plain content, if the layer lies on disk uncompressed."""
        if self.compression or (blob := self._store.mapped(self.blob)) is None or offset + size > blob.size:
            return None
        return Mapped(blob.memory, blob.offset + offset, size)

    def close(self) -> None:
        if self._late is not None:
            self._late.close()
            self._late = None

    def _opened(self, *, again: bool) -> _Plain:
        stream = _Plain(self._store.open(self.blob, again=again), self.blob.size, self._limits.total)
        self.compression = stream.compression
        return stream

    def _entries(self, stream: _Plain, most: int) -> Iterator[TarEntry]:
        try:
            for entry in tar_entries(stream):
                if len(self.entries) >= most:
                    self._problem("image.layer", f"has more entries than the {most} that are read")
                    break
                self.entries.append(entry)
                yield entry
        except ArtifactError as error:
            self._problem("image.layer", f"cannot be read to its end: {error.problems[0]}")

    def _verify(self, stream: _Plain) -> None:
        """Read what is left and compare both digests with what the documents say."""
        try:
            stream.drain()
        except ArtifactError as error:
            if not self.problems:
                self._problem("image.layer", f"cannot be read to its end: {error.problems[0]}")
            stream.drain_blob()
        if self.blob.size is not None and stream.stored.count != self.blob.size:
            self._problem("image.layer-digest", f"has {stream.stored.count} bytes", f"{self.blob.size}")
        if self.blob.digest not in {None, stream.stored.digest}:
            self._problem("image.layer-digest", f"the bytes are {stream.stored.digest}", str(self.blob.digest))
        elif self.blob.diff_id not in {None, stream.diff_id} and not self.problems:
            self._problem(
                "image.layer-digest", f"the content is {stream.diff_id}", f"{self.blob.diff_id} (diff_id)"
            )

    def _problem(self, check: str, got: str, wanted: str = "") -> None:
        self.problems.append(Finding(check, self.blob.label, Verdict.FAIL, got.rstrip("."), wanted))


@dataclass(frozen=True, slots=True)
class LayerContent:
    """The bytes of a file in a layer."""

    layer: Layer
    entry: TarEntry

    def open(self) -> BinaryIO:
        if self.entry.fault:
            raise ArtifactError(
                f"{self.entry.path!r} in {self.layer.blob.label} cannot be read: {self.entry.fault}."
            )
        return buffered(_Slice(self.layer, self.entry.offset, self.entry.size))

    def mapped(self) -> Mapped | None:
        return None if self.entry.fault else self.layer.mapped(self.entry.offset, self.entry.size)


class _Slice(RawReader):
    """A range of a layer's plain content."""

    def __init__(self, layer: Layer, offset: int, size: int) -> None:
        self._layer = layer
        self._position = offset
        self._end = offset + size

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        most = min(len(target), self._end - self._position)
        if not most:
            return 0
        try:
            count = self._layer.read_at(self._position, memoryview(target)[:most])
        except ArtifactError as error:
            raise ArtifactError(f"{self._layer.blob.label} is damaged: {error.problems[0]}.") from error
        if not count:
            raise ArtifactError(f"{self._layer.blob.label} ends in the middle of a file.")
        self._position += count
        return count


class _Plain:
    """The plain content of a blob, forward only, hashed on both sides of the decompressor."""

    def __init__(self, stream: BinaryIO, size: int | None, most: int) -> None:
        self.stored = Hashed(stream, size)
        try:
            inner, self.compression = decompressed(self.stored)
        except ArtifactError:
            self.stored.close()
            raise
        self._plain = Hashed(inner, most, hashing=bool(self.compression))
        self.position = 0

    @property
    def diff_id(self) -> Sha256:
        """The digest of the plain content that was read so far."""
        return self._plain.digest if self.compression else self.stored.digest

    def readinto(self, target: memoryview) -> int:
        count = self._plain.readinto(target)
        self.position += count
        return count

    def read(self, count: int) -> bytes:
        data = bytearray(count)
        done = 0
        with memoryview(data) as view:
            while done < count and (got := self.readinto(view[done:])):
                done += got
        return bytes(data[:done])

    def skip_to(self, position: int) -> bool:
        while self.position < position and self.readinto(_WASTE[: position - self.position]):
            pass
        return self.position == position

    def drain(self) -> None:
        """Read to the end of the content and of the blob."""
        while self.readinto(_WASTE):
            pass
        self.drain_blob()

    def drain_blob(self) -> None:
        """Read the blob to its end without looking at the content."""
        try:
            while self.stored.readinto(_WASTE):
                pass
        except ArtifactError:
            return  # longer than declared: the count says so

    def close(self) -> None:
        self._plain.close()
        self.stored.close()
