"""The base of an image: by digest, its blobs brought into a store, and what of it matters to us found by reading."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sm121.artifact import Image, printable
from sm121.artifact.blobfiles import BlobFiles, FolderFiles, open_tar
from sm121.artifact.imagedocs import Descriptor, ImageConfig
from sm121.artifact.inflate import Hashed, decompressed
from sm121.artifact.layers import LayerBlob
from sm121.artifact.layout import LayoutStore, open_layout
from sm121.artifact.member import CHUNK
from sm121.artifact.pulled import open_registry
from sm121.artifact.reference import ImageReference, parse_digest
from sm121.errors import ArtifactError, DigestError, ImageError, UsageError
from sm121.image.documents import OCI_LAYER
from sm121.image.layer import Compression, stored_stream
from sm121.image.remote import Repository
from sm121.image.store import require_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm121.artifact.imagedocs import Platform
    from sm121.artifact.member import Member
    from sm121.image.store import BlobStore
    from sm121.progress import Progress
    from sm121.values import Sha256

_LAYOUTS = ("oci:", "oci-archive:", "docker-archive:")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIBC = re.compile(r"(?:^|/)(?:lib|lib64|lib/[a-z0-9_]+-linux-gnu)/libc\.so\.6$")
_LIBC_VERSION = re.compile(rb"GNU C Library[^\n]*release version (\d+)\.(\d+)")
_PYTHON = re.compile(r"(?:^|/)bin/python3\.\d+$")
_MACHINES = {"arm64": 0xB7, "amd64": 0x3E}
_SMALL = 8 << 20


@dataclass(frozen=True, slots=True)
class Base:
    """A base image whose blobs are in a store.

    `name` is how it was asked for, `public` what may be written into an image (a file's place is nobody's business),
    `digest` of its manifest (of its configuration for what an engine saved), `config`
    its configuration as parsed JSON, `layers` its layers, lowest first.
    """

    name: str
    public: str
    digest: Sha256
    platform: Platform
    config: dict[str, Any]
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """What reading a base says: where Python is (`/usr/bin`), its C library as (major, minor), user files."""

    python_home: str
    libc: tuple[int, int]
    passwd: bytes
    group: bytes


def take_base(
    text: str, platform: Platform, store: BlobStore, progress: Progress, *, insecure: bool = False
) -> Base:
    """Bring a base into the store.

    `text` is `REGISTRY/NAME@sha256:...`, `oci:PATH@sha256:...` or `docker-archive:PATH@sha256:IMAGE-ID`. Raises
    UsageError for a base without a digest, ImageError for one of another platform, DigestError for other bytes.
    """
    name, at, digits = text.partition("@")
    if not at:
        raise UsageError(
            f"the base {printable(text)} is named without a digest, so it can be another one tomorrow.",
            do=f"resolve it once (`sm121 resolve {printable(text)}`), then write {printable(text)}@sha256:DIGEST.",
        )
    try:
        digest = parse_digest(digits)
    except ValueError as error:
        raise UsageError(f"the base {printable(text)}: {error}.") from error
    for prefix in _LAYOUTS:
        if name.startswith(prefix):
            return _of_files(text, Path(name.removeprefix(prefix)), digest, platform, store)
    reference = ImageReference.parse_familiar(text).by_digest()
    return _of_registry(reference, platform, store, progress, insecure=insecure)


def _of_registry(
    reference: ImageReference, platform: Platform, store: BlobStore, progress: Progress, *, insecure: bool
) -> Base:
    with Repository(reference, insecure=insecure) as repository:
        image = open_registry(reference, platform, registry=repository.registry)
        manifest, config = image.manifest, image.config
        assert manifest is not None
        data = repository.small_blob(manifest.config)
        total = sum(layer.size for layer in manifest.layers)
        missing = sum(layer.size for layer in manifest.layers if not store.has(layer.digest, layer.size))
        require_space(store.root, missing, "the base")
        with progress.counter(f"pull {reference.repository}", total, "B") as counter:
            tally = _Tally(counter.update)
            for layer in manifest.layers:
                _refuse_foreign(reference.name, layer)
                repository.pull_blob(layer, store, tally.add)
        layers = tuple(_oci_layer(layer) for layer in manifest.layers)
        return Base(str(reference), reference.name, manifest.digest, config.platform, json.loads(data), layers)


class _Tally:
    """A sum that is shown as it grows."""

    def __init__(self, show: Callable[[float], None]) -> None:
        self._show, self._sum = show, 0

    def add(self, count: int) -> None:
        self._sum += count
        self._show(self._sum)


def _of_files(text: str, path: Path, digest: Sha256, platform: Platform, store: BlobStore) -> Base:
    """From a layout or an engine's archive, as a folder or a tar file."""
    if not path.exists():
        raise ArtifactError(f"{printable(str(path))} does not exist.", do="check the path.")
    saved = not _has_index(path)
    with open_layout(path, platform, digest=None if saved else digest) as image:
        found = image.config.digest if saved else image.digest
        if found != digest:
            raise DigestError(
                f"{printable(text)} was wanted; the image there is {found}.",
                do=f"check that it is the right one, then write {printable(text.partition('@')[0])}@{found}.",
            )
        blobs, manifest, config = image.blobs, image.manifest, image.config
    files: BlobFiles = FolderFiles(path) if path.is_dir() else open_tar(path)[0]
    try:
        if manifest is None:
            data = _saved_config(files, digest)
            layers = [_recompressed(files.open(blob.where), blob, store) for blob in blobs]
        else:
            with files.open(f"blobs/sha256/{manifest.config.digest.hex}") as stream:
                data = stream.read(_SMALL)
            for layer in manifest.layers:
                _refuse_foreign(str(path), layer)
                _copied(files.open(f"blobs/sha256/{layer.digest.hex}"), layer, store)
            layers = [_oci_layer(layer) for layer in manifest.layers]
    finally:
        files.close()
    return Base(text, text.partition(":")[0], digest, config.platform, json.loads(data), tuple(layers))


def _has_index(path: Path) -> bool:
    files: BlobFiles = FolderFiles(path) if path.is_dir() else open_tar(path)[0]
    try:
        return files.has("index.json")
    finally:
        files.close()


def _saved_config(files: BlobFiles, digest: Sha256) -> bytes:
    """The configuration that an engine saved, by the name that it has there."""
    name = next(n for n in (f"{digest.hex}.json", f"blobs/sha256/{digest.hex}", digest.hex) if files.has(n))
    with files.open(name) as stream:
        return stream.read(_SMALL)


def _copied(stream: BinaryIO, layer: Descriptor, store: BlobStore) -> None:
    with stream, store.writing() as (file, admit):
        checked = Hashed(stream, layer.size)
        while piece := checked.read(CHUNK):
            file.write(piece)
        if checked.digest != layer.digest:
            raise DigestError(f"a layer of the base should be {layer.digest}, its bytes are {checked.digest}.")
        admit(layer.digest)


def _recompressed(stream: BinaryIO, blob: LayerBlob, store: BlobStore) -> Descriptor:
    """A layer as engines save it, which is plain, as a registry takes it."""
    plain, _ = decompressed(Hashed(stream, hashing=False))
    with plain:
        return stored_stream(store, plain, blob.diff_id, Compression.GZIP)


def _oci_layer(layer: Descriptor) -> Descriptor:
    """The same bytes under the name that OCI manifests use for them."""
    kind = layer.media_type
    ending = next((f"+{how}" for how in ("gzip", "zstd") if kind.endswith((f"+{how}", f".{how}"))), "")
    return Descriptor(f"{OCI_LAYER}{ending}", layer.digest, layer.size)


def _refuse_foreign(name: str, layer: Descriptor) -> None:
    if layer.urls or "foreign" in layer.media_type or "nondistributable" in layer.media_type:
        raise ImageError(f"{name}: the layer {layer.digest} may not be distributed; take another base.")


def read_base(base: Base, store: BlobStore, python: str) -> BaseFacts:
    """Look into a base without running it. Raises ImageError that names all that is missing for `python` (`3.12`)."""
    run = ImageConfig.parse(json.dumps(base.config).encode())
    diff_ids = [*run.diff_ids]
    if len(diff_ids) != len(base.layers):
        raise ImageError(
            f"{base.name}: its configuration names {len(diff_ids)} layers, it has {len(base.layers)}."
        )
    blobs = [
        LayerBlob(number, f"blobs/sha256/{layer.digest.hex}", layer.digest, diff_id, layer.size, layer.media_type)
        for number, (layer, diff_id) in enumerate(zip(base.layers, diff_ids, strict=True))
    ]
    with Image(base.name, LayoutStore(FolderFiles(store.root)), run, blobs) as image:
        return _Reading(base, image, run, python).facts()


class _Reading:
    """One pass over a base."""

    def __init__(self, base: Base, image: Image, config: ImageConfig, python: str) -> None:
        self._base, self._image, self._config, self._python = base, image, config, python
        self._kept: dict[str, bytes] = {}
        self._faults: list[str] = []

    def facts(self) -> BaseFacts:
        for member in self._image.members(self._wanted):
            self._keep(member)
        bad = [finding.message for finding in self._image.problems if finding.check.startswith("image.layer")]
        if bad:
            raise DigestError([f"{self._base.name}: {text}" for text in bad], do="fetch the base again.")
        home, libc = self._home(), self._libc()
        passwd, group = self._text("etc/passwd"), self._text("etc/group")
        if self._faults:
            raise ImageError(
                [f"{self._base.name}: {fault}." for fault in self._faults],
                do=f"take a base for {self._base.platform} with glibc and Python {self._python}, or lock the set for "
                "another Python: `sm121 pins lock --python VERSION`.",
            )
        return BaseFacts(home, libc, passwd, group)

    def _wanted(self, path: str) -> bool:
        return path in {"etc/passwd", "etc/group"} or bool(_PYTHON.search(path) or _LIBC.search(path))

    def _keep(self, member: Member) -> None:
        limit = 64 if _PYTHON.search(member.path) else _SMALL
        with member.open() as stream:
            self._kept[member.path] = stream.read(limit)

    def _text(self, path: str) -> bytes:
        found = self._image.find(path)
        return self._kept.get(found.path, b"") if found is not None else b""

    def _home(self) -> str:
        """The folder of the pinned Python, first one on the base's PATH."""
        folders = (self._config.environment.get("PATH") or _PATH).split(":")
        for folder in [each.strip("/") for each in folders if each.startswith("/")]:
            found = self._image.find(f"{folder}/python{self._python}")
            if found is None:
                continue
            start = self._kept.get(found.path, b"")
            machine = struct.unpack("<H", start[18:20])[0] if start[:4] == b"\x7fELF" else 0
            if machine != _MACHINES.get(self._base.platform.architecture, -1):
                self._faults.append(f"{found.path} is no program for {self._base.platform}")
                return ""
            roots = [folder, found.path.rpartition("/")[0]]
            library = f"lib/python{self._python}/os.py"
            if not any(self._image.find(f"{root.rpartition('/')[0]}/{library}".lstrip("/")) for root in roots):
                self._faults.append(f"{found.path} has no standard library beside it ({library})")
            return f"/{folder}"
        there = sorted({path.rpartition("/python")[2] for path in self._kept if _PYTHON.search(path)})
        seen = f"it has Python {', '.join(there)}" if there else "it has no Python"
        self._faults.append(f"Python {self._python} is not on its PATH; {seen}")
        return ""

    def _libc(self) -> tuple[int, int]:
        for path, data in self._kept.items():
            if _LIBC.search(path) and (match := _LIBC_VERSION.search(data)):
                return int(match[1]), int(match[2])
        for path in ("lib/libc.so.6", "lib64/libc.so.6"):
            found = self._image.find(path)
            if found is not None and (match := _LIBC_VERSION.search(self._kept.get(found.path, b""))):
                return int(match[1]), int(match[2])
        self._faults.append("no glibc was found in it; manylinux wheels need one")
        return 0, 0
