"""The edited folder, and the copy that compilers work on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sm121.errors import UsageError
from sm121.loop.source import bring, configure_digest, differing, digests, names, require_sources
from sm121.sources import git

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "CMakeLists.txt": "project(x)\n",
    "cmake/u.cmake": "",
    "csrc/a.cu": "a\n",
    "csrc/core/x.cuh": "x\n",
    "vllm/y.py": "y\n",
}


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    return make(tmp_path / "upstream", FILES)


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    return make(tmp_path / "edited", FILES)


def age(root: Path) -> None:
    """As if everything had been written long ago."""
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def test_only_what_decides_about_compiled_code_counts(edited: Path) -> None:
    make(edited, {"csrc/.hidden": "", "csrc/__pycache__/g.pyc": "", ".github/z": ""})
    assert sorted(names(edited)) == ["CMakeLists.txt", "cmake/u.cmake", "csrc/a.cu", "csrc/core/x.cuh"]


@pytest.mark.programs
def test_what_git_ignores_is_generated(edited: Path) -> None:
    make(edited, {".gitignore": "kernel_*.cu\n", "csrc/kernel_1.cu": "made", "csrc/new.cu": "not added yet"})
    git.run(edited, "init", "-q")
    git.run(edited, "add", "csrc/a.cu", "csrc/core/x.cuh")
    (edited / "csrc/core/x.cuh").unlink()
    assert sorted(names(edited)) == ["CMakeLists.txt", "cmake/u.cmake", "csrc/a.cu", "csrc/new.cu"]


def test_a_folder_that_is_no_source_tree(tmp_path: Path, edited: Path) -> None:
    require_sources(edited)
    with pytest.raises(UsageError, match=r"csrc, cmake, CMakeLists\.txt"):
        require_sources(tmp_path)


def test_the_copy_is_upstream_with_the_edits_and_only_edits_are_new(
    upstream: Path, edited: Path, tmp_path: Path
) -> None:
    into = tmp_path / "tree" / "source"
    into.parent.mkdir()
    make(edited, {"csrc/a.cu": "edited\n", "csrc/b.cu": "new\n", "vllm/y.py": "not taken\n"})
    (edited / "csrc/core/x.cuh").unlink()
    assert bring(edited, digests(edited), upstream, into) == ["csrc/a.cu", "csrc/b.cu", "csrc/core/x.cuh"]
    assert digests(into) == digests(edited)
    assert (into / "vllm/y.py").read_text() == "y\n"
    age(into)
    make(into, {"csrc/generated.cu": "by CMake"})
    assert bring(edited, digests(edited), upstream, into) == []
    assert all(path.stat().st_mtime == 1e9 for path in into.rglob("*.cu") if path.name != "generated.cu")

    make(edited, {"csrc/a.cu": "edited again\n"})
    assert bring(edited, digests(edited), upstream, into) == ["csrc/a.cu"]
    assert (into / "csrc/a.cu").stat().st_mtime > 1e9
    assert (into / "csrc/b.cu").stat().st_mtime == 1e9
    assert (into / "csrc/generated.cu").exists()
    (edited / "csrc/b.cu").unlink()
    assert bring(edited, digests(edited), upstream, into) == ["csrc/b.cu"]
    assert not (into / "csrc/b.cu").exists()


def test_the_folders_that_are_read_are_never_written(upstream: Path, edited: Path, tmp_path: Path) -> None:
    into = tmp_path / "source"
    before = {
        root: {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()} for root in (upstream, edited)
    }
    make(edited, {})
    bring(edited, digests(edited), upstream, into)
    for path in into.rglob("csrc/**/*"):
        if path.is_file():
            path.write_text("a generator writes here")
    assert before == {
        root: {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()} for root in (upstream, edited)
    }


def test_an_interruption_is_mended(upstream: Path, edited: Path, tmp_path: Path) -> None:
    into = tmp_path / "source"
    bring(edited, digests(edited), upstream, into)
    (into / "csrc/a.cu").write_text("half of")
    assert bring(edited, digests(edited), upstream, into) == ["csrc/a.cu"]
    (tmp_path / "source.edited.json").write_text("{ torn")
    make(edited, {"csrc/a.cu": "edited\n"})
    bring(edited, digests(edited), upstream, into)
    assert digests(into) == digests(edited)


def test_what_cmake_reads_has_a_digest_of_its_own() -> None:
    files = {"CMakeLists.txt": "1", "csrc/gen.py": "2", "csrc/a.cu": "3", "csrc/x.cuh": "4"}
    same = configure_digest(files)
    assert configure_digest({**files, "csrc/a.cu": "other"}) == same
    assert configure_digest({**files, "csrc/gen.py": "other"}) != same
    assert configure_digest({**files, "CMakeLists.txt": "other"}) != same
    assert configure_digest({**files, "csrc/b.cu": "5"}) != same, "a pattern may find it"
    assert differing(files, {**files, "csrc/a.cu": "x", "n": "y"}) == ["csrc/a.cu", "n"]
