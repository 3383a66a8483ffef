"""The JSON documents of an image: index, manifest, configuration.

Formats: https://github.com/opencontainers/image-spec and Docker's older twins, which have the same shape
(https://distribution.github.io/distribution/spec/manifest-v2-2/).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from sm121.artifact.jsondoc import JsonReader
from sm121.errors import ArtifactError
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.artifact.jsondoc import Table

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CONFIG_TYPES = {
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
}
_MOST_LAYERS = 1000
_ABSENT = Sha256("0" * 64)


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and a CPU as image documents name them: `linux/arm64`."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `linux/arm64` or `linux/arm64/v8`."""
        parts = text.split("/")
        if len(parts) not in {2, 3} or not all(parts):
            raise ArtifactError(f"{text!r} is no platform.", do="write OS/ARCHITECTURE, for example linux/arm64.")
        return cls(*parts)

    def accepts(self, other: Platform) -> bool:
        """Whether `other` is this platform; a variant counts only where both name one."""
        same = (self.os, self.architecture) == (other.os, other.architecture)
        return same and (not self.variant or not other.variant or self.variant == other.variant)

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


LINUX_ARM64 = Platform("linux", "arm64")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A document's pointer to a blob: which kind, which bytes, how many of them."""

    media_type: str
    digest: Sha256
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    urls: tuple[str, ...] = ()
    artifact_type: str = ""

    @classmethod
    def of_table(cls, reader: JsonReader, table: Table, key: str) -> Self:
        """Read a descriptor; faults go to `reader`."""
        platform = reader.table(table, "platform")
        named = (
            reader.text(platform, "os"),
            reader.text(platform, "architecture"),
            reader.text(platform, "variant"),
        )
        return cls(
            media_type=reader.text(table, "mediaType"),
            digest=reader.digest(reader.text(table, "digest"), f"{key}.digest") or _ABSENT,
            size=reader.number(table, "size"),
            platform=Platform(*named) if platform else None,
            annotations=reader.strings(table, "annotations"),
            urls=reader.texts(table, "urls"),
            artifact_type=reader.text(table, "artifactType"),
        )

    @property
    def attestation(self) -> bool:
        """Whether it is a statement about an image and none itself.

        BuildKit stores those beside the image for the platform unknown/unknown, others with an artifact type.
        """
        marked = "vnd.docker.reference.type" in self.annotations
        unknown = self.platform is not None and self.platform.os == "unknown"
        return marked or unknown or self.artifact_type not in {"", *_CONFIG_TYPES}


@dataclass(frozen=True, slots=True)
class Index:
    """Images under one name. `digest` is computed from the bytes."""

    digest: Sha256
    manifests: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image: its configuration and its layers, base first. `digest` is computed from the bytes."""

    digest: Sha256
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)


def read_index_or_manifest(data: bytes) -> Index | Manifest:
    """Read what a registry or layout holds under a name; raises ArtifactError for what is neither.

    The members decide, not the media type. A document that is both is refused: two readers would see two images
    (https://github.com/opencontainers/image-spec/security/advisories/GHSA-77vh-xpmg-72qh).
    """
    digest = Sha256.of_bytes(data)
    reader = JsonReader(f"the manifest {digest}")
    top = reader.top(data)
    if "manifests" in top and ("layers" in top or "config" in top):
        raise ArtifactError(f"{reader.what} is an index and a manifest at once.", do="do not trust this image.")
    if "manifests" in top:
        manifests = [Descriptor.of_table(reader, entry, "manifests") for entry in reader.tables(top, "manifests")]
        reader.finish()
        return Index(digest, tuple(manifests))
    if "fsLayers" in top:
        raise ArtifactError(
            f"{reader.what} has schema 1, retired in 2017.", do="push the image with a newer tool."
        )
    if "config" not in top or "layers" not in top:
        raise ArtifactError(f"{reader.what} is no image manifest: it has no config or no layers.")
    config = Descriptor.of_table(reader, reader.table(top, "config"), "config")
    layers = [Descriptor.of_table(reader, entry, "layers") for entry in reader.tables(top, "layers")]
    annotations = reader.strings(top, "annotations")
    reader.finish()
    if config.media_type not in _CONFIG_TYPES:
        raise ArtifactError(f"{reader.what} is no container image: its configuration is {config.media_type!r}.")
    if len(layers) > _MOST_LAYERS:
        raise ArtifactError(f"{reader.what} lists {len(layers)} layers; at most {_MOST_LAYERS} are read.")
    return Manifest(digest, reader.text(top, "mediaType"), config, tuple(layers), annotations)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step of the build, as the builder recorded it."""

    created_by: str
    created: str
    comment: str
    empty_layer: bool


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How an image is run and what it is made of.

    `digest` is the image ID, None where only an engine's description is known; `diff_ids` are of the plain
    layers, base first.
    """

    platform: Platform
    created: str
    env: tuple[str, ...]
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    working_dir: str
    diff_ids: tuple[Sha256, ...]
    history: tuple[HistoryEntry, ...] = ()
    digest: Sha256 | None = None

    @property
    def environment(self) -> dict[str, str]:
        """`env` as a mapping; of a name that stands twice the last counts."""
        pairs = (entry.partition("=") for entry in self.env)
        return {name: value for name, _, value in pairs}

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a configuration blob."""
        reader = JsonReader("the image configuration")
        top = reader.top(data)
        history = tuple(
            HistoryEntry(
                reader.text(entry, "created_by"), reader.text(entry, "created"), reader.text(entry, "comment"),
                entry.get("empty_layer") is True,
            )
            for entry in reader.tables(top, "history")
        )  # fmt: skip
        diff_ids = reader.texts(reader.table(top, "rootfs"), "diff_ids")
        made = cls._made(reader, top, reader.table(top, "config"), diff_ids)
        return replace(made, history=history, digest=Sha256.of_bytes(data))

    @classmethod
    def of_engine(cls, attributes: Mapping[str, Any], history: tuple[HistoryEntry, ...] = ()) -> Self:
        """Read what an engine says of an image that it holds; the history comes apart."""
        reader = JsonReader("the engine's description of the image")
        top = {key.lower(): value for key, value in attributes.items()}
        diff_ids = reader.texts(reader.table(top, "rootfs"), "Layers")
        return replace(cls._made(reader, top, reader.table(top, "config"), diff_ids), history=history)

    @classmethod
    def _made(cls, reader: JsonReader, top: Table, run: Table, diff_ids: tuple[str, ...]) -> Self:
        named = reader.text(top, "os"), reader.text(top, "architecture"), reader.text(top, "variant")
        made = cls(
            platform=Platform(*named),
            created=reader.text(top, "created"),
            env=reader.texts(run, "Env"),
            labels=reader.strings(run, "Labels"),
            entrypoint=reader.texts(run, "Entrypoint"),
            command=reader.texts(run, "Cmd"),
            user=reader.text(run, "User"),
            working_dir=reader.text(run, "WorkingDir"),
            diff_ids=tuple(reader.digest(text, "diff_id") or _ABSENT for text in diff_ids),
        )
        reader.finish()
        return made
