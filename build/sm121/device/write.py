"""Fatbins written: entries and containers as nvcc writes them, byte for byte.

Compared with objects of nvcc 13.0 for sm_90, sm_121, sm_121a and sm_120f (`--compress-mode=size`): below sm_100 a
cubin's header has 64 bytes; from sm_100 on it carries an option block with a copy of the cubin's `.nv.compat`. Where an
entry has a name (nvcc gives it one with `-lineinfo`), the name stands between the fixed fields and that block.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import zstandard

from sm121.device.elf import EM_CUDA, ElfFile
from sm121.device.fatbin import ALIGNMENT, ENTRY, FLAG_ARCH, FLAG_FAMILY, FLAG_ZSTD, HEADER, MAGIC
from sm121.device.window import Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.device.fatbin import DeviceImage
    from sm121.device.window import Buffer
    from sm121.values import ArchSpec

ZSTD_LEVEL = 19
"""The level at which zstd gives the bytes that nvcc gives with `--compress-mode=size`."""
FLAG_64_BIT, FLAG_DEBUG, FLAG_LINUX, FLAG_COMPAT = 0x1, 0x2, 0x10, 0x1000000

_OPTIONS = struct.Struct("<II")
_CUBIN = 2
_MARK = 0x0101
_COMPAT_FROM = 100
_SUFFIX = {"": 0, "a": FLAG_ARCH, "f": FLAG_FAMILY}


def cubin_entry(cubin: bytes, arch: ArchSpec, *, name: str = "", flags: int = FLAG_64_BIT | FLAG_LINUX) -> bytes:
    """The entry of one cubin: header, compressed payload, padding.

    `arch` is the target that ptxas was given: a cubin itself may leave its suffix open. `flags` are those that tell
    of the host and of debugging; the others follow from cubin and target. DamagedError if `cubin` is none.
    """
    elf = ElfFile.parse(cubin)
    if elf.machine_number != EM_CUDA or elf.damage:
        raise DamagedError([f"not a whole cubin: ELF machine {elf.machine_number}.", *elf.damage])
    compat = b""
    if arch.number >= _COMPAT_FROM:
        for section in elf.named(".nv.compat")[:1]:
            content = elf.content(section)
            compat = content.take(0, content.size, ".nv.compat")
    text = name.encode()
    # The name is ended by at least one zero, and its room is a multiple of 8.
    named = text.ljust((len(text) // ALIGNMENT + 1) * ALIGNMENT, b"\0") if text else b""
    block_at = ENTRY.size + len(named)
    block = b""
    if compat:
        block = _padded(_OPTIONS.pack(block_at + _OPTIONS.size, len(compat)) + b"\0" + compat)
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(cubin)
    payload = _padded(packed)
    flags |= FLAG_ZSTD | _SUFFIX[arch.suffix] | (FLAG_COMPAT if compat else 0)
    header = ENTRY.pack(
        _CUBIN, _MARK, block_at + len(block), len(payload), len(packed), block_at if block else 0, elf.abi_version, 1,
        arch.number, ENTRY.size if text else 0, len(text), flags, 0, len(cubin),
    )  # fmt: skip
    return header + named + block + payload


def kept_entry(buffer: Buffer, image: DeviceImage) -> bytes:
    """The entry of an image of `buffer` as it stands there, with its padding."""
    window = Window.over(buffer)
    _, _, header_size, padded, *_ = window.unpack(ENTRY, image.header_offset, "entry header")
    return window.take(image.header_offset, header_size + padded, "entry")


def container(entries: Iterable[bytes]) -> bytes:
    """A container of these entries. One without entries is valid: the CUDA runtime then finds no image to load."""
    body = b"".join(entries)
    return HEADER.pack(MAGIC, 1, HEADER.size, len(body)) + body


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
