"""Blobs on their way into a registry: sent in one stream, and where it breaks, from what the registry has.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from sm121.artifact.member import CHUNK, printable
from sm121.artifact.registry import TRIES
from sm121.errors import DigestError, ImageError
from sm121.values import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import requests

    from sm121.artifact.registry import Registry
    from sm121.values import Sha256


class Uploads:
    """Uploads into the repository of a client that may write."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def send(self, digest: Sha256, path: Path, moved: Callable[[int], None]) -> None:
        """Send a blob. Raises ImageError if the registry will not have it, DigestError if it gets other bytes."""
        size = path.stat().st_size
        location = self._begun()
        for attempt in range(TRIES):
            try:
                location = self._sent(location, path, size, moved)
                self._ended(location, digest)
            except _Lost as lost:
                moved(-lost.position)
                if attempt == TRIES - 1:
                    raise lost.error from lost
                self._registry.pause(0.5 * 2**attempt)
                location = self._begun()
            else:
                return

    def mounted(self, digest: Sha256, source: str) -> bool:
        """Take a blob over from another repository of the registry; False if it has none or will not."""
        query = urlencode({"mount": str(digest), "from": source})
        with self._registry.request(
            "POST", f"blobs/uploads/?{query}", {"Content-Length": "0"}, good=(201, 202, 400, 401, 403, 404, 405)
        ) as answer:
            if answer.status_code == 202:  # an ordinary upload was begun instead; nothing will come
                self._cancel(self._location(answer))
            return answer.status_code == 201

    def _begun(self) -> str:
        with self._registry.request("POST", "blobs/uploads/", {"Content-Length": "0"}, good=(202,)) as answer:
            return self._location(answer)

    def _cancel(self, location: str) -> None:
        self._registry.request("DELETE", location, {}, good=range(200, 600)).close()

    def _sent(self, location: str, path: Path, size: int, moved: Callable[[int], None]) -> str:
        """Send the bytes in one stream; where it breaks, go on from what the registry has. Raises _Lost."""
        position, failures = 0, 0
        while position < size:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size - position)}
            if position:
                headers["Content-Range"] = f"{position}-{size - 1}"
            told = _Told(moved)
            try:
                with self._registry.request(
                    "PATCH", location, headers, good=(202,), tries=1,
                    body=lambda: _Slice(path, position, told),  # noqa: B023 -- used within this round
                ) as answer:  # fmt: skip
                    return self._location(answer)
            except ImageError as error:
                there, location = self._status(location, position, error)
                moved(there - position - told.count)
                failures = 0 if there > position else failures + 1
                position = there
                if failures >= TRIES:
                    raise _Lost(position, error) from error
                self._registry.pause(0.5 * 2**failures)
        return location

    def _status(self, location: str, position: int, error: ImageError) -> tuple[int, str]:
        """How many bytes of an upload the registry has, and where to go on."""
        try:
            answer = self._registry.request("GET", location, {}, good=(204, 404))
        except ImageError:
            raise error from None
        with answer:
            if answer.status_code == 404:
                raise _Lost(position, error)
            _, dash, last = answer.headers.get("Range", "").removeprefix("bytes=").partition("-")
            # "0-0" says one byte, or none: registries differ, and the digest at the end decides.
            there = number + 1 if dash and (number := whole_number(last)) else 0
            return there, self._location(answer, location)

    def _ended(self, location: str, digest: Sha256) -> None:
        mark = "&" if urlsplit(location).query else "?"
        address = f"{location}{mark}digest={quote(str(digest), safe='')}"
        with self._registry.request("PUT", address, {"Content-Length": "0"}, good=(201, 204)) as answer:
            check_digest(self._registry, answer, digest)

    def _location(self, answer: requests.Response, default: str = "") -> str:
        location = answer.headers.get("Location", "")
        if not location and not default:
            raise ImageError(f"{self._registry.reference.registry} begins an upload and does not say where.")
        return self._registry.address(answer.url, location or default, "wants an upload")


def check_digest(registry: Registry, answer: requests.Response, digest: Sha256) -> None:
    """Raise DigestError if a registry says that it got something else."""
    stated = answer.headers.get("Docker-Content-Digest", "")
    if stated not in {"", str(digest)}:
        raise DigestError(
            f"{registry.reference.name}: {digest} was sent; the registry answers {printable(stated)}.",
            do="do not use what it has; something on the way changes the bytes.",
        )


class _Lost(Exception):  # noqa: N818 -- a turn of the upload, not a failure of its own
    """The registry has forgotten the upload."""

    def __init__(self, position: int, error: ImageError) -> None:
        self.position, self.error = position, error
        super().__init__(str(error))


class _Told:
    """Counts what a request sent, for it may have to be taken back."""

    def __init__(self, moved: Callable[[int], None]) -> None:
        self._moved, self.count = moved, 0

    def __call__(self, count: int) -> None:
        self.count += count
        self._moved(count)


class _Slice:
    """The rest of a file from a position on, as the HTTP library wants it: its length is known."""

    def __init__(self, path: Path, position: int, moved: Callable[[int], None]) -> None:
        self._path, self._position, self._moved = path, position, moved
        self._size = path.stat().st_size

    def __len__(self) -> int:
        return self._size - self._position

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._position)
            while piece := file.read(CHUNK):
                yield piece
                self._moved(len(piece))
