"""References to images: what is read, what is refused, and which form the refusal shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.artifact import ImageReference
from sm121.errors import ImageError
from sm121.values import Sha256

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("ubuntu", "docker.io/library/ubuntu"),
        ("vllm/vllm-openai:v0.33.0", "docker.io/vllm/vllm-openai:v0.33.0"),
        ("docker.io/ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("index.docker.io/library/ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("localhost/x:1", "localhost/x:1"),
        ("localhost:5000/x", "localhost:5000/x"),
        ("127.0.0.1:5000/a/b__c/d-e:T_1", "127.0.0.1:5000/a/b__c/d-e:T_1"),
        ("[::1]:5000/a:b", "[::1]:5000/a:b"),
        (f"ghcr.io/o/r@sha256:{HEX}", f"ghcr.io/o/r@sha256:{HEX}"),
        (f"r@sha256:{HEX}", f"docker.io/library/r@sha256:{HEX}"),
    ],
)
def test_familiar_names_are_made_explicit(text: str, normal: str) -> None:
    reference = ImageReference.parse_familiar(text)
    assert str(reference) == normal
    assert ImageReference.parse(normal) == reference


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("vllm/vllm-openai:x", "docker.io/vllm/vllm-openai:x"),
    ],
)
def test_a_name_without_registry_is_refused_where_it_must_be_explicit(text: str, said: str) -> None:
    with pytest.raises(ImageError, match="names no registry") as caught:
        ImageReference.parse(text)
    assert said in caught.value.do


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no image reference"),
        ("ghcr.io/", "no image reference"),
        ("ghcr.io/x:", "no image reference"),
        ("ghcr.io/UPPER/x:1", "lower-case"),
        ("ghcr.io/x:bad tag", "The tag"),
        (f"ghcr.io/x:{'t' * 129}", "at most 128"),
        (f"ghcr.io/{'a' * 256}:1", "The repository"),
        ("ghcr.io/x@sha256:abc", "64"),
        (f"ghcr.io/x@{HEX}", "begins with sha256:"),
        (f"ghcr.io/x@sha512:{HEX * 2}", "begins with sha256:"),
        (f"ghcr.io/x@sha256:{HEX.upper()}", "lower-case"),
        (f"ghcr.io/x:1@sha256:{HEX}", "side by side"),
        ("-bad.host:5000/x:1", "no host name"),
        ("ghcr.io/a//b:1", "The repository"),
        ("ghcr.io/../x:1", "The repository"),
        ("ghcr.io/x:1\n", "The tag"),
    ],
)
def test_what_is_no_reference_is_refused(text: str, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        ImageReference.parse_familiar(text)


def test_a_tag_with_a_digest_is_refused_and_the_right_form_shown() -> None:
    with pytest.raises(ImageError) as caught:
        ImageReference.parse(f"ghcr.io/o/r:v1@sha256:{HEX}")
    assert caught.value.do == f"write ghcr.io/o/r@sha256:{HEX}."


def test_a_digest_is_asked_for_where_it_is_needed() -> None:
    tagged = ImageReference.parse("ghcr.io/o/r:v1")
    with pytest.raises(ImageError, match="a digest is needed") as caught:
        tagged.by_digest()
    assert "ghcr.io/o/r@sha256:DIGEST" in caught.value.do
    exact = tagged.with_digest(Sha256(HEX))
    assert exact.by_digest() is exact
    assert str(exact) == f"ghcr.io/o/r@sha256:{HEX}"


def test_a_repository_is_no_image() -> None:
    with pytest.raises(ImageError, match="names a repository, not an image"):
        ImageReference.parse("ghcr.io/o/r").identified()
    assert ImageReference.parse("ghcr.io/o/r:v1").identified().tag == "v1"


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_with_an_error_of_ours(text: str) -> None:
    try:
        reference = ImageReference.parse_familiar(text)
    except ImageError:
        return
    assert ImageReference.parse(str(reference)) == reference
