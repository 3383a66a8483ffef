"""How a compile ends that is killed, runs out of memory, or whose starter is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm121 import process
from sm121.compile.build import Schedule, build
from sm121.errors import CompileError, OutOfMemoryError, ProgramError
from sm121.progress import Progress

pytestmark = pytest.mark.programs

PATIENCE = 40.0
SCHEDULE = Schedule(jobs=6, heavy_jobs=2, seconds={}, heavy=frozenset())
# A build tool as ninja is: each job leads a process group of its own, and one job has left the session.
TOOL = """
set -m
sh -c 'echo job $$; exec sleep 3000' &
setsid sh -c 'echo job $$; exec sleep 3000' &
echo tool $$
wait
"""
STARTER = """
import sys
from pathlib import Path
from sm121 import process
process.stream(["sh", "-c", sys.argv[1]], log=Path(sys.argv[2]), on_line=lambda line: None)
"""


def compile_by(tmp_path: Path, script: str) -> None:
    (tmp_path / "obj").mkdir()
    build(
        tmp_path, ["sh", "-c", script], process.environment(), tmp_path / "log", schedule=SCHEDULE,
        progress=Progress(quiet=True),
    )  # fmt: skip


def alive(number: int) -> bool:
    try:
        return (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_compiler_outlives_sm121(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, TOOL, str(log)],
        env={**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )
    ends = time.monotonic() + PATIENCE
    started: list[int] = []
    while len(started) < 3 and time.monotonic() < ends:
        time.sleep(0.05)
        lines = log.read_text().splitlines() if log.exists() else []
        started = [int(line.split()[1]) for line in lines if line.startswith(("job ", "tool "))]
    assert len(started) == 3
    assert all(map(alive, started))
    starter.send_signal(number)
    starter.wait()
    ends = time.monotonic() + PATIENCE
    while any(map(alive, started)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not [each for each in started if alive(each)]


def test_status_output_and_missing_programs_are_told_as_before(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "log"
    assert process.stream(["sh", "-c", "echo one; echo two >&2; exit 3"], log=log, on_line=said.append) == 3
    assert sorted(said) == ["one", "two"]
    assert log.read_text().startswith("$ sh -c ")
    assert process.stream(["sh", "-c", "kill -9 $$"], log=log, on_line=said.append) == 137
    with pytest.raises(ProgramError, match="nothing-of-this-name was not found"):
        process.stream(["nothing-of-this-name"], log=log, on_line=said.append)
    with pytest.raises(ProgramError, match="does not exist"):
        process.stream(["sh"], log=log, on_line=said.append, cwd=tmp_path / "nowhere")


def source(tmp_path: Path) -> Path:
    """A small file that takes a real compiler more than 60 MB."""
    file = tmp_path / "large.cpp"
    file.write_text('#include <regex>\n#include <map>\nstd::regex r("a");\nint main() {}\n')
    return file


def test_a_compiler_without_memory_is_told_as_such(tmp_path: Path) -> None:
    script = f"ulimit -v 90000; echo FAILED: large.o; g++ -O2 -c {source(tmp_path)} -o {tmp_path / 'large.o'}"
    with pytest.raises(OutOfMemoryError) as caught:
        compile_by(tmp_path, script)
    assert "for want of memory with 6 jobs" in str(caught.value)
    assert "--jobs 3" in caught.value.do


def test_a_compiler_that_the_kernel_kills_is_told_as_such(tmp_path: Path) -> None:
    """As the kernel does when memory runs out: SIGKILL for the process that has most, the compiler proper."""
    script = (
        f"g++ -O2 -c {source(tmp_path)} -o {tmp_path / 'large.o'} & "
        "while ! pid=$(pgrep -P $! cc1plus); do sleep 0.02; done; kill -9 $pid; wait $!"
    )
    with pytest.raises(OutOfMemoryError):
        compile_by(tmp_path, script)


def test_an_error_of_the_source_is_none_of_memory(tmp_path: Path) -> None:
    (tmp_path / "bad.cpp").write_text("int main( {\n")
    with pytest.raises(CompileError, match="ninja ended with 1") as caught:
        compile_by(tmp_path, f"g++ -c {tmp_path / 'bad.cpp'} -o {tmp_path / 'bad.o'}")
    assert not isinstance(caught.value, OutOfMemoryError)
