"""Changes the fixtures at random and asks every reader: python tests/fuzz_device.py [SECONDS] [SEED].

Ends with 1 at the first input that gets another answer than DamagedError, a contradiction, more than two GiB, or takes
longer than ten seconds; the input is written to `fuzz-device.bin` in the current folder.
"""

from __future__ import annotations

import random
import resource
import struct
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "build"), str(HERE / "device")]

from device_answers import answers  # noqa: E402
from device_files import fixture, fixtures  # noqa: E402

from sm121.device import payload, read_device_code  # noqa: E402

MEMORY = 2 << 30
SLOW = 10.0
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


def main(seconds: float = 60, seed: int | None = None) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seed = time.time_ns() if seed is None else seed
    chance = random.Random(seed)
    files = seeds()
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        data = change(chance.choice(files), chance)
        begun = time.monotonic()
        try:
            answers(data)
            if (took := time.monotonic() - begun) > SLOW:
                raise TimeoutError(f"took {took:.1f} s")  # noqa: TRY301 -- handled like any other finding
        except BaseException:
            Path("fuzz-device.bin").write_bytes(data)
            print(f"input {tried} of seed {seed} was written to fuzz-device.bin", file=sys.stderr)
            raise
        tried += 1
    print(f"{tried} inputs of seed {seed}: every answer was right or said that the bytes are damaged")
    return 0


if __name__ == "__main__":
    given = sys.argv[1:3]
    sys.exit(main(float(given[0]) if given else 60, int(given[1]) if len(given) > 1 else None))
