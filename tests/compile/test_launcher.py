"""The launcher runs as a program of its own, so these tests start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sm121.compile.launcher as launcher
from sm121.compile.build import read_costs

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


def test_what_sccaches_server_used_is_not_measured(tmp_path: Path) -> None:
    program = tmp_path / "sccache"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    _, (_, end) = launch(tmp_path, str(program), "nvcc", "-o", "obj/_C/csrc/x.cu.o")
    assert (end["cpu"], end["peak_kib"]) == (None, None)
    (cost,) = read_costs(tmp_path / "costs.jsonl")
    assert (cost.cpu, cost.peak) == (None, None)
    assert cost.wall >= 0
    assert cost.note == "CPU time and memory: not measured under sccache"
    (tmp_path / "costs.jsonl").unlink()
    launch(tmp_path, "sh", "-c", "exit 0", "-o", "x.o")
    (measured,) = read_costs(tmp_path / "costs.jsonl")
    assert measured.peak
    assert measured.note == ""


def test_a_signal_is_told_as_a_shell_would(tmp_path: Path) -> None:
    status, (_, end) = launch(tmp_path, "sh", "-c", "kill -9 $$")
    assert status == 137
    assert end["status"] == -9


def test_a_missing_compiler_is_no_traceback(tmp_path: Path) -> None:
    status, _ = launch(tmp_path, "no-such-compiler", "-o", "x.o")
    assert status == 127
