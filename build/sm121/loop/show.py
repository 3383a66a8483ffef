"""A pass of the loop as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from sm121.loop.choose import demangled
from sm121.loop.compare import METRICS, Change, kernel_data
from sm121.progress import duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from sm121.loop.code import KernelCode, UnitCode
    from sm121.loop.compare import KernelChange
    from sm121.loop.output import Failure
    from sm121.loop.session import Chosen, Pass, Result

VERSION = 1
"""Version of the JSON form."""
_COLUMNS = ("registers", "spills", "stack", "shared", "fp4", "fp8", "size")
_BYTES = {"spills", "stack", "shared", "size"}
_MOST_ROWS = 40
_MOST_BRIEF = 15
_WIDTH = 64
_FIRST = "as in the pinned sources, and nothing was built before it to compare with"


def chosen_lines(chosen: Sequence[Chosen]) -> list[str]:
    """Which units are compiled, and why."""
    return [f"  {one.unit.path}  ({one.unit.extension}; {_why(one.why)})" for one in chosen]


def show_pass(done: Pass, console: Console, *, every: bool = False) -> None:
    """Every unit with what became of its kernels; in one line, unless `every`, where nothing became of them."""
    brief = [
        result
        for result in done.results
        if (result.change.same or result.first) and not result.beside and not every
    ]
    for result in done.results:
        if result not in brief:
            _unit(result, console, every=every)
    for first, what in ((False, "with the same machine code"), (True, "that nothing was built before")):
        rows = [result for result in brief if result.first is first]
        for result in rows[:_MOST_BRIEF]:
            kernels = f"{len(result.change.kernels)} kernels" if result.change.kernels else "no kernel"
            told = f"{kernels}; {_targets(result.change.after)}"
            found = _FIRST if first else f"the same machine code as {result.against}"
            text = f"{result.chosen.unit.path}: {found} ({told})"
            console.print(text, markup=False, soft_wrap=True)
        if len(rows) > _MOST_BRIEF:
            console.print(f"and {len(rows) - _MOST_BRIEF} more units {what}", markup=False)
        if rows and first:
            console.print("--all shows their kernels", markup=False)


def pass_data(
    done: Pass, failures: Mapping[str, Failure], faults: Sequence[str], seconds: float
) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "version": VERSION,
        "compared_with": done.before,
        "seconds": round(seconds, 2),
        "units": [_unit_data(result) for result in done.results],
        "failed": [
            {
                "object": name,
                "errors": [{"path": e.path, "line": e.line, "text": e.text} for e in failure.errors],
                "causes": [{"class": c.check, "got": c.got, "advice": c.advice} for c in failure.causes],
            }
            for name, failure in failures.items()
        ],
        "regressions": list(faults),
    }


def _unit_data(result: Result) -> dict[str, Any]:
    unit, change = result.chosen.unit, result.change
    return {
        "name": unit.name,
        "path": unit.path,
        "extension": unit.extension,
        "why": list(result.chosen.why),
        "compiled": result.cost is not None,
        "seconds": result.cost.wall if result.cost else None,
        "cpu_seconds": result.cost.cpu if result.cost else None,
        "peak_bytes": result.cost.peak if result.cost else None,
        **({"cost_note": result.cost.note} if result.cost and result.cost.note else {}),
        "object": str(result.after.object),
        "before": str(result.before.object) if result.before else None,
        "compared_with": result.against or None,
        "same": change.same,
        "images": {"before": _images(change.before), "after": _images(change.after)},
        "damage": list(change.after.damage),
        "beside": {arch: _images(kept.code) for arch, kept in result.beside.items()},
        "kernels": [
            {
                **kernel_data(kernel),
                "beside": {
                    arch: _numbers(kept.code.kernels.get(kernel.name)) for arch, kept in result.beside.items()
                },
            }
            for kernel in change.kernels
        ],
    }  # fmt: skip


def _images(code: UnitCode | None) -> list[dict[str, Any]] | None:
    if code is None:
        return None
    return [
        {"target": one.target, "loads_as": str(one.loads_as), "size": one.size, "kernels": len(one.kernels)}
        for one in code.images
    ]


def _numbers(kernel: KernelCode | None) -> dict[str, int | None] | None:
    return None if kernel is None else {metric: read(kernel) for metric, read in METRICS.items()}


def _unit(result: Result, console: Console, *, every: bool) -> None:
    unit, change = result.chosen.unit, result.change
    took = f"compiled in {duration(result.cost.wall)}" if result.cost else "up to date"
    console.print(f"{unit.path}  ({unit.extension}), {took}", style="bold", markup=False, soft_wrap=True)
    console.print(f"  because of {_why(result.chosen.why)}", markup=False, soft_wrap=True, style="dim")
    console.print(f"  on 12.1: {_loading(change.before, change.after)}", markup=False, soft_wrap=True)
    for text in change.after.damage:
        console.print(f"  damaged: {text}", markup=False, soft_wrap=True, style="red")
    if change.before is None:
        none = _FIRST if result.first else "nothing to compare with"
        console.print(f"  {len(change.kernels)} kernels; {none}", markup=False, soft_wrap=True)
    elif change.same:
        same = f"the machine code of all {len(change.kernels)} kernels is the same as {result.against}"
        console.print(f"  {same}", markup=False, soft_wrap=True)
    else:
        counted = [
            f"{change.count(c)} {c}"
            for c in (Change.CHANGED, Change.NEW, Change.GONE, Change.SAME)
            if change.count(c)
        ]
        console.print(
            f"  kernels compared with {result.against}: {', '.join(counted)}", markup=False, soft_wrap=True
        )
    shown = [kernel for kernel in change.kernels if every or kernel.change is not Change.SAME]
    if shown and change.after.images:
        _kernels(shown[: None if every else _MOST_ROWS], result, console)
        if len(shown) > _MOST_ROWS and not every:
            console.print(f"  ... and {len(shown) - _MOST_ROWS} more: --all or --json shows them", markup=False)


def _kernels(kernels: Sequence[KernelChange], result: Result, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  kernel", overflow="fold", min_width=24)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for kernel, plain in zip(kernels, demangled([kernel.name for kernel in kernels]), strict=True):
        known = all(one.spills_known for one in (kernel.before, kernel.after) if one)
        cells = [_cell(column, *kernel.numbers(column)) for column in _COLUMNS]
        if not known:
            cells[_COLUMNS.index("spills")] = f"<= {cells[_COLUMNS.index('spills')]}"
        table.add_row(f"  {_short(plain)}", *cells, "" if kernel.change is Change.ALONE else str(kernel.change))
        for arch, kept in result.beside.items():
            other = kept.code.kernels.get(kernel.name)
            numbers = [_cell(column, None, METRICS[column](other) if other else None) for column in _COLUMNS]
            table.add_row(f"    for {arch}", *numbers, str(kept.code.loads_as), style="dim")
    console.print(table)


def _cell(metric: str, before: int | None, after: int | None) -> str:
    if before is None and after is None:
        return "-"
    if before is None or after is None or before == after:
        return _number(metric, after if after is not None else before)
    return f"{_number(metric, before)} -> {_number(metric, after)}"


def _number(metric: str, value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,} B" if metric in _BYTES and value else f"{value:,}"


def _short(name: str) -> str:
    """A demangled name without its return type and parameters, cut in the middle where it is long."""
    text = name.removeprefix("void ")
    text = _without_parameters(text)
    if len(text) <= _WIDTH:
        return text
    half = (_WIDTH - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _without_parameters(text: str) -> str:
    """Cut off the last balanced pair of parentheses, the parameters."""
    if not text.endswith(")"):
        return text
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if not depth:
            return text[:position] or text
    return text


def _loading(before: UnitCode | None, after: UnitCode) -> str:
    new = _targets(after)
    old = _targets(before) if before else new
    return new if old == new else f"{old}  ->  {new}"


def _targets(code: UnitCode) -> str:
    if not code.images:
        return "host code only"
    return ", ".join(f"{one.target} loads as {one.loads_as}" for one in code.images)


def _why(why: Sequence[str], most: int = 4) -> str:
    return ", ".join(why[:most]) + (f" and {len(why) - most} more" if len(why) > most else "")
