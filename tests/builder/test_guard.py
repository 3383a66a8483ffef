"""A program in the care of the guard ends with all that it started, however its starter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm121 import process

pytestmark = pytest.mark.programs

# A shell with a child that has left its group and session, and one that does not heed SIGTERM.
TREE = """
trap '' TERM
setsid sleep 3000 &
echo child $!
(trap '' TERM; while :; do sleep 1; done) &
echo child $!
echo ready
wait
"""
PATIENCE = 30.0


def until(log: Path, word: str) -> list[int]:
    """Wait until the program has said a word; the children that it named."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        text = log.read_text()
        if f"\n{word}" in text:
            return [int(line.split()[1]) for line in text.splitlines() if line.startswith("child ")]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def alive(number: int) -> bool:
    try:
        return (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(numbers: list[int]) -> bool:
    ends = time.monotonic() + PATIENCE
    while any(map(alive, numbers)) and time.monotonic() < ends:
        time.sleep(0.05)
    return not any(map(alive, numbers))


def ended(running: process.Running) -> int | None:
    """Its status, waited for."""
    ends = time.monotonic() + PATIENCE
    while (status := running.ended) is None and time.monotonic() < ends:
        time.sleep(0.05)
    return status


def test_stopping_ends_the_whole_tree(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = process.start(["sh", "-c", TREE], log=log, grace=0.3)
    children = until(log, "ready")
    assert len(children) == 2
    before = running.ended
    assert before is None
    assert all(map(alive, children))
    running.stop()
    assert gone(children)
    assert running.ended is not None
    running.stop()


def test_its_status_is_told_and_what_it_left_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = process.start(
        ["sh", "-c", "setsid sleep 3000 & echo child $!; echo ready; exit 7"], log=log, grace=5
    )
    children = until(log, "ready")
    status = ended(running)
    assert status == 7
    assert gone(children)


def test_a_program_that_is_killed_has_the_signals_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = process.start(["sh", "-c", "echo child $$; echo ready; exec sleep 3000"], log=log, grace=5)
    (main,) = until(log, "ready")
    os.kill(main, signal.SIGKILL)
    status = ended(running)
    assert status == 128 + 9


def test_a_program_that_does_not_exist_ends_at_once(tmp_path: Path) -> None:
    running = process.start([tmp_path / "nothing"], log=tmp_path / "log", grace=1)
    status = ended(running)
    assert status == 127
    assert "cannot be started" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_starters_own_end_is_enough(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom sm121 import process\n"
        f"process.start(['sh', '-c', {TREE!r}], log=Path({str(log)!r}), grace=0.3)\ntime.sleep(3000)\n"
    )
    source = Path(process.__file__).parents[1]
    starter = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(source)})
    ends = time.monotonic() + PATIENCE
    while not log.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    children = until(log, "ready")
    starter.send_signal(number)
    starter.wait(PATIENCE)
    assert gone(children)
