"""Shows an oracle, and what changed between two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table as Grid

from sm121.audit.conditions import alternatives
from sm121.audit.oracle import Serves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from sm121.audit.oracle import Entry, Oracle

_STYLE = {Serves.YES: "green", Serves.NO: "dim", Serves.DEPENDS: "yellow", Serves.UNKNOWN: "magenta"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: where, what, before and after."""

    where: str
    what: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if self.before and self.after:
            return f"{self.where}: {self.what}: {self.before} -> {self.after}"
        return f"{self.where}: {self.what} {self.before or self.after}"


def oracle_text(oracle: Oracle, console: Console) -> None:
    """Print every list with the verdict of each backend's own checks."""
    console.print(f"vLLM {escape(oracle.version or '(version unknown)')}, compute capability {oracle.capability}")
    for table in oracle.tables:
        grid = Grid(title=f"{table.name}  [dim]{escape(table.source)}[/dim]", title_justify="left", expand=False)
        for heading in ("", "backend", "serves", "why, or what it depends on"):
            grid.add_column(heading)
        for place, entry in enumerate(table.entries, 1):
            shown = escape(_why(entry))
            number = str(place) if entry.automatic else "on request"
            grid.add_row(number, escape(entry.name), f"[{_STYLE[entry.serves]}]{entry.serves}", shown)
        console.print(grid)
    for flag, values in oracle.flags.items():
        console.print(f"{flag}: {', '.join(values)}", markup=False)
    for sentence in oracle.deprecated:
        console.print(f"goes away: {sentence}", markup=False)
    for problem in oracle.problems:
        console.print(f"not read: {problem}", style="magenta", markup=False)


def _why(entry: Entry) -> str:
    if entry.serves is Serves.DEPENDS:
        return f"if {alternatives(entry.needs)}"
    return entry.reason


def oracle_json(oracle: Oracle) -> dict[str, Any]:
    """The oracle as plain data, version 1."""
    return {
        "version": 1,
        "artifact": oracle.artifact,
        "vllm": oracle.version,
        "capability": oracle.capability,
        "tables": [
            {"name": table.name, "source": table.source, "entries": [_entry(entry) for entry in table.entries]}
            for table in oracle.tables
        ],
        "flags": {flag: list(values) for flag, values in sorted(oracle.flags.items())},
        "variables": list(oracle.variables),
        "deprecated": list(oracle.deprecated),
        "problems": list(oracle.problems),
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kernels": list(entry.kernels),
        "serves": str(entry.serves),
        "reason": entry.reason,
        "needs": [
            [{"question": item.question, "holds": item.holds} for item in choice] for choice in entry.needs
        ],
        "automatic": entry.automatic,
    }


def diff(before: Oracle, after: Oracle) -> tuple[Change, ...]:
    """What changed between two oracles: order of lists, backends in or out of automatic selection, checks, names."""
    return tuple(_changes(before, after))


def _changes(before: Oracle, after: Oracle) -> Iterator[Change]:
    names = dict.fromkeys([table.name for table in (*before.tables, *after.tables)])
    for name in names:
        old, new = before.table(name), after.table(name)
        if old is None or new is None:
            yield Change(name, "the list is new" if old is None else "the list is gone")
            continue
        yield from _of_entries(name, {e.name: e for e in old.entries}, {e.name: e for e in new.entries})
        kept = [entry for entry in old.order if entry in new.order]
        order = [entry for entry in new.order if entry in old.order]
        if kept != order:
            yield Change(name, "the order changed", ", ".join(kept), ", ".join(order))
    for flag in sorted(set(before.flags) | set(after.flags)):
        yield from _of_names(flag, before.flags.get(flag, ()), after.flags.get(flag, ()))
    yield from _of_names("environment", before.variables, after.variables)
    for sentence in after.deprecated:
        if sentence not in before.deprecated:
            yield Change("deprecated", "now says", after=sentence)


def _of_entries(name: str, old: dict[str, Entry], new: dict[str, Entry]) -> Iterator[Change]:
    for entry in old.keys() - new.keys():
        yield Change(name, "no longer there:", before=entry)
    for entry, now in new.items():
        was = old.get(entry)
        if was is None:
            how = "automatically" if now.automatic else "on request"
            yield Change(name, f"new, taken {how}:", after=f"{entry} (on this chip: {now.serves})")
            continue
        if was.automatic != now.automatic:
            state = "into automatic selection:" if now.automatic else "out of automatic selection:"
            yield Change(name, state, after=entry)
        if was.serves != now.serves:
            yield Change(f"{name}, {entry}", "serves this chip", str(was.serves), str(now.serves))


def _of_names(where: str, old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Change]:
    for item in sorted(set(old) - set(new)):
        yield Change(where, "removed:", before=item)
    for item in sorted(set(new) - set(old)):
        yield Change(where, "new:", after=item)


def diff_text(before: Oracle, after: Oracle, console: Console) -> None:
    """Print the differences, one a line."""
    console.print(
        f"vLLM {before.version or '?'} -> {after.version or '?'}, compute capability {after.capability}"
    )
    changes = diff(before, after)
    for change in changes:
        console.print(f"  {change}", markup=False, soft_wrap=True)
    if not changes:
        console.print("  nothing that selection reads changed")


def diff_json(before: Oracle, after: Oracle) -> dict[str, Any]:
    """The differences as plain data, version 1."""
    return {
        "version": 1,
        "from": {"artifact": before.artifact, "vllm": before.version},
        "to": {"artifact": after.artifact, "vllm": after.version},
        "capability": after.capability,
        "changes": [
            {"where": item.where, "what": item.what, "before": item.before, "after": item.after}
            for item in diff(before, after)
        ],
    }
