"""Finishes libraries: PTX that the driver would compile becomes machine code, and what cannot load goes.

Nothing is written before everything is compiled, and nothing is kept that was not read again and proven: a new file
appears under its name complete, or not at all.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import zstandard

from sm121.device import DamagedError, ElfFile, read_device_code
from sm121.device.compact import compact
from sm121.device.rewrite import changed, in_place
from sm121.device.write import container, kept_entry
from sm121.errors import FinishError, UsageError
from sm121.finish.machine_code import Task, make_all
from sm121.finish.model import File, FinishedLibrary, FinishedUnit, Layout
from sm121.finish.proof import library_differences
from sm121.finish.ptxas import Assembler, Ptxas
from sm121.finish.units import plan_units
from sm121.sources.disk import completed_file
from sm121.target import loads_as
from sm121.values import ArchSpec, Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from sm121.device import DeviceCode
    from sm121.device.rewrite import Change
    from sm121.finish.machine_code import MachineCode
    from sm121.finish.units import Unit
    from sm121.progress import Progress
    from sm121.target import Capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to finish: for which capability, with which ptxas.

    `arch` is the plain target to compile for, that of `target` if not given. `cache` keeps what ptxas made. `jobs`
    is how many of it run at a time, by processors and memory if not given. Usable PTX stays with `keep_ptx`.
    """

    target: Capability
    ptxas: Path
    cache: Path
    arch: ArchSpec | None = None
    jobs: int | None = None
    keep_ptx: bool = False
    layout: Layout = Layout.COMPACT


@dataclass(frozen=True, slots=True)
class _Opened:
    """A library that was read, and what is to be done with it."""

    name: str
    path: Path
    buffer: mmap
    code: DeviceCode
    units: tuple[Unit, ...]


def finish_library(path: Path, out: Path, settings: Settings, progress: Progress) -> FinishedLibrary:
    """Finish one library into the file `out`, which may be `path` itself.

    Raises like `finish_libraries`, and FinishError for a library that would hold no device code afterwards.
    """
    units = plan_libraries({path.name: path}, settings)[path.name]
    if not any(unit.kept or unit.source for unit in units):
        what = (
            f"nothing in its {len(units)} units loads on {settings.target}"
            if units
            else "it holds no device code"
        )
        raise FinishError(
            f"{path.name}: {what}; nothing would be left.", do="leave it as it is, or leave it out."
        )
    return _finish({path.name: (path, out)}, settings, progress)[path.name]


def finish_libraries(
    libraries: Mapping[str, Path], into: Path, settings: Settings, progress: Progress
) -> dict[str, FinishedLibrary]:
    """Finish libraries, given by their paths in a wheel, into files of the same paths below `into`.

    Raises FinishError with every reason not to rewrite one of them before anything is compiled, and ToolchainError if
    there is no usable ptxas. What ptxas has made stays in the cache: an interrupted run goes on where it was.
    """
    outside = [
        name for name in libraries if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
    ]
    if outside:
        raise UsageError(f"{name!r} is no path inside a wheel." for name in outside)
    return _finish({name: (path, into / name) for name, path in libraries.items()}, settings, progress)


def plan_libraries(libraries: Mapping[str, Path], settings: Settings) -> dict[str, tuple[Unit, ...]]:
    """What finishing would do with each library, without doing it. Raises like `finish_libraries`."""
    with ExitStack() as stack:
        return {each.name: each.units for each in _open(libraries, settings, Ptxas.at(settings.ptxas), stack)}


def compile_ptx(
    libraries: Mapping[str, Path], settings: Settings, progress: Progress, wanted: Callable[[str, int], bool]
) -> None:
    """Compile PTX of libraries or objects into the cache and write nothing else: what finishing will find there.

    `wanted` is asked with name and unit. Raises like `finish_libraries`.
    """
    ptxas = Ptxas.at(settings.ptxas)
    with ExitStack() as stack:
        opened = _open(libraries, settings, ptxas, stack)
        tasks = [task for task in _tasks(opened) if wanted(task.library, task.unit)]
        make_all(tasks, Assembler(ptxas, settings.cache), settings.jobs, progress)


def _tasks(opened: Iterable[_Opened]) -> list[Task]:
    return [
        Task(library.name, unit.container.index, library.buffer, unit.source)
        for library in opened
        for unit in library.units
        if unit.source
    ]


def _finish(
    libraries: Mapping[str, tuple[Path, Path]], settings: Settings, progress: Progress
) -> dict[str, FinishedLibrary]:
    ptxas = Ptxas.at(settings.ptxas)
    with ExitStack() as stack:
        opened = _open({name: path for name, (path, _) in libraries.items()}, settings, ptxas, stack)
        made = make_all(_tasks(opened), Assembler(ptxas, settings.cache), settings.jobs, progress)
        finished = {}
        for library in opened:
            own = {unit: code for (name, unit), code in made.items() if name == library.name}
            finished[library.name] = _write(library, own, libraries[library.name][1], settings, ptxas)
        return finished


def _open(libraries: Mapping[str, Path], settings: Settings, ptxas: Ptxas, stack: ExitStack) -> list[_Opened]:
    """Read all libraries and decide about their units; every reason against it in one error."""
    arch = _arch(settings)
    opened: list[_Opened] = []
    problems: list[str] = []
    for name, path in libraries.items():
        try:
            buffer = stack.enter_context(_mapped(path))
            code = read_device_code(buffer)
            units = plan_units(code, settings.target, arch, keep_ptx=settings.keep_ptx)
            opened.append(_Opened(name, path, buffer, code, units))
        except (FinishError, DamagedError) as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    kinds = {
        (unit.source.image.version, unit.source.image.arch, unit.source.arch): library.name
        for library in opened
        for unit in library.units
        if unit.source
    }
    problems += [f"{name}: {refusal}" for kind, name in kinds.items() if (refusal := ptxas.refusal(*kind))]
    if problems:
        raise FinishError(problems, do="leave these libraries out, or as they are; nothing was written.")
    return opened


def _arch(settings: Settings) -> ArchSpec:
    """The plain target to compile for."""
    arch = settings.arch or ArchSpec(settings.target.major, settings.target.minor)
    if arch.suffix or arch.ptx or not loads_as("cubin", arch, settings.target).machine_code:
        raise UsageError(
            f"{arch.sm} is no plain target whose code loads on {settings.target}.",
            do=f"name sm_{settings.target.number}.",
        )
    return arch


@contextmanager
def _mapped(path: Path) -> Iterator[mmap]:
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as buffer:
            yield buffer
    except OSError as error:
        raise FinishError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedError(f"{path} is empty.") from error


def _write(
    library: _Opened, made: Mapping[int, MachineCode], out: Path, settings: Settings, ptxas: Ptxas
) -> FinishedLibrary:
    """Write the finished library beside its name, prove it, give it the name."""
    entries = {
        unit.container.index: [
            *([made[unit.container.index].entry] if unit.source else []),
            *(kept_entry(library.buffer, image) for image in unit.kept),
        ]
        for unit in library.units
    }
    new = {
        unit.container.index: container(entries[unit.container.index])
        for unit in library.units
        if unit.dropped or unit.source
    }
    layout, changes, note = _lay_out(library, new, settings.layout)
    mode = library.path.stat().st_mode & 0o777
    with completed_file(out, mode=mode) as file:
        for piece in changed(library.buffer, changes):
            file.write(piece)
        file.flush()
        with mmap(file.fileno(), 0, access=ACCESS_READ) as result:
            problems = library_differences(library.buffer, result, library.code, entries)
            if problems:
                raise FinishError(
                    [f"{library.name}: the finished library is not right: {problem}" for problem in problems],
                    do="report this with the library's name; nothing was written.",
                )
            after = _file(result)
    return FinishedLibrary(
        name=library.name, path=out, before=_file(library.buffer), after=after,
        target=settings.target, arch=_arch(settings), ptxas=ptxas, zstd=".".join(map(str, zstandard.ZSTD_VERSION)),
        layout=layout, note=note,
        units=tuple(
            FinishedUnit(
                unit.container.index, unit.deed, tuple(image.target for image in unit.kept),
                tuple(image.target for image in unit.dropped),
                made[unit.container.index].compiled if unit.source else None,
            )
            for unit in library.units
        ),
    )  # fmt: skip


def _file(buffer: mmap) -> File:
    return File(Sha256(hashlib.sha256(buffer).hexdigest()), len(buffer))


def _lay_out(library: _Opened, new: Mapping[int, bytes], wanted: Layout) -> tuple[Layout, list[Change], str]:
    """The changes to the file; compact if that is wanted, possible, and makes it smaller."""
    if not new:
        return Layout.UNCHANGED, [], ""
    containers = library.code.containers
    compacted: list[Change] | None = None
    note = ""
    if wanted is Layout.COMPACT:
        try:
            compacted = compact(ElfFile.parse(library.buffer), containers, new)
            if any(len(change.data) < change.size for change in compacted):
                return Layout.COMPACT, compacted, ""
            note = "no whole page would become free."
        except FinishError as error:
            note = " ".join(error.problems)
    try:
        return Layout.IN_PLACE, in_place(containers, new), note
    except FinishError as error:
        if compacted is not None:
            return Layout.COMPACT, compacted, ""
        raise FinishError(
            [f"{library.name}: {problem}" for problem in (*error.problems, *([note] if note else []))],
            do="build this library from source for its target."
            if wanted is Layout.COMPACT
            else "let the layout be compact.",
        ) from error
