"""Which files do several distributions own?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.artifact import shared_paths
from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sm121.artifact import Distribution

_OWNED_TWICE = "https://github.com/NVIDIA/cutlass/issues/3170"


def judge_ownership(distributions: Sequence[Distribution]) -> Iterator[Finding]:
    """Each file that differs between its owners, and for each group of owners what they hold in common."""
    equal: dict[tuple[str, ...], list[str]] = {}
    shared = shared_paths(distributions)
    for item in shared:
        owners = tuple(sorted(item.owners))
        if item.same:
            equal.setdefault(owners, []).append(item.path)
            continue
        got = f"belongs to {joined(owners)} with different contents: what is installed last wins"
        advice = "Install only one of them."
        yield Finding("set.owner", shown(item.path), Verdict.FAIL, got, "one owner", advice, _OWNED_TWICE)
    for owners, paths in sorted(equal.items()):
        got = f"own {plural(len(paths), 'file')} together, with equal contents: {listed(paths, 3)}"
        yield Finding("set.owner", joined(owners), Verdict.INFO, got, source=_OWNED_TWICE)
    if not shared and len(distributions) > 1:
        got = f"no file has two owners among {len(distributions)} distributions"
        yield Finding("set.owner", "the set", Verdict.PASS, got)
