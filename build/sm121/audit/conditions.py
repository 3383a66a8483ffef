"""Conditions under which an answer holds, brought to few and short alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A question and its answer: `the program nvcc is on the machine`, False."""

    question: str
    holds: bool

    def __str__(self) -> str:
        return self.question if self.holds else f"not: {self.question}"


def merge(paths: Iterable[tuple[tuple[str, bool], ...]]) -> tuple[tuple[Condition, ...], ...]:
    """Alternatives that say the same as the paths together.

    Two alternatives that differ in the answer to one question alone become one without it, until none do.
    """
    left = {frozenset(Condition(question, holds) for question, holds in path) for path in paths}
    merging = True
    while merging:
        merging = False
        for one in sorted(left, key=lambda item: (len(item), sorted(item))):
            for condition in sorted(one):
                rest = one - {condition}
                other = rest | {Condition(condition.question, not condition.holds)}
                # A shorter alternative that the other side implies serves as well.
                if any(item <= other for item in left if item != one):
                    left.discard(one)
                    left.add(rest)
                    merging = True
                    break
            if merging:
                break
    smallest = [item for item in left if not any(other < item for other in left)]
    return tuple(sorted((tuple(sorted(item)) for item in smallest), key=lambda item: (len(item), item)))


def alternatives(choices: Iterable[Iterable[Condition]]) -> str:
    """Alternatives as one phrase: `a and b, or c`."""
    return ", or ".join(" and ".join(str(condition) for condition in choice) for choice in choices)
