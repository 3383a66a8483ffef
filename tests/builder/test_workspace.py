from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121.errors import LockedError, StorageError
from sm121.plan.model import Step
from sm121.progress import Progress
from sm121.workspace import Workspace, storage

if TYPE_CHECKING:
    from pathlib import Path

QUIET = Progress(Console(quiet=True), quiet=True)
STEP = Step(name="source", title="unpack", inputs={"a": 1})


def test_a_finished_step_is_never_done_twice(tmp_path: Path) -> None:
    work, done = Workspace(tmp_path / "a folder with spaces"), []

    def action(into: Path) -> None:
        done.append(into)
        (into / "result").write_text("x")

    first, second = (work.do(STEP, action, QUIET) for _ in range(2))
    assert first == second == work.result(STEP)
    assert len(done) == 1
    assert (first / "result").read_text() == "x"


def test_an_interrupted_step_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    work = Workspace(tmp_path)

    def interrupted(into: Path) -> None:
        (into / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.do(STEP, interrupted, QUIET)
    assert not work.result(STEP).exists()

    def whole(into: Path) -> None:
        (into / "whole").write_text("y")

    result = work.do(STEP, whole, QUIET)
    assert sorted(path.name for path in result.iterdir()) == [".done", "whole"]


def test_an_emptied_result_is_made_again(tmp_path: Path) -> None:
    work = Workspace(tmp_path)

    def action(into: Path) -> None:
        (into / "result").write_text("x")

    result = work.do(STEP, action, QUIET)
    for path in result.iterdir():
        path.unlink()
    assert not work.done(STEP)
    assert (work.do(STEP, action, QUIET) / "result").read_text() == "x"


def test_two_builds_in_one_folder(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    with work.locked(), pytest.raises(LockedError, match=str(os.getpid())), Workspace(tmp_path).locked():
        pass
    with work.locked():
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_is_one_sentence(tmp_path: Path, number: int) -> None:
    with pytest.raises(StorageError, match="--work"), storage(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))


def test_other_faults_are_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "no such file", "x")


def test_a_scratch_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--work"), Workspace(tmp_path / "file" / "work").locked():
        pass


def test_the_key_covers_inputs_needs_and_command() -> None:
    base = STEP.key
    assert Step(name="source", title="another title", inputs={"a": 1}).key == base
    assert Step(name="source", title="unpack", inputs={"a": 2}).key != base
    assert Step(name="source", title="unpack", inputs={"a": 1}, needs={"x": "1"}).key != base
    assert Step(name="source", title="unpack", inputs={"a": 1}, argv=("x",)).key != base
    assert Step(name="source", title="unpack", inputs={"a": 1}, env={"A": "1"}).key != base
