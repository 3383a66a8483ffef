"""A small web server on the loopback for downloads: knows Range, and misbehaves on request."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Behaviour:
    """What is served and how. `script` holds one behaviour per request, "" or nothing for a good one."""

    content: bytes
    script: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """The Range header of every request, "" without one."""
    sent: int = 0
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        pass

    def do_GET(self) -> None:
        served = self.behaviour
        wanted = self.headers.get("Range", "")
        served.requests.append(wanted)
        how = served.script.pop(0) if served.script else ""
        if how.isdigit():
            self.send_response(int(how))
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted and how != "no range" else 0
        body = served.content[start:]
        if how == "elsewhere":
            start, body = start + 1, body[1:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(served.content) - 1}/{len(served.content)}")
        if how == "gzip":
            self.send_header("Content-Encoding", "gzip")
        if how not in {"no length", "endless"}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if how == "break off":
            body = body[: len(body) // 2]
        if how == "endless":
            body *= 3
        self.wfile.write(body)
        served.sent += len(body)


@contextmanager
def serving(content: bytes, *script: str) -> Iterator[Behaviour]:
    """Serve `content`; each request takes one entry of the script."""
    behaviour = Behaviour(content, list(script))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"behaviour": behaviour}))
    behaviour.url = f"http://user:secret@127.0.0.1:{server.server_port}/files/x.whl?token=secret"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield behaviour
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
