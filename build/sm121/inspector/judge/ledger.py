"""What a wheel's maker wrote into it: which patches its sources carried, by hash. It informs; the bytes are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import listed, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.artifact import Distribution

CHECK = "build.ledger"
_IN = {"APPLIES", "OFFSET", "ALREADY"}
_DIGITS, _MOST = 12, 30


def judge_ledger(distribution: Distribution) -> Iterator[Finding]:
    """One finding that names the patches, if there is a ledger; a warning if a patch was left out."""
    ledger = distribution.ledger
    if ledger is None:
        return
    tree = f" from the source tree {shown(ledger.source_tree[:_DIGITS])}" if ledger.source_tree else ""
    patches = [f"{one.name} (sha256 {one.sha256[:_DIGITS]}, {one.state.lower()})" for one in ledger.patches]
    told = (
        f"with {plural(len(patches), 'patch', 'patches')}: {listed(patches, _MOST)}"
        if patches
        else "without patches"
    )
    out = [one for one in ledger.patches if one.state not in _IN]
    yield Finding(
        CHECK, f"{distribution.name} {distribution.version}", Verdict.WARN if out else Verdict.PASS,
        f"was made by {shown(ledger.tool) or 'an unnamed tool'}{tree} {told}",
        "patches that are in" if out else "",
        "An optional patch did not apply: rebase or drop it." if out else "",
    )  # fmt: skip
