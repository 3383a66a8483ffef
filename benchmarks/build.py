"""Measures a build of vLLM's libraries: cold, with a warm compiler cache, and with nothing to do.

    nox -s bench-build -- [--keep-cold] [options of `sm121 build`]

The bound is what no schedule can beat: max(sum of CPU time / jobs, longest file). Prints one table per file and one of
ratios; everything in one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sm121.progress import duration

STOP = "libraries"


def main() -> None:
    """Run the three builds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("work/bench"), help="scratch folder of the benchmark")
    parser.add_argument("--files", type=int, default=15, help="lines of the table per file")
    parser.add_argument(
        "--keep-cold", action="store_true", help="take the cold build that is in the scratch folder"
    )
    arguments, options = parser.parse_known_args()
    work = arguments.work.absolute()
    options += ["--work", str(work)]
    if not any(option.startswith("--only") for option in options):
        options += ["--only", "vllm"]
    (plan,) = json.loads(run([*options, "--dry-run", "--json"], capture=True))
    result = work / "steps" / STOP / key(plan, STOP)
    record = work / "cold.json"
    if not (arguments.keep_cold and record.exists()):
        run([*options, "--until", "tools"])
        shutil.rmtree(work / "cache", ignore_errors=True)
        cold = timed(options, work, result)
        record.write_text(json.dumps({"seconds": cold, "costs": json.loads((result / "costs.json").read_text())}))
    measured = json.loads(record.read_text())
    warm = timed(options, work, result)
    start = time.monotonic()
    run([*options, "--until", STOP])
    nothing = time.monotonic() - start
    report(plan, measured["seconds"], measured["costs"], warm, nothing, arguments.files)


def key(plan: dict[str, list[dict[str, str]]], name: str) -> str:
    """The key of a step."""
    return next(step["key"] for step in plan["steps"] if step["name"] == name)


def timed(options: list[str], work: Path, result: Path) -> float:
    """Seconds of one build without any object in place; the compiler cache is as it is."""
    shutil.rmtree(result, ignore_errors=True)
    for tree in (work / "trees").glob("*"):
        shutil.rmtree(tree / "obj", ignore_errors=True)
    start = time.monotonic()
    run([*options, "--until", STOP])
    return time.monotonic() - start


def run(options: list[str], *, capture: bool = False) -> str:
    """Run `sm121 build`; its progress goes to the terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "sm121", "build", *options],
        check=True,
        text=True,
        stdout=subprocess.PIPE if capture else None,
    )
    return done.stdout or ""


def report(
    plan: dict[str, dict[str, int]],
    cold: float,
    costs: list[dict[str, float]],
    warm: float,
    nothing: float,
    files: int,
) -> None:
    """Print the tables."""
    console = Console(width=120)
    if any(cost["cpu"] is None for cost in costs):
        sys.exit("CPU time and memory are not measured under sccache; measure with --cache ccache or --no-cache.")
    jobs = plan["needs"]["jobs"]
    total, longest = sum(cost["cpu"] for cost in costs), max(cost["cpu"] for cost in costs)
    bound = max(total / jobs, longest)
    table = Table(title=f"{len(costs)} commands on {platform.machine()}, {jobs} jobs")
    for heading in ("file", "CPU s", "wall s", "peak GiB"):
        table.add_column(heading, justify="left" if heading == "file" else "right")
    for cost in sorted(costs, key=lambda each: -each["cpu"])[:files]:
        table.add_row(
            str(cost["name"]), f"{cost['cpu']:.0f}", f"{cost['wall']:.0f}", f"{cost['peak'] / (1 << 30):.1f}"
        )
    console.print(table)
    ratios = Table(title="Wall time")
    for heading in ("build", "time", "ratio"):
        ratios.add_column(heading)
    limit = "sum / jobs" if bound > longest else "longest file"
    ratios.add_row(
        "bound", duration(bound), f"max(CPU {duration(total)} / {jobs}, longest {duration(longest)}): {limit}"
    )
    ratios.add_row("cold", duration(cold), f"{cold / bound:.2f} x bound")
    ratios.add_row("warm cache", duration(warm), f"{cold / warm:.1f} x faster than cold")
    ratios.add_row("nothing to do", duration(nothing), "the whole command")
    console.print(ratios)


if __name__ == "__main__":
    main()
