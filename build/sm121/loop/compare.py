"""Before and after, kernel by kernel, and the limits that a change must not pass. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from sm121.errors import UsageError
from sm121.target import LoadsAs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sm121.loop.code import KernelCode, UnitCode


class Change(StrEnum):
    """What became of a kernel."""

    SAME = "same"
    """The same machine code."""
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"
    ALONE = "alone"
    """There is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel before and after."""

    name: str
    before: KernelCode | None
    after: KernelCode | None
    change: Change

    def numbers(self, metric: str) -> tuple[int | None, int | None]:
        """A metric of `METRICS` before and after; None where there is no kernel, or its number is not known."""
        read = METRICS[metric]
        return (read(self.before) if self.before else None, read(self.after) if self.after else None)


@dataclass(frozen=True, slots=True)
class UnitChange:
    """A unit before and after; `before` is None if there is nothing to compare with."""

    before: UnitCode | None
    after: UnitCode
    kernels: tuple[KernelChange, ...]

    @classmethod
    def of(cls, before: UnitCode | None, after: UnitCode) -> Self:
        old = before.kernels if before else {}
        names = dict.fromkeys([*after.kernels, *old])
        return cls(
            before, after,
            tuple(_kernel(name, old.get(name), after.kernels.get(name), alone=before is None) for name in sorted(names)),
        )  # fmt: skip

    def count(self, change: Change) -> int:
        return sum(kernel.change is change for kernel in self.kernels)

    @property
    def same(self) -> bool:
        """The chip gets the same machine code."""
        return (
            self.before is not None
            and all(kernel.change is Change.SAME for kernel in self.kernels)
            and [(one.target, one.loads_as) for one in self.before.images]
            == [(one.target, one.loads_as) for one in self.after.images]
        )


METRICS: Mapping[str, Callable[[KernelCode], int | None]] = {
    "registers": lambda kernel: kernel.registers,
    "spills": lambda kernel: kernel.spills,
    "stack": lambda kernel: kernel.stack,
    "shared": lambda kernel: kernel.shared,
    "size": lambda kernel: kernel.size,
    "fp4": lambda kernel: kernel.fp4,
    "fp8": lambda kernel: kernel.fp8,
}
"""What can be compared: bytes, registers of a thread, instructions."""
_FEWER = {"fp4", "fp8"}
"""Where less is worse."""
_OTHERS = {
    "loads": "how a unit loads got worse, or a kernel is gone",
    "changed": "any machine code is different",
}
_LIMIT = re.compile(r"([a-z0-9]+)(?:=\+?(\d+)(%?))?")


@dataclass(frozen=True, slots=True)
class Limit:
    """What counts as a regression: `metric` worse by more than `allowed` (a number, or with `percent` that many)."""

    metric: str
    allowed: int = 0
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `spills`, `registers=+8`, `size=5%`. Raises UsageError."""
        match = _LIMIT.fullmatch(text)
        if not match or match[1] not in {*METRICS, *_OTHERS} or (match[2] and match[1] in _OTHERS):
            known = ", ".join([*METRICS, *_OTHERS])
            raise UsageError(
                f"--fail-on {text!r} is no limit.",
                do=f"write one of {known}, the first with a number: registers=+8, size=5%.",
            )
        return cls(match[1], int(match[2] or 0), match[3] == "%")

    def faults(self, change: UnitChange) -> Iterator[str]:
        """What passes the limit, one sentence each, without the unit's name."""
        if change.before is None:
            return
        if self.metric == "loads":
            yield from _loading(change)
        elif self.metric == "changed":
            for kernel in change.kernels:
                if kernel.change is not Change.SAME:
                    yield f"{kernel.name} is {kernel.change}"
        else:
            yield from self._numbers(change.kernels)

    def _numbers(self, kernels: Iterable[KernelChange]) -> Iterator[str]:
        for kernel in kernels:
            before, after = kernel.numbers(self.metric)
            if kernel.before is None or kernel.after is None:
                continue
            if before is None or after is None:
                yield f"{kernel.name}: {self.metric} cannot be told"
                continue
            worse = before - after if self.metric in _FEWER else after - before
            allowed = before * self.allowed / 100 if self.percent else self.allowed
            if worse > allowed:
                yield f"{kernel.name}: {self.metric} {before} -> {after}"


def _kernel(name: str, before: KernelCode | None, after: KernelCode | None, *, alone: bool) -> KernelChange:
    if alone:
        change = Change.ALONE
    elif before is None:
        change = Change.NEW
    elif after is None:
        change = Change.GONE
    else:
        change = Change.SAME if before.code == after.code and before.code else Change.CHANGED
    return KernelChange(name, before, after, change)


def _loading(change: UnitChange) -> Iterator[str]:
    assert change.before is not None
    if change.after.loads_as.rank > change.before.loads_as.rank:
        yield f"loads as {change.after.loads_as}, before as {change.before.loads_as}"
    elif change.after.loads_as is LoadsAs.NO and change.after.images:
        yield "nothing in it loads"
    for kernel in change.kernels:
        if kernel.change is Change.GONE:
            yield f"{kernel.name} is gone"


def kernel_data(kernel: KernelChange) -> dict[str, Any]:
    """A kernel for JSON: each metric as [before, after]."""
    return {
        "name": kernel.name,
        "change": str(kernel.change),
        **{metric: list(kernel.numbers(metric)) for metric in METRICS},
    }
