"""One pass of the loop: choose units, compile them, find what they were before, read both."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from sm121.compile.build import read_costs
from sm121.errors import CompileError
from sm121.loop import choose
from sm121.loop.affected import Edits
from sm121.loop.beside import compile_beside
from sm121.loop.compare import UnitChange
from sm121.loop.ground import read_ground
from sm121.loop.output import outputs
from sm121.loop.source import configure_digest
from sm121.loop.store import Store
from sm121.loop.trees import BEFORE, EDITED, open_tree, pinned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.compile.build import Cost
    from sm121.compile.edges import Edge
    from sm121.loop.ground import Ground
    from sm121.loop.store import Kept
    from sm121.loop.trees import State, Tree
    from sm121.steps import Build
    from sm121.values import ArchSpec


@dataclass(frozen=True, slots=True)
class Chosen:
    """A unit to compile, and why."""

    unit: Edge
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one unit. `cost` is what the compiler took, None if nothing had to be compiled."""

    chosen: Chosen
    after: Kept
    before: Kept | None
    change: UnitChange
    cost: Cost | None
    beside: Mapping[str, Kept] = field(default_factory=dict)
    """Target (`sm_121a`) to the same unit compiled for it."""
    against: str = ""
    """What `before` is, "" if there is none."""
    first: bool = False
    """Whether it is as in the pinned sources, and nothing was built before it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: what was made, the compiler's output for each object that failed, and what was compared with."""

    results: tuple[Result, ...]
    failed: Mapping[str, tuple[str, ...]]
    before: str


BUILT = "what was built before"
"""What `last` compares with."""


@dataclass(frozen=True, slots=True)
class Comparing:
    """What "before" means: `last` is what the unit was before it became what it is, else `state` decides."""

    last: bool = True
    state: State | None = None


class Session:
    """The loop over one plan. Everything that compiles happens while the scratch folder is locked for us.

    `tree` names the build tree of the state; with `records`, what is made of it enters the history of its units.
    """

    def __init__(
        self, build: Build, state: State, base: State | None = None, *, tree: str = EDITED, records: bool = True
    ) -> None:
        self.build = build
        self._name = tree
        self.records = records
        self.state = state
        self.pinned = base or pinned(build)
        self.store = Store.of(build)

    @cached_property
    def tree(self) -> Tree:
        """The build tree with the state that is to be compiled."""
        return open_tree(self.build, self.state, self._name)

    def edits(self, before: State) -> Edits:
        return Edits.between(before.files, self.state.files)

    def by_edits(self, before: State) -> list[Chosen]:
        """The units that differ, or may differ, between `before` and the state."""
        commands = None
        edits = self.edits(before)
        if configure_digest(before.files) != configure_digest(self.state.files):
            # CMake may give other commands, and its generators other sources: both trees are asked.
            other = self._before(before)
            commands = {unit.name: unit.command.hex for unit in other.units.values()}
            edits = Edits.between(other.files, self.tree.files)
        return self._chosen(choose.by_edits(self.ground, edits, commands))

    def by_words(self, words: Sequence[str]) -> list[Chosen]:
        return self._chosen(choose.by_words(self.ground, words))

    @cached_property
    def ground(self) -> Ground:
        tree = self.tree
        return read_ground(self.build, self.store, self.state, self.pinned, tree.units, tree.files)

    def run(self, chosen: Sequence[Chosen], comparing: Comparing, archs: Sequence[ArchSpec] = ()) -> Pass:
        """Compile the units and compare each with what it was before."""
        tree = self.tree
        costs, failed = self._make(tree, [one.unit for one in chosen])
        made = [one for one in chosen if one.unit.object not in failed]
        kept = self._keep(tree, [one.unit for one in made], newest=self.records)
        before = self._befores([one.unit for one in made], kept, comparing)
        beside: dict[str, dict[str, Kept]] = {}
        for arch in archs:
            units = [one.unit for one in made if one.unit.cuda]
            others, bad = compile_beside(self.build, tree, units, arch, self.store)
            failed |= bad
            for name, other in others.items():
                beside.setdefault(name, {})[arch.sm] = other
        results = []
        for one in made:
            name = one.unit.name
            old, against = before.get(name, (None, ""))
            first = comparing.last and old is not None and old.key == kept[name].key
            if first:  # found among the pinned state's, which this is: nothing is compared with itself
                old, against = None, ""
            change = UnitChange.of(old.code if old else None, kept[name].code)
            results.append(
                Result(one, kept[name], old, change, costs.get(name), beside.get(name, {}), against, first)
            )
        title = comparing.state.title if comparing.state and not comparing.last else BUILT
        return Pass(tuple(results), failed, title)

    def _make(self, tree: Tree, units: Sequence[Edge]) -> tuple[dict[str, Cost], dict[str, tuple[str, ...]]]:
        """Run ninja as far as it goes; return what each unit cost, and per object that failed what its compiler said."""
        if not units:
            return {}, {}
        lines: list[str] = []
        try:
            costs = self.build.make(tree.prepared, [unit.object for unit in units], listen=lines.append)
        except CompileError:
            if not outputs(lines).keys() & {unit.object for unit in units}:
                raise
            costs = read_costs(tree.obj / "costs.jsonl")
        return {cost.name: cost for cost in costs}, outputs(lines)

    def _keep(self, tree: Tree, units: Sequence[Edge], *, newest: bool = True) -> dict[str, Kept]:
        """Keep what ninja made of `units`; what is kept already is not read again."""
        found = {}
        rest = []
        for unit in units:
            history = self.store.history(unit.name)[-1:] if newest else []
            if history and history[0].fits(unit, tree.files) and _same_bytes(history[0], tree.object(unit)):
                found[unit.name] = history[0]
            else:
                rest.append(unit)
        reads = tree.reads(unit.object for unit in rest) if rest else {}
        for unit in rest:
            read = reads.get(unit.object, {unit.path})
            found[unit.name] = self.store.keep(unit, tree.object(unit), read, tree.files, newest=newest)
        return found

    def _befores(
        self, units: Sequence[Edge], now: Mapping[str, Kept], comparing: Comparing
    ) -> dict[str, tuple[Kept, str]]:
        """What each unit was before, and what that is called."""
        found = {}
        for unit in units if comparing.last else ():
            others = [kept for kept in self.store.history(unit.name) if kept.key != now[unit.name].key]
            if others:
                found[unit.name] = (others[-1], BUILT)
        if comparing.state:
            title = comparing.state.title
            older, failed = self.at(comparing.state, [unit for unit in units if unit.name not in found])
            found |= {name: (kept, title) for name, kept in older.items()}
            for name in failed:
                self.build.progress.say(f"  {name} does not compile at {title}: not compared")
        return found

    def _may_differ(self, state: State) -> bool:
        """Whether commands or generated sources of another state may differ from those of this one."""
        return configure_digest(state.files) != configure_digest(self.state.files)

    def at(self, state: State, units: Sequence[Edge]) -> tuple[dict[str, Kept], dict[str, tuple[str, ...]]]:
        """The same units at another state of the sources, compiled if they are not kept; by name, and what failed.

        A unit that the build of that state does not have is in neither.
        """
        found = {}
        if not self._may_differ(state):
            generated = {path: sha for path, sha in self.tree.files.items() if path not in self.state.files}
            for unit in units:
                if kept := self.store.find(unit, {**generated, **state.files}):
                    found[unit.name] = kept
        rest = [unit.name for unit in units if unit.name not in found]
        if not rest:
            return found, {}
        self.build.progress.say(f"  compiling {len(rest)} units at {state.title}, to compare with")
        tree = self._before(state)
        there = [tree.units[name] for name in rest if name in tree.units]
        _, failed = self._make(tree, there)
        found |= self._keep(tree, [unit for unit in there if unit.object not in failed], newest=False)
        return found, failed

    def _before(self, state: State) -> Tree:
        if self._other is None or self._other.state is not state:
            self._other = open_tree(self.build, state, BEFORE)
        return self._other

    _other: Tree | None = None

    def _chosen(self, found: Mapping[str, tuple[str, ...]]) -> list[Chosen]:
        units = self.tree.units
        return [Chosen(units[name], why) for name, why in sorted(found.items())]


def _same_bytes(kept: Kept, path: Path) -> bool:
    try:
        return path.read_bytes() == kept.object.read_bytes()
    except OSError:
        return False
