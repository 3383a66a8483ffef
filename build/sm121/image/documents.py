"""The documents of an image as they are written: canonical JSON, so that equal content has an equal digest.

Formats: https://github.com/opencontainers/image-spec (1.1).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sm121.artifact.imagedocs import Descriptor
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class LayerDone:
    """A layer that is stored: `digest` and `size` (bytes) as it is stored, `diff_id` of its plain content."""

    digest: Sha256
    size: int
    diff_id: Sha256
    media_type: str
    created_by: str
    comment: str = ""

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(self.media_type, self.digest, self.size)


@dataclass(frozen=True, slots=True)
class Document:
    """Bytes with their media type; the digest is computed from the bytes."""

    media_type: str
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str = ""

    @property
    def digest(self) -> Sha256:
        return Sha256.of_bytes(self.data)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(
            self.media_type,
            self.digest,
            len(self.data),
            annotations=self.annotations,
            artifact_type=self.artifact_type,
        )


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def timestamp(epoch: int) -> str:
    """`2026-11-30T00:00:00Z`; `epoch` in seconds since 1970."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def descriptor_data(descriptor: Descriptor) -> dict[str, Any]:
    """A descriptor as documents hold it."""
    data: dict[str, Any] = {
        "mediaType": descriptor.media_type, "digest": str(descriptor.digest), "size": descriptor.size,
    }  # fmt: skip
    if descriptor.platform is not None:
        parts = {
            "os": descriptor.platform.os, "architecture": descriptor.platform.architecture,
            "variant": descriptor.platform.variant,
        }  # fmt: skip
        data["platform"] = {key: value for key, value in parts.items() if value}
    if descriptor.annotations:
        data["annotations"] = dict(descriptor.annotations)
    if descriptor.artifact_type:
        data["artifactType"] = descriptor.artifact_type
    return data


def image_config(
    base: Mapping[str, Any], run: Mapping[str, Any], layers: Sequence[LayerDone], epoch: int
) -> bytes:
    """The base's configuration with our layers and `run` (what a container of it starts with) put over it.

    `base` is the parsed JSON of the base. Everything in it that is not ours stays.
    """
    created = timestamp(epoch)
    merged = {**(base.get("config") or {}), **run}
    old = base.get("rootfs") or {}
    history = [
        {
            "created": created,
            "created_by": layer.created_by,
            **({"comment": layer.comment} if layer.comment else {}),
        }
        for layer in layers
    ]
    config = {
        **base,
        "created": created,
        "config": merged,
        "rootfs": {
            "type": "layers",
            "diff_ids": [*old.get("diff_ids", []), *(str(layer.diff_id) for layer in layers)],
        },
        "history": [*(base.get("history") or []), *history],
    }
    # What an engine noted about the container that it built the base in says nothing about this image.
    for key in ("container", "container_config", "docker_version", "id", "parent"):
        config.pop(key, None)
    return canonical(config)


def image_manifest(config: Document, layers: Iterable[Descriptor], annotations: Mapping[str, str]) -> Document:
    """The manifest of one image."""
    content = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor_data(config.descriptor),
        "layers": [descriptor_data(layer) for layer in layers],
        **({"annotations": dict(annotations)} if annotations else {}),
    }
    return Document(OCI_MANIFEST, canonical(content))


def referrer_manifest(
    subject: Descriptor, kind: str, content: Document, annotations: Mapping[str, str] | None = None
) -> Document:
    """A manifest that attaches `content` to `subject`; `kind` is the artifact type that readers look for."""
    empty = Document(EMPTY_TYPE, EMPTY)
    bare = Descriptor(subject.media_type, subject.digest, subject.size)
    data = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": kind,
        "config": descriptor_data(empty.descriptor),
        "layers": [descriptor_data(content.descriptor)],
        "subject": descriptor_data(bare),
        **({"annotations": dict(annotations)} if annotations else {}),
    }
    return Document(OCI_MANIFEST, canonical(data), dict(annotations or {}), kind)


def image_index(descriptors: Iterable[Descriptor]) -> Document:
    """An index over manifests."""
    manifests = [descriptor_data(descriptor) for descriptor in descriptors]
    return Document(OCI_INDEX, canonical({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}))
