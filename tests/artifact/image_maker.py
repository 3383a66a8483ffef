"""Makes small images: layers from lists of entries, OCI layouts, archives of engines."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zstandard

if TYPE_CHECKING:
    from pathlib import Path

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(*entries: tuple[str, bytes | str | None]) -> bytes:
    """A tar archive: bytes are a file, None a folder, "-> x" a symbolic link, "= x" a hard link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in entries:
            info = tarfile.TarInfo(path)
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                mark, _, info.linkname = content.partition(" ")
                info.type = tarfile.SYMTYPE if mark == "->" else tarfile.LNKTYPE
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                continue
            archive.addfile(info)
    return out.getvalue()


def compressed(data: bytes, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(data, mtime=0)
    if how == "zstd":
        return zstandard.ZstdCompressor().compress(data)
    return data


@dataclass
class ImageMaker:
    """One image and its blobs."""

    layers: list[bytes]
    architecture: str = "arm64"
    compression: str = "gzip"
    run: dict[str, Any] = field(default_factory=dict)
    config_changes: dict[str, Any] = field(default_factory=dict)

    def config(self) -> bytes:
        document = {
            "architecture": self.architecture, "os": "linux", "config": self.run,
            "rootfs": {"type": "layers", "diff_ids": [sha256(data) for data in self.layers]},
            "history": [{"created_by": "made by hand"}], **self.config_changes,
        }  # fmt: skip
        return json.dumps(document).encode()

    def blobs(self) -> list[bytes]:
        return [compressed(data, self.compression) for data in self.layers]

    def manifest(self) -> bytes:
        def descriptor(media_type: str, data: bytes) -> dict[str, Any]:
            return {"mediaType": media_type, "digest": sha256(data), "size": len(data)}

        document = {
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": descriptor(OCI_CONFIG, self.config()),
            "layers": [descriptor(OCI_LAYER, data) for data in self.blobs()],
        }  # fmt: skip
        return json.dumps(document).encode()

    def all_blobs(self) -> dict[str, bytes]:
        return {sha256(data): data for data in [self.manifest(), self.config(), *self.blobs()]}


def index(*images: ImageMaker, platforms: bool = True, names: tuple[str, ...] = ()) -> bytes:
    manifests = []
    for number, image in enumerate(images):
        data = image.manifest()
        entry: dict[str, Any] = {"mediaType": OCI_MANIFEST, "digest": sha256(data), "size": len(data)}
        if platforms:
            entry["platform"] = {"os": "linux", "architecture": image.architecture}
        if names:
            entry["annotations"] = {"org.opencontainers.image.ref.name": names[number]}
        manifests.append(entry)
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}).encode()


def oci_layout(folder: Path, top: bytes, *images: ImageMaker) -> Path:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_bytes(top)
    for image in images:
        for digest, data in image.all_blobs().items():
            (blobs / digest.removeprefix("sha256:")).write_bytes(data)
    return folder


def tar_of(folder: Path, into: Path) -> Path:
    with tarfile.open(into, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False)
    return into


def docker_save(into: Path, *images: ImageMaker, tags: tuple[str, ...] = ("made:1",)) -> Path:
    """As engines before 25 write it: layers first, `manifest.json` last, a layer that stands twice as a link."""
    manifest: list[dict[str, Any]] = []
    seen: dict[bytes, str] = {}
    with tarfile.open(into, "w") as archive:

        def add(path: str, data: bytes) -> None:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

        for image, tag in zip(images, tags, strict=True):
            paths = []
            for number, data in enumerate(image.layers):
                path = f"{hashlib.sha256(f'{tag}{number}'.encode()).hexdigest()}/layer.tar"
                if data in seen:
                    info = tarfile.TarInfo(path)
                    info.type, info.linkname = tarfile.SYMTYPE, f"../{seen[data]}"
                    archive.addfile(info)
                else:
                    add(path, data)
                    seen[data] = path
                paths.append(path)
            config = f"{sha256(image.config()).removeprefix('sha256:')}.json"
            add(config, image.config())
            manifest.append({"Config": config, "RepoTags": [tag], "Layers": paths})
        add("manifest.json", json.dumps(manifest).encode())
    return into
