"""A registry in this process that can be written to, with the faults that real ones have on the way in."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from loopback_server import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class Held:
    """What the registry has, and how it behaves."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    referrers: bool = True
    breaks: int = 0
    """Uploads that end after half of their bytes."""
    forgets: bool = False
    """Whether a broken upload is unknown afterwards."""
    lies: bool = False
    """Whether it answers with another digest than that of what was sent."""
    full: bool = False
    cuts: bool = False
    """Whether a manifest ends after half of its bytes."""
    token: str = ""
    """The scope that a token must be asked for; "" needs none."""
    asked: list[str] = field(default_factory=list)
    host: str = ""

    def methods(self, method: str) -> int:
        return sum(one == method for one, _ in self.log)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: Held

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
        """Quiet."""

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _begin(self) -> list[str] | None:
        """The path's parts behind the repository; None if the request was answered already."""
        held = self.held
        held.log.append((self.command, self.path))
        parts = urlsplit(self.path)
        if parts.path == "/token":
            held.asked += parse_qs(parts.query)["scope"]
            self._answer(200, b'{"token": "pass"}')
            return None
        if held.token and self.headers.get("Authorization") != "Bearer pass":
            self._drain()
            self._answer(401, b"{}", WWW_Authenticate=f'Bearer realm="http://{held.host}/token",service="s"')
            return None
        return parts.path.removeprefix("/v2/").split("/")[2:]

    def _drain(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        held, parts = self.held, self._begin()
        if parts is None:
            return
        kind, name = parts[0], parts[-1]
        if kind == "manifests" and name in held.manifests:
            media_type, data = held.manifests[name]
            if held.cuts:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
                return
            self._answer(200, data, Content_Type=media_type, Docker_Content_Digest=digest_of(data))
        elif kind == "blobs" and parts[1] == "uploads" and name in held.uploads:
            self._answer(204, Range=f"0-{max(0, len(held.uploads[name]) - 1)}", Location=self.path)
        elif kind == "blobs" and name in held.blobs:
            self._answer(200, held.blobs[name])
        elif kind == "tags":
            names = [each for each in held.manifests if ":" not in each]
            self._answer(200, json.dumps({"tags": names}).encode())
        elif kind == "referrers" and held.referrers:
            self._answer(200, self._referrers(name), Content_Type=INDEX)
        else:
            self._answer(404, b"{}")

    def _referrers(self, digest: str) -> bytes:
        listed = []
        for name, (media_type, data) in self.held.manifests.items():
            top = json.loads(data)
            if ":" in name and top.get("subject", {}).get("digest") == digest:
                listed.append(
                    {
                        "mediaType": media_type,
                        "digest": name,
                        "size": len(data),
                        "artifactType": top["artifactType"],
                    }
                )
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode()

    def do_POST(self) -> None:
        if self._begin() is None:
            return
        if self.held.full:
            self._answer(507, b'{"errors": [{"code": "UNKNOWN", "message": "no space left on device"}]}')
            return
        name = str(len(self.held.uploads))
        self.held.uploads[name] = b""
        self._answer(202, Location=f"/v2/team/app/blobs/uploads/{name}?state=1")

    def do_PATCH(self) -> None:
        held, parts = self.held, self._begin()
        if parts is None:
            return
        name, length = parts[-1], int(self.headers["Content-Length"])
        if held.breaks:
            held.breaks -= 1
            held.uploads[name] += self.rfile.read(length // 2)
            if held.forgets:
                del held.uploads[name]
            self.close_connection = True
            self.connection.close()
            return
        held.uploads[name] += self.rfile.read(length)
        self._answer(202, Location=self.path, Range=f"0-{len(held.uploads[name]) - 1}")

    def do_PUT(self) -> None:
        held, parts = self.held, self._begin()
        if parts is None:
            return
        data = self._drain()
        if parts[0] == "manifests":
            digest = digest_of(data)
            for name in {parts[-1], digest}:
                held.manifests[name] = (self.headers["Content-Type"], data)
            subject = json.loads(data).get("subject", {}).get("digest", "")
            extra = {"OCI_Subject": subject} if subject and held.referrers else {}
            self._answer(201, Docker_Content_Digest=digest_of(b"x") if held.lies else digest, **extra)
            return
        wanted = parse_qs(urlsplit(self.path).query)["digest"][0]
        held_bytes = held.uploads.pop(parts[-1]) + data
        if digest_of(held_bytes) != wanted:
            self._answer(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "other bytes"}]}')
            return
        held.blobs[wanted] = held_bytes
        self._answer(201, Docker_Content_Digest=wanted)


@contextmanager
def serving(held: Held) -> Iterator[str]:
    """Serve on a free port; gives `127.0.0.1:PORT`."""
    handler = type("Handler", (_Handler,), {"held": held})
    with listening(handler) as held.host:
        yield held.host
