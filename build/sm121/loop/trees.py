"""States of the sources, and build trees that hold one each: the developer's, and the one to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sm121 import process
from sm121.compile.edges import Edge, edges, recorded
from sm121.loop.source import bring, configure_digest, digests
from sm121.progress import plural
from sm121.steps import Edited

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sm121.steps import Build, Prepared

EDITED, BEFORE = "kernels", "kernels-before"
"""What is added to the names of the two build trees. Releases are made in another, which no edit reaches."""


@dataclass(frozen=True, slots=True)
class State:
    """The sources as they are in `root`, with the sha256 of every file that matters; `title` says what they are."""

    title: str
    root: Path
    files: Mapping[str, str]

    @classmethod
    def of(cls, title: str, root: Path) -> Self:
        return cls(title, root, digests(root))


@dataclass(frozen=True, slots=True)
class Tree:
    """A configured build tree that holds `state`; `units` by their names, `files` with those that CMake generated."""

    prepared: Prepared
    state: State
    units: Mapping[str, Edge]
    files: Mapping[str, str]

    @property
    def obj(self) -> Path:
        return self.prepared.tree / "obj"

    @property
    def source(self) -> Path:
        return self.prepared.tree / "source"

    def object(self, unit: Edge) -> Path:
        return self.obj / unit.object

    def reads(self, objects: Iterable[str] = ()) -> dict[str, frozenset[str]]:
        """Object -> source files that ninja recorded for it; of all that were ever compiled if none is named."""
        return recorded_in(self.prepared.tree, objects)


def pinned(build: Build) -> State:
    """The sources that a release is built from: upstream's, with the patches of this version."""
    plan = build.plan
    patched = len(plan.step("source").inputs["patches"])
    title = f"{plan.project} {plan.version}" + (f" with {plural(patched, 'patch', 'patches')}" if patched else "")
    return State.of(title, build.work.result(plan.step("source")) / "tree")


def open_tree(build: Build, state: State, name: str) -> Tree:
    """Bring the tree `name` to `state` and configure it where that is needed."""
    rest = build.work.result(build.plan.step("source")) / "tree"

    def place(into: Path) -> str:
        bring(state.root, state.files, rest, into)
        return configure_digest(state.files)

    prepared = build.prepare(Edited(name, place))
    return Tree(prepared, state, configured(prepared.tree, build), digests(prepared.tree / "source"))


def configured(tree: Path, build: Build) -> dict[str, Edge]:
    """The units of the extensions that the plan compiles; none if the tree was never configured."""
    file = tree / "obj" / "build.ninja"
    if not file.exists():
        return {}
    wanted = {*build.plan.step("libraries").inputs["targets"]}
    return {unit.name: unit for unit in edges(file.read_text()) if unit.extension in wanted}


def recorded_in(
    tree: Path, objects: Iterable[str] = (), *, file: str = "build.ninja"
) -> dict[str, frozenset[str]]:
    """What ninja's own record says that objects of a build tree were made from; all objects if none is named."""
    ninja = tree / "tools" / "bin" / "ninja"
    if not (ninja.exists() and (tree / "obj" / file).exists()):
        return {}
    done = process.run([ninja, "-C", tree / "obj", "-f", file, "-t", "deps", *objects], check=False)
    return recorded(done.stdout)
