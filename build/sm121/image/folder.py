"""An OCI layout, read and written with the same verbs as a repository of a registry."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sm121.artifact.imagedocs import Descriptor
from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.member import LIMITS, printable
from sm121.errors import ArtifactError, DigestError, ImageError
from sm121.image.documents import OCI_INDEX, REF_NAME, Document, image_index
from sm121.image.store import BlobStore, digest_of
from sm121.sources.disk import completed_file, writing
from sm121.values import CHUNK, Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class LayoutFolder:
    """A layout in a folder. With `create` it is made where there is none."""

    def __init__(self, root: Path, *, create: bool = False) -> None:
        self.root = root
        self.blobs = BlobStore(root)
        if not (root / "oci-layout").is_file():
            if not create:
                raise ArtifactError(f"{printable(str(root))} is no OCI layout.", do="check the path.")
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise ArtifactError(
                    f"{printable(str(root))} holds something else than an OCI layout.", do="name another folder."
                )
            with writing(root):
                self.blobs.folder.mkdir(parents=True, exist_ok=True)
                self._write([])
                (root / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    @property
    def name(self) -> str:
        return f"oci:{self.root}"

    def close(self) -> None:
        """Nothing is held open."""

    def document(self, name: Sha256 | str) -> Document:
        """A manifest or index by digest or name. Raises ImageError if there is none."""
        found = self.find(name)
        if found is None:
            there = ", ".join(self.tags()) or "nothing that has a name"
            raise ImageError(f"{self.name} has no {name}; it has {there}.", do="name one of those, or a digest.")
        return found

    def find(self, name: Sha256 | str) -> Document | None:
        listed = self._listed()
        if isinstance(name, Sha256):
            known = next((each for each in listed if each.digest == name), None)
            if not self.blobs.has(name):
                return None
            data = self._verified(name)
            kind = known.media_type if known else _media_type(data)
        else:
            known = next((each for each in listed if each.annotations.get(REF_NAME) == name), None)
            if known is None:
                return None
            data, kind = self._verified(known.digest), known.media_type
        artifact_type = known.artifact_type if known else ""
        return Document(kind, data, artifact_type=artifact_type)

    def digest_of(self, tag: str) -> Sha256 | None:
        """What a name stands for here, None if nothing has it."""
        found = self.find(tag)
        return found.digest if found else None

    def has_document(self, name: Sha256 | str) -> bool:  # noqa: ARG002 -- part of the protocol
        """A manifest that lies there may still lack blobs, as copying may have been interrupted: never believed."""
        return False

    def has_blob(self, digest: Sha256) -> bool:
        return self.blobs.has(digest)

    def small_blob(self, descriptor: Descriptor) -> bytes:
        return self._verified(descriptor.digest)

    def pull_blob(self, descriptor: Descriptor, store: BlobStore, moved: Callable[[int], None]) -> Path:  # noqa: ARG002
        """Where the blob is, once its bytes have been compared with its digest."""
        path = self.blobs.path(descriptor.digest)
        if not path.is_file():
            raise ArtifactError(
                f"{self.name}: the blob {descriptor.digest} is missing.", do="export the image again."
            )
        found, count = digest_of(path)
        if found != descriptor.digest or count != descriptor.size:
            raise DigestError(
                f"{self.name}: {descriptor.digest} of {descriptor.size} bytes was wanted; {count} bytes with {found} "
                "are there.", do="do not use this image: it was changed or is damaged.",
            )  # fmt: skip
        moved(count)
        return path

    def push_blob(self, digest: Sha256, path: Path, moved: Callable[[int], None]) -> int:
        size = path.stat().st_size
        if self.blobs.has(digest, size):
            moved(size)
            return 0
        with self.blobs.writing() as (file, admit), path.open("rb") as source:
            while piece := source.read(CHUNK):
                file.write(piece)
                moved(len(piece))
            admit(digest)
        return size

    def push_document(self, document: Document) -> None:
        """Store a manifest that others name."""
        self.blobs.add(document)

    def name_document(self, document: Document, tag: str) -> None:
        """List a stored manifest; with a tag in place of what had that name."""
        bare = document.descriptor
        if tag:
            named = Descriptor(bare.media_type, bare.digest, bare.size, annotations={REF_NAME: tag})
            self._list(named, lambda each: each.annotations.get(REF_NAME) == tag)
        elif all(each.digest != document.digest for each in self._listed()):
            self._list(bare, lambda _: False)

    def attach(self, subject: Sha256, document: Document) -> None:  # noqa: ARG002 -- it stands in the document
        self.blobs.add(document)
        self._list(document.descriptor, lambda each: each.digest == document.digest)

    def referrers(self, digest: Sha256, kind: str = "") -> list[Descriptor]:
        found = {}
        for each in self._listed():
            if each.artifact_type and kind in {"", each.artifact_type}:
                reader = JsonReader(f"the attachment {each.digest}")
                top = reader.top(self._verified(each.digest))
                if reader.text(reader.table(top, "subject"), "digest") == str(digest):
                    found[each.digest] = each
        return [found[key] for key in sorted(found)]

    def tags(self) -> list[str]:
        return sorted({each.annotations[REF_NAME] for each in self._listed() if REF_NAME in each.annotations})

    def images(self) -> list[Descriptor]:
        """What the layout lists, statements about images left out."""
        return [each for each in self._listed() if not each.attestation]

    def _verified(self, digest: Sha256) -> bytes:
        path = self.blobs.path(digest)
        if not path.is_file():
            raise ArtifactError(f"{self.name}: the blob {digest} is missing.", do="export the image again.")
        if path.stat().st_size > LIMITS.record:
            raise ArtifactError(f"{self.name}: {digest} is too large for a document.")
        return self.blobs.read(digest)

    def _listed(self) -> list[Descriptor]:
        path = self.root / "index.json"
        if not path.is_file():
            return []
        reader = JsonReader(str(path))
        found = [
            Descriptor.of_table(reader, each, "manifests")
            for each in reader.tables(reader.top(path.read_bytes()), "manifests")
        ]
        reader.finish()
        return found

    def _list(self, descriptor: Descriptor, replaced: Callable[[Descriptor], bool]) -> None:
        with self._locked():
            self._write([*(each for each in self._listed() if not replaced(each)), descriptor])

    def _write(self, listed: list[Descriptor]) -> None:
        with completed_file(self.root / "index.json") as file:
            file.write(image_index(listed).data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.root / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _media_type(data: bytes) -> str:
    reader = JsonReader("a manifest")
    top = reader.top(data)
    return reader.text(top, "mediaType") or OCI_INDEX
