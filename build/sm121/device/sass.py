"""Counts telling instructions in machine code, without a disassembler.

From sm_70 on an instruction is 16 bytes, and the low 12 bits of its first 8 bytes are the opcode. What the opcodes
mean is not published; `opcodes.toml` holds those that were measured, per target.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.values import ArchSpec

WORD = 16


@dataclass(frozen=True, slots=True)
class Code:
    """How often telling instructions occur in a kernel's machine code.

    `instructions` are all of them, with the padding; `mma` are multiplications on tensor cores, `fp4` those of FP4
    alone, `fp8` those of FP8, of FP6, and of FP4 mixed with them; `traps` stop the grid; `writes` store to global
    memory, to another block's shared memory or to a surface; `calls` are calls.
    """

    instructions: int
    mma: int
    fp4: int
    traps: int
    writes: int
    calls: int
    fp8: int = 0


@dataclass(frozen=True, slots=True)
class _Table:
    """Translates the low and the high byte of an opcode into bits: a bit set in both is a match for its group.

    A group has one bit for each value of the masked high byte.
    """

    low: bytes
    high: bytes
    bits: Mapping[str, int]


def count(code: bytes, arch: ArchSpec) -> Code | None:
    """Count the instructions of `code`, or None if the opcodes of `arch` are not known."""
    table = _tables().get(arch.number)
    if table is None:
        return None
    words = len(code) // WORD
    low = code[0 : words * WORD : WORD].translate(table.low)
    high = code[1 : words * WORD : WORD].translate(table.high)
    matches = int.from_bytes(low, "little") & int.from_bytes(high, "little")
    found = matches.to_bytes(words, "little")
    counts = dict.fromkeys(table.bits, 0)
    for bits in set(found) - {0}:
        occurrences = found.count(bits)
        for group, mask in table.bits.items():
            counts[group] += occurrences if bits & mask else 0
    return Code(instructions=words, **counts)


@cache
def _tables() -> Mapping[int, _Table]:
    data = tomllib.loads(resources.files(__package__).joinpath("opcodes.toml").read_text("utf-8"))
    return {sm: _table(entry["group"]) for entry in data["set"] for sm in entry["sm"]}


def _table(groups: Sequence[Mapping[str, Any]]) -> _Table:
    low, high = bytearray(256), bytearray(256)
    bits: dict[str, int] = {}
    free = 1
    for group in groups:
        mask = group["mask"] >> 8
        for top in {opcode >> 8 for opcode in group["opcodes"].values()}:
            bits[group["name"]] = bits.get(group["name"], 0) | free
            for opcode in group["opcodes"].values():
                if opcode >> 8 == top:
                    low[opcode & 0xFF] |= free
            for byte in range(256):
                if byte & mask == top:
                    high[byte] |= free
            free <<= 1
    return _Table(bytes(low), bytes(high), bits)
