"""Images in files: OCI layouts, and what `docker save` writes, as a folder or a tar archive.

Layouts: https://github.com/opencontainers/image-spec/blob/main/image-layout.md. Engines before 25 write
`manifest.json`, a configuration and `ID/layer.tar` without a manifest; later ones write both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from sm121.artifact.blobfiles import BlobFiles, FolderFiles, open_tar, read_document
from sm121.artifact.choosing import Chooser
from sm121.artifact.image import Image
from sm121.artifact.imagedocs import ImageConfig, read_index_or_manifest
from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.layers import LayerBlob
from sm121.artifact.member import LIMITS, Mapped, printable
from sm121.errors import ArtifactError, DigestError, ImageError
from sm121.findings import Finding, Verdict
from sm121.progress import size
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from sm121.artifact.imagedocs import Descriptor, Manifest, Platform
    from sm121.artifact.member import Limits


def is_layout(path: Path) -> bool:
    """Whether a folder is an OCI layout, or an unpacked archive of an engine."""
    if (path / "oci-layout").is_file():
        return True
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        start = file.read(4096)
    return start.lstrip().startswith(b"[") and b'"Layers"' in start


class LayoutStore:
    """Blobs of a layout."""

    def __init__(self, files: BlobFiles, notes: Iterable[Finding] = ()) -> None:
        self.notes = list(notes)
        self._files = files

    def open(self, blob: LayerBlob, *, again: bool) -> BinaryIO:  # noqa: ARG002 -- part of the protocol
        return self._files.open(blob.where)

    def mapped(self, blob: LayerBlob) -> Mapped | None:
        return self._files.mapped(blob.where)

    def close(self) -> None:
        self._files.close()


def open_layout(
    path: Path, platform: Platform, *, tag: str = "", digest: Sha256 | None = None, limits: Limits = LIMITS
) -> Image:
    """Open the image for `platform`; `tag` or `digest` choose where a layout holds several.

    Raises ArtifactError if it is no image, ImageError if there is none for the platform.
    """
    if path.is_dir():
        files: BlobFiles = FolderFiles(path)
        notes = []
    else:
        files, copied = open_tar(path)
        notes = [_copied(path.name, copied)] if copied else []
    try:
        return _Layout(path, files, platform, limits, notes).image(tag, digest)
    except BaseException:
        files.close()
        raise


def layer_blobs(manifest: Manifest, config: ImageConfig, where: Callable[[Sha256], str]) -> list[LayerBlob]:
    """The layers of a manifest with the diff_ids of its configuration, as far as both go."""
    diff_ids = [*config.diff_ids, *[None] * len(manifest.layers)]
    return [
        LayerBlob(number, where(layer.digest), layer.digest, diff_id, layer.size, layer.media_type)
        for number, (layer, diff_id) in enumerate(zip(manifest.layers, diff_ids, strict=False))
    ]


@dataclass(frozen=True, slots=True)
class _Layout:
    """An opened layout, and for which platform its image is wanted."""

    path: Path
    files: BlobFiles
    platform: Platform
    limits: Limits
    notes: list[Finding]

    def image(self, tag: str, digest: Sha256 | None) -> Image:
        if self.files.has("index.json"):
            return self._of_index(tag, digest)
        if self.files.has("manifest.json"):
            return self._of_save(tag)
        raise ArtifactError(
            f"{self.path} is no image: it has neither index.json nor manifest.json.",
            do="write one with `docker save` or `skopeo copy ... oci:FOLDER`.",
        )

    def _of_index(self, tag: str, digest: Sha256 | None) -> Image:
        def fetch(descriptor: Descriptor) -> bytes:
            return read_document(self.files, _blob(descriptor.digest), self.limits.document)

        top = read_index_or_manifest(read_document(self.files, "index.json", self.limits.document))
        chosen = Chooser(self.path.name, self.platform, fetch, tag, digest).choose(top)
        blobs = layer_blobs(chosen.manifest, chosen.config, _blob)
        return Image(
            str(self.path), LayoutStore(self.files, self.notes), chosen.config, blobs, manifest=chosen.manifest,
            claimed=chosen.claimed, limits=self.limits,
        )  # fmt: skip

    def _of_save(self, tag: str) -> Image:
        saved = read_saved(read_document(self.files, "manifest.json", self.limits.document), self.path.name)
        named = [image for image in saved if not tag or any(_is_named(name, tag) for name in image.tags)]
        if len(named) != 1:
            there = ", ".join(name for image in saved for name in image.tags or ("an image without a name",))
            raise ImageError(
                f"{self.path.name} holds {len(named)} images{f' named {tag}' if tag else ''}; one is looked at.",
                do=f"name one of: {printable(there) or '(it is empty)'}.",
            )
        (image,) = named
        data = read_document(self.files, image.config, self.limits.document)
        _check_name(image.config, data, self.path.name)
        config = ImageConfig.parse(data)
        if not self.platform.accepts(config.platform):
            raise ImageError(
                f"{self.path.name} is an image for {config.platform}; {self.platform} was wanted.",
                do="ask for the platform that is there, or for another image.",
            )
        diff_ids = [*config.diff_ids, *[None] * len(image.layers)]
        blobs = [
            LayerBlob(number, where, None, diff_id)
            for number, (where, diff_id) in enumerate(zip(image.layers, diff_ids, strict=False))
        ]
        return Image(str(self.path), LayoutStore(self.files, self.notes), config, blobs, limits=self.limits)


@dataclass(frozen=True, slots=True)
class Saved:
    """One image in the manifest.json of an engine."""

    config: str
    tags: tuple[str, ...]
    layers: tuple[str, ...]


def read_saved(data: bytes, archive: str) -> list[Saved]:
    """Read a manifest.json; `archive` is its name for messages."""
    reader = JsonReader(f"manifest.json of {archive}")
    images = reader.document(data)
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise ArtifactError(f"{reader.what} is no list of images.", do="write the archive with `docker save`.")
    saved = [
        Saved(reader.text(image, "Config"), reader.texts(image, "RepoTags"), reader.texts(image, "Layers"))
        for image in images
    ]
    reader.finish()
    return saved


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith((f":{wanted}", f"/{wanted}"))


def _check_name(name: str, data: bytes, archive: str) -> None:
    """An engine names the configuration after its digest: `HEX.json` or `blobs/sha256/HEX`."""
    stem = name.rpartition("/")[2].removesuffix(".json")
    digest = Sha256.of_bytes(data)
    if re.fullmatch(r"[0-9a-f]{64}", stem) and stem != digest.hex:
        raise DigestError(
            f"{archive}: the configuration is named after sha256:{stem}; its bytes are {digest}.",
            do="do not use this image: its configuration was changed or is damaged.",
        )


def _blob(digest: Sha256) -> str:
    return f"blobs/sha256/{digest.hex}"


def _copied(name: str, count: int) -> Finding:
    got = f"was decompressed to a temporary file of {size(count)}, as its parts do not stand in reading order"
    return Finding("image.archive", name, Verdict.INFO, got)
