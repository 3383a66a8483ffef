"""An image that the local container engine holds.

The engine describes it without being asked for its layers. Those come as one archive whose parts are in no useful
order, so it is written to a temporary file (which `notes` say) when the first layer is needed.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO

import docker
from docker.errors import DockerException, ImageNotFound
from requests import RequestException

from sm121.artifact.blobfiles import TarFiles, map_file, read_document, spooled
from sm121.artifact.image import Image
from sm121.artifact.imagedocs import HistoryEntry, ImageConfig
from sm121.artifact.layers import LayerBlob
from sm121.artifact.layout import read_saved
from sm121.artifact.member import CHUNK, LIMITS, RawReader, buffered, printable
from sm121.errors import ArtifactError, ImageError, StorageError
from sm121.findings import Finding, Verdict
from sm121.progress import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from docker import DockerClient
    from docker.models.images import Image as Held

    from sm121.artifact.imagedocs import Platform
    from sm121.artifact.member import Limits, Mapped

_TIMEOUT = 600
"""Seconds for one answer: saving a large image takes the engine minutes before its first byte."""


def open_engine(
    name: str, platform: Platform, *, limits: Limits = LIMITS, client: DockerClient | None = None
) -> Image:
    """Open an image by name or ID. Raises ImageError if no engine answers, or it has no such image or platform."""
    try:
        client = client or _connected()
        held = client.images.get(name)
    except ImageNotFound as error:
        raise ImageError(
            f"The local engine has no image {printable(name)}.", do="look at `docker images`, or name a registry."
        ) from error
    except (DockerException, OSError) as error:
        raise ImageError(
            f"No container engine answers: {printable(str(error))}.", do="start it, or set DOCKER_HOST."
        ) from error
    return _opened(name, held, client, platform, limits)


def find_in_engine(name: str, platform: Platform, *, limits: Limits = LIMITS) -> Image | None:
    """The image of that name, None if no engine answers or it has none for the platform."""
    try:
        return open_engine(name, platform, limits=limits)
    except ImageError:
        return None


def _connected() -> DockerClient:
    return docker.from_env(timeout=_TIMEOUT)


def _opened(name: str, held: Held, client: DockerClient, platform: Platform, limits: Limits) -> Image:
    config = ImageConfig.of_engine(held.attrs, _history(held))
    if not platform.accepts(config.platform):
        raise ImageError(
            f"{printable(name)} in the local engine is for {config.platform}; {platform} was wanted.",
            do="ask for the platform that is there, or for another image.",
        )
    blobs = [LayerBlob(number, str(diff_id), None, diff_id) for number, diff_id in enumerate(config.diff_ids)]
    return Image(f"docker-daemon:{name}", _EngineStore(held, client), config, blobs, limits=limits)


def _history(held: Held) -> tuple[HistoryEntry, ...]:
    """The build steps, first one first; the engine tells them newest first."""
    steps: list[dict[str, Any]] = held.history()
    return tuple(
        HistoryEntry(
            created_by=str(step.get("CreatedBy", "")),
            created=str(step.get("Created", "")),
            comment=str(step.get("Comment", "")),
            empty_layer=not step.get("Size"),
        )
        for step in reversed(steps)
    )


class _EngineStore:
    """The layers, once the engine has written them out."""

    def __init__(self, held: Held, client: DockerClient) -> None:
        self.notes: list[Finding] = []
        self._held = held
        self._client = client
        self._files: TarFiles | None = None
        self._places: dict[str, str] = {}

    def open(self, blob: LayerBlob, *, again: bool) -> BinaryIO:  # noqa: ARG002 -- part of the protocol
        files = self._saved()
        return files.open(self._place(blob))

    def mapped(self, blob: LayerBlob) -> Mapped | None:
        return self._saved().mapped(self._place(blob))

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
        self._client.close()

    def _place(self, blob: LayerBlob) -> str:
        place = self._places.get(blob.where)
        if place is None:
            raise ArtifactError(f"{blob.label} is missing in what the engine saved")
        return place

    def _saved(self) -> TarFiles:
        if self._files is None:
            free, needed = shutil.disk_usage(tempfile.gettempdir()).free, int(self._held.attrs.get("Size") or 0)
            if needed > free:
                raise StorageError(
                    f"A temporary copy of the image takes {size(needed)}; {size(free)} are free.",
                    do="set TMPDIR to a larger disk.",
                )
            with spooled(buffered(_Pieces(self._pieces()))) as copy:
                count = copy.tell()
                self._files = TarFiles(map_file(copy), "the engine's archive")
            self._find_layers(self._files)
            got = f"was saved by the engine to a temporary file of {size(count)}"
            self.notes.append(Finding("image.archive", "the image", Verdict.INFO, got))
        return self._files

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield from self._held.save(chunk_size=CHUNK)
        except (DockerException, RequestException, OSError) as error:
            raise ImageError(f"The engine stopped while it saved the image: {printable(str(error))}.") from error

    def _find_layers(self, files: TarFiles) -> None:
        """Pair the archive's layers with the diff_ids of the configuration beside them."""
        (saved,) = read_saved(read_document(files, "manifest.json"), "the engine's archive")
        diff_ids = ImageConfig.parse(read_document(files, saved.config)).diff_ids
        self._places = {str(diff_id): place for diff_id, place in zip(diff_ids, saved.layers, strict=False)}


class _Pieces(RawReader):
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = b""

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
        count = min(len(target), len(self._held))
        target[:count] = self._held[:count]
        self._held = self._held[count:]
        return count
