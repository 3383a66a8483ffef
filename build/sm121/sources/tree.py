"""A folder as data: what is in it, and one digest for all of it."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import StorageError
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

_FORMAT = b"sm121 tree 1\n"


@dataclass(frozen=True, slots=True, order=True)
class TreeEntry:
    """A file, an executable file or a link; `content` is the sha256 of its bytes or of the link's target."""

    path: str
    kind: str
    content: Sha256

    @property
    def line(self) -> bytes:
        """The entry in the text that is hashed. Paths are bytes there, as the file system has them."""
        return b"%s %s\0%s\n" % (self.kind.encode(), self.content.hex.encode(), os.fsencode(self.path))


def read_tree(folder: Path, *, without: Container[str] = frozenset()) -> tuple[TreeEntry, ...]:
    """All files and links below `folder`, sorted by path; `without` names entries (at any depth) to leave out.

    Times, owners and empty folders do not count, and of the modes only whether the owner may execute.
    Raises StorageError for what is neither file, folder nor link, or cannot be read.
    """
    try:
        return tuple(sorted(_entries(folder, "", without)))
    except OSError as error:
        raise StorageError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error


def digest_of(entries: Iterable[TreeEntry]) -> Sha256:
    """The digest of a tree that has these entries."""
    state = hashlib.sha256(_FORMAT)
    for entry in sorted(entries):
        state.update(entry.line)
    return Sha256(state.hexdigest())


def tree_digest(folder: Path, *, without: Container[str] = frozenset()) -> Sha256:
    """The digest of all that `read_tree` finds: equal for equal trees, wherever they lie."""
    return digest_of(read_tree(folder, without=without))


def _entries(folder: Path, below: str, without: Container[str]) -> Iterator[TreeEntry]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name in without:
                continue
            path = f"{below}{entry.name}"
            if entry.is_symlink():
                target = os.readlink(entry.path)  # noqa: PTH115 -- Path.readlink() rewrites the target
                yield TreeEntry(path, "link", Sha256.of_bytes(os.fsencode(target)))
            elif entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), f"{path}/", without)
            elif entry.is_file(follow_symlinks=False):
                runs = entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR
                yield TreeEntry(path, "program" if runs else "file", Sha256.of_file(Path(entry.path)))
            else:
                raise StorageError(f"{entry.path} is neither file, folder nor link.")
