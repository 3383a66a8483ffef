"""Reads a log file that another program writes, from where it was when we began."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from sm121.audit.bootlog import BootLog
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 16


class Follower:
    """Feeds a growing file to a BootLog, in a thread of its own that ends with the block."""

    def __init__(self, path: Path, *, every: float = 0.5) -> None:
        self.log = BootLog()
        self.last = ""
        """The newest line that is not empty."""
        self._path, self._every = path, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sm121-log", daemon=True)
        self._rest = b""
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ArtifactError(f"the log {path} cannot be read: {error.strerror or error}.") from error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._read()
        if self._rest:
            self.log.feed(self._rest.decode("utf-8", "replace"))
        self._file.close()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._read()

    def _read(self) -> None:
        while chunk := self._file.read(_CHUNK):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace")
                self.log.feed(text)
                self.last = text.strip() or self.last
            if len(self._rest) > _CHUNK:
                # A line without end would fill the memory; its head is enough.
                self.log.feed(self._rest.decode("utf-8", "replace"))
                self._rest = b""
