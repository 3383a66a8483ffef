"""Talks to an OpenAI-compatible server within bounds of time and size; a failure is an answer, not an exception."""

from __future__ import annotations

import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any

import requests
from requests.exceptions import InvalidURL
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    IncompleteRead,
    LocationParseError,
    NameResolutionError,
    ProtocolError,
    ReadTimeoutError,
)

from sm121.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 16 << 20
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion. `failure` is "" or says what went wrong; times are seconds from sending.

    `first` is the time of the first token, `last` that of the last one; without streaming both are the end.
    `tokens` and `prompt_tokens` are the server's counts, None if it gives none.
    """

    text: str = ""
    reasoning: str = ""
    finish: str = ""
    tokens: int | None = None
    prompt_tokens: int | None = None
    first: float | None = None
    last: float | None = None
    failure: str = ""

    @property
    def ok(self) -> bool:
        return not self.failure

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first one."""
        if (
            not self.tokens
            or self.tokens < 2
            or self.first is None
            or self.last is None
            or self.last <= self.first
        ):
            return None
        return (self.tokens - 1) / (self.last - self.first)

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens a second until the first token came."""
        return self.prompt_tokens / self.first if self.prompt_tokens and self.first else None


@dataclass
class Server:
    """A server by its base URL. `deadline` bounds one request in seconds, from sending to the last byte."""

    url: str
    model: str = ""
    deadline: float = 120.0
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise ServerError(f"{self.url!r} is no address; it looks like http://127.0.0.1:8000.")

    def version(self) -> str:
        """What `/version` says. Raises ServerError if nothing sensible answers there."""
        found = self._get("/version")
        version = found.get("version") if isinstance(found, dict) else None
        if not isinstance(version, str):
            raise ServerError(f"{self.url}/version does not answer with a version.", do="is it a vLLM server?")
        return version

    def find_model(self) -> str:
        """The name of the model that is served, the first if there are several."""
        if not self.model:
            found = self._get("/v1/models")
            rows = found.get("data") if isinstance(found, dict) else None
            names = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            name = next((name for name in names if isinstance(name, str)), None)
            if name is None:
                raise ServerError(f"{self.url}/v1/models names no model.")
            self.model = name
        return self.model

    def complete(self, prompt: str, *, tokens: int = 64, stream: bool = False, seed: int = 0) -> Reply:
        """A raw completion (`/v1/completions`, no chat template) at temperature 0."""
        body: dict[str, Any] = {
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": seed,
        }  # fmt: skip
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        started = time.monotonic()
        try:
            with requests.post(
                f"{self.url}/v1/completions", json=body, headers=self.headers, stream=True,
                timeout=(min(10, self.deadline), self.deadline),
            ) as response:  # fmt: skip
                if response.status_code != requests.codes.ok:
                    said = _text(response, started, self.deadline, most=2000)
                    return Reply(failure=f"HTTP {response.status_code}: {_short(said)}")
                if stream:
                    return _streamed(response, started, self.deadline)
                return _whole(_text(response, started, self.deadline), time.monotonic() - started)
        except _LateError:
            return Reply(failure=f"not finished after {self.deadline:g} s")
        except (requests.Timeout, ReadTimeoutError):
            return Reply(failure=f"no answer for {self.deadline:g} s")
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            return Reply(failure=f"connection lost: {why(error)}")

    def _get(self, path: str) -> object:
        started = time.monotonic()
        try:
            with requests.get(
                f"{self.url}{path}", headers=self.headers, stream=True, timeout=(10, min(30, self.deadline))
            ) as response:
                text = _text(response, started, 30)
                if response.status_code != requests.codes.ok:
                    raise ServerError(
                        f"{self.url}{path} answers with HTTP {response.status_code}: {_short(text)}"
                    )
                return json.loads(text)
        except (_LateError, requests.Timeout, ReadTimeoutError) as error:
            raise ServerError(f"{self.url}{path} does not answer in time.") from error
        except (requests.RequestException, HTTPError, OSError) as error:
            raise ServerError(
                f"{self.url}{path} cannot be reached: {why(error)}.",
                do="start the server, or mend the address.",
            ) from error
        except (json.JSONDecodeError, RecursionError) as error:
            raise ServerError(f"{self.url}{path} does not answer with JSON.") from error
        except ValueError as error:  # a redirect to no address, a number without an end
            raise ServerError(f"{self.url}{path} answers with what cannot be read: {error}.") from error


class _LateError(Exception):
    """The deadline has passed while bytes still came."""


def _chunks(response: requests.Response, started: float, deadline: float, most: int) -> Iterator[bytes]:
    size = 0
    # The socket's timeout counts from byte to byte, so a server that drips needs a clock of its own.
    while chunk := response.raw.read1(_PIECE, decode_content=True):
        size += len(chunk)
        if time.monotonic() - started > deadline or size > most:
            raise _LateError
        yield chunk


def _text(response: requests.Response, started: float, deadline: float, *, most: int = _MOST_BYTES) -> str:
    found = bytearray()
    try:
        for chunk in _chunks(response, started, deadline, most):
            found += chunk
    except _LateError:
        if response.status_code == requests.codes.ok:
            raise
    return found.decode("utf-8", "replace")


def _lines(response: requests.Response, started: float, deadline: float) -> Iterator[str]:
    rest = b""
    for chunk in _chunks(response, started, deadline, _MOST_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").strip()
    if rest.strip():
        yield rest.decode("utf-8", "replace").strip()


def _whole(text: str, took: float) -> Reply:
    data = _parsed(text)
    if data is None:
        return Reply(failure=f"the answer is no JSON: {_short(text)}")
    choice = _choice(data)
    if choice is None:
        return Reply(failure=f"the answer has no choices: {_short(text)}")
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Reply(
        _word(choice.get("text")), _word(choice.get("reasoning_content")), _word(choice.get("finish_reason")),
        _count(usage.get("completion_tokens")), _count(usage.get("prompt_tokens")), took, took,
    )  # fmt: skip


def _streamed(response: requests.Response, started: float, deadline: float) -> Reply:
    text, finish, pieces, ended = "", "", 0, False
    first = last = None
    usage: dict[str, Any] = {}
    for line in _lines(response, started, deadline):
        if not line.startswith("data:"):
            continue
        payload = line.removeprefix("data:").strip()
        if payload == "[DONE]":
            ended = True
            break
        data = _parsed(payload)
        if data is None:
            return Reply(text, failure=f"a piece of the stream is no JSON: {_short(payload)}")
        if isinstance(data.get("error"), dict | str):
            return Reply(text, failure=f"the stream says: {_short(json.dumps(data['error']))}")
        found = data.get("usage")
        usage = found if isinstance(found, dict) else usage
        choice = _choice(data)
        if choice is None:
            continue
        finish = _word(choice.get("finish_reason")) or finish
        piece = _word(choice.get("text"))
        if piece:
            last = time.monotonic() - started
            first = last if first is None else first
            text, pieces = text + piece, pieces + 1
    if not ended:
        return Reply(text, failure=f"the stream broke off after {pieces} pieces")
    tokens = _count(usage.get("completion_tokens"))
    return Reply(
        text, "", finish, pieces if tokens is None else tokens, _count(usage.get("prompt_tokens")), first, last
    )


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _choice(data: dict[str, Any]) -> dict[str, Any] | None:
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def why(error: BaseException) -> str:
    """What went wrong with a connection, in words; libraries wrap it in names of theirs."""
    inner: list[BaseException] = []
    todo: list[object] = [error]
    while todo and len(inner) < _DEPTH:
        one = todo.pop(0)
        if isinstance(one, BaseException) and one not in inner:
            inner.append(one)
            todo += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
    for kind, words in _WORDS:
        if any(isinstance(one, kind) for one in inner):
            return words
    told = next((one for one in reversed(inner) if isinstance(one, OSError) and one.strerror), None)
    return _short(str(told.strerror) if told is not None else type(inner[-1]).__name__)


_DEPTH = 20
_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (NameResolutionError, "nobody knows the name of its host"),
    (socket.gaierror, "nobody knows the name of its host"),
    (ssl.SSLError, "the secure connection could not be made; is it http://?"),
    (ConnectionRefusedError, "nothing listens there"),
    (ConnectionResetError, "the server closed the connection"),
    (BrokenPipeError, "the server closed the connection"),
    (RemoteDisconnected, "the server closed the connection without an answer"),
    (IncompleteRead, "the answer broke off"),
    (ProtocolError, "the answer broke off"),
    (TimeoutError, "it takes no connection in time"),
    (ConnectTimeoutError, "it takes no connection in time"),
    (InvalidURL, "the address is none"),
    (LocationParseError, "the address is none"),
)


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 160 else f"{plain[:157]}..."
