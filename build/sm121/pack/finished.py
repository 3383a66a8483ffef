"""Finishes all libraries of a wheel and writes the wheel again.

A wheel of ours keeps its name: its RECORD and ledger follow. An official wheel becomes another one, with our stamp and
a ledger of its own.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.device import DamagedError, payload, read_cubin, read_device_code
from sm121.errors import PackError
from sm121.finish.library import finish_libraries, plan_libraries
from sm121.finish.units import Deed
from sm121.pack.ledger import MadeWith
from sm121.pack.official import ELF_MAGIC, OfficialWheel
from sm121.pack.platform_tag import find_platform_tag
from sm121.pack.rewrite import has_ledger, rewrite
from sm121.pack.stamp import Stamp
from sm121.pack.storage import completed_file, pieces
from sm121.pack.wheel import assemble
from sm121.sources.disk import writing
from sm121.values import CudaVersion, Sha256

if TYPE_CHECKING:
    from sm121.device import DeviceCode
    from sm121.finish.library import Settings
    from sm121.finish.model import FinishedLibrary
    from sm121.finish.units import Unit
    from sm121.progress import Progress


@dataclass(frozen=True, slots=True)
class FinishedWheel:
    """The wheel, and its libraries with device code; `path` names the same file again if nothing had to change."""

    path: Path
    sha256: Sha256
    size: int
    libraries: dict[str, FinishedLibrary]


@dataclass(frozen=True, slots=True)
class _Taken:
    """The libraries with device code, taken out of a wheel; `line` is the CUDA line that they were compiled with."""

    files: dict[str, Path]
    cpu: str
    line: str


def finish_wheel(
    wheel: Path, into: Path, settings: Settings, progress: Progress, *, line: str = ""
) -> FinishedWheel:
    """Finish `wheel` into the folder `into`.

    `line` names the CUDA line of an official wheel (`cu130`), found in its cubins if not given. Raises FinishError for
    a library that must not be rewritten, PackError for a wheel that cannot be made.
    """
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".finishing-", dir=into) as name:
        scratch = Path(name)
        with OfficialWheel.open(wheel) as source:
            taken = _take(source, scratch / "taken")
            ours = has_ledger(source)
            stamp = None if ours else _stamp(source, settings, line or taken.line)
        libraries = finish_libraries(taken.files, scratch / "finished", settings, progress)
        changed = {path: each.path for path, each in libraries.items() if each.changed}
        notes = [finishing_note(each) for each in libraries.values() if each.changed]
        if not changed:
            path = _copied(wheel, into)
            made = (path, Sha256.of_file(path), path.stat().st_size)
        elif stamp is None:
            rewritten = rewrite(wheel, changed, into, notes=notes)
            made = (rewritten.path, rewritten.sha256, rewritten.size)
        else:
            tag = find_platform_tag(wheel, changed, (), taken.cpu, scratch=scratch / "tag")
            pins = Sha256.of_bytes(json.dumps([[wheel.name, Sha256.of_file(wheel).hex]]).encode())
            made_with = MadeWith(
                pins, f"ptxas {next(iter(libraries.values())).ptxas.version}", notes=tuple(notes)
            )
            assembled = assemble(
                wheel, changed, (), {}, stamp, tag, into, made_with=made_with, finished={*changed}
            )
            made = (assembled.path, assembled.sha256, assembled.size)
    return FinishedWheel(*made, libraries)


def plan_wheel(wheel: Path, settings: Settings) -> dict[str, tuple[Unit, ...]]:
    """What finishing would do with each library of the wheel, without doing it."""
    with OfficialWheel.open(wheel) as source, tempfile.TemporaryDirectory() as scratch:
        return plan_libraries(_take(source, Path(scratch)).files, settings)


def finishing_note(library: FinishedLibrary) -> str:
    """A sentence for the ledger."""
    options = sorted({" ".join(unit.compiled.options) for unit in library.units if unit.compiled})
    return (
        f"{library.name} was finished for {library.target} by ptxas {library.ptxas.version}, "
        f"sha256 {library.ptxas.sha256.hex}"
        f"{', options ' + '; '.join(options) if any(options) else ''}: "
        f"{library.count(Deed.COMPILED)} units compiled for {library.arch.sm}, {library.count(Deed.SLIMMED)} slimmed, "
        f"{library.count(Deed.EMPTIED)} emptied, layout {library.layout}, sha256 before {library.before.sha256.hex}"
    )


def _take(source: OfficialWheel, into: Path) -> _Taken:
    """Write the members that hold device code, or are damaged so that it cannot be told, into files."""
    files: dict[str, Path] = {}
    machines: set[str] = set()
    line = ""
    for number, name in enumerate(sorted(source.infos)):
        inflated = source.inflated(name)
        start = next(inflated, b"")
        if start[: len(ELF_MAGIC)] != ELF_MAGIC:
            continue
        path = into / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as copy:
            copy.write(start)
            copy.writelines(inflated)
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as buffer:
            code = read_device_code(buffer)
            if not code.host_only:
                files[name] = path
                machines.add(code.machine)
                line = line or _line(buffer, code)
        if name not in files:
            path.unlink()
    if len(machines) != 1:
        raise PackError(
            f"{source.path.name} should hold libraries with device code for one processor, found "
            f"{', '.join(sorted(machines)) or 'none'}.",
            do="name a wheel with CUDA libraries.",
        )
    return _Taken(files, machines.pop(), line)


def _line(buffer: mmap, code: DeviceCode) -> str:
    """The CUDA line of a library by the first of its cubins that names its toolkit, `cu130`; "" if none does."""
    for image in code.images:
        if image.kind == "cubin":
            try:
                toolkit = read_cubin(payload(buffer, image), bodies=False).toolkit
                return CudaVersion.parse(toolkit.version).local if toolkit else ""
            except (DamagedError, ValueError):
                return ""
    return ""


def _stamp(source: OfficialWheel, settings: Settings, line: str) -> Stamp:
    if not line:
        raise PackError(
            f"{source.path.name}: no cubin in it names its toolkit, so its CUDA line is not known.",
            do="name it with --line, e.g. cu130.",
        )
    if source.version.local:
        raise PackError(
            f"{source.path.name} has a local version already, and no ledger of sm121.",
            do="take the official wheel without a local version, or finish its libraries one by one.",
        )
    return Stamp.of(source.distribution, str(source.version), line, settings.target)


def _copied(wheel: Path, into: Path) -> Path:
    path = into / wheel.name
    if not (path.exists() and path.samefile(wheel)):
        with completed_file(path) as file:
            for piece in pieces(wheel):
                file.write(piece)
    return path
