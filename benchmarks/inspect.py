"""How fast the inspector is beside the tools one would use without it; both are measured in the same run.

    nox -s bench-inspect -- WHEEL [--cuobjdump PROGRAM] [--rounds N]

(a) the targets of all images, straight from the wheel, against `unzip -p` of its libraries;
(b) the whole verdict with kernel names, against unzip, then cuobjdump --list-elf, --list-ptx and -symbols over all
    libraries; (b') against that and the names of the kernels that are there as PTX, which the verdict has as well
    (cuobjdump -ptx, searched by grep); (c) the largest process, for the wheel and for its largest library alone.

Of several rounds the fastest counts: the machine's other work only ever adds time. Each ratio is given in wall time
and in processor time. Exit status 1: a limit was missed.
"""

from __future__ import annotations

import argparse
import json
import resource
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
Seconds = tuple[float, float]
"""Of wall time and of processor time."""

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


def ptx_names(wheel: Path, cuobjdump: str) -> None:
    """Unpack the libraries once more and search their PTX for entry functions."""
    with tempfile.TemporaryDirectory() as folder:
        process.run(["unzip", "-q", wheel, "*.so", "-d", folder], timeout=3600)
        for library in sorted(Path(folder).rglob("*.so")):
            search = 'exec "$0" -all -ptx "$1" | grep -c "[.]entry"'
            process.run(["sh", "-c", search, cuobjdump, library], check=False, timeout=3600)


def timed(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """The fastest times of each action; they take turns."""
    best: dict[str, Seconds] = {}
    for _ in range(rounds):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), _spent()
            action()
            took = time.perf_counter() - wall, _spent() - cpu
            before = best.get(name, (float("inf"), float("inf")))
            best[name] = min(before[0], took[0]), min(before[1], took[1])
    return best


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(title: str, ours: Seconds, theirs: Seconds, limit: float | None) -> bool:
    """Print one ratio against its limit, which is one of wall time."""
    good = limit is None or ours[0] <= limit * theirs[0]
    print(
        f"{title}: {ours[0]:.2f} s against {theirs[0]:.2f} s, ratio {ours[0] / theirs[0]:.2f}"
        f"{'' if limit is None else f' (limit {limit:.2f})'}; processor {ours[1]:.2f} s against {theirs[1]:.2f} s, "
        f"ratio {ours[1] / theirs[1]:.2f}",
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
        actions["names"] = lambda: ptx_names(wheel, cuobjdump)
    best = timed(actions, arguments.rounds)
    good = compare("(a) inventory against unzip -p", best["inventory"], best["unzip -p"], 1.0)
    if cuobjdump:
        good &= compare("(b) verdict against the cuobjdump route", best["verdict"], best["cuobjdump"], 0.25)
        both = best["cuobjdump"][0] + best["names"][0], best["cuobjdump"][1] + best["names"][1]
        compare("(b') verdict against the same facts by cuobjdump", best["verdict"], both, None)
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
