"""What is attached to an image: documents that refer to its digest, found again from it.

Each is a manifest of its own with an artifact type (https://github.com/opencontainers/image-spec, "subject").
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sm121.artifact.imagedocs import Descriptor
from sm121.artifact.jsondoc import JsonReader
from sm121.errors import ArtifactError, ImageError
from sm121.image.documents import EMPTY, EMPTY_TYPE, Document, referrer_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sm121.image.store import BlobStore
    from sm121.values import Sha256

SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
REPORT = "application/vnd.sm121.inspection.v1+json"
RECORD = "application/vnd.sm121.image.v1+json"
PROMOTION = "application/vnd.sm121.promotion.v1+json"
TITLE = "org.opencontainers.image.title"


class Target(Protocol):
    """Where images can be put."""

    @property
    def name(self) -> str: ...
    def digest_of(self, tag: str) -> Sha256 | None: ...
    def has_document(self, name: Sha256 | str) -> bool: ...
    def has_blob(self, digest: Sha256) -> bool: ...
    def push_blob(self, digest: Sha256, path: Path, moved: Callable[[int], None]) -> int: ...
    def push_document(self, document: Document) -> None: ...
    def name_document(self, document: Document, tag: str) -> None: ...
    def attach(self, subject: Sha256, document: Document) -> None: ...
    def close(self) -> None: ...


class Place(Target, Protocol):
    """Where images are: a repository of a registry, or an OCI layout."""

    def document(self, name: Sha256 | str) -> Document: ...
    def find(self, name: Sha256 | str) -> Document | None: ...
    def small_blob(self, descriptor: Descriptor) -> bytes: ...
    def pull_blob(self, descriptor: Descriptor, store: BlobStore, moved: Callable[[int], None]) -> Path: ...
    def referrers(self, digest: Sha256, kind: str = "") -> list[Descriptor]: ...
    def tags(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Attached:
    """A document that is attached, with the digest of the manifest that attaches it."""

    kind: str
    manifest: Sha256
    data: bytes
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A document to be attached; `title` is its file name."""

    kind: str
    title: str
    data: bytes
    annotations: Mapping[str, str]

    def manifest(self, subject: Descriptor) -> tuple[Document, Document]:
        """The manifest that attaches it, and its content as a blob. Pure."""
        content = Document(self.kind, self.data, {TITLE: self.title})
        return referrer_manifest(subject, self.kind, content, self.annotations), content


def attach(place: Place, subject: Descriptor, attachment: Attachment) -> Sha256:
    """Attach a document; once is enough, for the same document has the same digest. Returns the manifest's digest."""
    manifest, content = attachment.manifest(subject)
    with tempfile.TemporaryDirectory(prefix="sm121-attach-") as folder:
        for number, blob in enumerate((Document(EMPTY_TYPE, EMPTY), content)):
            file = Path(folder) / str(number)
            file.write_bytes(blob.data)
            place.push_blob(blob.digest, file, lambda _: None)
    place.attach(subject.digest, manifest)
    return manifest.digest


def attached(place: Place, subject: Sha256, kind: str) -> Iterator[Attached]:
    """The documents of a kind that are attached to `subject`, every byte verified.

    Raises ImageError for one that does not refer to it, or is none.
    """
    for descriptor in place.referrers(subject, kind):
        document = place.document(descriptor.digest)
        reader = JsonReader(f"the attachment {descriptor.digest}")
        try:
            top = reader.top(document.data)
            layers = [Descriptor.of_table(reader, each, "layers") for each in reader.tables(top, "layers")]
            named = reader.digest(reader.text(reader.table(top, "subject"), "digest"), "subject.digest")
            annotations = reader.strings(top, "annotations")
            reader.finish()
        except ArtifactError as error:
            raise ImageError(error.problems, do="remove that attachment from the registry.") from error
        if named != subject or len(layers) != 1:
            raise ImageError(
                f"{place.name}: {descriptor.digest} is listed as attached to {subject}; it refers to {named} and has "
                f"{len(layers)} parts.", do="remove that attachment from the registry.",
            )  # fmt: skip
        yield Attached(kind, descriptor.digest, place.small_blob(layers[0]), annotations)
