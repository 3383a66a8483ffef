"""Device files with random damage, for every reader of the room `device`.

A reader may answer, or say DamagedError; any other answer and a contradiction between two readers are faults.
"""

from __future__ import annotations

import struct
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "build"), str(HERE / "device")]

from device_answers import answers  # noqa: E402
from device_files import fixture, fixtures  # noqa: E402

from sm121.device import payload, read_device_code  # noqa: E402

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

NUMBERS = (0, 1, 2, 7, 8, 16, 24, 63, 64, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)


def seeds() -> list[bytes]:
    """The fixtures, and the cubins inside them."""
    files = [fixture(name) for name in fixtures()]
    inner = [
        payload(data, image) for data in files for image in read_device_code(data).images if image.kind == "cubin"
    ]
    return files + inner


def places(data: bytes) -> list[tuple[int, int]]:
    """Where the numbers stand: headers and tables, as (offset, size)."""
    found = [(0, 64), (0, len(data))]
    if data[:4] == b"\x7fELF" and len(data) >= 64:
        segments, sections = struct.unpack_from("<QQ", data, 0x20)
        found += [(segments, 56 * 12), (sections, 64 * 40)]
    at = data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        found.append((at, 96))
        at = data.find(b"\x50\xed\x55\xba", at + 4)
    return [(start, size) for start, size in found if start < len(data)]


def change(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        start, size = chance.choice(places(data))
        at = min(start + chance.randrange(max(size, 1)), len(changed) - 1)
        width = chance.choice((1, 2, 4, 8))
        if chance.random() < 0.5:
            new = (chance.choice(NUMBERS) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            at -= at % width
        else:
            new = chance.randbytes(width)
        changed[at : at + len(new)] = new[: len(changed) - at]
    if chance.random() < 0.1:
        at = chance.randrange(len(changed))
        changed[at:at] = changed[at : at + chance.randrange(256)]
    return bytes(changed[: chance.randint(1, len(changed))] if chance.random() < 0.1 else changed)


def fault_of(data: bytes) -> str:
    """What a reader did wrong with this input, "" if nothing."""
    try:
        answers(data)
    except Exception:  # noqa: BLE001 -- what is looked for
        return traceback.format_exc()
    return ""


def inputs(chance: random.Random) -> Iterator[bytes]:
    """Endless damaged inputs."""
    files = seeds()
    while True:
        yield change(chance.choice(files), chance)
