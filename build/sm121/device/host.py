"""What a library asks of its host: libraries, symbol versions, symbols, where it was built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """The dynamic section and its neighbours.

    `version_needs` gives the symbol versions needed of each library (`{"libc.so.6": ("GLIBC_2.17",)}`), sorted;
    `defined` and `undefined` are dynamic symbols without their versions; `build_id` is hexadecimal or "".
    """

    machine: str
    type: str
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    build_id: str
    version_needs: Mapping[str, tuple[str, ...]]
    defined: frozenset[str]
    undefined: frozenset[str]
    comment: tuple[str, ...]
    damage: tuple[str, ...] = ()
