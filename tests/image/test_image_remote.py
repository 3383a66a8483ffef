"""Pushing against a registry that stumbles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from push_server import Held, digest_of, serving

from sm121.artifact import ImageReference
from sm121.artifact.imagedocs import Descriptor
from sm121.errors import DigestError, ImageError
from sm121.image.documents import OCI_MANIFEST, Document, canonical
from sm121.image.referrers import SBOM, Attachment, attach, attached
from sm121.image.remote import Repository, is_fallback
from sm121.image.store import BlobStore
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.programs
CONTENT = bytes(range(256)) * 40_000


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def place(held: Held) -> Iterator[Repository]:
    with serving(held) as host:
        reference = ImageReference.parse(f"{host}/team/app")
        with Repository(reference, write=True, credential=lambda _: None, pause=lambda _: None) as repository:
            yield repository


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    return path


def push(place: Repository, path: Path) -> tuple[int, int]:
    """Bytes sent, and the sum that progress was told."""
    told: list[int] = []
    return place.push_blob(Sha256.of_file(path), path, told.append), sum(told)


def test_a_blob_is_sent_once(held: Held, place: Repository, blob: Path) -> None:
    assert push(place, blob) == (len(CONTENT), len(CONTENT))
    assert held.blobs == {digest_of(CONTENT): CONTENT}
    assert push(place, blob) == (0, len(CONTENT))
    assert held.methods("PATCH") == 1


def test_a_broken_upload_goes_on(held: Held, place: Repository, blob: Path) -> None:
    held.breaks = 2
    assert push(place, blob) == (len(CONTENT), len(CONTENT))
    assert held.blobs[digest_of(CONTENT)] == CONTENT
    assert held.methods("POST") == 1


def test_a_forgotten_upload_begins_again(held: Held, place: Repository, blob: Path) -> None:
    held.breaks, held.forgets = 1, True
    assert push(place, blob)[0] == len(CONTENT)
    assert held.blobs[digest_of(CONTENT)] == CONTENT
    assert held.methods("POST") == 2


def test_an_upload_that_always_breaks_ends_with_a_reason(held: Held, place: Repository, blob: Path) -> None:
    held.breaks, held.forgets = 99, True
    with pytest.raises(ImageError, match="does not answer"):
        push(place, blob)
    assert held.blobs == {}


def test_a_full_registry_says_so(held: Held, place: Repository, blob: Path) -> None:
    held.full = True
    with pytest.raises(ImageError, match="no space left on device"):
        push(place, blob)


def test_bytes_that_change_on_the_way_are_refused(held: Held, place: Repository, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"other")
    with pytest.raises(ImageError, match="DIGEST_INVALID"):
        place.push_blob(Sha256.of_bytes(b"one"), path, lambda _: None)
    assert held.blobs == {}


def test_a_registry_that_answers_another_digest_is_not_believed(held: Held, place: Repository) -> None:
    held.lies = True
    with pytest.raises(DigestError, match="the registry answers"):
        place.push_document(Document(OCI_MANIFEST, b"{}"))


def test_a_token_is_asked_for_what_is_needed(held: Held) -> None:
    held.token = "wanted"
    with serving(held) as host:
        reference = ImageReference.parse(f"{host}/team/app")
        with Repository(reference, write=True, mounts=["other/app"], credential=lambda _: None) as place:
            assert place.tags() == []
    assert held.asked == ["repository:team/app:pull,push", "repository:other/app:pull"]


@pytest.mark.parametrize("api", [True, False])
def test_attachments_are_found_with_and_without_the_api(held: Held, place: Repository, api: bool) -> None:
    held.referrers = api
    image = Document(OCI_MANIFEST, canonical({"schemaVersion": 2}))
    place.push_document(image)
    for number in range(2):
        attach(place, image.descriptor, Attachment(SBOM, "a.json", b"%d" % number, {"n": str(number)}))
        attach(place, image.descriptor, Attachment(SBOM, "a.json", b"%d" % number, {"n": str(number)}))
    found = list(attached(place, image.digest, SBOM))
    assert sorted(each.data for each in found) == [b"0", b"1"]
    assert {each.annotations["n"] for each in found} == {"0", "1"}
    assert list(attached(place, image.digest, "another/kind")) == []
    assert any(is_fallback(tag) for tag in place.tags()) is not api


def test_an_attachment_of_another_image_is_refused(held: Held, place: Repository) -> None:
    held.referrers = False
    one, other = (Document(OCI_MANIFEST, canonical({"schemaVersion": 2, "n": n})) for n in (1, 2))
    place.push_document(one)
    place.push_document(other)
    attach(place, one.descriptor, Attachment(SBOM, "a.json", b"{}", {}))
    held.manifests[f"sha256-{other.digest.hex}"] = held.manifests[f"sha256-{one.digest.hex}"]
    with pytest.raises(ImageError, match=f"attached to {other.digest}; it refers to {one.digest}"):
        list(attached(place, other.digest, SBOM))


def test_a_pull_goes_on_where_it_was(held: Held, place: Repository, tmp_path: Path) -> None:
    digest = Sha256.of_bytes(CONTENT)
    held.blobs[str(digest)] = CONTENT
    store = BlobStore(tmp_path / "store")
    store.folder.mkdir(parents=True)
    store.part(digest).write_bytes(CONTENT[:1000])
    descriptor = Descriptor("application/octet-stream", digest, len(CONTENT))
    told: list[int] = []
    assert place.pull_blob(descriptor, store, told.append).read_bytes() == CONTENT
    assert told[0] == 1000
    assert sum(told) == len(CONTENT)


def test_what_an_earlier_run_left_wrong_is_fetched_anew(held: Held, place: Repository, tmp_path: Path) -> None:
    digest = Sha256.of_bytes(CONTENT)
    held.blobs[str(digest)] = CONTENT
    store = BlobStore(tmp_path / "store")
    store.folder.mkdir(parents=True)
    store.part(digest).write_bytes(b"wrong" * 100)
    descriptor = Descriptor("application/octet-stream", digest, len(CONTENT))
    assert place.pull_blob(descriptor, store, lambda _: None).read_bytes() == CONTENT


def test_a_blob_that_is_another_one_is_refused(held: Held, place: Repository, tmp_path: Path) -> None:
    digest = Sha256.of_bytes(CONTENT)
    held.blobs[str(digest)] = b"x" * len(CONTENT)
    store = BlobStore(tmp_path / "store")
    with pytest.raises(DigestError, match="the bytes that came are"):
        place.pull_blob(Descriptor("", digest, len(CONTENT)), store, lambda _: None)
    assert not store.has(digest)
    assert list(store.folder.iterdir()) == []


def test_a_name_that_is_not_there(place: Repository) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        place.document("missing")
    assert place.find("missing") is None
    assert place.tags() == []


def test_a_manifest_that_breaks_off(held: Held, place: Repository) -> None:
    document = Document(OCI_MANIFEST, canonical({"schemaVersion": 2, "more": "x" * 1000}))
    place.push_document(document)
    held.cuts = True
    with pytest.raises(ImageError, match="does not answer"):
        place.document(document.digest)


def test_plain_http_is_spoken_where_it_is_asked_for() -> None:
    reference = ImageReference.parse("registry.example/team/app")
    address = "http://registry.example/v2/team/app/blobs/uploads/1"
    Repository(reference, insecure=True).registry.check_address(address, "wants an upload")
    with pytest.raises(ImageError, match="only https is followed"):
        Repository(reference).registry.check_address(address, "wants an upload")
    with pytest.raises(ImageError, match="only https is followed"):
        Repository(reference, insecure=True).registry.check_address("http://other.example/v2/", "redirects")
