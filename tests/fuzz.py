"""Feeds damaged input to every reader until the processor time is used up: `nox -s fuzz`.

An input that ends in anything but an answer or an error of ours, or that costs more than ten seconds or two GiB, is
written to a folder and named; the run then ends with status 1. The seed that is printed gives the same inputs again.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import fuzz_artifact
import fuzz_device
import fuzz_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Trial = tuple[str, bytes, Callable[[], str]]

SLOW = 10.0
"""Seconds of processor time after which an input counts as a hang."""
MEMORY = 2 << 30


def device(chance: random.Random, folder: Path) -> Iterator[Trial]:
    """ELF, fatbin, cubin and PTX readers."""
    for data in fuzz_device.inputs(chance):
        yield "device.bin", data, lambda data=data: fuzz_device.fault_of(data)  # type: ignore[misc]


def archives(chance: random.Random, folder: Path) -> Iterator[Trial]:
    """Zip, tar, layer and layout readers."""
    for target, data in fuzz_artifact.inputs(chance):
        yield (
            f"{target.name.replace(' ', '-')}.bin",
            data,
            lambda target=target, data=data: fuzz_artifact.fault_of(  # type: ignore[misc]
                target, data, folder
            ),
        )


def reports(chance: random.Random, folder: Path) -> Iterator[Trial]:
    """The whole inspection, with every report."""
    for name, data in fuzz_reports.inputs(chance):
        path = folder / name
        path.write_bytes(data)
        yield name, data, lambda path=path: fuzz_reports.fault_of(path)  # type: ignore[misc]


KINDS = {"device": device, "archives": archives, "reports": reports}


def main() -> int:
    """Run by hand or by nox."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "--cpu-minutes", type=float, default=3, help="processor time of all kinds together (default: 3)"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--keep", type=Path, default=Path("work/fuzz"), help="where faults go (default: work/fuzz)"
    )
    options = parser.parse_args()
    kinds = options.kinds or list(KINDS)
    if unknown := sorted(set(kinds) - set(KINDS)):
        parser.error(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    faults = 0
    for kind in kinds:
        faults += _run(kind, seed, 60 * options.cpu_minutes / len(kinds), options.keep)
    return 1 if faults else 0


def _run(kind: str, seed: int, seconds: float, keep: Path) -> int:
    ends, count, faults = time.process_time() + seconds, 0, 0
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, data, trial in KINDS[kind](random.Random(seed), Path(folder)):
            begun = time.process_time()
            if begun > ends:
                break
            count += 1
            fault = trial()
            took = time.process_time() - begun
            slowest = max(slowest, took)
            if took > SLOW:
                fault = fault or f"took {took:.0f} s"
            if fault:
                faults += 1
                keep.mkdir(parents=True, exist_ok=True)
                kept = keep / f"{kind}-{seed}-{count}-{name}"
                kept.write_bytes(data)
                print(f"{kept}\n{fault}", flush=True)
    print(f"{kind}: {count} inputs of seed {seed} in {seconds:.0f} s of processor time, {faults} faults, "
          f"slowest {slowest:.2f} s", flush=True)  # fmt: skip
    return faults


if __name__ == "__main__":
    raise SystemExit(main())
