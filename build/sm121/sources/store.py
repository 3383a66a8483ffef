"""The files that were fetched and proven, each below the name of its own hash.

`<root>/<sha256>/<filename>`: a file has this name only after all its bytes were compared with its pin. A store
can serve as the mirror of another machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sm121.errors import DigestError, StorageError
from sm121.progress import size as shown_size
from sm121.sources.disk import writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_POLL = 0.2


class FilePin(Protocol):
    """A file of a project on a package index, with what its bytes must be. `size` in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def filename(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> Sha256: ...


class Store:
    """Proven files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, pin: FilePin) -> Path:
        """Where the file of `pin` is, or will be."""
        return self.root / pin.sha256.hex / pin.filename

    def part(self, pin: FilePin) -> Path:
        """Where the bytes that are not yet proven collect."""
        return self.path(pin).with_name(f"{pin.filename}.part")

    def holds(self, pin: FilePin, *, rehash: bool = False) -> bool:
        """Whether the proven file is there and unchanged since it was proven.

        Cheap as long as size and time are those of the proof; otherwise, or with `rehash`, all bytes are read
        again. A file that no longer has its hash loses its proof; fetching replaces it.
        """
        path = self.path(pin)
        self._refuse_oddities(pin)
        try:
            state = path.stat()
        except FileNotFoundError:
            return False
        if not rehash and self._proof(pin) == (state.st_size, state.st_mtime_ns):
            return True
        if state.st_size == pin.size and Sha256.of_file(path) == pin.sha256:
            self._prove(pin)
            return True
        with writing(path):
            self._record(pin).unlink(missing_ok=True)
        return False

    def _refuse_oddities(self, pin: FilePin) -> None:
        """Nothing of the store is a link, a pipe or a device: what is written through one is lost elsewhere."""
        path = self.path(pin)
        odd = [
            str(each)
            for each, kind in ((path.parent, stat.S_ISDIR), (path, stat.S_ISREG), (self.part(pin), stat.S_ISREG))
            if os.path.lexists(path.parent) and os.path.lexists(each) and not kind(each.lstat().st_mode)
        ]
        if odd:
            raise StorageError(
                [
                    f"{each} is in the way: a file of the store was wanted, found something else."
                    for each in odd[:1]
                ],
                do="remove it; it is fetched again.",
            )

    def admit(self, pin: FilePin) -> Path:
        """Compare the collected bytes with the pin and give the file its name.

        Raises DigestError if they differ.
        """
        part, path = self.part(pin), self.path(pin)
        size = part.stat().st_size
        found = Sha256.of_file(part)
        if size != pin.size or found != pin.sha256:
            raise mismatch(pin, f"{found}, {size} bytes")
        with writing(path):
            with part.open("rb") as file:
                os.fsync(file)  # a power failure must not leave a name without its bytes
            part.chmod(0o444)
            part.replace(path)
            self._prove(pin)
        return path

    @contextmanager
    def lock(self, pin: FilePin, *, wait: Callable[[], None]) -> Iterator[None]:
        """Keep other processes and threads from fetching the same file; `wait` is called while one does."""
        folder = self.path(pin).parent
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / f".{pin.filename}.lock").open("ab")
        with file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    wait()
                    time.sleep(_POLL)
                else:
                    break
            yield

    def _record(self, pin: FilePin) -> Path:
        return self.path(pin).with_name(f".{pin.filename}.proof.json")

    def _proof(self, pin: FilePin) -> tuple[int, int] | None:
        try:
            proof = json.loads(self._record(pin).read_bytes())
            return int(proof["size"]), int(proof["mtime_ns"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _prove(self, pin: FilePin) -> None:
        state, record = self.path(pin).stat(), self._record(pin)
        proof = {"mtime_ns": state.st_mtime_ns, "sha256": pin.sha256.hex, "size": state.st_size}
        with writing(record):
            fresh = record.with_suffix(".new")
            fresh.write_text(json.dumps(proof, sort_keys=True))
            fresh.replace(record)


def mismatch(pin: FilePin, found: str) -> DigestError:
    """The error for bytes that are not the pinned ones; `found` says what they are."""
    return DigestError(
        f"{pin.filename}: wanted {pin.sha256}, {pin.size} bytes ({shown_size(pin.size)}); found {found}.",
        do="find out where the other bytes come from; never change a pin to match bytes that nobody knows.",
    )
