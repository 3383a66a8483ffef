"""The merged view of an image's layers: what a container would see, with links followed inside the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sm121.artifact.member import MOST_PROBLEMS, printable
from sm121.artifact.shadow import OPAQUE, WHITEOUT, cleaned
from sm121.artifact.tarstream import TarKind
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sm121.artifact.tarstream import TarEntry

_MOST_HOPS = 40
"""Symbolic links followed in one look-up, as in Linux."""
_DEEPEST = 256
_MOST_FOLDERS = 2_000_000


class Node:
    """A file, folder, link or device.

    `layer` counts from the base, 0; `same_as` is the path that a hard link was made from.
    """

    __slots__ = ("children", "entry", "kind", "layer", "same_as")

    def __init__(self, kind: TarKind, layer: int, entry: TarEntry | None, same_as: str = "") -> None:
        self.kind = kind
        self.layer = layer
        self.entry = entry
        self.same_as = same_as
        self.children: dict[str, Node] = {}


class Found(NamedTuple):
    """Where a look-up ended: the path without links, and what is there."""

    path: str
    node: Node


class Tree:
    """Layers applied one after the other, base first. Faults of a layer go to `problems`."""

    def __init__(self) -> None:
        self.root = Node(TarKind.FOLDER, -1, None)
        self.problems: list[Finding] = []
        self._folders = 0

    def apply(self, layer: int, entries: Sequence[TarEntry]) -> None:
        """Put a layer on top. Its whiteouts touch only what lies below it, wherever they stand in the archive."""
        own: list[tuple[list[str], TarEntry]] = []
        written: set[str] = set()
        whiteouts: list[list[str]] = []
        for entry in entries:
            path = cleaned(entry.path)
            parts = path.split("/") if path else []
            if path is None or len(parts) > _DEEPEST:
                self._problem(layer, entry.path, "leaves the image or lies too deep")
            elif parts and parts[-1].startswith(WHITEOUT):
                whiteouts.append(parts)
            elif parts:
                own.append((parts, entry))
                written.add("/".join(parts))
        for parts in whiteouts:
            self._hide(parts, written)
        for parts, entry in own:
            self._place(layer, parts, entry)

    def find(self, path: str, *, follow: bool = True) -> Found | None:
        """Look a path up from the root, through symbolic links (of the last part only with `follow`)."""
        return self._walk(path.split("/"), follow=follow, layer=None)

    def files(self) -> Iterator[Found]:
        """All regular files, hard links included, in the order of their paths within each folder."""
        pending = [("", self.root)]
        while pending:
            prefix, folder = pending.pop()
            below = []
            for name, node in sorted(folder.children.items()):
                if node.kind is TarKind.FOLDER:
                    below.append((f"{prefix}{name}/", node))
                elif node.kind is TarKind.FILE:
                    yield Found(prefix + name, node)
            pending.extend(reversed(below))

    def _hide(self, parts: list[str], written: set[str]) -> None:
        """Apply a whiteout to the lower layers, unless this layer itself replaces a link on the way to it."""
        *above, name = parts
        node = self.root
        for depth, part in enumerate(above, 1):
            child = node.children.get(part)
            if child is not None and child.kind is TarKind.SYMLINK:
                if "/".join(above[:depth]) in written:
                    return
                found = self.find("/".join(above[:depth]))
                child = found.node if found else None
            if child is None or child.kind is not TarKind.FOLDER:
                return
            node = child
        if name == OPAQUE:
            node.children.clear()
        elif not name.startswith(WHITEOUT + WHITEOUT):
            node.children.pop(name.removeprefix(WHITEOUT), None)

    def _place(self, layer: int, parts: list[str], entry: TarEntry) -> None:
        found = self._walk(parts[:-1], follow=True, layer=layer)
        if found is None:
            self._problem(layer, entry.path, "lies behind links that lead in a circle")
            return
        parent, name = found.node, parts[-1]
        before = parent.children.get(name)
        if entry.kind is TarKind.FOLDER:
            if before is None or before.kind is not TarKind.FOLDER:
                parent.children[name] = self._folder(layer, entry)
            return
        node = self._linked(layer, entry) if entry.kind is TarKind.LINK else Node(entry.kind, layer, entry)
        if node is not None:
            parent.children[name] = node

    def _linked(self, layer: int, entry: TarEntry) -> Node | None:
        """A second name for what its target is now; later changes of the target do not reach it."""
        target = cleaned(entry.link)
        found = self.find(target, follow=False) if target else None
        if found is None or found.node.kind is TarKind.FOLDER:
            self._problem(layer, entry.path, f"is a hard link to {printable(entry.link)}, which is no file")
            return None
        return Node(found.node.kind, found.node.layer, found.node.entry, found.path)

    def _walk(self, parts: Sequence[str], *, follow: bool, layer: int | None) -> Found | None:
        """Walk from the root; with a layer, make folders where there are none."""
        trail: list[tuple[str, Node]] = []
        pending = [part for part in reversed(parts) if part not in {"", "."}]
        hops = 0
        while pending:
            part = pending.pop()
            if part == "..":
                if trail:
                    trail.pop()
                continue
            folder = trail[-1][1] if trail else self.root
            child = folder.children.get(part)
            if child is not None and child.kind is TarKind.SYMLINK and (follow or pending):
                hops += 1
                target = child.entry.link if child.entry else ""
                if hops > _MOST_HOPS:
                    return None
                if target.startswith("/"):
                    trail.clear()
                pending.extend(step for step in reversed(target.split("/")) if step not in {"", "."})
                continue
            if layer is not None and (child is None or child.kind is not TarKind.FOLDER):
                if child is not None:
                    self._problem(
                        layer, "/".join(parts), f"is written below {printable(part)}, which is no folder"
                    )
                child = folder.children[part] = self._folder(layer, None)
            if child is None or (pending and child.kind is not TarKind.FOLDER):
                return None
            trail.append((part, child))
        return Found("/".join(name for name, _ in trail), trail[-1][1] if trail else self.root)

    def _folder(self, layer: int, entry: TarEntry | None) -> Node:
        self._folders += 1
        if self._folders > _MOST_FOLDERS:
            raise ArtifactError(
                f"The image has more than {_MOST_FOLDERS} folders.", do="do not trust this image."
            )
        return Node(TarKind.FOLDER, layer, entry)

    def _problem(self, layer: int, path: str, got: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Finding("image.entry", f"{printable(path)} in layer {layer}", Verdict.FAIL, got))
