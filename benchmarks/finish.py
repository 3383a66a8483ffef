"""Compares a finished wheel with the one it was made from, by the bytes of both.

    nox -s bench-finish -- BEFORE.whl AFTER.whl [--record RESULT.json]

RESULT.json is what `sm121 finish --json` printed; it adds the processor time. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from sm121.artifact import open_artifact
from sm121.device import DamagedError, read_device_code
from sm121.progress import duration, size
from sm121.target import GB10, Capability, LoadsAs, loads_as


@dataclass(frozen=True, slots=True)
class Facts:
    """What a wheel holds for a capability: translation units by how they load, and bytes."""

    wheel: int
    installed: int
    native: int
    jit: int
    nothing: int
    jit_bytes: int
    dead_images: int
    dead_bytes: int

    @classmethod
    def of(cls, path: Path, target: Capability) -> Facts:
        """Read every library of the wheel."""
        units = {True: 0, False: 0}
        nothing = jit_bytes = dead_images = dead_bytes = installed = 0
        for member in open_artifact(path).members():
            installed += member.size
            if ".so" not in member.path:
                continue
            with member.buffer() as buffer:
                try:
                    containers = read_device_code(buffer).containers
                except DamagedError:
                    continue
            for unit in containers:
                how = [loads_as(image.kind, image.arch, target) for image in unit.images]
                dead = [i for i, loads in zip(unit.images, how, strict=True) if loads is LoadsAs.NO]
                dead_images += len(dead)
                dead_bytes += sum(image.stored for image in dead)
                best = min(how, key=lambda loads: loads.rank, default=LoadsAs.NO)
                if best is LoadsAs.NO:
                    nothing += 1
                    continue
                units[best.machine_code] += 1
                if best is LoadsAs.JIT:
                    jit_bytes += max(i.size for i, each in zip(unit.images, how, strict=True) if each is best)
        return cls(
            path.stat().st_size, installed, units[True], units[False], nothing, jit_bytes, dead_images, dead_bytes
        )


def main() -> None:
    """Read both wheels and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--target", type=Capability.parse, default=GB10)
    given = parser.parse_args()
    a, b = (Facts.of(path, given.target) for path in (given.before, given.after))
    rows = [
        ("wheel", size(a.wheel), size(b.wheel)),
        ("installed", size(a.installed), size(b.installed)),
        ("units with machine code that loads", str(a.native), str(b.native)),
        ("units left to the driver's compiler", str(a.jit), str(b.jit)),
        ("PTX that it would compile", size(a.jit_bytes), size(b.jit_bytes)),
        ("units without anything that loads", str(a.nothing), str(b.nothing)),
        ("images that cannot load", f"{a.dead_images}, {size(a.dead_bytes)}", f"{b.dead_images}, {size(b.dead_bytes)}"),
    ]  # fmt: skip
    print(f"| for {given.target} | {given.before.name} | {given.after.name} |\n|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    if given.record:
        record = json.loads(given.record.read_text())
        compiled = [
            unit["compiled"] for library in record["libraries"] for unit in library["units"] if "compiled" in unit
        ]
        seconds = sum(each["seconds"] for each in compiled)
        ptx = sum(each["ptx"]["size"] for each in compiled)
        print(f"\n{len(compiled)} units compiled, {size(ptx)} of PTX, {duration(seconds)} of processor time.")


if __name__ == "__main__":
    main()
