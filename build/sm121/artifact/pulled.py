"""An image in a registry: its documents by digest, its layers as streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from sm121.artifact.blobfiles import MappedStream, close_maps, map_file, spooled
from sm121.artifact.choosing import Chooser
from sm121.artifact.image import Image
from sm121.artifact.imagedocs import INDEX_TYPES, MANIFEST_TYPES, read_index_or_manifest
from sm121.artifact.inflate import Hashed
from sm121.artifact.layout import layer_blobs
from sm121.artifact.member import CHUNK, LIMITS, Mapped, RawReader, buffered, printable
from sm121.artifact.registry import BROKEN, TRIES, Registry
from sm121.errors import DigestError, ImageError
from sm121.findings import Finding, Verdict
from sm121.progress import size
from sm121.values import Sha256

if TYPE_CHECKING:
    import mmap

    import requests

    from sm121.artifact.imagedocs import Descriptor, Platform
    from sm121.artifact.layers import LayerBlob
    from sm121.artifact.member import Limits
    from sm121.artifact.reference import ImageReference

_DOCUMENTS = (*INDEX_TYPES, *MANIFEST_TYPES)


def open_registry(
    reference: ImageReference, platform: Platform, *, limits: Limits = LIMITS, registry: Registry | None = None
) -> Image:
    """Open an image by tag or digest; only its documents are fetched.

    Raises ImageError if it does not exist, is refused, or has nothing for `platform`; DigestError if what the
    registry sends is not what was asked for.
    """
    reference.identified()
    client = registry or Registry(reference)
    try:
        return _opened(client, reference, platform, limits)
    except BaseException:
        client.close()
        raise


def _opened(client: Registry, reference: ImageReference, platform: Platform, limits: Limits) -> Image:
    def fetch(descriptor: Descriptor) -> bytes:
        kind = "manifests" if descriptor.media_type in _DOCUMENTS else "blobs"
        accept = (descriptor.media_type,) if kind == "manifests" else ()
        return client.document(f"{kind}/{descriptor.digest}", accept, limits.document)[0]

    named = str(reference.digest or reference.tag)
    data, stated = client.document(f"manifests/{named}", _DOCUMENTS, limits.document)
    digest = Sha256.of_bytes(data)
    if reference.digest not in {None, digest} or stated not in {"", str(digest)}:
        raise DigestError(
            f"{reference}: the registry sends a manifest whose bytes are {digest}"
            f"{f' and calls it {printable(stated)}' if stated else ''}.",
            do="do not use what it sends; try again, and tell its owner.",
        )
    chosen = Chooser(str(reference), platform, fetch).choose(read_index_or_manifest(data))
    exact = reference.with_digest(chosen.manifest.digest)
    return Image(
        str(exact), _RegistryStore(client), chosen.config, layer_blobs(chosen.manifest, chosen.config, str),
        manifest=chosen.manifest, reference=exact, asked=reference, claimed=chosen.claimed, limits=limits,
    )  # fmt: skip


class _RegistryStore:
    """Layers of one repository.

    A layer that is wanted a second time is kept in a temporary file, verified as a whole before any of it is
    used: a registry could send other bytes than the first time.
    """

    def __init__(self, client: Registry) -> None:
        self.notes: list[Finding] = []
        self._client = client
        self._kept: dict[str, mmap.mmap] = {}

    def open(self, blob: LayerBlob, *, again: bool) -> BinaryIO:
        stream: BinaryIO = buffered(_Blob(self._client, f"blobs/{blob.digest}", blob.size or 0))
        if not again:
            return stream
        if blob.where not in self._kept:
            with stream:
                self._kept[blob.where] = self._copied(blob, stream)
        memory = self._kept[blob.where]
        return buffered(MappedStream(Mapped(memory, 0, len(memory))))

    def mapped(self, blob: LayerBlob) -> Mapped | None:
        """The blob on disk, if it had to be copied there."""
        memory = self._kept.get(blob.where)
        return Mapped(memory, 0, len(memory)) if memory is not None else None

    def close(self) -> None:
        self._client.close()
        close_maps(self._kept.values())

    def _copied(self, blob: LayerBlob, stream: BinaryIO) -> mmap.mmap:
        hashed = Hashed(stream, blob.size)
        with spooled(buffered(hashed)) as copy:
            if blob.digest not in {None, hashed.digest}:
                raise ImageError(f"{blob.label}: the registry sent {hashed.digest} the second time.")
            got = f"was fetched again, to a temporary file of {size(hashed.count)}, for files that depend on it"
            self.notes.append(Finding("image.layer", blob.label, Verdict.INFO, got))
            return map_file(copy)


class _Blob(RawReader):
    """A blob as a stream; where the connection breaks, it goes on from there."""

    def __init__(self, client: Registry, path: str, total: int) -> None:
        self._client = client
        self._path = path
        self._total = total
        self._position = 0
        self._failures = 0
        self._answer: requests.Response | None = None

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while True:
            failure: Exception = EOFError("it ends too early")
            try:
                piece = self._opened().raw.read(min(len(target), CHUNK), decode_content=False)
            except BROKEN as error:
                failure, piece = error, b""
            else:
                if piece or self._position >= self._total:
                    target[: len(piece)] = piece
                    self._position += len(piece)
                    return len(piece)
            self._failures += 1
            self._drop()
            if self._failures >= TRIES:
                raise self._client.broken(self._path, failure)
            self._client.pause(0.5 * 2**self._failures)

    def close(self) -> None:
        self._drop()
        super().close()

    def _opened(self) -> requests.Response:
        """The answer, read up to the position."""
        if self._answer is None:
            headers = {"Range": f"bytes={self._position}-"} if self._position else {}
            self._answer = self._client.get(self._path, headers)
            left = self._position if self._answer.status_code == 200 else 0
            while left and (piece := self._answer.raw.read(min(left, CHUNK), decode_content=False)):
                left -= len(piece)
        return self._answer

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None
