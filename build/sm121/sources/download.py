"""One file over HTTP: resumed where it broke off, tried again after a passing fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import requests
import urllib3
from requests.adapters import HTTPAdapter

from sm121 import index
from sm121.errors import FetchError
from sm121.progress import size as shown_size
from sm121.sources.disk import writing
from sm121.sources.store import mismatch
from sm121.values import CHUNK, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sm121.sources.store import FilePin

TIMEOUT = (20.0, 30.0)
"""Seconds to wait for a connection, and between two pieces; a stalled transfer is then taken up again."""
TRIES = 5
"""How often in a row a transfer may fail without a single byte coming in."""
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_PAUSE = 60.0


class _Passing(Exception):  # noqa: N818
    """A fault that may pass: try again, after `pause` seconds if the server named a time."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


def session() -> requests.Session:
    """A session of the user's configuration without retries of its own: `download` knows how far it got."""
    opened = index.session()
    for scheme in ("https://", "http://"):
        opened.mount(scheme, HTTPAdapter(max_retries=0))
    return opened


@dataclass(frozen=True, slots=True)
class Download:
    """One file on its way from `url` into `part`.

    `tick` hears the number of bytes that came in (negative: thrown away); `pause` waits some seconds.
    """

    opened: requests.Session
    url: str
    pin: FilePin
    part: Path
    tick: Callable[[int], None]
    pause: Callable[[float], None]

    def run(self) -> None:
        """Fetch until `part` has the pinned size, going on after the bytes that are there already.

        Raises FetchError, DigestError if the server's file has another size, StorageError.
        """
        failures = 0
        while (have := self._have()) != self.pin.size:
            if have > self.pin.size:
                self._drop()
                continue
            try:
                self._transfer(have)
                reason, wait = "the server ended the transfer early", None
            except _Passing as fault:
                reason, wait = str(fault), fault.pause
            now = self._have()
            if now == self.pin.size:
                return
            failures = 1 if now > have else failures + 1
            if failures > TRIES:
                raise FetchError(
                    f"{self.pin.filename} could not be fetched from {self._where}: {reason}; "
                    f"{shown_size(now)} of {shown_size(self.pin.size)} came in, "
                    f"{TRIES} further tries brought nothing.",
                    do="check the network and run the same command again: what came in is kept.",
                )
            self.pause(wait if wait is not None else min(2.0 ** (failures - 1), _LONGEST_PAUSE))

    @property
    def _where(self) -> str:
        return index.public(self.url)

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _drop(self) -> None:
        self.tick(-self._have())
        self.part.unlink(missing_ok=True)

    def _transfer(self, have: int) -> None:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with self.opened.get(self.url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
                if not self._continues(answer, have):
                    self._drop()
                self._store(answer)
        except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
            raise _Passing("it took too long") from error
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise _Passing("the connection failed") from error
        except urllib3.exceptions.HTTPError as error:
            raise _Passing("the connection broke off") from error
        except requests.RequestException as error:
            raise FetchError(
                f"{self.pin.filename} could not be fetched from {self._where}: {type(error).__name__}."
            ) from error

    def _store(self, answer: requests.Response) -> None:
        have = self._have()
        with writing(self.part, wanted=self.pin.size):
            file = self.part.open("ab")
        with file:
            # `raw`: some servers declare a .tar.gz as compressed content, which must not be undone.
            for piece in answer.raw.stream(CHUNK, decode_content=False):
                have += len(piece)
                if have > self.pin.size:
                    raise mismatch(self.pin, f"more than {self.pin.size} bytes at {self._where}")
                with writing(self.part, wanted=self.pin.size):
                    file.write(piece)
                    file.flush()
                self.tick(len(piece))

    def _continues(self, answer: requests.Response, have: int) -> bool:
        """Judge the head of an answer: whether it goes on after `have` bytes (else it starts anew)."""
        status = answer.status_code
        if status in _PASSING:
            after = answer.headers.get("Retry-After", "")
            raise _Passing(
                f"the server answered HTTP {status}",
                min(float(after), _LONGEST_PAUSE) if after.isascii() and after.isdigit() else None,
            )
        if status == requests.codes.requested_range_not_satisfiable and have:
            self._drop()
            raise _Passing("the server refused to go on in the middle")
        if status not in {requests.codes.ok, requests.codes.partial}:
            raise FetchError(
                f"{self.pin.filename} could not be fetched: {self._where} answered HTTP {status}.",
                do="check the index settings of pip or uv, or give a folder that holds the file (--mirror).",
            )
        if status == requests.codes.ok:
            length = answer.headers.get("Content-Length", "")
            self._require_total(whole_number(length))
            return have == 0
        match = re.fullmatch(
            r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18}|\*)", answer.headers.get("Content-Range", "")
        )
        if not match or int(match[1]) != have:
            self._drop()
            raise _Passing("the server went on at another place")
        self._require_total(None if match[2] == "*" else int(match[2]))
        return True

    def _require_total(self, total: int | None) -> None:
        if total is not None and total != self.pin.size:
            raise mismatch(self.pin, f"{total} bytes at {self._where}")
