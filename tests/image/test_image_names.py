"""Names, and what is refused before anything is asked."""

from __future__ import annotations

import pytest

from sm121.artifact import ImageReference
from sm121.errors import ImageError, UsageError
from sm121.image.names import ImmutableName, moving_name, output_name
from sm121.image.nodes import NodeFolder
from sm121.image.remote import is_fallback
from sm121.values import Sha256

DIGEST = Sha256("0123456789abcdef" * 4)


def test_the_immutable_name() -> None:
    name = ImmutableName.of("0.33.0", "cu130", DIGEST)
    assert str(name) == "0.33.0-cu130-sm121-0123456789ab"
    assert ImmutableName.parse(str(name)) == name
    assert name.means(DIGEST)
    assert not name.means(Sha256("f" * 64))
    assert str(ImmutableName.of("0.33.0.partial", "cu130", DIGEST)).startswith("0.33.0.partial-cu130-")


@pytest.mark.parametrize(
    "tag",
    ["cu130", "latest", "0.33.0-cu130-sm121-0123456789a", "0.33.0-cu130-sm121-0123456789AB", "x-cu130-sm121-0123456789ab"]
)  # fmt: skip
def test_tags_that_are_no_immutable_names(tag: str) -> None:
    assert ImmutableName.parse(tag) is None


@pytest.mark.parametrize(
    ("version", "line"), [("0.33.0+local", "cu130"), ("", "cu130"), ("0.33.0", "13.0"), ("a b", "cu130")]
)
def test_names_that_are_no_tags(version: str, line: str) -> None:
    with pytest.raises(ImageError, match="no immutable name"):
        ImmutableName.of(version, line, DIGEST)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (f"r.example/a@{DIGEST}", "is a digest, which no name can be"), ("r.example/a", "names a repository"),
        ("r.example/a:0.33.0-cu130-sm121-0123456789ab", "is an immutable name"),
        (f"r.example/a:sha256-{DIGEST.hex}", "is an immutable name"),
    ],
)  # fmt: skip
def test_what_is_no_moving_name(reference: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        moving_name(ImageReference.parse(reference))


def test_what_is_a_moving_name() -> None:
    assert moving_name(ImageReference.parse("r.example/a:cu130")) == "cu130"


@pytest.mark.parametrize("reference", [f"r.example/a@{DIGEST}", "r.example/a:cu130"])
def test_an_output_has_neither_digest_nor_tag(reference: str) -> None:
    with pytest.raises(UsageError, match="cannot be pushed to"):
        output_name(ImageReference.parse(reference))


def test_tags_that_hold_referrers() -> None:
    assert is_fallback(f"sha256-{DIGEST.hex}")
    assert is_fallback(f"sha256-{DIGEST.hex}.sig")
    assert not is_fallback("sha256-nothing")
    assert not is_fallback("cu130")


@pytest.mark.parametrize(
    "text", ["ssh://-oProxyCommand=x/srv", "ssh:///srv", "ssh://host", "ssh://host/", "ssh://me:pass@host/x"]
)
def test_nodes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no node"):
        NodeFolder.parse(text)


def test_a_node() -> None:
    assert NodeFolder.parse("ssh://me@node1:2222/srv/images/").name == "ssh://me@node1:2222/srv/images"
