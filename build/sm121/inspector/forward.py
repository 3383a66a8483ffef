"""Reads the device code of a file in one forward pass, without ever holding the file.

What comes in goes into anonymous memory at its own offset. As soon as a container is complete its images are looked
into and their pages are given back; the rest of the file stays, and with it all headers and tables. At the end the
sections decide what the containers are; the forward search is only a guess at where they will be. A guess that
proves wrong costs a second pass, never a wrong answer.
"""

from __future__ import annotations

import hashlib
import mmap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sm121.artifact.member import printable
from sm121.device import DamagedError, DeviceCode, read_device_code
from sm121.device.fatbin import HEADER, KEPT_PAYLOAD, MAGIC_BYTES, read_container
from sm121.device.window import Window
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from sm121.artifact import Buffer, Member
    from sm121.device import Container

CHUNK = 1 << 20
LARGEST = 8 << 30
"""Bytes of one member that are looked at; no library comes near it."""

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 8
_WORTH_HUGE_PAGES = 128 << 20

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Pass(Generic[Seen]):
    """What a pass gave: the device code, what the look at each container returned, the sha256 if asked for.

    `buffer` holds the file without the payloads that were given back: headers, tables and host code are there.
    """

    code: DeviceCode
    seen: tuple[Seen, ...]
    sha256: str
    buffer: Buffer


@contextmanager
def read_forward(
    member: Member, head: bytes, rest: BinaryIO, look: Callable[[Buffer, Container], Seen], *, digest: bool
) -> Iterator[Pass[Seen]]:
    """Read `member`, calling `look` once for each container while its payloads are in memory.

    `head` is what was read of the member before, `rest` the stream that goes on. Raises DamagedError if it is no
    file with device code at all, ArtifactError if its bytes cannot be had.
    """
    if not 0 < member.size <= LARGEST:
        raise ArtifactError(
            f"{printable(member.path)} has {member.size} bytes; from 1 to {LARGEST} are looked at."
        )
    with _memory(member) as memory:
        guess = _Guess(memory, look)
        sha256 = _fill(member, memory, head, rest, guess, digest=digest)
        code = read_device_code(memory)
        payloads = {(image.offset, image.stored) for image in code.images}
        if guess.given_back <= payloads:
            seen = tuple(
                guess.seen[container.offset] if container.offset in guess.seen else look(memory, container)
                for container in code.containers
            )
            yield Pass(code, seen, sha256, memory)
            return
    with member.buffer() as buffer:
        yield read_buffer(buffer, look, digest=digest)


def _memory(member: Member) -> mmap.mmap:
    """Memory of our own: what a shared map gives back stays with the system."""
    memory = member.memory()
    if hasattr(mmap, "MADV_HUGEPAGE") and member.size >= _WORTH_HUGE_PAGES:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def read_buffer(buffer: Buffer, look: Callable[[Buffer, Container], Seen], *, digest: bool) -> Pass[Seen]:
    """The same for a file that lies in memory, or is mapped there."""
    code = read_device_code(buffer)
    seen = []
    for container in code.containers:
        seen.append(look(buffer, container))
        _give_back(buffer, container.offset, container.size)
    return Pass(code, tuple(seen), sha256_of(buffer) if digest else "", buffer)


def sha256_of(buffer: Buffer) -> str:
    """The digest of a buffer, page by page."""
    hasher = hashlib.sha256()
    with memoryview(buffer) as view:
        for start in range(0, len(view), CHUNK):
            hasher.update(view[start : start + CHUNK])
            _give_back(buffer, start, CHUNK)
    return hasher.hexdigest()


class _Guess(Generic[Seen]):
    """Finds containers by their magic while a file comes in, and looks into each as soon as it is complete."""

    def __init__(self, memory: mmap.mmap, look: Callable[[Buffer, Container], Seen]) -> None:
        self.seen: dict[int, Seen] = {}
        self.given_back: set[tuple[int, int]] = set()
        self._memory = memory
        self._look = look
        self._at = 0

    def advance(self, filled: int) -> None:
        """Look for containers that end before `filled`."""
        while (start := self._memory.find(MAGIC_BYTES, self._at, filled)) >= 0:
            end = self._end(start)
            if end is None:
                self._at = start + len(MAGIC_BYTES)
            elif end > filled:
                self._at = start
                return
            else:
                self._complete(start)
                self._at = end
        self._at = max(self._at, filled - len(MAGIC_BYTES) + 1)

    def _end(self, start: int) -> int | None:
        """Where the container at `start` ends, None if there is none."""
        if start % _ALIGNMENT or start + HEADER.size > len(self._memory):
            return None
        _, version, header_size, size = HEADER.unpack_from(self._memory, start)
        end = start + max(header_size + size, HEADER.size)
        return int(end) if version == 1 and header_size == HEADER.size and end <= len(self._memory) else None

    def _complete(self, start: int) -> None:
        try:
            container = read_container(Window.over(self._memory), start, section="", index=0)
        except DamagedError:
            return
        self.seen[start] = self._look(self._memory, container)
        for image in container.images:
            if image.stored > KEPT_PAYLOAD and _give_back(self._memory, image.offset, image.stored):
                self.given_back.add((image.offset, image.stored))


def _fill(
    member: Member, memory: mmap.mmap, head: bytes, rest: BinaryIO, guess: _Guess[Seen], *, digest: bool
) -> str:
    """Read into `memory` and return the sha256, if it was asked for."""
    hasher = hashlib.sha256(head)
    filled = len(head)
    with memoryview(memory) as view:
        view[:filled] = head
        while count := rest.readinto(view[filled : filled + CHUNK]):  # type: ignore[attr-defined]
            if digest:
                hasher.update(view[filled : filled + count])
            filled += count
            guess.advance(filled)
    if filled != len(memory):
        raise ArtifactError(f"{member.path} ends after {filled} of {member.size} bytes.")
    if rest.read(1):
        raise ArtifactError(f"{member.path} is longer than the {member.size} bytes that it claims.")
    return hasher.hexdigest() if digest else ""


def _give_back(buffer: Buffer, start: int, size: int) -> bool:
    """Let the system have the whole pages of a range; say whether there were any.

    Pages of a mapped file come back when they are asked for again; anonymous ones come back as zeros.
    """
    if not isinstance(buffer, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return False
    first = -(-start // _PAGE) * _PAGE
    length = min(start + size, len(buffer)) // _PAGE * _PAGE - first
    if length <= 0:
        return False
    buffer.madvise(mmap.MADV_DONTNEED, first, length)
    return True
