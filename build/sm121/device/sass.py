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

    `instructions` are all of them, with the padding; `fp4` are FP4 tensor-core multiplications; `traps` stop the
    grid; `writes` store to global memory, to another block's shared memory or to a surface; `calls` are calls.
    """

    instructions: int
    fp4: int
    traps: int
    writes: int
    calls: int


@dataclass(frozen=True, slots=True)
class _Table:
    """Two translation tables, for the low and the high byte of the opcode: a group's bit is set in both on a match."""

    low: bytes
    high: bytes
    bits: Mapping[str, int]


GROUPS = ("fp4", "traps", "writes", "calls")


def count(code: bytes, arch: ArchSpec) -> Code | None:
    """Count the instructions of `code`, or None if the opcodes of `arch` are not known."""
    table = _tables().get(arch.number)
    if table is None:
        return None
    words = len(code) // WORD
    end = words * WORD
    matches = int.from_bytes(code[0:end:WORD].translate(table.low), "little") & int.from_bytes(
        code[1:end:WORD].translate(table.high), "little"
    )
    counts = {
        group: (matches & int.from_bytes(bytes([table.bits[group]]) * words, "little")).bit_count()
        for group in GROUPS
    }
    return Code(words, counts["fp4"], counts["traps"], counts["writes"], counts["calls"])


@cache
def _tables() -> Mapping[int, _Table]:
    data = tomllib.loads(resources.files(__package__).joinpath("opcodes.toml").read_text("utf-8"))
    return {sm: _table(entry["group"]) for entry in data["set"] for sm in entry["sm"]}


def _table(groups: Sequence[Mapping[str, Any]]) -> _Table:
    low, high = bytearray(256), bytearray(256)
    bits = {}
    for number, group in enumerate(groups):
        bit = bits[group["name"]] = 1 << number
        opcodes, mask = group["opcodes"].values(), group["mask"] >> 8
        (top,) = {opcode >> 8 for opcode in opcodes}
        for opcode in opcodes:
            low[opcode & 0xFF] |= bit
        for byte in range(256):
            if byte & mask == top:
                high[byte] |= bit
    return _Table(bytes(low), bytes(high), bits)
