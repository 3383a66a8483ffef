"""Reports side by side: what changed from one artifact to another, and one table over many. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- the codec reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sm121.inspector.coverage import STATES
from sm121.target import LoadsAs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sm121.inspector.report import Kernel, Library, Report

VERSION = 1


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is different: `what` of `subject` was `before` and is `after`; "" is not there."""

    what: str
    subject: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel whose state changed, came or went ("" is not there); sizes in bytes."""

    name: str
    library: str
    family: str
    before: str
    after: str
    size_before: int
    size_after: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from `before` to `after`, names of the artifacts; kernels are counted per kind of change."""

    version: int
    before: str
    after: str
    capability: str
    changes: tuple[Change, ...]
    kernels: tuple[KernelChange, ...]
    counts: Mapping[str, int]

    @property
    def equal(self) -> bool:
        return not self.changes and not self.kernels


def diff(before: Report, after: Report) -> Difference:
    """All that differs in code, kernels, versions, sizes and findings.

    Where one report looked into images and the other at their headers only, what only the first can know is no
    difference: it is left out, and the unequal questions are named.
    """
    deep = before.question.kernels and after.question.kernels
    changes = [
        *_values("verdict", "artifact", str(before.verdict), str(after.verdict)),
        *_values("size", "artifact", str(before.artifact.size), str(after.artifact.size)),
        *_values("target", "question", before.question.capability, after.question.capability),
        *_values("read", "question", _depth(before), _depth(after)),
        *_distributions(before, after),
        *_libraries(before, after, deep=deep),
        *(_families(before, after) if deep else ()),
        *_values("PTX to compile", "artifact", str(before.jit.text), str(after.jit.text)),
        *_values("driver needed", "artifact", before.jit.needs_cuda, after.jit.needs_cuda),
        *_findings(before, after),
    ]
    kernels = tuple(_kernels(before, after)) if deep else ()
    counts = Counter(_kind(item) for item in kernels)
    return Difference(
        VERSION, before.artifact.name, after.artifact.name, after.question.capability, tuple(changes), kernels,
        dict(sorted(counts.items())),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a matrix: one cell per report."""

    heading: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table over reports. `general` are facts of each artifact, `libraries` and `families` what runs of each."""

    version: int
    capability: tuple[str, ...]
    columns: tuple[str, ...]
    general: tuple[Row, ...]
    libraries: tuple[Row, ...]
    families: tuple[Row, ...]


def matrix(reports: Sequence[Report]) -> Matrix:
    """One table over `reports`, in their order."""
    return Matrix(
        VERSION,
        tuple(report.question.capability for report in reports),
        tuple(_column(report) for report in reports),
        (
            _row("verdict", reports, lambda report: str(report.verdict)),
            _row("bytes", reports, lambda report: str(report.artifact.size)),
            _row(
                "failures",
                reports,
                lambda report: str(sum(1 for item in report.findings if item.verdict == "fail")),
            ),
            _row("kernels that run", reports, lambda report: _running(report.states)),
            _row("PTX to compile", reports, lambda report: str(report.jit.text)),
            _row("driver needed", reports, lambda report: report.jit.needs_cuda or "any"),
            _row("toolkits", reports, _toolkits),
        ),
        _over(
            reports,
            lambda report: {
                library.path: _states(library.kernels, library.units)
                for library in report.libraries
                if library.units
            },
        ),
        _over(reports, lambda report: {family.name: _states(family.kernels, {}) for family in report.families}),
    )


Cell = TypeVar("Cell")


def _row(heading: str, reports: Iterable[Report], cell: Callable[[Report], str]) -> Row:
    return Row(heading, tuple(cell(report) for report in reports))


def _over(reports: Sequence[Report], cells: Callable[[Report], Mapping[str, str]]) -> tuple[Row, ...]:
    columns = [cells(report) for report in reports]
    names = sorted({name for column in columns for name in column})
    return tuple(Row(name, tuple(column.get(name, "") for column in columns)) for name in names)


def _column(report: Report) -> str:
    named = [f"{item.name} {item.version}" for item in report.distributions]
    return named[0] if len(named) == 1 else report.artifact.name.rpartition("/")[2]


def _running(states: Mapping[str, int]) -> str:
    machine = sum(count for state, count in states.items() if state in _MACHINE)
    return f"{machine} of {sum(states.values())}"


def _states(kernels: Mapping[str, int], units: Mapping[str, int]) -> str:
    """`4072 run, 281 jit, 77 dead, 239 other`; units where kernels were not looked into."""
    counted = kernels or units
    parts = (
        (sum(count for state, count in counted.items() if state in _MACHINE), "run"),
        (counted.get(LoadsAs.JIT, 0), "jit"),
        (counted.get("stub", 0) + counted.get("foreign", 0), "dead"),
        (counted.get(LoadsAs.NO, 0), "other"),
    )
    text = ", ".join(f"{count} {word}" for count, word in parts if count)
    return text if kernels or not text else f"{text} (units)"


def _toolkits(report: Report) -> str:
    return ", ".join(sorted({toolkit for library in report.libraries for toolkit in library.toolkits}))


_LOCAL = re.compile(r"(_GLOBAL__N__|_INTERNAL_)[0-9a-f]{8}(_\d+_\w*?_cu_)[0-9a-f]{8}")
_MACHINE = frozenset(str(how) for how in LoadsAs if how.machine_code)


def _values(what: str, subject: str, before: str, after: str) -> list[Change]:
    return [Change(what, subject, before, after)] if before != after else []


def _mapped(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """One change for each key whose value differs."""
    return [
        change
        for key in sorted(before.keys() | after.keys())
        for change in _values(what, key, before.get(key, ""), after.get(key, ""))
    ]


def _distributions(before: Report, after: Report) -> list[Change]:
    versions = [{item.name: item.version for item in report.distributions} for report in (before, after)]
    commits = [{item.name: item.commit for item in report.distributions} for report in (before, after)]
    requires = [
        {_project(line): line for item in report.distributions for line in item.requires}
        for report in (before, after)
    ]
    return [*_mapped("version", *versions), *_mapped("commit", *commits), *_mapped("requirement", *requires)]


def _project(requirement: str) -> str:
    """What a requirement is about, with its marker: `torch`, `ray; extra == "x"`."""
    name, _, marker = requirement.partition(";")
    text = "".join(character if character.isalnum() or character in "-_." else " " for character in name).split(
        " "
    )[0]
    return f"{text};{marker}" if marker else text


def _depth(report: Report) -> str:
    return "kernels" if report.question.kernels else "headers only"


def _libraries(before: Report, after: Report, *, deep: bool) -> list[Change]:
    sides = [{library.path: library for library in report.libraries} for report in (before, after)]
    shows: dict[str, Callable[[Library], str]] = {
        "library": lambda item: str(item.loads_as) if item.units else "host code",
        "library size": lambda item: str(item.size),
        "images": lambda item: ", ".join(f"{target} {count}" for target, count in item.images.items()),
        "needed": lambda item: ", ".join(item.needed),
        **({"toolkit": lambda item: ", ".join(item.toolkits)} if deep else {}),
        "glibc": lambda item: item.glibc,
    }
    changes: list[Change] = []
    for what, show in shows.items():
        changes += _mapped(what, *({path: show(item) for path, item in side.items()} for side in sides))
    return changes


def _families(before: Report, after: Report) -> list[Change]:
    sides = [
        {
            family.name: ", ".join(
                f"{family.kernels[state]} {state}" for state in STATES if family.kernels.get(state)
            )
            for family in report.families
        }
        for report in (before, after)
    ]
    return _mapped("family", *sides)


def _findings(before: Report, after: Report) -> list[Change]:
    sides = [
        {
            f"{item.check} {item.subject}: {item.got}": str(item.verdict)
            for item in report.findings
            if item.verdict.rank > 1
        }
        for report in (before, after)
    ]
    return _mapped("finding", *sides)


def _kernels(before: Report, after: Report) -> list[KernelChange]:
    sides = [
        {(report.libraries[item.library].path, stable_name(item.name)): item for item in report.kernels}
        for report in (before, after)
    ]
    changes = []
    for key in sorted(sides[0].keys() | sides[1].keys()):
        old, new = (side.get(key) for side in sides)
        if (old and (old.state, old.size)) != (new and (new.state, new.size)):
            changes.append(_kernel_change(key, old, new))
    return changes


def stable_name(name: str) -> str:
    """A name without the hashes that nvcc makes anew of path and time for what is local to a file."""
    return _LOCAL.sub(r"\1\2", name)


def _kernel_change(key: tuple[str, str], old: Kernel | None, new: Kernel | None) -> KernelChange:
    either = new or old
    assert either is not None
    return KernelChange(
        key[1], key[0], either.family, old.state if old else "", new.state if new else "", old.size if old else 0,
        new.size if new else 0,
    )  # fmt: skip


def _kind(change: KernelChange) -> str:
    if not change.before:
        return f"new, {change.after}"
    if not change.after:
        return f"gone, {change.before}"
    return f"{change.before} to {change.after}" if change.before != change.after else "size only"
