"""A server on loopback that answers like vLLM, or misbehaves on purpose."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from tiny_answers import raw_answer

from sm121.audit.smoke.prompts import RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Behaviour:
    """How the server answers. Everything at its default is a healthy server."""

    version: object = "0.33.0"
    models: object = field(default_factory=lambda: {"data": [{"id": "tiny"}]})
    text: str = ""
    """Given for every prompt, instead of sensible answers."""
    finish: str = "stop"
    wrong_records: int = 0
    """So many of the records come out wrong."""
    fail_after: int | None = None
    """Every completion from this one on fails."""
    fail_every: int = 0
    """Every so many-th completion fails while others run."""
    failure: str = "500"
    """500, drop, garbage, stall, drip or cut."""
    pause: float = 0.0
    """Seconds between the pieces of a stream."""
    usage: bool = True


class FaultServer(ThreadingHTTPServer):
    """Serves until the block ends."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), _Handler)
        self.behaviour = behaviour or Behaviour()
        self.asked = self.running = self.most = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_arguments: object) -> None:
        """A client that went away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        if self.path == "/version":
            found = behaviour.version
            self._json({"version": found} if isinstance(found, str) else found)
        elif self.path == "/v1/models":
            self._json(behaviour.models)
        else:
            self._json({"error": "not found"}, 404)

    _counted = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, behaviour = self.server, self.server.behaviour
        with server.lock:
            server.asked += 1
            number = server.asked
            server.running += 1
            server.most = max(server.most, server.running)
            self._counted = True
        try:
            late = behaviour.fail_after is not None and number > behaviour.fail_after
            if late or (behaviour.fail_every and number % behaviour.fail_every == 0):
                self._misbehave(behaviour.failure)
            else:
                self._answer(body)
        finally:
            self._uncount()

    def _uncount(self) -> None:
        """The request is no longer being worked on; once its answer is written, the client may send the next."""
        with self.server.lock:
            if self._counted:
                self.server.running -= 1
                self._counted = False

    def _answer(self, body: dict[str, Any]) -> None:
        text = self._text(body["prompt"])
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": len(text.split()) or 4}
        finish = self.server.behaviour.finish
        if not body.get("stream"):
            usage_part = {"usage": usage} if self.server.behaviour.usage else {}
            self._json({"choices": [{"text": text, "finish_reason": finish}], **usage_part})
            return
        self._begin()
        for piece in _pieces(text):
            self._piece({"choices": [{"text": piece, "finish_reason": None}]})
            self.server.closing.wait(self.server.behaviour.pause)
        self._piece({"choices": [{"text": "", "finish_reason": finish}]})
        if self.server.behaviour.usage:
            self._piece({"choices": [], "usage": usage})
        self._uncount()
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _text(self, prompt: str) -> str:
        behaviour = self.server.behaviour
        if behaviour.text:
            return behaviour.text if behaviour.text != "(empty)" else ""
        for place, record in enumerate(RECORDS):
            if f"Text: {record.text}\nJSON:" in prompt:
                wrong = place < behaviour.wrong_records
                return " " + (json.dumps({"name": "X"}) if wrong else json.dumps(record.wanted)) + "\n\nText:"
        return raw_answer(prompt)

    def _misbehave(self, kind: str) -> None:
        if kind == "500":
            self._json({"error": "EngineDeadError"}, 500)
        elif kind == "garbage":
            self._raw(b"\xff\xfenot json", "text/plain")
        elif kind == "stall":
            self.server.closing.wait(30)
        elif kind == "drip":
            self._begin()
            while not self.server.closing.wait(0.02):
                self._piece({"choices": [{"text": " word", "finish_reason": None}]})
        elif kind == "cut":
            self._begin()
            self._piece({"choices": [{"text": " begun", "finish_reason": None}]})
            self._chunk(b"")
        if kind in {"drop", "stall", "drip"}:
            self.close_connection = True
            self.connection.close()

    def _json(self, data: object, status: int = 200) -> None:
        self._uncount()
        self._raw(json.dumps(data).encode(), "application/json", status)

    def _raw(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _piece(self, data: object) -> None:
        self._chunk(f"data: {json.dumps(data)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _pieces(text: str) -> Iterator[str]:
    words = text.split(" ")
    for place, word in enumerate(words):
        yield word if place == 0 else f" {word}"
