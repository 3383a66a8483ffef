"""States of the sources: revisions of a repository, the folder that is edited; and the watch."""

from __future__ import annotations

import argparse
import io
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from sm121.errors import CompileError, UsageError
from sm121.loop import commands
from sm121.loop.session import Comparing
from sm121.loop.states import at_revision, edited_state, work_trees
from sm121.loop.trees import State
from sm121.progress import Progress
from sm121.sources import git
from sm121.sources.worktree import WorkTree
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.steps import Build

FILES = {"CMakeLists.txt": "", "cmake/u.cmake": "", "csrc/a.cu": "one\n", "vllm/y.py": ""}


@dataclass
class Plan:
    project: str = "vllm"
    version: str = "1.0"


@dataclass
class Made:
    """As much of a build as states ask for."""

    work: Workspace
    progress: Progress
    plan: Plan


@pytest.fixture
def build(tmp_path: Path) -> Build:
    progress = Progress(Console(file=io.StringIO()))
    return cast("Build", Made(Workspace(tmp_path / "work"), progress, Plan()))


def place(into: Path) -> None:
    for name, text in FILES.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_text(text)


@pytest.mark.programs
def test_the_work_tree_of_the_version_is_found(build: Build, tmp_path: Path) -> None:
    base = State("pinned", tmp_path / "pinned", {})
    assert edited_state(build, None, base) is base
    home = build.work.root / "patches" / "vllm"
    WorkTree(home / "1.0").create("1.0", place)
    WorkTree(home / "0.9").create("0.9", place)
    assert work_trees(build) == [home / "1.0"]
    found = edited_state(build, None, base)
    assert found.root == home / "1.0"
    assert sorted(found.files) == ["CMakeLists.txt", "cmake/u.cmake", "csrc/a.cu"]
    WorkTree(home / "0.9..1.0").create("1.0", place)
    with pytest.raises(UsageError, match="several work trees"):
        edited_state(build, None, base)
    assert edited_state(build, home / "1.0", base).root == home / "1.0"
    with pytest.raises(UsageError, match="no source tree"):
        edited_state(build, tmp_path, base)


@pytest.mark.programs
def test_a_revision_is_laid_out_once(build: Build, tmp_path: Path) -> None:
    tree = WorkTree(tmp_path / "tree")
    tree.create("1.0", place)
    (tree.path / "csrc/a.cu").write_text("two\n")
    git.run(tree.path, "commit", "-q", "-a", "-m", "Two")
    (tree.path / "csrc/a.cu").write_text("not committed\n")
    old, new = (at_revision(build, tree.path, name) for name in ("sm121-base", "HEAD"))
    assert [(state.root / "csrc/a.cu").read_text() for state in (old, new)] == ["one\n", "two\n"]
    assert not (new.root / "vllm").exists(), "only what decides about compiled code"
    assert at_revision(build, tree.path, "HEAD").root == new.root
    for name in ("no-such", "--help", "HEAD:csrc"):
        with pytest.raises(UsageError, match="no such git revision"):
            at_revision(build, tree.path, name)


class Stopped(Exception):  # noqa: N818 -- stands for the user's Ctrl-C
    """Ends the watch."""


def test_the_watch_goes_on_after_errors_and_only_after_saves(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "edited"
    place(root)
    passes: list[dict[str, str]] = []
    sleeps = 0

    def once(task: Any) -> int:
        passes.append(dict(task.state.files))
        raise CompileError("csrc/a.cu did not compile.")

    def sleep(_seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps == 3:
            (root / "csrc/a.cu").write_text("saved\n")
        if sleeps == 4:
            (root / "vllm/y.py").write_text("Python is not compiled\n")
        if sleeps == 7:
            raise Stopped

    monkeypatch.setattr(commands, "_once", once)
    monkeypatch.setattr(time, "sleep", sleep)
    state = State.of("edited", root)
    task = commands.Task(argparse.Namespace(), build, state, Comparing(), state, state, (), ())
    with pytest.raises(Stopped):
        commands._watch(task)
    assert len(passes) == 2
    assert passes[0]["csrc/a.cu"] != passes[1]["csrc/a.cu"]
    shown = build.progress.console.file
    assert isinstance(shown, io.StringIO)
    assert shown.getvalue().count("did not compile") == 2
