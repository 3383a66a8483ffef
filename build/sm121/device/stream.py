"""Reads the device code of a compressed archive's member in one forward pass, without the whole member in memory.

The pass makes a copy of the file with holes: payloads of device images are read over and left out, everything else is
kept. The ordinary readers then read that copy, so what they find and check is the same as in the whole file.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING

from sm121.device.elf import MAGIC as ELF_MAGIC
from sm121.device.fatbin import (
    ALIGNMENT,
    ENTRY,
    HEADER,
    KEPT_PAYLOAD,
    MAGIC_BYTES,
    DeviceCode,
    container_sizes,
    entry_sizes,
)
from sm121.device.host import HostLibrary, read_host
from sm121.device.reader import read_device_code
from sm121.device.window import Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from typing import IO

_SMALL, _LARGE = 1 << 12, 1 << 20


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one pass found: the device code, and for a host's ELF file what it asks of the host."""

    device: DeviceCode
    host: HostLibrary | None


def stream(file: IO[bytes], size: int) -> Streamed:
    """Read a file of `size` bytes from its start to its end, once.

    The memory used is that of the file without its payloads. The result is that of `read_device_code` and
    `read_host`, every check of sections, wrappers and containers included, with two limits: the images' offsets count
    in the whole file, but no payload can be read from here; and in an archive (`.a`) or a bare fatbin holes are left by
    the same rule, so a bare cubin or an archive with cubins as members costs its full size.
    DamagedError if the file is shorter or longer than `size`, or of no kind that can be read.
    """
    if size <= 0:
        raise DamagedError("neither an ELF file nor an archive, cubin or fatbin: the file is empty.")
    try:
        copy = mmap(-1, size)
    except (OSError, OverflowError, ValueError, MemoryError) as error:
        raise DamagedError(f"a file of {size} bytes does not fit into memory: {error}.") from error
    with copy:
        _Pass(file, copy).run()
        device = read_device_code(copy)
        host = read_host(copy) if copy[:4] == ELF_MAGIC and device.format == "elf" else None
        return Streamed(device, host)


class _Pass:
    """Copies a file into a map of its size, except for the payloads of what looks like a container.

    Something that only looks like one costs nothing but its bytes: the readers then find the hole.
    """

    def __init__(self, file: IO[bytes], copy: mmap) -> None:
        self._file = file
        self._copy = copy
        self._window = Window.over(copy)
        self._position = 0

    def run(self) -> None:
        scanned = 0
        step = _SMALL
        while self._position < len(self._copy):
            self._keep(self._position + step)
            step = min(2 * step, _LARGE)
            while (hit := self._copy.find(MAGIC_BYTES, scanned, self._position)) >= 0:
                scanned = hit + len(MAGIC_BYTES)
                if hit % ALIGNMENT == 0:
                    scanned = max(scanned, self._container(hit))
                    step = _SMALL
            scanned = max(scanned, self._position - len(MAGIC_BYTES) + 1)
        if self._file.read(1):
            raise DamagedError(f"wanted a file of {len(self._copy)} bytes, found more.")

    def _container(self, start: int) -> int:
        """Read over a container's payloads; the offset up to which it made sense."""
        self._keep(start + HEADER.size)
        position = start
        try:
            header, size = container_sizes(self._window, start)
            end = start + header + size
            position = start + header
            while position < end <= len(self._copy):
                self._keep(position + ENTRY.size)
                header, padded = entry_sizes(self._window, position)
                if position + header + padded > end:
                    break
                self._keep(position + header)
                position += header + padded
                (self._keep if padded <= KEPT_PAYLOAD else self._skip)(position)
        except DamagedError:
            pass  # the readers meet it again, and report it
        return position

    def _keep(self, end: int) -> None:
        while self._position < min(end, len(self._copy)):
            block = self._read(min(end, len(self._copy)) - self._position)
            self._copy[self._position : self._position + len(block)] = block
            self._position += len(block)

    def _skip(self, end: int) -> None:
        while self._position < end:
            self._position += len(self._read(end - self._position))

    def _read(self, wanted: int) -> bytes:
        block = self._file.read(min(wanted, _LARGE))
        if not block:
            raise DamagedError(f"wanted a file of {len(self._copy)} bytes, found {self._position}.")
        return block
