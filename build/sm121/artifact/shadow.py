"""What is certainly visible while the layers of an image stream past, topmost first.

A file of a lower layer is hidden by an entry of a higher one at its path or above it, and by whiteouts
(https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts). One case cannot be decided on the
way: a layer that writes into a folder without listing it may go through a symbolic link of a layer not read yet.
Such entries, and what they might hide, are left open here and settled by the merged tree at the end.
"""

from __future__ import annotations

from sm121.artifact.tarstream import TarKind

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


def cleaned(path: str) -> str | None:
    """A path of a layer relative to the root, "" for the root, None if it leaves the root."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return None if ".." in parts else "/".join(parts)


class Shadow:
    """Decides entry by entry; `next_layer` is called between two layers."""

    def __init__(self) -> None:
        self._above = _Hiding()
        self._here = _Hiding()
        self._real_folders = {""}
        self._open_names: set[str] = set()
        self._all_open = False

    def next_layer(self) -> None:
        """Let what the layer holds hide those below it."""
        self._above.add(self._here)
        self._here = _Hiding()
        self._real_folders = {""}

    def visible(self, path: str, kind: TarKind) -> bool:
        """Take note of an entry, and say whether it is a file that is certainly visible at its path.

        `path` is cleaned. False means hidden or open.
        """
        folder, _, name = path.rpartition("/")
        located = folder in self._real_folders
        if name == OPAQUE:
            self._here.opaque.add(folder)
            self._all_open |= not located
        elif name.startswith(WHITEOUT):
            self._note(f"{folder}/{name[len(WHITEOUT) :]}".lstrip("/"), located, self._here.taken)
        elif kind is TarKind.FOLDER:
            self._note(path, located, self._here.folders)
            if located:
                self._real_folders.add(path)
        else:
            self._real_folders.discard(path)
            seen = kind is TarKind.FILE and located and not self._above.hides(path) and not self._open(path)
            self._note(path, located, self._here.taken)
            return seen
        return False

    def _note(self, path: str, located: bool, where: set[str]) -> None:
        if located:
            where.add(path)
        else:
            self._open_names.update(path.split("/"))

    def _open(self, path: str) -> bool:
        """Whether an entry of unknown place might hide this path."""
        return self._all_open or (bool(self._open_names) and not self._open_names.isdisjoint(path.split("/")))


class _Hiding:
    """What hides lower layers: paths with all below them, folders that replace files, folders made empty."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.folders: set[str] = set()
        self.opaque: set[str] = set()

    def add(self, other: _Hiding) -> None:
        self.taken |= other.taken
        self.folders |= other.folders
        self.opaque |= other.opaque

    def hides(self, path: str) -> bool:
        """Whether a file at `path` in a lower layer is out of sight."""
        if path in self.taken or path in self.folders:
            return True
        while path:
            path = path.rpartition("/")[0]
            if path in self.opaque or path in self.taken:
                return True
        return False
