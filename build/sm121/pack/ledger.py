"""`sm121.json` inside a wheel: where each of its libraries comes from.

It travels with the wheel, so that an inspection of the bytes can be compared with what the maker says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121 import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.pack.platform_tag import PlatformTag
    from sm121.pack.stamp import Stamp
    from sm121.values import Sha256

LEDGER_NAME = "sm121.json"


class Origin(StrEnum):
    """Where a compiled library of a wheel comes from."""

    SOURCE = "source"
    """We compiled it."""
    OFFICIAL = "official"
    """Taken as it is from the official wheel."""
    FINISHED = "finished"
    """Taken from the official wheel, its PTX replaced by machine code."""
    LEFT_OUT = "left-out"
    """Nothing in it loads on the target."""


@dataclass(frozen=True, slots=True)
class Library:
    """One ELF member: path in the wheel, origin, digest and size in bytes.

    For a library that is left out, digest and size are those it has in the official wheel.
    """

    path: str
    origin: Origin
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch that was applied to upstream's sources."""

    name: str
    sha256: Sha256
    state: str


@dataclass(frozen=True, slots=True)
class MadeWith:
    """What the sources were compiled with: digest of the pins, toolkit in words, patches in order.

    `source` is the digest of the source tree with the patches, None where nothing was compiled.
    """

    pins: Sha256
    toolkit: str
    patches: tuple[Patch, ...] = ()
    notes: tuple[str, ...] = ()
    source: Sha256 | None = None


def ledger_text(
    stamp: Stamp,
    platform_tag: PlatformTag,
    official: tuple[str, Sha256],
    made_with: MadeWith,
    libraries: Sequence[Library],
) -> bytes:
    """The ledger as stable JSON; `official` is file name and digest of the wheel that gave the other parts."""
    content = {
        "version": 1,
        "tool": f"sm121 {__version__}",
        "project": stamp.project,
        "wheel_version": stamp.version,
        "base": str(stamp.base),
        "line": stamp.line,
        "capability": str(stamp.capability),
        "platform_tag": {
            "tag": platform_tag.tag,
            "decided_by": [
                {"path": need.path, "symbols": list(need.symbols)} for need in platform_tag.decided_by
            ],
        },
        "official": {"filename": official[0], "sha256": official[1].hex},
        "pins": made_with.pins.hex,
        "toolkit": made_with.toolkit,
        "patches": [
            {"name": patch.name, "sha256": patch.sha256.hex, "state": patch.state} for patch in made_with.patches
        ],
        **({"source_tree": made_with.source.hex} if made_with.source else {}),
        "notes": list(made_with.notes),
        "libraries": [
            {
                "path": library.path,
                "origin": str(library.origin),
                "sha256": library.sha256.hex,
                "size": library.size,
            }
            for library in sorted(libraries, key=lambda each: each.path)
        ],
    }
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
