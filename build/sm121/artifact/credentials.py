"""Who the user is at a registry, from docker's own configuration.

Format: https://docs.docker.com/reference/cli/docker/login/. Secrets are read, sent to the registry that they belong
to, and never shown.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.reference import DOCKER_HUB
from sm121.errors import ImageError, ProgramError

if TYPE_CHECKING:
    from sm121.artifact.jsondoc import Table

_HUB_KEY = "https://index.docker.io/v1/"
"""The name under which docker stores credentials for docker.io."""
_HELPER_TIME = 60.0
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Credential:
    """A user with a password, or a token that stands for both."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of a basic Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def find_credential(registry: str, config: Path | None = None) -> Credential | None:
    """The credential that docker would use for `registry`; None if the user is not logged in there.

    `config` is docker's config.json, by default the one in DOCKER_CONFIG or the home folder. Raises ImageError if
    it is damaged or a credential helper fails.
    """
    path = config or Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror}.", do="check its permissions.") from error
    reader = JsonReader(str(path))
    top = reader.top(data)
    helpers, store = reader.strings(top, "credHelpers"), reader.text(top, "credsStore")
    auths = reader.table(top, "auths")
    reader.finish()
    helper = next((name for key, name in helpers.items() if _host(key) == _host(registry)), store)
    if helper:
        found = _from_helper(helper, _HUB_KEY if registry == DOCKER_HUB else registry)
        if found is not None or store != helper:
            return found
    entry = next((auths[key] for key in auths if _host(key) == _host(registry)), None)
    return _from_entry(entry, path) if isinstance(entry, dict) else None


def _from_entry(entry: Table, path: Path) -> Credential | None:
    reader = JsonReader(str(path))
    username, password = reader.text(entry, "username"), reader.text(entry, "password")
    token, auth = reader.text(entry, "identitytoken"), reader.text(entry, "auth")
    reader.finish()
    if auth:
        try:
            username, _, password = base64.b64decode(auth, validate=True).decode().partition(":")
        except ValueError:
            raise ImageError(
                f"{path} has an auth entry that is no base64.", do="run docker login again."
            ) from None
    password = password.rstrip("\0")
    return Credential(username, password, token) if username or token else None


def _from_helper(helper: str, server: str) -> Credential | None:
    """Ask docker-credential-HELPER (https://github.com/docker/docker-credential-helpers)."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", helper):
        raise ImageError(f"{helper!r} is no name of a credential helper.", do="mend docker's config.json.")
    program = f"docker-credential-{helper}"
    try:
        # A helper is the user's own program and needs the session it was set up in (keyring, agent, cloud profile).
        done = process.run(
            [program, "get"], stdin=server, env=dict(os.environ), timeout=_HELPER_TIME, check=False
        )
    except ProgramError as error:
        raise ImageError(error.problems, do=f"install {program}, or log in without it.") from error
    if done.returncode:
        if "credentials not found" in done.stdout + done.stderr:
            return None
        raise ImageError(
            f"{program} ended with {done.returncode} when it was asked for {server}.",
            do="run docker login again.",
        )
    reader = JsonReader(f"the answer of {program}")
    answer = reader.top(done.stdout.encode())
    username, secret = reader.text(answer, "Username"), reader.text(answer, "Secret")
    reader.finish()
    return Credential(identity_token=secret) if username == "<token>" else Credential(username, secret)


def _host(key: str) -> str:
    """The host of a key of docker's configuration, which may be a URL."""
    host = re.sub(r"^https?://", "", key).partition("/")[0].lower()
    return DOCKER_HUB if host in {"index.docker.io", "registry-1.docker.io"} else host
