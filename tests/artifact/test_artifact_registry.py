"""Images in registries: what is fetched, what is verified, who is told which secret."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from image_maker import ImageMaker, index, layer, sha256
from registry_server import Served, serving

from sm121.artifact import Image, ImageReference, Platform, open_artifact
from sm121.artifact.credentials import Credential
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.artifact.pulled import open_registry
from sm121.artifact.registry import Registry
from sm121.errors import ArtifactError, DigestError, ImageError
from sm121.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.programs

BIG = bytes(range(256)) * 20_000
BASE = layer(("usr", None), ("usr/base.so", BIG), ("usr/linked.so", "= usr/base.so"))
TOP = layer(("usr", None), ("usr/top.so", b"top"))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr("time.sleep", lambda _: None)
    made = Served()
    made.add(ImageMaker([BASE, TOP]), "v1")
    return made


def opened(host: str, name: str, credential: Credential | None = None, platform: Platform = LINUX_ARM64) -> Image:
    reference = ImageReference.parse(f"{host}/team/app{name}")
    client = Registry(reference, lambda _: credential, pause=lambda _: None)
    return open_registry(reference, platform, registry=client)


@pytest.fixture
def host(served: Served) -> Iterator[str]:
    with serving(served) as address:
        yield address


def test_an_image_by_tag_and_by_digest(served: Served, host: str) -> None:
    digest = sha256(ImageMaker([BASE, TOP]).manifest())
    for name in (":v1", f"@{digest}"):
        with opened(host, name) as image:
            assert str(image.digest) == digest
            assert str(image.reference) == image.name == f"{host}/team/app@{digest}"
            assert str(image.asked) == f"{host}/team/app{name}"
            assert served.fetched("blobs") == [sha256(ImageMaker([BASE, TOP]).config())]  # no layer yet
            assert {member.path: member.read() for member in image.members()} == {
                "usr/base.so": BIG, "usr/linked.so": BIG, "usr/top.so": b"top",
            }  # fmt: skip
            served.log.clear()


def test_each_layer_is_fetched_once(served: Served, host: str) -> None:
    with opened(host, ":v1") as image:
        served.log.clear()
        members = [member for member in image.members(lambda path: path != "usr/linked.so") if member.read()]
        assert [member.path for member in members] == ["usr/top.so", "usr/base.so"]
        layers = [sha256(blob) for blob in ImageMaker([BASE, TOP]).blobs()]
        assert served.fetched("blobs") == layers[::-1]
        assert image.problems == []


def test_a_layer_is_not_fetched_when_the_caller_stops_before(served: Served, host: str) -> None:
    with opened(host, ":v1") as image:
        served.log.clear()
        assert next(image.members()).path == "usr/top.so"
        assert served.fetched("blobs") == [sha256(ImageMaker([BASE, TOP]).blobs()[1])]


def test_a_second_reading_comes_from_a_verified_copy(served: Served, host: str) -> None:
    with opened(host, ":v1") as image:
        members = {member.path: member for member in image.members()}
        served.log.clear()
        for _ in range(2):
            assert members["usr/base.so"].read() == BIG
            assert members["usr/linked.so"].read() == BIG
        assert len(served.fetched("blobs")) == 1
        assert [(finding.check, finding.verdict) for finding in image.problems] == [("image.layer", Verdict.INFO)]
        blob = sha256(ImageMaker([BASE, TOP]).blobs()[1])
        served.blobs[blob] = served.blobs[blob][:-1] + b"\xff"
        with pytest.raises(ImageError, match="the second time"):
            members["usr/top.so"].read()


def test_changed_blobs_are_found_out(served: Served, host: str) -> None:
    blob = sha256(ImageMaker([BASE, TOP]).blobs()[1])
    other = ImageMaker([layer(("usr", None), ("usr/evil.so", b"x"))]).blobs()[0]
    served.blobs[blob] = other.ljust(len(served.blobs[blob]), b"\0")[: len(served.blobs[blob])]
    with opened(host, ":v1") as image:
        for member in image.members():
            try:
                member.read()
            except ArtifactError:
                continue
        assert "image.layer-digest" in {finding.check for finding in image.problems}


def test_a_blob_that_never_ends_is_not_read_for_ever(served: Served, host: str) -> None:
    blob = sha256(ImageMaker([BASE, TOP]).blobs()[1])
    served.blobs[blob] += bytes(50_000_000)
    with opened(host, ":v1") as image:
        list(image.members())
        assert any(finding.check.startswith("image.layer") for finding in image.problems)


def test_another_manifest_than_asked_for_is_refused(served: Served, host: str) -> None:
    digest = f"sha256:{'1' * 64}"
    served.documents[digest] = served.documents["v1"]
    with pytest.raises(DigestError, match="bytes are"):
        opened(host, f"@{digest}")
    served.stated = digest
    with pytest.raises(DigestError, match="calls it sha256:1111"):
        opened(host, ":v1")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_taken_up(served: Served, host: str, ranges: bool) -> None:
    served.break_after, served.ranges = 1000, ranges
    with opened(host, ":v1") as image:
        assert {member.path: member.read() for member in image.members()}["usr/base.so"] == BIG
        assert [finding for finding in image.problems if finding.verdict is Verdict.FAIL] == []


def test_a_registry_that_stumbles_is_asked_again(served: Served, host: str) -> None:
    served.stumble = 2
    assert opened(host, ":v1").digest is not None
    served.stumble = 50
    with pytest.raises(ImageError, match="answers 503"):
        opened(host, ":v1")


def test_what_does_not_exist_is_said_with_what_does(served: Served, host: str) -> None:
    served.add(ImageMaker([TOP]), "v2", "cu130-nightly")
    with pytest.raises(ImageError, match="MANIFEST_UNKNOWN") as caught:
        opened(host, ":cu130")
    assert "cu130-nightly" in caught.value.do


def test_the_platform_is_picked_from_an_index(served: Served, host: str) -> None:
    arm, intel = ImageMaker([BASE]), ImageMaker([TOP], architecture="amd64")
    served.add(arm)
    served.add(intel)
    served.add_index(index(intel, arm), "both")
    with opened(host, ":both") as image:
        assert str(image.digest) == sha256(arm.manifest())
        assert image.asked is not None
        assert image.asked.tag == "both"
    with opened(host, ":both", platform=Platform.parse("linux/amd64")) as image:
        assert str(image.digest) == sha256(intel.manifest())
    with pytest.raises(ImageError, match="it has linux/amd64, linux/arm64"):
        opened(host, ":both", platform=Platform.parse("linux/s390x"))


def test_tokens_are_fetched_with_the_users_password(served: Served, host: str) -> None:
    served.auth = "bearer"
    with opened(host, ":v1", Credential("me", "secret")) as image:
        assert len(list(image.members())) == 3
    secrets = {path.partition("?")[0]: sent for _, path, sent in served.log if sent.startswith("Basic")}
    assert set(secrets) == {"/token"}  # the password reaches the token service only
    with pytest.raises(ImageError, match="gives no token") as caught:
        opened(host, ":v1", Credential("me", "wrong"))
    assert "docker login" in caught.value.do
    assert "wrong" not in str(caught.value)
    with pytest.raises(ImageError, match="gives no token"):
        opened(host, ":v1")


def test_identity_tokens_are_exchanged(served: Served, host: str) -> None:
    served.auth, served.identity_token = "bearer", "long-lived"
    assert opened(host, ":v1", Credential(identity_token="long-lived")).digest is not None


def test_basic_login(served: Served, host: str) -> None:
    served.auth = "basic"
    assert opened(host, ":v1", Credential("me", "secret")).digest is not None
    with pytest.raises(ImageError, match="refuses access"):
        opened(host, ":v1", Credential("me", "wrong"))
    with pytest.raises(ImageError, match="no credential is known"):
        opened(host, ":v1")


def test_credentials_come_from_dockers_configuration(served: Served, host: str, tmp_path: Path) -> None:
    served.auth = "bearer"
    (tmp_path / "docker").mkdir()
    auth = base64.b64encode(b"me:secret").decode()
    (tmp_path / "docker" / "config.json").write_text(
        json.dumps({"auths": {f"http://{host}/v2/": {"auth": auth}}})
    )
    with open_artifact(f"{host}/team/app:v1") as artifact:
        assert isinstance(artifact, Image)
    with open_artifact(f"docker://{host}/team/app:v1") as artifact:
        assert isinstance(artifact, Image)


def test_secrets_go_to_https_or_this_machine_only(served: Served, host: str) -> None:
    served.auth = "bearer"
    for realm in ("http://example.com/token", "ftp://example.com/", "", "//x"):
        served.realm = realm or "nothing"
        with pytest.raises(ImageError, match="only https is followed"):
            opened(host, ":v1", Credential("me", "secret"))


def test_the_authorization_stays_with_the_registry_when_blobs_are_elsewhere(served: Served, host: str) -> None:
    store = Served()
    store.blobs = served.blobs
    with serving(store) as other:
        served.auth, served.redirect = "bearer", f"http://{other}"
        with opened(host, ":v1", Credential("me", "secret")) as image:
            assert len(list(image.members())) == 3
        assert store.log
        assert all(not authorization for _, _, authorization in store.log)
    served.redirect = "http://example.com"
    with pytest.raises(ImageError, match="only https is followed"):
        opened(host, ":v1", Credential("me", "secret"))
    served.redirect = f"http://{host}"
    with pytest.raises(ImageError, match="in a circle"):
        opened(host, ":v1", Credential("me", "secret"))


@pytest.mark.parametrize(
    ("status", "said"),
    [(403, "docker login"), (429, "too many requests"), (418, "answers 418"), (404, "DENIED")],
)
def test_refusals_say_what_to_do_and_are_printable(served: Served, host: str, status: int, said: str) -> None:
    served.status = status
    with pytest.raises(ImageError) as caught:
        opened(host, ":v1")
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_nobody_listens() -> None:
    with pytest.raises(ImageError, match="does not answer") as caught:
        opened("127.0.0.1:9", ":v1")
    assert "refused" in str(caught.value)


def test_an_absent_or_short_blob(served: Served, host: str) -> None:
    first, second = (sha256(blob) for blob in ImageMaker([BASE, TOP]).blobs())
    del served.blobs[second]
    with opened(host, ":v1") as image, pytest.raises(ImageError, match="answers 404"):
        list(image.members())
    served.add(ImageMaker([BASE, TOP]), "v1")
    served.blobs[first] = served.blobs[first][:-100]
    with opened(host, ":v1") as image, pytest.raises(ImageError, match="ends too early"):
        list(image.members())


def test_a_name_alone_is_no_image() -> None:
    with pytest.raises(ArtifactError, match="not an image"):
        open_artifact("127.0.0.1:9/team/app")
