"""Commits that a build record names for its parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMIT = re.compile(r"g?[0-9a-f]{7,40}")


def commits_known(record: Mapping[str, str]) -> list[Finding]:
    """Whether a build record names a commit for every part, under keys that end in `_commit`."""
    findings = []
    for key, value in record.items():
        if not key.endswith("_commit"):
            continue
        good = bool(_COMMIT.fullmatch(value))
        advice = "" if good else "Build from a pinned source; a part without a commit cannot be traced."
        findings.append(
            Finding(
                "pins.commit", key, Verdict.PASS if good else Verdict.FAIL, value or "empty, so unknown",
                "a commit of 7 to 40 hexadecimal digits", advice, "https://github.com/spark-arena/sparkrun/issues/164",
            )
        )  # fmt: skip
    return findings
