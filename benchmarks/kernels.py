"""Measures the kernel developer's loop: what it adds to the compiler's own time.

    nox -s bench-kernels -- [--unit FILE] [--rounds N] [options of `sm121 kernels`]

Edits a copy of the pinned sources, one file at a time, and compares the time of the whole command with the wall time
that the compiler took in it; the first pass configures and compiles both sides. Each edit is new, so the compiler cache has
no answer. CPU time is shown too: on a busy machine it tells more. Everything in one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, NOTHING, EDIT = "first pass", "nothing to do", "one edit"
LIMITS = {NOTHING: 3.0, EDIT: 5.0}
"""Seconds that a pass may take besides the compiler."""


def main() -> None:
    """Run the rounds and print the table; the exit status says whether both limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("work"), help="scratch folder, with what builds left in it"
    )
    parser.add_argument("--unit", default="csrc/pos_encoding_kernels.cu", help="the file that is edited")
    parser.add_argument("--rounds", type=int, default=3)
    arguments, options = parser.parse_known_args()
    work = arguments.work.absolute()
    options += ["--work", str(work)]
    plans = json.loads(run(["build", "--dry-run", "--json", "--work", str(work)])[0])
    plan = next(one for one in plans if one["project"]["name"] == "vllm")
    key = next(step["key"] for step in plan["steps"] if step["name"] == "source")
    pinned = work / "steps" / "source" / key / "tree"
    if not pinned.is_dir():
        run(["build", "--only", "vllm", "--until", "tools", *options])
    source = work / "bench-kernels"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name in ("csrc", "cmake"):
        shutil.copytree(pinned / name, source / name)
    shutil.copy2(pinned / "CMakeLists.txt", source)
    options += ["--source", str(source)]
    unit = source / arguments.unit
    text = unit.read_text()
    rows: dict[str, list[Times]] = {FIRST: [], NOTHING: [], EDIT: []}
    try:
        unit.write_text(f"{text}// {time.time_ns()}\n")
        rows[FIRST].append(measured(options))
        for _ in range(arguments.rounds):
            rows[NOTHING].append(measured(options))
            unit.write_text(
                f"{text}// {time.time_ns()}\n__global__ void bench_{time.time_ns()}(float *p) {{ *p = 1; }}\n"
            )
            rows[EDIT].append(measured(options))
    finally:
        shutil.rmtree(source, ignore_errors=True)
    sys.exit(report(rows, arguments.unit))


@dataclass(frozen=True)
class Times:
    """Seconds of one command: wall and CPU time of all of it, and of the compiler in it."""

    wall: float
    cpu: float
    compiler_wall: float
    compiler_cpu: float

    @property
    def besides(self) -> float:
        return self.wall - self.compiler_wall

    @property
    def cpu_besides(self) -> float:
        return self.cpu - self.compiler_cpu


def measured(options: list[str]) -> Times:
    """One pass. CPU time is that of all processes that have ended since, which are its own."""
    start, used = time.monotonic(), spent()
    out, _ = run(["kernels", "--changed", "--json", "-q", *options])
    wall, cpu = time.monotonic() - start, spent() - used
    units: list[dict[str, Any]] = json.loads(out)["units"]
    return Times(wall, cpu, sum(u["seconds"] or 0.0 for u in units), sum(u["cpu_seconds"] or 0.0 for u in units))


def spent() -> float:
    """CPU seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(words: list[str]) -> tuple[str, str]:
    """Run `sm121`; a failure ends the benchmark with what it said."""
    done = subprocess.run([sys.executable, "-m", "sm121", *words], check=False, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"sm121 {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout, done.stderr


def report(rows: dict[str, list[Times]], unit: str) -> int:
    """Print the table; 1 if a limit is passed by the median."""
    console = Console(width=120)
    load = os.getloadavg()[0]
    table = Table(
        title=f"sm121 kernels, {unit}: medians in seconds; {os.cpu_count()} cores, load {load:.1f}, {platform.machine()}"
    )
    for heading in ("pass", "whole", "compiler in it", "besides", "limit", "CPU besides"):
        table.add_column(heading, justify="left" if heading == "pass" else "right")
    late = False
    for name, times in rows.items():
        limit = LIMITS.get(name)
        besides = median(times, lambda one: one.besides)
        late |= limit is not None and besides > limit
        table.add_row(
            name, f"{median(times, lambda one: one.wall):.1f}", f"{median(times, lambda one: one.compiler_wall):.1f}",
            f"{besides:.1f}", f"{limit:.0f}" if limit else "", f"{median(times, lambda one: one.cpu_besides):.1f}",
        )  # fmt: skip
    console.print(table)
    ratio = median(rows[EDIT], lambda one: one.wall / one.compiler_wall if one.compiler_wall else 0.0)
    console.print(
        f"one edit takes {ratio:.2f} x the compiler's own time; {'a limit is passed' if late else 'both limits are kept'}"
    )
    return int(late)


def median(times: list[Times], read: Callable[[Times], float]) -> float:
    return statistics.median(read(one) for one in times)


if __name__ == "__main__":
    main()
