"""SASS before and after, by nvdisasm from the pinned wheel, for those who ask."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import PlanError
from sm121.inspector.differences import stable_name
from sm121.loop.code import cubin_of
from sm121.sources.fetch import fetch
from sm121.sources.unpack import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sm121.loop.session import Result
    from sm121.steps import Build

_TEXT = re.compile(r"^\.text\.(\S+):$")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;\s*(?:/\*.*\*/)?\s*$")
_LABEL = re.compile(r"\.L_(?:x_)?\d+")


def nvdisasm(build: Build, mirror: Path | None) -> Path:
    """The program, unpacked once. Raises PlanError if the line pins none for this machine, FetchError as fetching does."""
    pins = [each.pin for each in build.plan.downloads if each.pin.name == "nvidia-cuda-nvdisasm"]
    if not pins:
        raise PlanError("this line pins no nvidia-cuda-nvdisasm for this machine.", do="leave out --sass.")
    pin = pins[0]
    folder = build.work.root / "kernels" / f"nvdisasm-{pin.version}-{build.plan.host.cpu}"
    found = [*folder.rglob("bin/nvdisasm")]
    if not found:
        wheel = fetch([pin], build.work.files, mirror=mirror, progress=build.progress)[pin.filename]
        scratch = folder.with_name(f".{folder.name}.new")
        unpack(wheel, scratch, executable=lambda name: "/bin/" in name)
        scratch.rename(folder)
        found = [*folder.rglob("bin/nvdisasm")]
    return found[0]


def sass(program: Path, cubin: bytes) -> dict[str, list[str]]:
    """Kernel -> its instructions, with their control codes gone and labels numbered anew from the start."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = process.run([program, "-c", file.name])
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in done.stdout.splitlines():
        if match := _TEXT.match(line):
            current = found.setdefault(stable_name(match[1]), [])
        elif line.startswith("//---"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(match[1])
    return {name: _renumbered(lines) for name, lines in found.items()}


def differences(program: Path, result: Result, kernels: Sequence[str]) -> Iterator[tuple[str, str]]:
    """For each kernel, its name and the difference of its SASS as git shows it."""
    sides = [cubin_of(kept.object.read_bytes()) if kept else None for kept in (result.before, result.after)]
    before, after = (sass(program, cubin) if cubin else {} for cubin in sides)
    with tempfile.TemporaryDirectory(prefix="sm121-sass-") as folder:
        for name in kernels:
            for side, code in (("before", before), ("after", after)):
                (Path(folder) / side).write_text("".join(f"{line}\n" for line in code.get(name, ())))
            done = process.run(
                ["git", "diff", "--no-index", "--no-color", "--patience", "-U2", "before", "after"],
                cwd=Path(folder), check=False,
            )  # fmt: skip
            yield name, "\n".join(done.stdout.splitlines()[4:])


def _renumbered(lines: Sequence[str]) -> list[str]:
    numbers: dict[str, str] = {}
    return [_LABEL.sub(lambda match: numbers.setdefault(match[0], f".L{len(numbers)}"), line) for line in lines]
