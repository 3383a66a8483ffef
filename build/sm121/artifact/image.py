"""A container image: its documents, and its layers merged into one view without unpacking them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self

from sm121.artifact.layers import Layer, LayerContent
from sm121.artifact.member import LIMITS, MOST_PROBLEMS, Kind, Member, printable
from sm121.artifact.shadow import WHITEOUT, Shadow, cleaned
from sm121.artifact.tarstream import TarKind
from sm121.artifact.tree import Found, Tree
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sm121.artifact.imagedocs import ImageConfig, Manifest, Platform
    from sm121.artifact.layers import LayerBlob, Store
    from sm121.artifact.member import Limits, Wanted
    from sm121.artifact.reference import ImageReference
    from sm121.artifact.tarstream import TarEntry
    from sm121.values import Sha256


class Image:
    """An image, opened: questions about its configuration read no layer.

    `manifest` is None where the source has none (an engine, and archives of engines before 25); its digest is
    computed from the bytes. It is a registry's digest if the image was read from there or from a layout that kept
    its documents. `reference` names the image in its registry by digest, `asked` is what the caller named.
    """

    kind = Kind.IMAGE

    def __init__(
        self, name: str, store: Store, config: ImageConfig, blobs: Sequence[LayerBlob], *,
        manifest: Manifest | None = None, reference: ImageReference | None = None,
        asked: ImageReference | None = None, claimed: Platform | None = None, limits: Limits = LIMITS,
    ) -> None:  # fmt: skip
        self.name = name
        self.config = config
        self.manifest = manifest
        self.reference = reference
        self.asked = asked
        self.blobs = tuple(blobs)
        self._store = store
        self._limits = limits
        self._layers = [Layer(blob, store, limits) for blob in blobs]
        self._scanned = False
        self._unread: tuple[Finding, ...] = ()
        self._documents = tuple(_document_problems(config, self.blobs, claimed))
        self._surprises: list[Finding] = []

    @property
    def digest(self) -> Sha256 | None:
        """Of the manifest, computed from its bytes."""
        return self.manifest.digest if self.manifest else None

    @property
    def problems(self) -> list[Finding]:
        """Faults of documents and layers; those of layers are known once they have been streamed."""
        tree = self.tree.problems if self._scanned else []
        layers = [finding for layer in self._layers for finding in layer.problems]
        return [*self._store.notes, *self._documents, *layers, *tree, *self._unread, *self._surprises]

    def members(self, wanted: Wanted | None = None, *, known: Collection[Sha256] = ()) -> Iterator[Member]:
        """The regular files of the merged view, topmost layer first, in the order of the archives.

        A layer is fetched when the iteration reaches it: stop early, and lower layers are not fetched at all.
        Layers whose digest or diff_id is in `known` are left out, which `problems` says. Files whose place or
        content depends on a lower layer (hard links, folders reached through a link of another layer) come last.
        """
        given: dict[str, TarEntry] = {}
        if not self._scanned:
            yield from self._streamed(wanted, known, given)
        yield from self._remaining(wanted, given)

    def find(self, path: str) -> Member | None:
        """The file at `path`, through symbolic links and hard links; None if there is none.

        Streams the layers that were not streamed yet: ask after `members()` has been exhausted.
        """
        found = self.tree.find(path)
        return self._member(found) if found is not None and found.node.kind is TarKind.FILE else None

    def hidden(self) -> Iterator[tuple[str, int, int]]:
        """Files that layers carry and the image does not show: path, size in bytes, number of the layer.

        Streams the layers that were not streamed yet, as `tree` does.
        """
        shown = {id(found.node.entry) for found in self.tree.files()}
        for layer in self._layers:
            for entry in layer.entries:
                path = cleaned(entry.path)
                if entry.kind is TarKind.FILE and path and id(entry) not in shown and not _whiteout(path):
                    yield path, entry.size, layer.blob.number

    @cached_property
    def tree(self) -> Tree:
        """The merged view. Streams the layers if `members()` has not been exhausted before."""
        if not self._scanned:
            for _ in self._streamed(lambda _: False, (), {}):
                pass
        tree = Tree()
        for number, layer in enumerate(self._layers):
            tree.apply(number, layer.entries)
        return tree

    def close(self) -> None:
        for layer in self._layers:
            layer.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _streamed(
        self, wanted: Wanted | None, known: Collection[Sha256], given: dict[str, TarEntry]
    ) -> Iterator[Member]:
        """Stream every layer once and give what is certainly visible on the way."""
        shadow = Shadow()
        left = self._limits.entries
        skipped: list[Layer] = []
        doubled: list[str] = []
        for layer in reversed(self._layers):
            layer.problems.clear()
            if {layer.blob.digest, layer.blob.diff_id} & set(known):
                skipped.append(layer)
                continue
            for entry in layer.scan(left):
                path = cleaned(entry.path)
                if path and shadow.visible(path, entry.kind) and (wanted is None or wanted(path)):
                    if path in given:
                        doubled.append(path)
                    given[path] = entry
                    yield _file(path, entry, layer)
            left -= len(layer.entries)
            shadow.next_layer()
        self._unread = tuple(_left_out(layer) for layer in skipped)
        self._surprises = [_surprise(path) for path in doubled[:MOST_PROBLEMS]]
        self._scanned = True

    def _remaining(self, wanted: Wanted | None, given: dict[str, TarEntry]) -> Iterator[Member]:
        """What the merged view shows and was not given yet, in the order of layers and offsets."""
        late: list[Found] = []
        for found in self.tree.files():
            if given.get(found.path) is found.node.entry:
                del given[found.path]
            elif wanted is None or wanted(found.path):
                late.append(found)
        self._surprises += [_surprise(path) for path in list(given)[:MOST_PROBLEMS]]
        late.sort(key=lambda found: (-found.node.layer, found.node.entry.offset if found.node.entry else 0))
        for found in late:
            yield self._member(found)

    def _member(self, found: Found) -> Member:
        node = found.node
        if node.entry is None:
            raise ArtifactError(f"{found.path} is no file.")
        # The path that the link was made from may be another file by now.
        origin = self.tree.find(node.same_as, follow=False) if node.same_as else None
        link = node.same_as if origin is not None and origin.node.entry is node.entry else ""
        return _file(found.path, node.entry, self._layers[node.layer], link=link)


def _whiteout(path: str) -> bool:
    return path.rpartition("/")[2].startswith(WHITEOUT)


def _file(path: str, entry: TarEntry, layer: Layer, *, link: str = "") -> Member:
    label = str(layer.blob.digest or layer.blob.diff_id or layer.blob.where)
    content = LayerContent(layer, entry)
    return Member(path, entry.size, content, executable=bool(entry.mode & 0o111), link=link, layer=label)


def _document_problems(
    config: ImageConfig, blobs: Sequence[LayerBlob], claimed: Platform | None
) -> Iterator[Finding]:
    if claimed is not None and not claimed.accepts(config.platform):
        got = f"is for {str(config.platform) or 'no platform'}"
        yield Finding(
            "image.platform", "the image configuration", Verdict.FAIL, got, f"{claimed}, as the index says"
        )
    if len(config.diff_ids) != len(blobs):
        got = f"names {len(config.diff_ids)} layers"
        yield Finding(
            "image.config", "the image configuration", Verdict.FAIL, got, f"{len(blobs)}, as the image has"
        )


def _left_out(layer: Layer) -> Finding:
    return Finding("image.layer", layer.blob.label, Verdict.INFO, "was not read, as it is known already")


def _surprise(path: str) -> Finding:
    got = "was read, but a later entry of the same layer replaces it"
    return Finding("image.entry", printable(path), Verdict.WARN, got, "one entry for each path of a layer")
