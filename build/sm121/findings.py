"""A finding: one check of one subject, what was wanted, what was got, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(StrEnum):
    """The outcome of a check, mildest first. UNKNOWN is never a pass, and a fail outweighs it."""

    PASS = "pass"  # noqa: S105 -- a verdict, not a secret
    INFO = "info"
    WARN = "warn"
    UNKNOWN = "unknown"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        """0 is mildest."""
        return list(Verdict).index(self)

    @property
    def publishable(self) -> bool:
        """Whether a result with this verdict may get a name."""
        return self not in {Verdict.UNKNOWN, Verdict.FAIL}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one subject.

    `check` is a stable dotted name (`device.loads`, `stamp.version`), `subject` a file, pin or option. `wanted`
    and `got` are phrases; `advice` is the next step and `source` a link to where the rule comes from.
    """

    check: str
    subject: str
    verdict: Verdict
    got: str
    wanted: str = ""
    advice: str = ""
    source: str = ""

    @property
    def message(self) -> str:
        """The finding as one sentence or two."""
        wanted = f"; wanted {_phrase(self.wanted)}" if self.wanted else ""
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.subject}: {_phrase(self.got)}{wanted}.{advice}"


def _phrase(text: str) -> str:
    """Without the full stop of a whole sentence: an error's text is one."""
    return text if text.endswith("..") else text.removesuffix(".")


def overall(findings: Iterable[Finding]) -> Verdict:
    """The gravest verdict. Nothing checked is nothing known."""
    return max(
        (finding.verdict for finding in findings), key=lambda verdict: verdict.rank, default=Verdict.UNKNOWN
    )
