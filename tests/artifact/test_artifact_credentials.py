"""Credentials from docker's configuration: which entry counts, and that nothing of it is shown."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from sm121.artifact.credentials import Credential, find_credential
from sm121.errors import ArtifactError, ImageError

if TYPE_CHECKING:
    from pathlib import Path


def configured(folder: Path, **document: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return path


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def test_entries_are_found_under_every_spelling_of_the_host(tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        auths={
            "ghcr.io": auth("a:1"), "https://quay.io/v1/": auth("b:2"), "https://index.docker.io/v1/": auth("c:3:4"),
            "127.0.0.1:5000": auth("d:5"), "token.io": {"identitytoken": "long"},
            "plain.io": {"username": "e", "password": "6"},
            "empty.io": {},
        },
    )  # fmt: skip
    assert find_credential("ghcr.io", config) == Credential("a", "1")
    assert find_credential("quay.io", config) == Credential("b", "2")
    assert find_credential("docker.io", config) == Credential("c", "3:4")
    assert find_credential("127.0.0.1:5000", config) == Credential("d", "5")
    assert find_credential("token.io", config) == Credential(identity_token="long")
    assert find_credential("plain.io", config) == Credential("e", "6")
    assert find_credential("empty.io", config) is None
    assert find_credential("127.0.0.1:5001", config) is None


def test_no_configuration_is_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_credential("ghcr.io", tmp_path / "none.json") is None
    configured(tmp_path, auths={"ghcr.io": auth("a:1")})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert find_credential("ghcr.io") == Credential("a", "1")


def test_secrets_are_not_shown() -> None:
    shown = repr(Credential("me", "hidden", "secret-token"))
    assert "hidden" not in shown
    assert "secret-token" not in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no valid JSON"),
        ("[]", "no JSON object"),
        ('{"auths": 3}', "auths is 3"),
        ('{"credHelpers": {"x": 1}}', "credHelpers"),
        ('{"auths": {"ghcr.io": {"auth": "not base64!"}}}', "no base64"),
        ('{"credsStore": "../evil"}', "no name of a credential helper"),
    ],
)
def test_damage_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises((ImageError, ArtifactError), match=said):
        find_credential("ghcr.io", path)


HELPER = """#!/bin/sh
read server
case "$server" in
  ghcr.io) echo '{"ServerURL": "ghcr.io", "Username": "helped", "Secret": "s"}' ;;
  https://index.docker.io/v1/) echo '{"Username": "<token>", "Secret": "t"}' ;;
  broken.io) echo oops >&2; exit 3 ;;
  odd.io) echo '{"Username": 4}' ;;
  *) echo 'credentials not found in native keychain'; exit 1 ;;
esac
"""


@pytest.mark.programs
def test_helpers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker-credential-made"
    program.write_text(HELPER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config = configured(tmp_path, credsStore="made", auths={"file.io": auth("f:1"), "ghcr.io": {}})
    assert find_credential("ghcr.io", config) == Credential("helped", "s")
    assert find_credential("docker.io", config) == Credential(identity_token="t")
    assert find_credential("file.io", config) == Credential("f", "1")
    assert find_credential("none.io", config) is None
    with pytest.raises(ImageError, match="ended with 3"):
        find_credential("broken.io", config)
    with pytest.raises(ArtifactError, match="Username is 4"):
        find_credential("odd.io", config)
    own = configured(tmp_path, credHelpers={"ghcr.io": "made", "gone.io": "absent"})
    assert find_credential("ghcr.io", own) == Credential("helped", "s")
    assert find_credential("other.io", own) is None
    with pytest.raises(ImageError, match="docker-credential-absent was not found"):
        find_credential("gone.io", own)
