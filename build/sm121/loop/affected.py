"""Which units an edit reaches, and why. Pure: what was recorded and scanned comes as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.loop.scan import ANYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sm121.compile.edges import Edge


@dataclass(frozen=True, slots=True)
class Edits:
    """Paths that differ between two states of the sources; `came` and `gone` are those that only one has."""

    changed: frozenset[str]
    came: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Edits:
        return cls(
            frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)),
            frozenset(after.keys() - before.keys()), frozenset(before.keys() - after.keys()),
        )  # fmt: skip


def affected(
    units: Iterable[Edge],
    edits: Edits,
    reads: Mapping[str, frozenset[str]],
    closure: Callable[[str], frozenset[str]],
    commands: Mapping[str, str] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Unit -> why it is reached: paths, `compile command` or `new in the build`.

    `reads` has what ninja recorded of units (by name), as far as that is still true; for the others `closure` says
    what their source may read. A file that came or went can change which file an include finds, which no record
    tells: there the closure decides too. `commands` are digests of the commands before (None: they are the same).
    """
    found = {}
    moved = edits.came | edits.gone
    for unit in units:
        why = reads.get(unit.name, frozenset()) & edits.changed
        if unit.name not in reads or moved:
            may = closure(unit.path)
            why |= may & (edits.changed if unit.name not in reads else moved)
            if ANYTHING in may and (edits.changed if unit.name not in reads else moved):
                why |= {"an include that cannot be read"}
        told = sorted(why)
        if commands is not None and commands.get(unit.name) != unit.command.hex:
            told.append("compile command" if unit.name in commands else "new in the build")
        if told:
            found[unit.name] = tuple(told)
    return found
