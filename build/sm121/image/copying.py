"""Hands an image on by digest: manifests, blobs and what is attached; only what is missing moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sm121.artifact.imagedocs import INDEX_TYPES, MANIFEST_TYPES, Descriptor
from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.member import printable
from sm121.errors import ArtifactError, ImageError

if TYPE_CHECKING:
    from sm121.image.documents import Document
    from sm121.image.referrers import Place, Target
    from sm121.image.store import BlobStore
    from sm121.progress import Counter, Progress
    from sm121.values import Sha256

_DEEPEST = 4
_MOST = 4096
_LONGEST_CHAIN = 8
"""Attachments of attachments: signatures of bills of materials and the like end before."""


@dataclass
class Copied:
    """What a copy did; sizes in bytes."""

    digest: Sha256
    blobs: int = 0
    blobs_sent: int = 0
    size: int = 0
    sent: int = 0
    attached: int = 0


@dataclass(frozen=True, slots=True)
class _Node:
    """A document with what it names: further documents and blobs."""

    document: Document
    children: tuple[_Node, ...] = ()
    blobs: tuple[Descriptor, ...] = ()


def copy_image(
    source: Place, target: Target, digest: Sha256, store: BlobStore, progress: Progress, *, tag: str = "",
    referrers: bool = True,
) -> Copied:  # fmt: skip
    """Copy the image or index `digest`, and what is attached to each document of it.

    `tag` names it at last; a name that stands for something else there is refused before anything is sent.
    `store` keeps blobs on their way, so an interrupted copy goes on. Blobs go before the documents that name them:
    whatever interrupts, the target has no image that is not whole.
    """
    there = target.digest_of(tag) if tag else None
    if there not in {None, digest}:
        raise ImageError(
            f"{target.name}:{tag} is {there}; {digest} was to get that name, which never moves.",
            do="find out who gave it; nothing was changed.",
        )
    mover = _Mover(source, target, store, Copied(digest))
    tree = mover.read(digest, 1)
    nodes = mover.all(tree)
    blobs = {blob.digest: blob for node in nodes for blob in node.blobs}
    with progress.counter(
        f"copy {digest.hex[:12]} to {target.name}", sum(b.size for b in blobs.values()), "B"
    ) as counter:
        for blob in blobs.values():
            mover.blob(blob, counter)
    for node in reversed(nodes):
        if not target.has_document(node.document.digest):
            target.push_document(node.document)
    if referrers:
        for node in nodes:
            mover.attachments(node.document.digest)
    target.name_document(tree.document, tag)
    return mover.result


@dataclass
class _Mover:
    """One copy."""

    source: Place
    target: Target
    store: BlobStore
    result: Copied
    seen: set[Sha256] = field(default_factory=set)

    def read(self, digest: Sha256, depth: int, listed_as: str = "") -> _Node:
        """A document and all that it names; `listed_as` is the media type under which another document names it."""
        if depth > _DEEPEST or len(self.seen) > _MOST:
            raise ArtifactError(f"{self.source.name}: {digest} is an index of indexes without an end.")
        self.seen.add(digest)
        document = self.source.document(digest)
        reader = JsonReader(f"the manifest {digest}")
        top = reader.top(document.data)
        self._one_type(document, reader.text(top, "mediaType"), listed_as)
        if "manifests" in top and ("layers" in top or "config" in top):
            raise ArtifactError(
                f"{reader.what} is an index and a manifest at once.", do="do not trust this image."
            )
        if "manifests" in top:
            listed = [Descriptor.of_table(reader, each, "manifests") for each in reader.tables(top, "manifests")]
            reader.finish()
            children = [
                self.read(each.digest, depth + 1, each.media_type)
                for each in listed
                if each.media_type in {*INDEX_TYPES, *MANIFEST_TYPES} and each.digest not in self.seen
            ]
            return _Node(document, tuple(children))
        blobs = [Descriptor.of_table(reader, each, "layers") for each in reader.tables(top, "layers")]
        blobs.append(Descriptor.of_table(reader, reader.table(top, "config"), "config"))
        reader.finish()
        return _Node(document, (), tuple(blob for blob in blobs if not blob.urls))

    def _one_type(self, document: Document, own: str, listed_as: str) -> None:
        """Refuse a document that is called one thing and says that it is another: readers would differ about it.

        Its media type must be what it says itself (OCI image-spec, "mediaType" of manifests and indexes).
        """
        told = {
            "its place calls it": document.media_type,
            "it calls itself": own,
            "what lists it calls it": listed_as,
        }
        if len({kind.lower() for kind in told.values() if kind}) > 1:
            named = ", ".join(f"{who} {printable(kind)!r}" for who, kind in told.items() if kind)
            raise ImageError(
                f"{self.source.name}: {document.digest} has more than one media type: {named}.",
                do="tell the registry's owner, or push it there anew; nothing of it was copied.",
            )

    def all(self, node: _Node) -> list[_Node]:
        return [node, *(each for child in node.children for each in self.all(child))]

    def blob(self, blob: Descriptor, counter: Counter | None = None) -> None:
        """Bring one blob to the target unless it is there."""
        before = self.result.size
        self.result.blobs += 1
        self.result.size += blob.size
        if not self.target.has_blob(blob.digest):
            self._moved(blob, before, counter)
        if counter is not None:
            counter.update(self.result.size, blob.digest.hex[:12])

    def _moved(self, blob: Descriptor, before: int, counter: Counter | None) -> None:
        kept = self.store.has(blob.digest, blob.size)
        path = self.source.pull_blob(blob, self.store, lambda _: None)
        done = 0

        def told(count: int) -> None:
            nonlocal done
            done += count
            if counter is not None:
                counter.update(before + done, blob.digest.hex[:12])

        sent = self.target.push_blob(blob.digest, path, told)
        self.result.sent += sent
        self.result.blobs_sent += bool(sent)
        if not kept and path == self.store.path(blob.digest):
            path.unlink()

    def attachments(self, digest: Sha256, depth: int = 1) -> None:
        """What refers to a document, and what refers to that."""
        if depth > _LONGEST_CHAIN:
            raise ImageError(
                f"{self.source.name}: what is attached to {digest} has attachments without an end.",
                do="tell the registry's owner, or copy the image alone (--no-referrers).",
            )
        for descriptor in self.source.referrers(digest):
            if descriptor.digest in self.seen:
                continue
            node = self.read(descriptor.digest, _DEEPEST, descriptor.media_type)
            if node.children:
                raise ImageError(f"{self.source.name}: {descriptor.digest} is attached and is an index.")
            for blob in node.blobs:
                self.blob(blob)
            self.target.attach(digest, _described(node.document, descriptor))
            self.result.attached += 1
            self.attachments(descriptor.digest, depth + 1)


def _described(document: Document, descriptor: Descriptor) -> Document:
    """The document with what the list of referrers says of it."""
    return replace(document, annotations=descriptor.annotations, artifact_type=descriptor.artifact_type)
