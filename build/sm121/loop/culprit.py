"""Binary search for the first of an ordered row of things that is unlike the first of all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there of one kernel: its `state` on the chip (family, jit, no, stub, ...) and the digest of its code."""

    state: str
    code: str
    target: str


@dataclass(frozen=True, slots=True)
class Look:
    """Kernels by name; `fault` says why a state could not be looked at, for instance because it does not compile."""

    kernels: Mapping[str, Seen]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A kernel that is not as it was; None where it is not there."""

    name: str
    before: Seen | None
    after: Seen | None


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first bad one: `index` in the row, and what differs there from the one before it.

    `tested` are indices with whether each was good, in the order in which they were looked at.
    """

    index: int
    differences: tuple[Difference, ...]
    fault: str
    tested: tuple[tuple[int, bool], ...]


def differences(good: Look, other: Look, *, lost: bool, machine: frozenset[str]) -> tuple[Difference, ...]:
    """What differs; with `lost` only kernels that ran as machine code (their state is in `machine`) and no longer do."""
    found = []
    for name in sorted(good.kernels.keys() | other.kernels.keys()):
        before, after = good.kernels.get(name), other.kernels.get(name)
        if lost:
            bad = before is not None and before.state in machine and (after is None or after.state not in machine)
        else:
            bad = before != after
        if bad:
            found.append(Difference(name, before, after))
    return tuple(found)


def search(
    count: int, look: Callable[[int], Look], differ: Callable[[Look, Look], tuple[Difference, ...]]
) -> Culprit | None:
    """The first of `count` things that is unlike thing 0, None if the last is like it.

    The row is taken to change once; where it changes to and fro, one of the changes is found. What cannot be looked
    at counts as bad, except the first, which then raises ValueError.
    """
    looks: dict[int, Look] = {}
    tested: list[tuple[int, bool]] = []

    def good(index: int) -> bool:
        looks[index] = look(index)
        fine = not looks[index].fault and not differ(looks[0], looks[index])
        tested.append((index, fine))
        return fine

    first = look(0)
    if first.fault:
        raise ValueError(first.fault)
    looks[0] = first
    tested.append((0, True))
    if good(count - 1):
        return None
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return Culprit(high, differ(looks[0], looks[high]), looks[high].fault, tuple(tested))
