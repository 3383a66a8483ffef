"""Speaks with a registry: answers, logins, redirects, second tries.

Protocol: https://github.com/opencontainers/distribution-spec/blob/main/spec.md, tokens:
https://distribution.github.io/distribution/spec/auth/token/. Plain http is spoken with this machine only.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from sm121.artifact.credentials import Credential, find_credential
from sm121.artifact.member import CHUNK, LIMITS, printable
from sm121.artifact.reference import DOCKER_HUB
from sm121.errors import ImageError
from sm121.values import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sm121.artifact.reference import ImageReference

_HUB_HOST = "registry-1.docker.io"
_CLIENT = "sm121"
_TIMEOUT = (15.0, 120.0)
"""Seconds to connect, and between two pieces of an answer."""
TRIES = 3
_LONGEST_WAIT = 60
"""Seconds that a registry may ask us to wait."""
_MOST_REDIRECTS = 5
_SMALL = 1 << 20
BROKEN = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
"""What the libraries raise when the network or the other side fails."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request that may have to be sent more than once."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Callable[[], Any] | None = None


class Registry:
    """A client for one repository. Raises ImageError for all that a registry or the network refuses.

    `credential` finds out who the user is, once the registry asks. `pause` waits between tries (seconds). `scopes`
    are what a token is asked for: `repository:NAME:pull` for this repository if none is given. With `insecure`
    plain http is spoken also with a registry on another machine.
    """

    def __init__(
        self, reference: ImageReference, credential: Callable[[str], Credential | None] = find_credential,
        pause: Callable[[float], None] = time.sleep, *, scopes: tuple[str, ...] = (), insecure: bool = False,
    ) -> None:  # fmt: skip
        self.reference = reference
        self._scopes = scopes or (f"repository:{reference.repository}:pull",)
        host = _HUB_HOST if reference.registry == DOCKER_HUB else reference.registry
        self._plain = host if insecure else ""
        scheme = "http" if is_loopback(host) or insecure else "https"
        self._base = f"{scheme}://{host}/v2/{reference.repository}/"
        self._credential = credential
        self.pause = pause
        self._authorization = ""
        self._session = requests.Session()
        # A proxy cannot reach this machine's own registry.
        self._session.trust_env = not is_loopback(host)
        # Without this the library would send what it finds in ~/.netrc.
        self._session.auth = lambda request: request

    def close(self) -> None:
        self._session.close()

    def document(
        self, path: str, accept: tuple[str, ...] = (), limit: int = LIMITS.document
    ) -> tuple[bytes, str]:
        """A small document below the repository, and the digest that the registry names for it, "" if none."""
        for attempt in range(TRIES):
            with self.get(path, {"Accept": ", ".join(accept) or "*/*"}) as answer:
                try:
                    data = _bounded(answer, limit)
                except BROKEN as error:
                    if attempt == TRIES - 1:
                        raise self.broken(path, error) from error
                    continue
            if len(data) > limit:
                raise ImageError(f"{self.reference.name}: {path} is larger than the {limit} bytes that are read.")
            return data, answer.headers.get("Docker-Content-Digest", "")
        raise AssertionError("the last try returns or raises")

    def tags(self) -> list[str]:
        """Some tags of the repository, for advice; empty if the registry does not tell."""
        try:
            data, _ = self.document("tags/list?n=1000", limit=_SMALL)
            names = json.loads(data).get("tags") or []
        except (ImageError, ValueError, AttributeError):
            return []
        return [str(name) for name in names if isinstance(name, str)]

    def get(self, path: str, headers: Mapping[str, str]) -> requests.Response:
        """One answer with status 200 or 206, its body not read yet."""
        return self.request("GET", path, headers, good=(200, 206))

    def request(
        self, method: str, path: str, headers: Mapping[str, str], *, good: Collection[int],
        body: Callable[[], Any] | None = None, tries: int = 0,
    ) -> requests.Response:  # fmt: skip
        """One answer whose status is in `good`, its body not read yet; `path` may be a whole address.

        `body` gives what is sent, anew for each of the `tries`.
        """
        sent = _Sent(method, path, headers, body)
        answer = self._tried(sent, tries or TRIES)
        if answer.status_code == 401:
            challenge = answer.headers.get("WWW-Authenticate", "")
            answer.close()
            self._authorization = self._authorized(challenge)
            answer = self._tried(sent, tries or TRIES)
        if answer.status_code in good:
            return answer
        with answer:
            raise self._refused(sent, answer)

    def _tried(self, sent: _Sent, tries: int) -> requests.Response:
        """Send a request, again if the network or the registry stumbles."""
        for attempt in range(tries):
            last = attempt == tries - 1
            wait = 0.5 * 2**attempt
            try:
                answer = self._followed(self._joined(self._base, sent.path), sent)
            except BROKEN as error:
                if last:
                    raise self.broken(sent.path, error) from error
            else:
                after = answer.headers.get("Retry-After", "")
                asked = whole_number(after, _LONGEST_WAIT) if answer.status_code == 429 else None
                if last or (answer.status_code < 500 and asked is None):
                    return answer
                wait = max(wait, asked or 0)
                answer.close()
            self.pause(wait)
        raise AssertionError("the last try returns or raises")

    def _followed(self, url: str, request: _Sent) -> requests.Response:
        """Follow redirects to https only, and let the authorization reach only the registry itself."""
        home = urlsplit(self._base).netloc
        for _ in range(_MOST_REDIRECTS):
            sent = {**request.headers, "Accept-Encoding": "identity", "User-Agent": _CLIENT}
            if self._authorization and urlsplit(url).netloc == home:
                sent["Authorization"] = self._authorization
            try:
                answer = self._session.request(
                    request.method, url, headers=sent, data=request.body() if request.body else None, stream=True,
                    allow_redirects=False, timeout=_TIMEOUT,
                )  # fmt: skip
            except requests.RequestException:
                raise
            except (
                ValueError
            ) as error:  # the library reads the Location of a redirect even if it is not to follow
                raise requests.exceptions.InvalidURL(str(error)) from error
            if answer.status_code not in {301, 302, 303, 307, 308}:
                return answer
            answer.close()
            url = self.address(url, answer.headers.get("Location", ""), "redirects")
        raise ImageError(f"{self.reference.registry} redirects in a circle.")

    def _authorized(self, challenge: str) -> str:
        """Answer a challenge: the value for the Authorization header."""
        scheme, _, rest = challenge.partition(" ")
        credential = self._credential(self.reference.registry)
        if scheme.lower() == "basic" and credential is not None:
            self.check_address(self._base, "asks for a password")
            return credential.basic
        if scheme.lower() != "bearer":
            raise self._login(f"asks for {printable(scheme) or 'a login'} and no credential is known")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.get("realm", "")
        self.check_address(realm, "asks for a token")
        asked = {"service": fields.get("service", ""), "scope": list(self._scopes)}
        try:
            with self._token(realm, asked, credential) as answer:
                status, data = answer.status_code, _bounded(answer, _SMALL)
        except BROKEN as error:
            raise self.broken("the token service", error) from error
        if status != 200:
            raise self._login(f"gives no token (status {status})")
        try:
            table = json.loads(data)
            token = table.get("token") or table.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ImageError(f"{self.reference.registry} sends a token that is none.")
        return f"Bearer {token}"

    def _token(self, realm: str, asked: dict[str, Any], credential: Credential | None) -> requests.Response:
        headers = {"User-Agent": _CLIENT}
        if credential is not None and credential.identity_token:
            form = {
                **asked, "scope": " ".join(self._scopes), "client_id": _CLIENT, "grant_type": "refresh_token",
                "refresh_token": credential.identity_token,
            }  # fmt: skip
            return self._session.post(
                realm, data=form, headers=headers, stream=True, allow_redirects=False, timeout=_TIMEOUT
            )
        if credential is not None:
            headers["Authorization"] = credential.basic
        return self._session.get(
            realm, params=asked, headers=headers, stream=True, allow_redirects=False, timeout=_TIMEOUT
        )

    def address(self, here: str, there: str, what: str) -> str:
        """Where a registry sends us from `here`, checked; `what` it does there."""
        target = self._joined(here, there)
        self.check_address(target, what)
        return target

    def _joined(self, here: str, there: str) -> str:
        try:
            return urljoin(here, there)
        except ValueError as error:
            raise self._no_address(there, error) from error

    def _no_address(self, url: str, error: ValueError) -> ImageError:
        return ImageError(
            f"{self.reference.registry} names {printable(url)!r}, which is no address ({printable(str(error))}).",
            do="check the name of the registry; its owner can mend it.",
        )

    def check_address(self, url: str, what: str) -> None:
        """Raise ImageError if a registry sends us to an address that is not to be trusted; `what` it does there."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise self._no_address(url, error) from error
        ours = is_loopback(urlsplit(self._base).netloc) and is_loopback(parts.netloc)
        ours = ours or (bool(self._plain) and parts.netloc == self._plain)
        if not parts.netloc or not (parts.scheme == "https" or (parts.scheme == "http" and ours)):
            raise ImageError(
                f"{self.reference.registry} {what} at {printable(url)!r}; only https is followed.",
                do="ask the registry's owner to mend it; plain http is spoken with this machine only.",
            )

    def _refused(self, sent: _Sent, answer: requests.Response) -> ImageError:
        path, status = sent.path, answer.status_code
        if status in {401, 403}:
            return self._login(f"refuses access (status {status})")
        if status == 429:
            return self._login("lets nobody in for a while (status 429, too many requests)")
        said = _errors(answer)
        if status == 404 and path.startswith("manifests/") and sent.method in {"GET", "HEAD"}:
            there = self.tags()
            near = difflib.get_close_matches(self.reference.tag, there, 5, 0.3) or there[-5:]
            shown = f"it has, among others: {printable(', '.join(near))}." if near else "check name and tag."
            return ImageError(f"{self.reference} does not exist{said}.", do=shown)
        return ImageError(f"{self.reference.registry} answers {status} to {printable(path)}{said}.")

    def _login(self, got: str) -> ImageError:
        host = self.reference.registry
        return ImageError(f"{self.reference}: {host} {got}.", do=f"run docker login {host}, or check the name.")

    def broken(self, path: str, error: Exception) -> ImageError:
        """The error that says what became of a request."""
        return ImageError(
            f"{self.reference.registry} does not answer ({printable(path)}): {_reason(error)}.",
            do="check the name of the registry, the network, and proxy settings.",
        )


def is_loopback(netloc: str) -> bool:
    """Whether a `host[:port]` is this machine."""
    host = urlsplit(f"//{netloc}").hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bounded(answer: requests.Response, limit: int) -> bytes:
    """The body, at most one byte more than `limit`."""
    data = bytearray()
    while len(data) <= limit and (
        piece := answer.raw.read(min(CHUNK, limit + 1 - len(data)), decode_content=False)
    ):
        data += piece
    return bytes(data)


def _errors(answer: requests.Response) -> str:
    """What the registry says of its refusal, as the specification's error document has it."""
    try:
        errors = json.loads(_bounded(answer, _SMALL))["errors"]
        said = "; ".join(f"{error['code']} {error.get('message', '')}".strip() for error in errors[:3])
    except (*BROKEN, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return f" ({printable(said)})"


def _reason(error: Exception) -> str:
    """The innermost reason of a network failure: the outer ones repeat it with addresses of objects."""
    while inner := error.__cause__ or error.__context__:
        error = inner  # type: ignore[assignment]
    return printable(str(error) or type(error).__name__)
