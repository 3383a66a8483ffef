"""A repository of a registry, read and written: blobs, manifests, tags, referrers.

Protocol: https://github.com/opencontainers/distribution-spec/blob/main/spec.md (1.1). A registry without referrers
gets them under the tag that the specification names for that case, `sha256-HEX`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from sm121.artifact.credentials import find_credential
from sm121.artifact.imagedocs import INDEX_TYPES, MANIFEST_TYPES, Descriptor
from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.member import CHUNK, LIMITS, printable
from sm121.artifact.reference import is_tag, parse_digest
from sm121.artifact.registry import BROKEN, TRIES, Registry
from sm121.errors import ArtifactError, DigestError, ImageError
from sm121.image.documents import OCI_INDEX, Document, image_index
from sm121.image.uploads import Uploads, check_digest
from sm121.sources.disk import writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import requests

    from sm121.artifact.credentials import Credential
    from sm121.artifact.reference import ImageReference
    from sm121.image.store import BlobStore

DOCUMENT_TYPES = (*INDEX_TYPES, *MANIFEST_TYPES)
_MOST_PAGES = 100


class Repository:
    """One repository. Raises ImageError for what the registry or the network refuses.

    `mounts` are repositories of the same registry whose blobs may be taken over without sending them.
    """

    def __init__(
        self, reference: ImageReference, *, write: bool = False, mounts: Iterable[str] = (), insecure: bool = False,
        credential: Callable[[str], Credential | None] = find_credential,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.reference = reference
        self.mounts = tuple(dict.fromkeys(name for name in mounts if name != reference.repository))
        scopes = [f"repository:{reference.repository}:{'pull,push' if write else 'pull'}"]
        scopes += [f"repository:{name}:pull" for name in self.mounts]
        self.registry = Registry(reference, credential, pause, scopes=tuple(scopes), insecure=insecure)
        self._uploads = Uploads(self.registry)

    @property
    def name(self) -> str:
        return self.reference.name

    def close(self) -> None:
        self.registry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def document(self, name: Sha256 | str) -> Document:
        """A manifest or index by digest or tag, its bytes verified. Raises ImageError if there is none."""
        found = self.find(name)
        if found is None:
            # Asked once more, the registry's refusal names what there is instead.
            self.registry.document(f"manifests/{name}", DOCUMENT_TYPES)
            raise ImageError(f"{self.reference.name} has no {name}.")
        return found

    def find(self, name: Sha256 | str) -> Document | None:
        """A manifest or index by digest or tag, None if there is none."""
        headers = {"Accept": ", ".join(DOCUMENT_TYPES)}
        with self.registry.request("GET", f"manifests/{name}", headers, good=(200, 404)) as answer:
            if answer.status_code == 404:
                return None
            data = self._body(f"manifests/{name}", answer)
            stated, media_type = (
                answer.headers.get("Docker-Content-Digest", ""),
                answer.headers.get("Content-Type", ""),
            )
        document = Document(media_type.partition(";")[0].strip(), data)
        if (isinstance(name, Sha256) and name != document.digest) or stated not in {"", str(document.digest)}:
            raise DigestError(
                f"{self.reference.name}: {name} was asked for; the registry sends bytes with {document.digest}"
                f"{f' and calls them {printable(stated)}' if stated else ''}.",
                do="do not use what it sends; try again, and tell its owner.",
            )
        return document

    def small_blob(self, descriptor: Descriptor) -> bytes:
        """A blob that is read whole, verified."""
        data, _ = self.registry.document(f"blobs/{descriptor.digest}", limit=LIMITS.record)
        if Sha256.of_bytes(data) != descriptor.digest:
            raise DigestError(f"{self.reference.name}: {descriptor.digest} was asked for; the bytes are others.")
        return data

    def has_blob(self, digest: Sha256) -> bool:
        with self.registry.request("HEAD", f"blobs/{digest}", {}, good=(200, 404)) as answer:
            return answer.status_code == 200

    def digest_of(self, tag: str) -> Sha256 | None:
        """What a name stands for here, None if nothing has it."""
        found = self.find(tag)
        return found.digest if found else None

    def has_document(self, name: Sha256 | str) -> bool:
        headers = {"Accept": ", ".join(DOCUMENT_TYPES)}
        with self.registry.request("HEAD", f"manifests/{name}", headers, good=(200, 404)) as answer:
            return answer.status_code == 200

    def pull_blob(self, descriptor: Descriptor, store: BlobStore, moved: Callable[[int], None]) -> Path:
        """Bring a blob into the store; goes on where an earlier run ended, and verifies all of it.

        `moved` is told the bytes that came, negative for such as were thrown away.
        """
        if store.has(descriptor.digest, descriptor.size):
            moved(descriptor.size)
            return store.path(descriptor.digest)
        part = store.part(descriptor.digest)
        with writing(part, wanted=descriptor.size), store.locked(descriptor.digest):
            if store.has(descriptor.digest, descriptor.size):  # another process brought it meanwhile
                moved(descriptor.size)
                return store.path(descriptor.digest)
            for attempt in range(2):
                there = self._fetched(descriptor, part, moved)
                try:
                    return store.admit_part(descriptor.digest, descriptor.size)
                except DigestError:
                    moved(-descriptor.size)
                    # What an earlier run left may be at fault: once more from the first byte on.
                    if not there or attempt:
                        raise
        raise AssertionError("the last try returns or raises")

    def _fetched(self, descriptor: Descriptor, part: Path, moved: Callable[[int], None]) -> int:
        """Fill `part`; returns how many bytes were there before."""
        before = part.stat().st_size if part.exists() else 0
        if before > descriptor.size:
            part.unlink()
            before = 0
        moved(before)
        path = f"blobs/{descriptor.digest}"
        with part.open("ab") as file:
            failures = 0
            while (position := file.tell()) < descriptor.size:
                headers = {"Range": f"bytes={position}-"} if position else {}
                reason: Exception = EOFError("it ends too early")
                try:
                    with self.registry.get(path, headers) as answer:
                        for piece in _pieces(answer, position if answer.status_code == 200 else 0):
                            file.write(piece)
                            moved(len(piece))
                            if file.tell() > descriptor.size:
                                break
                except BROKEN as error:
                    reason = error
                failures = 0 if file.tell() > position else failures + 1
                if failures >= TRIES:
                    raise self.registry.broken(path, reason)
                if file.tell() < descriptor.size:
                    self.registry.pause(0.5 * 2**failures)
        return before

    def push_blob(self, digest: Sha256, path: Path, moved: Callable[[int], None]) -> int:
        """Put a blob there unless it is; returns the bytes that were sent."""
        size = path.stat().st_size
        if self.has_blob(digest) or any(self._uploads.mounted(digest, name) for name in self.mounts):
            moved(size)
            return 0
        self._uploads.send(digest, path, moved)
        if not self.has_blob(digest):
            raise ImageError(
                f"{self.reference.registry} took {digest} and does not have it.", do="look at the registry's log."
            )
        return size

    def push_document(self, document: Document) -> None:
        """Store a manifest or index under its digest. Its blobs must be there."""
        self._put(document, str(document.digest))

    def name_document(self, document: Document, tag: str) -> None:
        """Give a stored manifest a tag, if there is one to give."""
        if tag:
            self._put(document, tag)

    def _put(self, document: Document, name: str) -> None:
        with self.registry.request(
            "PUT",
            f"manifests/{name}",
            {"Content-Type": document.media_type},
            good=(201,),
            body=lambda: document.data,
        ) as answer:
            check_digest(self.registry, answer, document.digest)

    def tags(self) -> list[str]:
        """All tags, sorted; empty if the repository does not exist."""
        names: set[str] = set()
        path = "tags/list?n=1000"
        for _ in range(_MOST_PAGES):
            with self.registry.request("GET", path, {}, good=(200, 404)) as answer:
                if answer.status_code == 404:
                    return sorted(names)
                data = self._body(path, answer)
                following = answer.links.get("next", {}).get("url", "")
                here = answer.url
            reader = JsonReader(f"the tags of {self.reference.name}")
            listed = reader.texts(reader.top(data), "tags")
            reader.faults += [f"{reader.what}: {name!a} is no tag." for name in listed if not is_tag(name)]
            reader.finish()
            names.update(listed)
            if not following:
                return sorted(names)
            path = self.registry.address(here, following, "has further tags")
        raise ImageError(f"{self.reference.name} has more pages of tags than the {_MOST_PAGES} that are read.")

    def referrers(self, digest: Sha256, kind: str = "") -> list[Descriptor]:
        """What is attached to a manifest, of one artifact type or of all; sorted by digest."""
        found = self._referrers_api(digest)
        index = self.find(_fallback(digest)) if found is None else None
        listed = _manifests(index, self.reference.name) if index is not None else found or []
        chosen = {item.digest: item for item in listed if not kind or item.artifact_type == kind}
        return [chosen[key] for key in sorted(chosen)]

    def attach(self, subject: Sha256, document: Document) -> None:
        """Store a manifest that refers to `subject`, so that it is found from there. Its blobs must be there."""
        name = f"manifests/{document.digest}"
        with self.registry.request(
            "PUT", name, {"Content-Type": document.media_type}, good=(201,), body=lambda: document.data
        ) as answer:
            check_digest(self.registry, answer, document.digest)
            if answer.headers.get("OCI-Subject"):
                return
        if self._referrers_api(subject) is not None:
            return
        held = self.find(_fallback(subject))
        listed = {item.digest: item for item in (_manifests(held, self.reference.name) if held else [])}
        listed[document.digest] = document.descriptor
        self._put(image_index(listed[key] for key in sorted(listed)), _fallback(subject))

    def _referrers_api(self, digest: Sha256) -> list[Descriptor] | None:
        """None if the registry does not know referrers."""
        with self.registry.request(
            "GET", f"referrers/{digest}", {"Accept": OCI_INDEX}, good=(200, 400, 404, 405, 501)
        ) as answer:
            if answer.status_code != 200 or OCI_INDEX not in answer.headers.get("Content-Type", ""):
                return None
            data = self._body(f"referrers/{digest}", answer)
        return _manifests(Document(OCI_INDEX, data), self.reference.name)

    def _body(self, path: str, answer: requests.Response) -> bytes:
        """The whole of a small document."""
        data = bytearray()
        try:
            # Read to the empty piece: only there the library compares what came with what was announced.
            while len(data) <= LIMITS.document and (piece := answer.raw.read(CHUNK, decode_content=False)):
                data += piece
        except BROKEN as error:
            raise self.registry.broken(path, error) from error
        if len(data) > LIMITS.document:
            raise ImageError(f"{self.name}: {path} is larger than the {LIMITS.document} bytes that are read.")
        return bytes(data)


def _pieces(answer: requests.Response, skip: int) -> Iterator[bytes]:
    """The body, without its first `skip` bytes: a registry may ignore where we wanted to go on."""
    while piece := answer.raw.read(CHUNK, decode_content=False):
        kept = piece[min(skip, len(piece)) :]
        skip -= len(piece) - len(kept)
        if kept:
            yield kept


def _manifests(document: Document, name: str) -> list[Descriptor]:
    """The descriptors of an index; raises ImageError if it is none."""
    reader = JsonReader(f"an index of {name}")
    try:
        top = reader.top(document.data)
        found = [Descriptor.of_table(reader, entry, "manifests") for entry in reader.tables(top, "manifests")]
        reader.finish()
    except ArtifactError as error:
        raise ImageError(error.problems, do="look at what the repository has under that name.") from error
    return found


def _fallback(digest: Sha256) -> str:
    return f"sha256-{digest.hex}"


def is_fallback(tag: str) -> bool:
    """Whether a tag only holds the referrers (or older signatures) of a digest."""
    try:
        parse_digest(tag.partition(".")[0].replace("sha256-", "sha256:", 1))
    except ValueError:
        return False
    return tag.startswith("sha256-")
