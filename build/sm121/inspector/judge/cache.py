"""Is a library of FlashInfer's cache made for this chip, by the folder that it lies in?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import shown
from sm121.target import LoadsAs, loads_as
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.target import Capability

_STALE = "https://github.com/flashinfer-ai/flashinfer/pull/2839"
_FOLDER = re.compile(r"(?:^|/)flashinfer/[^/]+/((?:\d{2,3}[af]?)(?:_\d{2,3}[af]?)*)/(?:cached_ops|generated)/")


def judge_cache_path(path: str, capability: Capability) -> Iterator[Finding]:
    """FlashInfer names a cache folder after the targets that it compiled for, joined by `_`."""
    match = _FOLDER.search(path)
    if match is None:
        return
    names = match[1].split("_")
    useful = [name for name in names if loads_as("cubin", ArchSpec.from_sm(name), capability) is not LoadsAs.NO]
    if useful:
        yield Finding("cache.folder", shown(path), Verdict.PASS, f"lies in the cache folder for {match[1]}")
    else:
        got = f"lies in the cache folder for {match[1]}, whose code does not load on {capability}"
        advice = "Delete the folder; FlashInfer compiles anew, or takes its jit-cache package."
        yield Finding("cache.folder", shown(path), Verdict.FAIL, got, f"code for {capability}", advice, _STALE)
