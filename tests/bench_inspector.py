"""How fast the inspector is beside the tools one would use without it; both are measured in the same run.

usage: python tests/bench_inspector.py WHEEL [--cuobjdump PROGRAM] [--rounds N]

(a) the targets of all images, straight from the wheel, against `unzip -p` of its libraries;
(b) the whole verdict with kernel names, against unzip, then cuobjdump --list-elf, --list-ptx and -symbols over all
    libraries; (c) the largest process, for the wheel and for its largest library alone.

Of several rounds the fastest counts: the machine's other work only ever adds time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PACKAGE = Path(__file__).parent.parent / "build"
OURS = """
import json, resource, sys
from sm121.artifact import open_artifact
from sm121.inspector import Options, inspect_artifact
with open_artifact(sys.argv[1]) as artifact:
    report = inspect_artifact(artifact, Options(kernels=sys.argv[2] == "kernels"))
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
images = sum(sum(library.images.values()) for library in report.libraries)
print(json.dumps({"peak": peak * 1024, "images": images, "kernels": len(report.kernels), "verdict": report.verdict}))
"""


def inspect(path: Path, depth: str) -> dict[str, object]:
    """Inspect in a process of its own; what it found, and its peak memory in bytes."""
    done = process.run(
        [sys.executable, "-c", OURS, path, depth],
        env=process.environment({"PYTHONPATH": str(PACKAGE)}),
        timeout=3600,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def inflate(wheel: Path) -> None:
    """`unzip -p`, with its output thrown away where it comes out."""
    process.run(["sh", "-c", 'exec unzip -p "$0" "*.so" > /dev/null', wheel], timeout=3600)


def by_cuobjdump(wheel: Path, cuobjdump: str) -> None:
    """Unpack the libraries and have them listed and their symbols printed."""
    with tempfile.TemporaryDirectory() as folder:
        process.run(["unzip", "-q", wheel, "*.so", "-d", folder], timeout=3600)
        for library in sorted(Path(folder).rglob("*.so")):
            for option in ("--list-elf", "--list-ptx", "-symbols"):
                process.run([cuobjdump, "-all", option, library], check=False, timeout=3600)


def timed(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The fastest time of each action in seconds; they take turns."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - started)
    return best


def compare(title: str, ours: float, theirs: float, limit: float) -> bool:
    """Print one ratio against its limit."""
    good = ours <= limit * theirs
    print(
        f"{title}: {ours:.2f} s against {theirs:.2f} s, ratio {ours / theirs:.2f} (limit {limit:.2f})",
        "" if good else "MISSED",
    )
    return good


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--cuobjdump", default=process.find("cuobjdump"))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    wheel, cuobjdump = arguments.wheel, arguments.cuobjdump
    actions: dict[str, Callable[[], object]] = {
        "unzip -p": lambda: inflate(wheel), "inventory": lambda: inspect(wheel, "headers"),
        "verdict": lambda: inspect(wheel, "kernels"),
    }  # fmt: skip
    if cuobjdump:
        actions["cuobjdump"] = lambda: by_cuobjdump(wheel, cuobjdump)
    best = timed(actions, arguments.rounds)
    good = compare("(a) inventory against unzip -p", best["inventory"], best["unzip -p"], 1.0)
    if cuobjdump:
        good &= compare("(b) verdict against the cuobjdump route", best["verdict"], best["cuobjdump"], 0.25)
    else:
        print("(b) no cuobjdump: not measured")
    whole = inspect(wheel, "kernels")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        largest = max(
            (item for item in archive.infolist() if item.filename.endswith(".so")),
            key=lambda item: item.file_size,
        )
        alone = inspect(Path(archive.extract(largest, folder)), "kernels")
    print(
        f"(c) largest process: {_megabytes(whole)} for the wheel ({whole['images']} images, {whole['kernels']} kernels),"
    )
    print(
        f"    {_megabytes(alone)} for {largest.filename} alone ({largest.file_size / 1e6:.0f} MB; limit 200 MB)"
    )
    return 0 if good and int(str(alone["peak"])) <= 200e6 else 1


def _megabytes(found: dict[str, object]) -> str:
    return f"{int(str(found['peak'])) / 1e6:.0f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
