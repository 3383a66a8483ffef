"""What a pass would compile, found without touching anything: for --dry-run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121.compile.edges import SOURCE, Edge
from sm121.loop.affected import Edits
from sm121.loop.choose import by_edits, by_words
from sm121.loop.ground import read_ground
from sm121.loop.source import configure_digest
from sm121.loop.store import Store
from sm121.loop.trees import EDITED, configured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.loop.trees import State
    from sm121.steps import Build

_SOURCES = (".cu", ".cpp", ".cc", ".c")


@dataclass(frozen=True, slots=True)
class Preview:
    """Source path -> why, and what is not certain."""

    units: Mapping[str, Sequence[str]]
    notes: tuple[str, ...]

    @property
    def data(self) -> dict[str, Any]:
        return {
            "version": 1,
            "units": [{"path": path, "why": list(why)} for path, why in self.units.items()],
            "notes": list(self.notes),
        }


def preview(build: Build, state: State, words: Sequence[str], against: State, base: State) -> Preview:
    """Choose as a pass would, from what is on the disk; where nothing was configured yet, among all sources."""
    notes = []
    units = configured(build.tree(EDITED), build) or configured(build.tree(), build)
    if not units:
        notes.append("nothing was configured yet: these are sources, and the build may leave some of them out.")
        paths = [path for path in state.files if path.endswith(_SOURCES)]
        units = {path: Edge(path, f"{path}.o", "CUDA", f"{SOURCE}{path}", "", {}) for path in paths}
    if configure_digest(state.files) != configure_digest(against.files):
        notes.append(
            "what CMake reads differs: after configuring, units with another command are compiled as well."
        )
    store = Store.of(build)
    generated = {unit.path: "" for unit in units.values() if unit.path not in {**state.files, **base.files}}
    ground = read_ground(build, store, state, base, units, {**generated, **state.files})
    found = by_words(ground, words) if words else by_edits(ground, Edits.between(against.files, state.files))
    if any(name not in ground.reads for name in found):
        notes.append("some of them were never compiled as they are now: chosen by their includes, never too few.")
    return Preview({units[name].path: why for name, why in sorted(found.items())}, tuple(notes))
