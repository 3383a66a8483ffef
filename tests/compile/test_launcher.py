"""The launcher runs as a program of its own, so these tests start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sm121.compile.launcher as launcher

pytestmark = pytest.mark.programs


def launch(folder: Path, *argv: str) -> tuple[int, list[dict[str, object]]]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(launcher.__file__)), *argv],
        cwd=folder,
        check=False,
        capture_output=True,
    )
    return done.returncode, [json.loads(line) for line in (folder / "costs.jsonl").read_text().splitlines()]


def test_cost_and_status_are_recorded(tmp_path: Path) -> None:
    status, (start, end) = launch(tmp_path, "sh", "-c", "exit 3", "-o", "x.o")
    assert status == 3
    assert start["start"] == end["end"] == "x.o"
    assert end["status"] == 3
    assert isinstance(end["peak_kib"], int)
    assert end["peak_kib"] > 0


def test_a_signal_is_told_as_a_shell_would(tmp_path: Path) -> None:
    status, (_, end) = launch(tmp_path, "sh", "-c", "kill -9 $$")
    assert status == 137
    assert end["status"] == -9


def test_a_missing_compiler_is_no_traceback(tmp_path: Path) -> None:
    status, _ = launch(tmp_path, "no-such-compiler", "-o", "x.o")
    assert status == 127
