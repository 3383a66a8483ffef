"""The room that a build takes: by what is fetched and what is compiled, as measured of whole builds.

vLLM 0.33.0 and FlashInfer 0.7.2.post1 for aarch64, nvcc 13.0.88 from wheels, 2026-11-30. The build tree is hard links to
what the steps unpacked, and `dist` holds each wheel once, under two names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.plan.model import Download, Request

_UNPACKED: Mapping[str, float] = {
    "sources": 7.5, "torch": 2.1, "tvm-ffi": 3.5, "tool": 3.5, "inspection": 2.5,
    # Not unpacked, but its libraries are, and once more packed, while the platform tag of ours is sought.
    "official wheel": 3.3,
    # Of packages that bring headers alone, no library is taken: of 423 MB of cuBLAS, 1 MB.
    "toolkit: headers": 0.1, "toolkit: target": 3.3, "toolkit: host": 3.3,
}  # fmt: skip
"""Role of a download: bytes that are made of each of its bytes."""
_COMPILED = 60_000
"""Bytes for each CPU second of compiling: objects, libraries, compiler cache (44 000 of vLLM and of FlashInfer)."""
_UNIT = 2_000_000
"""The same for each device image where CPU seconds were not measured."""
_FINISHED = 200_000
"""Bytes for each CPU second of finishing: what ptxas made, kept, and the finished libraries (191 000)."""
_PACKED = 12_000
"""Bytes of a wheel for each CPU second of compiling it."""
_TREE = 2 << 30
"""A tree from a git host with what is compiled of it. Not measured."""
_IMAGE = 1 << 30
"""A toolkit out of a container image."""
_SPARE = 512 << 20
"""Logs, reports, and files that compilers put away for a moment."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes: in all, and of these those of the result."""

    total: int
    result: int


def room(
    request: Request, downloads: Iterable[Download], *, seconds: float, units: int = 0, finishing: float = 0.0,
    trees: int = 0,
) -> Room:  # fmt: skip
    """What a build takes that compiles for `seconds` of CPU time and finishes for `finishing`; `trees` from git hosts."""
    listed = list(downloads)
    fetched = sum(download.pin.size for download in listed)
    official = sum(download.pin.size for download in listed if download.role == "official wheel")
    result = official + int(seconds * _PACKED)
    made = int(seconds * _COMPILED if seconds else units * _UNIT) + int(finishing * _FINISHED)
    fixed = _SPARE + trees * _TREE + (_IMAGE if request.cuda_image else 0)
    return Room(fetched + sum(map(_unpacked, listed)) + made + fixed + 2 * result, result)


def _unpacked(download: Download) -> int:
    """What is made of a file; a part of the toolkit can have several roles."""
    kind, _, roles = download.role.partition(": ")
    names = [f"{kind}: {role}" for role in roles.split(", ")] if roles else [kind]
    return int(download.pin.size * max(_UNPACKED.get(name, 0.0) for name in names))
