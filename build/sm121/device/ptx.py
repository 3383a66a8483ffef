"""The little that is read from PTX text."""

from __future__ import annotations

import re

_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")


def ptx_kernels(text: bytes) -> tuple[str, ...]:
    """The names of the entry functions, in order of appearance."""
    return tuple(dict.fromkeys(name.decode("ascii") for name in _ENTRY.findall(text)))
