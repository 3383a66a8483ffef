"""Registries that lie: addresses that are none, names that no tag can be, attachments without an end."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

import pytest
from push_server import INDEX, digest_of

from loopback_server import listening
from sm121 import cli
from sm121.artifact import ImageReference
from sm121.errors import ArtifactError, ImageError, UsageError
from sm121.image.documents import OCI_CONFIG, OCI_MANIFEST, canonical
from sm121.image.folder import LayoutFolder
from sm121.image.naming import resolve
from sm121.image.nodes import NodeFolder
from sm121.image.remote import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Answer = tuple[int, Mapping[str, str], bytes]

CONFIG = canonical({"os": "linux", "architecture": "arm64", "rootfs": {"type": "layers", "diff_ids": []}})
MANIFEST = {
    "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [],
    "config": {"mediaType": OCI_CONFIG, "digest": digest_of(CONFIG), "size": len(CONFIG)},
}  # fmt: skip
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
NO_ADDRESS = "http://[::1"


@contextmanager
def answering(answer: Callable[[str, str], Answer]) -> Iterator[str]:
    """A registry in this process that answers each path (behind the repository) as `answer` says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
            """Quiet."""

        def do_GET(self) -> None:
            host = str(self.headers["Host"])
            status, headers, data = answer(self.path.removeprefix("/v2/team/app/"), host)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with listening(Handler) as host:
        yield f"{host}/team/app"


def repository(name: str) -> Repository:
    return Repository(ImageReference.parse(name), credential=lambda _: None, pause=lambda _: None)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (307, {"Location": NO_ADDRESS}),
        (401, {"WWW-Authenticate": f'Bearer realm="{NO_ADDRESS}"'}),
        (429, {"Retry-After": "9" * 5000}),
        (429, {"Retry-After": "soon"}),
        (200, {"Link": f'<{NO_ADDRESS}>; rel="next"'}),
        (200, {"Link": '<http://198.51.100.7/v2/team/app/tags/list>; rel="next"'}),
        (200, {"Link": '<file:///etc/passwd>; rel="next"'}),
    ],
)
def test_headers_that_cannot_be_followed_are_refused(status: int, headers: dict[str, str]) -> None:
    with (
        answering(lambda *_: (status, headers, b'{"tags": ["a"]}')) as name,
        repository(name) as place,
        pytest.raises(ImageError) as caught,
    ):
        place.tags()
    assert place.reference.registry in str(caught.value)
    assert caught.value.do


@pytest.mark.programs
def test_names_that_no_tag_can_be_reach_no_terminal() -> None:
    body = json.dumps({"tags": ["good", "\x1b[31mred", "a\nb", "../x"]}).encode()
    with (
        answering(lambda *_: (200, {}, body)) as name,
        repository(name) as place,
        pytest.raises(ArtifactError, match="is no tag") as caught,
    ):
        place.tags()
    assert len(caught.value.problems) == 3
    assert str(caught.value).replace("\n", "").isprintable()


@pytest.mark.programs
def test_attachments_of_attachments_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {digest_of(canonical(MANIFEST)): canonical(MANIFEST)}

    def answer(path: str, _: str) -> Answer:
        kind, _, name = path.partition("/")
        if kind == "referrers":
            subject = {"mediaType": OCI_MANIFEST, "digest": name, "size": 1}
            data = canonical({**MANIFEST, "subject": subject, "artifactType": "a/b"})
            made[digest_of(data)] = data
            listed = {
                "mediaType": OCI_MANIFEST, "digest": digest_of(data), "size": len(data), "artifactType": "a/b",
            }  # fmt: skip
            return 200, {"Content-Type": INDEX}, canonical({"schemaVersion": 2, "manifests": [listed]})
        if kind == "manifests" and name in made:
            return 200, {"Content-Type": OCI_MANIFEST}, made[name]
        return (200, {}, CONFIG) if kind == "blobs" else (404, {}, b"{}")

    with answering(answer) as name:
        words = [
            "copy",
            f"{name}@{next(iter(made))}",
            f"oci:{tmp_path / 'x'}",
            "--work",
            str(tmp_path / "w"),
            "-q",
        ]
        assert cli.run(words) == ImageError.exit_code
    assert "without an end" in capsys.readouterr().err
    assert len(made) < 20


@pytest.mark.programs
def test_a_document_that_is_two_things_stands_for_nothing(tmp_path: Path) -> None:
    both = canonical({**MANIFEST, "manifests": []})

    def answer(path: str, _: str) -> Answer:
        kind = path.partition("/")[0]
        return (200, {"Content-Type": OCI_MANIFEST}, both) if kind == "manifests" else (404, {}, b"{}")

    with answering(answer) as name:
        with repository(name) as place, pytest.raises(ArtifactError, match="at once"):
            resolve(place, "v1")
        words = [
            "copy",
            f"{name}@{digest_of(both)}",
            f"oci:{tmp_path / 'x'}",
            "--work",
            str(tmp_path / "w"),
            "-q",
        ]
        assert cli.run(words) == ArtifactError.exit_code


@pytest.mark.programs
@pytest.mark.parametrize(
    ("sent_as", "listed_as"),
    [(INDEX, OCI_MANIFEST), ("application/octet-stream", OCI_MANIFEST), (OCI_MANIFEST, DOCKER_MANIFEST)],
)
def test_a_document_with_two_media_types_is_not_copied(
    sent_as: str, listed_as: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = canonical(MANIFEST)
    entry = {"mediaType": listed_as, "digest": digest_of(child), "size": len(child)}
    index = canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    sent = {digest_of(child): (sent_as, child), digest_of(index): (INDEX, index)}

    def answer(path: str, _: str) -> Answer:
        kind, _, name = path.partition("/")
        if kind == "manifests" and name in sent:
            return 200, {"Content-Type": sent[name][0]}, sent[name][1]
        return (200, {}, CONFIG) if kind == "blobs" else (404, {}, b"{}")

    with answering(answer) as name:
        for begin in (index, child) if sent_as != OCI_MANIFEST else (index,):
            words = ["copy", f"{name}@{digest_of(begin)}", f"oci:{tmp_path / 'x'}", "--work", str(tmp_path / "w")]
            assert cli.run([*words, "-q"]) == ImageError.exit_code
            told = capsys.readouterr().err
            assert f"its place calls it '{sent_as}', it calls itself '{OCI_MANIFEST}'" in told
            if begin == index:
                assert f"what lists it calls it '{listed_as}'" in told
    assert LayoutFolder(tmp_path / "x").images() == []
    assert not list((tmp_path / "x").glob("blobs/*/*"))


@pytest.mark.parametrize("text", ["ssh://host:99999/x", "ssh://host:port/x", "ssh://[host/x"])
def test_addresses_of_nodes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no node") as caught:
        NodeFolder.parse(text)
    assert "ssh://" in caught.value.do


def test_a_file_is_no_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout, file = tmp_path / "layout", tmp_path / "thesis"
    file.write_text("years")
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    data = canonical(MANIFEST)
    for each in (data, CONFIG):
        (blobs / digest_of(each).removeprefix("sha256:")).write_bytes(each)
    listed = {"mediaType": OCI_MANIFEST, "digest": digest_of(data), "size": len(data)}
    (layout / "index.json").write_bytes(canonical({"schemaVersion": 2, "manifests": [listed]}))
    assert cli.run(["copy", f"oci:{layout}", f"oci:{file}", "--work", str(tmp_path / "w"), "-q"]) != 0
    assert "something else" in capsys.readouterr().err
    assert file.read_text() == "years"
