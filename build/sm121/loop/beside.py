"""The same unit compiled for another target, beside the build: its own ninja file, its own records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.errors import CompileError
from sm121.loop.output import outputs
from sm121.loop.trees import recorded_in
from sm121.sources.disk import completed_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.compile.edges import Edge
    from sm121.loop.store import Kept, Store
    from sm121.loop.trees import Tree
    from sm121.steps import Build
    from sm121.values import ArchSpec


def compile_beside(
    build: Build, tree: Tree, units: Sequence[Edge], arch: ArchSpec, store: Store
) -> tuple[dict[str, Kept], dict[str, tuple[str, ...]]]:
    """Compile `units` for `arch`; return what was made by the unit's name, and the output of what failed by object."""
    others = {unit.name: unit.beside(arch) for unit in units}
    file = tree.obj / f"beside-{arch.sm}.ninja"
    with completed_file(file) as written:
        # Records of its own: ninja forgets those of objects that a file of commands does not name.
        head = f"builddir = beside/{arch.sm}\npool heavy\n  depth = 1\n\ninclude CMakeFiles/rules.ninja\n\n"
        written.write((head + "".join(other.statement for other in others.values())).encode())
    lines: list[str] = []
    try:
        build.make(tree.prepared, ["-f", file.name], listen=lines.append)
    except CompileError:
        if not outputs(lines):
            raise
    failed = outputs(lines)
    made = {name: other for name, other in others.items() if other.object not in failed}
    reads = recorded_in(tree.prepared.tree, (other.object for other in made.values()), file=file.name)
    kept = {
        name: store.keep(other, tree.object(other), reads.get(other.object, {other.path}), tree.files)
        for name, other in made.items()
    }
    return kept, failed
