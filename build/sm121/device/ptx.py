"""The little that is read from PTX text."""

from __future__ import annotations

import re

from sm121.errors import DamagedError

_WORD = b".entry"
_ENTRY = re.compile(rb"\.entry\s++([A-Za-z_$%][\w$]*+)")
_MOST_KERNELS = 1 << 18
"""More than any compiler writes; bounds what hostile text costs."""


def ptx_kernels(text: bytes) -> tuple[str, ...]:
    """The names of the entry functions, in order of appearance. DamagedError if there are too many to be true."""
    names: dict[str, None] = {}
    seen = 0
    # A pattern is as fast on real text (both wait for memory); on text made to be slow a plain search keeps its pace.
    at = text.find(_WORD)
    while at >= 0:
        if (seen := seen + 1) > _MOST_KERNELS:
            raise DamagedError(f"PTX: wanted at most {_MOST_KERNELS} entry functions, found more.")
        if match := _ENTRY.match(text, at):
            names[match[1].decode("ascii")] = None
        at = text.find(_WORD, at + len(_WORD))
    return tuple(names)
