"""What a kernel takes: the parameters that PTX declares, and those that a cubin was built for.

Both sides of a compilation fix the place of every parameter in the constant bank, so they can be compared without
running either. PTX: https://docs.nvidia.com/cuda/parallel-thread-execution/#kernel-function-parameters. Cubin: the
records 0x17 (EIATTR_KPARAM_INFO) of `.nv.info.<kernel>`, measured on CUDA 12.8 to 13.5.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from sm121.device.cubin import read_cubin, records
from sm121.device.elf import ElfFile
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from sm121.device.window import Buffer

Signature = tuple[tuple[int, int], ...]
"""The parameters of a kernel in order: offset in the constant bank and size, in bytes."""

_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?")
_ALIGN = re.compile(r"\.align\s+(\d+)")
_DECLARED = re.compile(r"[\w$%]+\s*(?:\[\s*(\d+)\s*\])?$")
_TYPE = re.compile(r"\.(?:[busf](8|16|32|64|128)|(f16x2|bf16|tf32)|(texref|samplerref|surfref))\b")
_NAMED_SIZES = {"f16x2": 4, "bf16": 2, "tf32": 4}
_REFERENCE = 8
_KPARAM_INFO = 0x17
_PARAMETER = struct.Struct("<IHHI")


def ptx_signatures(text: bytes) -> dict[str, Signature]:
    """The entry functions of PTX and what they take. DamagedError for a parameter that is not understood."""
    found = {}
    for name, listed in _ENTRY.findall(_COMMENT.sub(b" ", text)):
        offset = 0
        places = []
        for part in listed.decode("utf-8", "replace").split(","):
            declared = part.strip()
            if not declared:
                continue
            size, alignment = _measure(declared, name.decode("ascii"))
            offset += -offset % alignment
            places.append((offset, size))
            offset += size
        found[name.decode("ascii")] = tuple(places)
    return found


def cubin_signatures(data: Buffer) -> dict[str, Signature]:
    """The entry functions of a cubin and what they take. DamagedError if it is none."""
    kernels = [kernel.name for kernel in read_cubin(data, bodies=False).kernels]
    elf = ElfFile.parse(data)
    sections = {section.name: section for section in elf.sections}
    found = {}
    for name in kernels:
        section = sections.get(f".nv.info.{name}")
        places: dict[int, tuple[int, int]] = {}
        for attribute, _, value in records(elf.content(section)) if section else ():
            if attribute == _KPARAM_INFO:
                _, ordinal, offset, size = value.unpack(_PARAMETER, 0, "parameter")
                places[ordinal] = (offset, size >> 18)
        found[name] = tuple(places[ordinal] for ordinal in sorted(places))
    return found


def _measure(declared: str, kernel: str) -> tuple[int, int]:
    """Size and alignment of one `.param` declaration, in bytes."""
    kind, name = _TYPE.search(declared), _DECLARED.search(declared)
    if not declared.startswith(".param") or kind is None or name is None:
        raise DamagedError(f"kernel {kernel}: a parameter was wanted, found {declared!r}.")
    size = int(kind[1]) // 8 if kind[1] else _NAMED_SIZES.get(kind[2] or "", _REFERENCE)
    # `.ptr ... .align N` tells about the data pointed to, not about the parameter.
    align = _ALIGN.search(declared.split(".ptr", 1)[0])
    return size * int(name[1] or 1), max(size, int(align[1]) if align else 1)
