"""Who wrote a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm121.loop.owners import Origin, owners
from sm121.sources import git
from sm121.sources.series import Patch
from sm121.sources.worktree import WorkTree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.programs

BASE = "one\ntwo\nthree\nfour\nfive\nsix\n"
FIRST = Patch.parse(
    "0001-first.patch",
    b"--- a/csrc/a.cu\n+++ b/csrc/a.cu\n@@ -1,3 +1,4 @@\n one\n+new line\n two\n three\n",
)
SECOND = Patch.parse(
    "0002-second.patch",
    b"--- a/csrc/a.cu\n+++ b/csrc/a.cu\n@@ -4,4 +4,4 @@\n three\n four\n-five\n+FIVE\n six\n"
    b"--- a/vllm/y.py\n+++ b/vllm/y.py\n@@ -1 +1 @@\n-y\n+Y\n",
)


def origin(*patches: Patch) -> Origin:
    def place(into: Path, paths: frozenset[str]) -> None:
        for path in paths & {"csrc/a.cu"}:
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_text(BASE)

    return Origin("upstream's vllm 1", place, patches)


def test_lines_of_patches_upstream_and_now(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/a.cu").write_text("one\nnew line\ntwo\nthree, edited\nfour\nFIVE\nsix\n")
    (tmp_path / "csrc/new.cu").write_text("mine\n")
    lines = [("csrc/a.cu", number) for number in (1, 2, 4, 6, 99)] + [("csrc/new.cu", 1), ("csrc/gone.cu", 1)]
    assert owners(tmp_path, lines, origin(FIRST, SECOND)) == {
        ("csrc/a.cu", 1): "upstream's vllm 1",
        ("csrc/a.cu", 2): "the patch 0001-first.patch",
        ("csrc/a.cu", 4): "your edit",
        ("csrc/a.cu", 6): "the patch 0002-second.patch",
        ("csrc/new.cu", 1): "your edit",
    }


def test_in_a_work_tree_of_patches_commits_are_named(tmp_path: Path) -> None:
    def place(into: Path) -> None:
        (into / "csrc").mkdir(parents=True)
        (into / "csrc/a.cu").write_text(BASE)

    tree = WorkTree(tmp_path / "1.0")
    tree.create("1.0", place)
    file = tree.path / "csrc/a.cu"
    file.write_text(BASE.replace("two", "TWO"))
    git.run(tree.path, "commit", "-q", "-a", "-m", "Shout two")
    file.write_text(file.read_text().replace("six", "SIX"))
    found = owners(tree.path, [("csrc/a.cu", number) for number in (1, 2, 6)], origin())
    assert found == {
        ("csrc/a.cu", 1): "upstream's vllm 1",
        ("csrc/a.cu", 2): "the commit 'Shout two'",
        ("csrc/a.cu", 6): "your edit",
    }
