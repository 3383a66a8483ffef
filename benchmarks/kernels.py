"""Measures the kernel developer's loop: what it adds to the compiler's own time.

    nox -s bench-kernels -- [--unit FILE] [--rounds N] [options of `sm121 kernels`]

Edits a copy of the pinned sources, one file at a time, and compares the time of the whole command with the wall time
that the compiler took in it. Each edit is new, so the compiler cache has no answer. Everything in one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sm121.progress import duration

NOTHING, EDIT = 3.0, 5.0
"""The limits, seconds: a command with nothing to do; what an edit may cost besides the compiler."""


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
        run(["build", "--until", "tools", *options])
    source = work / "bench-kernels"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name in ("csrc", "cmake"):
        shutil.copytree(pinned / name, source / name)
    shutil.copy2(pinned / "CMakeLists.txt", source)
    options += ["--source", str(source)]
    unit = source / arguments.unit
    text = unit.read_text()
    rows: dict[str, list[tuple[float, float]]] = {
        "first pass (configures, compiles both sides)": [],
        "nothing to do": [],
        "one edit": [],
    }
    try:
        unit.write_text(f"{text}// {time.time_ns()}\n")
        rows["first pass (configures, compiles both sides)"].append(measured(options))
        for _ in range(arguments.rounds):
            rows["nothing to do"].append(measured(options))
            unit.write_text(
                f"{text}// {time.time_ns()}\n__global__ void bench_{time.time_ns()}(float *p) {{ *p = 1; }}\n"
            )
            rows["one edit"].append(measured(options))
    finally:
        shutil.rmtree(source, ignore_errors=True)
    sys.exit(report(rows, arguments.unit))


def measured(options: list[str]) -> tuple[float, float]:
    """Seconds of one command, and of the compiler in it."""
    start = time.monotonic()
    out, _ = run(["kernels", "--changed", "--json", "-q", *options])
    whole = time.monotonic() - start
    found: dict[str, Any] = json.loads(out)
    return whole, sum(one["seconds"] or 0.0 for one in found["units"])


def run(words: list[str]) -> tuple[str, str]:
    """Run `sm121`; a failure ends the benchmark with what it said."""
    done = subprocess.run([sys.executable, "-m", "sm121", *words], check=False, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"sm121 {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout, done.stderr


def report(rows: dict[str, list[tuple[float, float]]], unit: str) -> int:
    """Print the table; 1 if a limit is passed by the median."""
    console = Console(width=110)
    table = Table(title=f"sm121 kernels, {unit}, on {platform.machine()}, medians")
    for heading in ("pass", "whole command", "compiler in it", "besides", "limit"):
        table.add_column(heading, justify="left" if heading == "pass" else "right")
    late = 0
    for name, times in rows.items():
        whole, compiler = statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)
        besides = statistics.median(t[0] - t[1] for t in times)
        limit = {"nothing to do": NOTHING, "one edit": EDIT}.get(name)
        late += limit is not None and besides > limit
        table.add_row(
            name, duration(whole), duration(compiler), duration(besides), duration(limit) if limit else ""
        )
    console.print(table)
    edit = rows["one edit"]
    ratio = statistics.median(whole / compiler for whole, compiler in edit if compiler)
    console.print(
        f"one edit takes {ratio:.2f} x the compiler's own time; {'a limit is passed' if late else 'both limits are kept'}"
    )
    return int(bool(late))


if __name__ == "__main__":
    main()
