"""What an engine only mentions in a stream becomes an error; a push without a digest is none."""

from __future__ import annotations

from typing import Any

import pytest

from sm121.engine.client import read_events, read_push
from sm121.engine.flow import build_failure
from sm121.errors import DigestError, ImageError, PreflightError, Sm121Error, StorageError

DIGEST = "sha256:" + "a" * 64
GOOD: list[dict[str, Any]] = [
    {"status": "The push refers to repository [127.0.0.1:5000/vllm]"},
    {"status": "Preparing", "id": "layer1"},
    {"status": "Pushing", "id": "layer1", "progressDetail": {"current": 512, "total": 1000}},
    {"status": "Pushing", "id": "layer1", "progressDetail": {"current": 1000, "total": 1000}},
    {"status": "Pushed", "id": "layer1", "progressDetail": {}},
    {"status": "Layer already exists", "id": "layer0"},
    {"status": f"x: digest: {DIGEST} size: 528"},
    {"progressDetail": {}, "aux": {"Tag": "x", "Digest": DIGEST, "Size": 528}},
]


def test_a_push_gives_the_registrys_digest() -> None:
    seen: list[object] = []
    pushed = read_push(read_events(GOOD, "push", seen.append), "push")
    assert str(pushed.digest) == DIGEST
    assert (pushed.size, pushed.sent, pushed.kept) == (528, 1000, 1)
    assert seen == GOOD


@pytest.mark.parametrize(
    ("event", "kind", "word"),
    [
        (
            {"errorDetail": {"message": "denied: access forbidden"}, "error": "denied: access forbidden"},
            ImageError,
            "login",
        ),
        ({"errorDetail": {"message": "unauthorized"}}, ImageError, "login"),
        ({"error": "write /var/lib: no space left on device"}, StorageError, "space"),
        (
            {"error": "Put http://127.0.0.1:1/: dial tcp: connect: connection refused"},
            ImageError,
            "stopped answering",
        ),
        ({"error": "something else \x1b[31m"}, ImageError, "nothing was named"),
        ("not an event", ImageError, "no event"),
    ],
)
def test_an_error_in_the_stream_is_an_error(event: object, kind: type[Sm121Error], word: str) -> None:
    with pytest.raises(kind, match=word) as raised:
        read_events([*GOOD[:3], event], "push r/vllm:x")
    assert "\x1b" not in str(raised.value)


def test_a_push_without_a_digest_is_an_error() -> None:
    with pytest.raises(ImageError, match="without the registry's digest"):
        read_push(GOOD[:5], "push")
    with pytest.raises(DigestError, match="2 digests"):
        read_push([*GOOD, {"aux": {"Digest": "sha256:" + "b" * 64}}], "push")
    with pytest.raises(ImageError, match="sha256"):
        read_push([{"aux": {"Digest": "md5:1"}}], "push")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("#5 0.3 exec /bin/sh: exec format error", PreflightError),
        ("ERROR: write /x: no space left on device", StorageError),
        ("#8 ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", ImageError),
        ("error: failed to solve", ImageError),
    ],
)
def test_what_a_failed_build_tells(line: str, kind: type[Sm121Error]) -> None:
    failure = build_failure(["#1 [internal] load", line], "work/logs/image.log", 1)
    assert type(failure) is kind
    assert failure.do
