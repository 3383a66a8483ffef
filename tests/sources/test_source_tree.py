"""The digest of a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sm121.errors import StorageError
from sm121.sources.tree import digest_of, read_tree, tree_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    (folder / "l").symlink_to("b")
    return folder


def test_place_and_time_do_not_count(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), make(tmp_path / "two words")
    os.utime(two / "b", (5, 5))
    (two / "b").chmod(0o600)
    (two / "empty").mkdir()
    assert tree_digest(one) == tree_digest(two)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "b").write_bytes(b"B"),
        lambda folder: (folder / "b").chmod(0o755),
        lambda folder: (folder / "b").rename(folder / "c"),
        lambda folder: (folder / "b").rename(folder / "sub" / "b"),
        lambda folder: (folder / "new").write_bytes(b""),
        lambda folder: (folder / "sub" / "a").unlink(),
        lambda folder: ((folder / "l").unlink(), (folder / "l").symlink_to("./b")),
        lambda folder: ((folder / "l").unlink(), (folder / "l").write_bytes(b"b")),
    ],
    ids=["content", "mode", "name", "folder", "more", "less", "target", "link or file"],
)
def test_what_counts(change: Callable[[Path], object], tmp_path: Path) -> None:
    folder = make(tmp_path / "tree")
    before = tree_digest(folder)
    change(folder)
    assert tree_digest(folder) != before


def test_names_cannot_pass_for_entries(tmp_path: Path) -> None:
    """A name with a line end, or without a place in UTF-8, is a name like any other."""
    (tmp_path / "tree").mkdir()
    os.close(os.open(os.fsencode(tmp_path / "tree") + b"/\xff\n", os.O_CREAT | os.O_WRONLY))
    (entry,) = read_tree(tmp_path / "tree")
    assert digest_of([entry]) == tree_digest(tmp_path / "tree")


def test_left_out_and_unfit(tmp_path: Path) -> None:
    folder = make(tmp_path / "tree")
    before = tree_digest(folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    assert tree_digest(folder) != before
    assert tree_digest(folder, without={".git"}) == before
    os.mkfifo(folder / "pipe")
    with pytest.raises(StorageError, match="neither file, folder nor link"):
        tree_digest(folder)
    with pytest.raises(StorageError, match="cannot be read"):
        tree_digest(tmp_path / "absent")


def test_the_digest_is_fixed(tmp_path: Path) -> None:
    """Manifests hold it: it may only change together with the format's number."""
    assert (
        tree_digest(make(tmp_path / "tree")).hex
        == "d96fac63a6d6e163fd035010bb3f957587035dbc3ecc9252b5621f66071e9b76"
    )
