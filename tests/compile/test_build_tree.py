from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sm121.compile.tree import Part, lay_out

if TYPE_CHECKING:
    from pathlib import Path


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_parts_are_laid_out_once(tmp_path: Path) -> None:
    parts = [
        Part("source", folder(tmp_path / "a", x="1"), "k1", writable=True),
        Part("cuda", folder(tmp_path / "b", y="2"), "k2"),
    ]
    tree = tmp_path / "tree"
    assert lay_out(tree, parts)
    assert (tree / "source" / "x").read_text() == "1"
    assert not lay_out(tree, parts)


def test_a_new_key_replaces_the_part_alone(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    cuda = Part("cuda", folder(tmp_path / "b", y="2"), "k2")
    lay_out(tree, [Part("source", folder(tmp_path / "a", x="1"), "k1", writable=True), cuda])
    (tree / "cuda" / "kept").write_text("")
    assert lay_out(tree, [Part("source", folder(tmp_path / "c", z="3"), "k3", writable=True), cuda])
    assert sorted(path.name for path in (tree / "source").iterdir()) == ["z"]
    assert (tree / "cuda" / "kept").exists()


def test_writing_into_the_source_leaves_the_step_alone(tmp_path: Path) -> None:
    origin = folder(tmp_path / "a", x="1")
    lay_out(tmp_path / "tree", [Part("source", origin, "k1", writable=True)])
    (tmp_path / "tree" / "source" / "x").write_text("changed")
    assert (origin / "x").read_text() == "1"


def test_an_interrupted_part_is_laid_out_again(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    part = Part("source", folder(tmp_path / "a", x="1"), "k1", writable=True)
    lay_out(tree, [part])
    (tree / "parts.json").write_text("{}")  # as after a kill between removing and recording
    (tree / "source" / "x").write_text("half")
    assert lay_out(tree, [part])
    assert (tree / "source" / "x").read_text() == "1"


def test_only_changed_sources_look_changed_and_generated_files_stay(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("x", "y"):
        folder(tmp_path / "a", **{name: name})
        folder(tmp_path / "b", **{name: name})
    os.utime(tmp_path / "a" / "x", (1000, 1000))
    lay_out(tree, [Part("source", tmp_path / "a", "k1", writable=True)])
    (tree / "source" / "generated.cu").write_text("")
    folder(tmp_path / "b", y="changed")
    assert lay_out(tree, [Part("source", tmp_path / "b", "k2", writable=True)]) == {"source"}
    assert (tree / "source" / "x").stat().st_mtime == 1000
    assert (tree / "source" / "y").stat().st_mtime > 1000
    assert (tree / "source" / "y").read_text() == "changed"
    assert (tree / "source" / "generated.cu").exists()
