"""The mark of finishing: the name of every cubin that was made from PTX ahead of time.

An entry's name is the identifier that nvcc writes with `-lineinfo` and that no loader reads; the freed room after a
container is no place for a mark, since cuobjdump wants zeros there. The digest in it tells which PTX the machine code
came from, and keeps the names in one library apart, as cuobjdump needs them when it extracts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device.reader import read_device_code

if TYPE_CHECKING:
    from sm121.device.fatbin import DeviceCode, DeviceImage
    from sm121.device.window import Buffer
    from sm121.values import Sha256

_DIGITS = 16
_NAME = re.compile(rf"sm121-finish-([0-9a-f]{{{_DIGITS}}})")


@dataclass(frozen=True, slots=True)
class Mark:
    """A cubin that finishing made; `ptx` are the first 16 hexadecimal digits of its PTX's sha256."""

    image: DeviceImage
    ptx: str


def mark_name(ptx: Sha256) -> str:
    """The name for the cubin made of the PTX with this digest."""
    return f"sm121-finish-{ptx.hex[:_DIGITS]}"


def read_mark(buffer: Buffer) -> tuple[Mark, ...]:
    """The cubins of a file that finishing made; empty for a file that was not finished, or had no PTX to compile."""
    return marks(read_device_code(buffer))


def marks(code: DeviceCode) -> tuple[Mark, ...]:
    """The same for device code that has been read already."""
    named = ((image, _NAME.fullmatch(image.name)) for image in code.images if image.kind == "cubin")
    return tuple(Mark(image, match[1]) for image, match in named if match)
