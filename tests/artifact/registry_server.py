"""A registry on the loopback address, in this process, with the faults that real ones have."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from image_maker import OCI_INDEX, OCI_MANIFEST, ImageMaker, sha256

from loopback_server import listening

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Served:
    """What the registry holds and how it behaves; `log` lists the requests that came."""

    repository: str = "team/app"
    documents: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    auth: str = ""  # "", "basic", "bearer"
    user: str = "me:secret"
    identity_token: str = ""
    realm: str = ""
    redirect: str = ""  # base URL that blobs are redirected to
    break_after: int = 0  # bytes of a blob after which the connection ends, once for each blob
    ranges: bool = True
    stumble: int = 0  # answers with status 503
    status: int = 0  # answer with this status always
    stated: str = ""  # a wrong Docker-Content-Digest
    log: list[tuple[str, str, str]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    host: str = ""

    def add(self, image: ImageMaker, *names: str) -> None:
        data = image.manifest()
        for name in (*names, sha256(data)):
            self.documents[name] = data
        self.blobs.update(image.all_blobs())

    def add_index(self, data: bytes, *names: str) -> None:
        for name in (*names, sha256(data)):
            self.documents[name] = data

    def fetched(self, kind: str) -> list[str]:
        return [path.rpartition("/")[2] for _, path, _ in self.log if f"/{kind}/" in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
        """Quiet."""

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.served.log.append(("POST", self.path, ""))
        right = form.get("refresh_token") == [self.served.identity_token] and form.get("grant_type") == [
            "refresh_token"
        ]
        self._send(200, b'{"access_token": "pass"}') if right else self._send(401, b"{}")

    def do_GET(self) -> None:
        served, path = self.served, urlsplit(self.path).path
        authorization = self.headers.get("Authorization", "")
        served.log.append(("GET", self.path, authorization))
        if path == "/token":
            basic = "Basic " + base64.b64encode(served.user.encode()).decode()
            scope = parse_qs(urlsplit(self.path).query).get("scope")
            good = authorization == basic and scope == [f"repository:{served.repository}:pull"]
            self._send(200, b'{"token": "pass"}') if good else self._send(401, b"{}")
            return
        if served.stumble:
            served.stumble -= 1
            self._send(503, b"")
            return
        if served.status:
            self._send(served.status, b'{"errors": [{"code": "DENIED", "message": "not\\u001b[31m you"}]}')
            return
        if not self._allowed(authorization):
            return
        prefix = f"/v2/{served.repository}/"
        kind, _, name = path.removeprefix(prefix).partition("/")
        if kind == "tags":
            names = [name for name in served.documents if ":" not in name]
            self._send(200, json.dumps({"tags": names}).encode())
        elif kind == "manifests" and name in served.documents:
            data = served.documents[name]
            media_type = OCI_INDEX if b'"manifests"' in data else OCI_MANIFEST
            self._send(
                200, data, {"Content-Type": media_type, "Docker-Content-Digest": served.stated or sha256(data)}
            )
        elif kind == "blobs" and name in served.blobs:
            self._blob(name)
        else:
            self._send(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}')

    def _allowed(self, authorization: str) -> bool:
        served = self.served
        if served.auth == "basic":
            wanted = "Basic " + base64.b64encode(served.user.encode()).decode()
            challenge = 'Basic realm="test"'
        elif served.auth == "bearer":
            wanted = "Bearer pass"
            realm = served.realm or f"http://{served.host}/token"
            challenge = f'Bearer realm="{realm}",service="test",scope="repository:{served.repository}:pull"'
        else:
            return True
        if authorization == wanted:
            return True
        self._send(401, b"{}", {"WWW-Authenticate": challenge})
        return False

    def _blob(self, name: str) -> None:
        served, data, headers, status = self.served, self.served.blobs[name], {}, 200
        if served.redirect:
            self._send(307, b"", {"Location": f"{served.redirect}{self.path}"})
            return
        wanted = self.headers.get("Range", "")
        if wanted and served.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            data, status = data[start:], 206
        if served.break_after and name not in served.broken:
            served.broken.add(name)
            self._send(status, data[: served.break_after], headers, length=len(data))
            self.close_connection = True
            return
        self._send(status, data, headers)

    def _send(
        self, status: int, data: bytes, headers: dict[str, Any] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """Serve on a free port; gives `127.0.0.1:PORT`."""
    handler = type("Handler", (_Handler,), {"served": served})
    with listening(handler) as served.host:
        yield served.host
