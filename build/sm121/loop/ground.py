"""What choosing units rests on, read from build trees and from the store: units, records that still hold, kernels."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sm121.device import payload, ptx_kernels, read_cubin, read_device_code
from sm121.errors import DamagedError
from sm121.loop.scan import closures
from sm121.loop.trees import EDITED, configured, recorded_in
from sm121.sources.disk import completed_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.compile.edges import Edge
    from sm121.loop.store import Store
    from sm121.loop.trees import State
    from sm121.steps import Build


@dataclass(frozen=True)
class Ground:
    """`units` by name; `files` are all source paths (path -> sha256), found below the first of `roots` that has them."""

    units: Mapping[str, Edge]
    files: Mapping[str, str]
    roots: Sequence[Path]
    reads: Mapping[str, frozenset[str]]
    """What was recorded of units and is still true of `files`."""
    objects: Mapping[str, Path]
    """An object of each unit that was ever compiled."""
    index: Path
    """Where the kernels' names are kept."""

    def closure(self, path: str) -> frozenset[str]:
        """All that a source may read, by the text alone."""
        return self._closures[path]

    def text(self, path: str) -> str:
        """A source's text; "" for one that is not there."""
        for root in self.roots:
            with suppress(OSError):
                return (root / path).read_text(encoding="utf-8", errors="replace")
        return ""

    @cached_property
    def kernels(self) -> Mapping[str, Sequence[str]]:
        """Unit -> its kernels' mangled names, of those that were ever compiled."""
        known: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError):
            known = json.loads(self.index.read_text())
        found: dict[str, list[Any]] = {}
        for name, path in self.objects.items():
            stat = path.stat()
            stamp = [str(path), stat.st_size, stat.st_mtime_ns]
            row = known.get(name)
            found[name] = row if row and row[:3] == stamp else [*stamp, _names(path.read_bytes())]
        if found != known:
            with completed_file(self.index) as file:
                file.write(json.dumps(found).encode())
        return {name: row[3] for name, row in found.items()}

    @cached_property
    def _closures(self) -> dict[str, frozenset[str]]:
        return closures({unit.path for unit in self.units.values()}, self.files, self.text)


def read_ground(
    build: Build, store: Store, state: State, base: State, units: Mapping[str, Edge], files: Mapping[str, str]
) -> Ground:
    """Gather what is known of `units` at `state`; `base` is the pinned state, `files` those of the state and generated."""
    ours, released = build.tree(EDITED), build.tree()
    reads = {}
    for unit in units.values():
        if kept := store.find(unit, files):
            reads[unit.name] = frozenset(kept.reads)
    reads = {**_released(build, store.folder / "released.json", units, state, base), **reads}
    objects = {}
    for unit in units.values():
        paths = [tree / "obj" / unit.object for tree in (ours, released)]
        if found := [path for path in paths if path.is_file()]:
            objects[unit.name] = found[0]
    roots = (state.root, ours / "source", released / "source", base.root)
    return Ground(units, {**base.files, **files}, roots, reads, objects, store.folder / "names.json")


def _released(
    build: Build, record: Path, units: Mapping[str, Edge], state: State, base: State
) -> dict[str, frozenset[str]]:
    """From the release's own tree, whose records are of the pinned state: those that no edit made untrue."""
    tree = build.tree()
    mark = tree / "obj" / "configured.json"
    if not mark.exists() or mark.read_text() != build.plan.step("libraries").key:
        return {}
    edited = {
        name for name in base.files.keys() | state.files.keys() if base.files.get(name) != state.files.get(name)
    }
    known, recorded = configured(tree, build), _remembered(tree, record)
    return {
        name: recorded[unit.object]
        for name, unit in units.items()
        if unit.object in recorded and name in known and known[name].command == unit.command
        if not recorded[unit.object] & edited
    }


def _remembered(tree: Path, record: Path) -> dict[str, frozenset[str]]:
    """ninja's records of a tree, which name every header of the system as well: read once, until they change."""
    try:
        stat = (tree / "obj" / ".ninja_deps").stat()
    except OSError:
        return {}
    stamp = [str(tree), stat.st_size, stat.st_mtime_ns]
    with suppress(OSError, ValueError, KeyError):
        data = json.loads(record.read_text())
        if data["stamp"] == stamp:
            return {name: frozenset(paths) for name, paths in data["reads"].items()}
    found = recorded_in(tree)
    with completed_file(record) as file:
        reads = {name: sorted(paths) for name, paths in found.items()}
        file.write(json.dumps({"stamp": stamp, "reads": reads}).encode())
    return found


def _names(data: bytes) -> list[str]:
    """Kernels of an object, by name alone."""
    found: set[str] = set()
    try:
        for image in read_device_code(data).images:
            content = payload(data, image) if image.kind != "lto" else b""
            if image.kind == "ptx":
                found |= {*ptx_kernels(content)}
            elif image.kind == "cubin":
                found |= {kernel.name for kernel in read_cubin(content, bodies=False).kernels}
    except DamagedError:
        pass  # an object of host code alone, or one that is being written: it names no kernel
    return sorted(found)
