"""Splits what a build compiles over the jobs of a CI matrix: by cost, and the same way in every job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 256
"""More jobs than a matrix may have (GitHub Actions: 256, read 2026-11-30)."""
_Key = TypeVar("_Key", str, tuple[str, int])


@dataclass(frozen=True, slots=True)
class Shard:
    """Job `number` of `count`, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """`2/5`; None for `all`, the job that takes everything and links. ValueError says what was wanted."""
        if text == "all":
            return None
        match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
        if not match:
            raise ValueError(f"a shard is written K/N, such as 1/4, or all; found {text!r}")
        number, count = int(match[1]), int(match[2])
        if not 1 <= number <= count <= MOST:
            raise ValueError(f"of a shard K/N, 1 <= K <= N <= {MOST} was wanted; found {text}")
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, costs: Mapping[_Key, float]) -> tuple[_Key, ...]:
        """This shard's part of the keys, the most expensive first.

        Longest first, each to the shard that has least so far: at most 4/3 of the best split (Graham 1969,
        https://doi.org/10.1137/0117039). All shards together have every key once, whatever order they came in.
        """
        loads = [0.0] * self.count
        own: list[_Key] = []
        for key in sorted(costs, key=lambda key: (-costs[key], key)):
            least = loads.index(min(loads))
            loads[least] += costs[key]
            if least == self.number - 1:
                own.append(key)
        return tuple(own)


def with_guesses(keys: list[str], known: Mapping[str, float]) -> dict[str, float]:
    """A cost for every key: the known one, else the median of those known (1 if none is)."""
    values = sorted(known[key] for key in keys if key in known)
    guess = values[len(values) // 2] if values else 1.0
    return {key: known.get(key, guess) for key in keys}
