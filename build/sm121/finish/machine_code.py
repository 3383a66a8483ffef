"""Compiles the PTX of all units: several at a time, the largest first, each result checked against its PTX."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.device import DamagedError, payload, read_cubin
from sm121.device.fatbin import ENTRY
from sm121.device.mark import mark_name
from sm121.device.signature import cubin_signatures, ptx_signatures
from sm121.device.write import cubin_entry
from sm121.errors import FinishError
from sm121.finish.model import Compiled, File
from sm121.finish.units import HOST_FLAGS
from sm121.resources import read_machine
from sm121.resources.jobs import job_count
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from sm121.device import Buffer
    from sm121.finish.ptxas import Assembler
    from sm121.finish.units import Source
    from sm121.progress import Progress
    from sm121.values import CudaVersion

MEMORY_PER_BYTE = 48
"""Bytes of memory that ptxas takes for a byte of PTX (13.0.88: 38 for the 22 MB of FlashAttention 2's largest unit)."""
LEAST_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """PTX to be compiled: the library and unit it belongs to, and the file that holds it."""

    library: str
    unit: int
    buffer: Buffer
    source: Source


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The entry for a container, and what it was made of."""

    entry: bytes
    compiled: Compiled


def make_all(
    tasks: Iterable[Task], assembler: Assembler, jobs: int | None, progress: Progress
) -> dict[tuple[str, int], MachineCode]:
    """Compile every task; the results by library and unit.

    Raises FinishError with what every failing unit says, after the others are done: their results are kept.
    """
    ordered = sorted(tasks, key=lambda task: (-task.source.image.size, task.library, task.unit))
    if not ordered:
        return {}
    done: dict[tuple[str, int], MachineCode] = {}
    problems: list[str] = []
    weight = 0
    pool = ThreadPoolExecutor(jobs or _jobs(ordered[0].source.image.size))
    try:
        running = {pool.submit(_make, task, assembler): task for task in ordered}
        with progress.counter("ptxas", sum(task.source.image.size for task in ordered), "B") as counter:
            for future in as_completed(running):
                task = running[future]
                _collect(future, task, done, problems)
                weight += task.source.image.size
                counter.update(weight, f"{len(done)} of {len(ordered)} units")
    finally:
        pool.shutdown(cancel_futures=True)
    if problems:
        raise FinishError(problems, do="build this library from source, or leave it out.")
    return done


def _collect(
    future: Future[MachineCode], task: Task, done: dict[tuple[str, int], MachineCode], problems: list[str]
) -> None:
    try:
        done[task.library, task.unit] = future.result()
    except (FinishError, DamagedError) as error:
        problems += [f"{task.library}, unit {task.unit}: {problem}" for problem in error.problems]


def _jobs(largest: int) -> int:
    """How many may run at a time when the largest PTX has this many bytes."""
    machine = read_machine()
    memory = max(LEAST_MEMORY, largest * MEMORY_PER_BYTE)
    return job_count(cpus=machine.cpus, memory=machine.memory_available or 0, reserve=memory, per_job=memory)


def _make(task: Task, assembler: Assembler) -> MachineCode:
    source = task.source
    # The text in a fatbin ends with a NUL, which ptxas does not read.
    ptx = payload(task.buffer, source.image).rstrip(b"\0")
    made = assembler.assemble(ptx, source.arch, source.options)
    kernels = _check(made.cubin, ptx, source, assembler.ptxas.version)
    digest = Sha256.of_bytes(ptx)
    entry = cubin_entry(made.cubin, source.arch, name=mark_name(digest), flags=source.image.flags & HOST_FLAGS)
    header_size = ENTRY.unpack_from(entry)[2]
    compiled = Compiled(
        ptx_target=source.image.target, ptx=File(digest, len(ptx)), target=source.arch.sm, options=source.options,
        cubin=File(Sha256.of_bytes(made.cubin), len(made.cubin)), stored=len(entry) - header_size, kernels=kernels,
        seconds=made.seconds,
    )  # fmt: skip
    return MachineCode(entry, compiled)


def _check(cubin: bytes, ptx: bytes, source: Source, version: CudaVersion) -> int:
    """Compare a cubin with the PTX it was made of; return the number of its kernels. FinishError if it is another."""
    found = read_cubin(cubin, bodies=False)
    problems = list(found.damage)
    if found.arch.number != source.arch.number or (
        found.suffix_known and found.arch.suffix != source.arch.suffix
    ):
        problems.append(f"a cubin for {source.arch.sm} was wanted, ptxas made one for {found.arch.sm}.")
    if found.toolkit and found.toolkit.version != str(version):
        problems.append(f"ptxas {version} was to make the cubin, {found.toolkit.version} says that it did.")
    wanted, got = ptx_signatures(ptx), cubin_signatures(cubin)
    problems += [f"the kernel {name} is in the PTX and not in the cubin." for name in wanted.keys() - got.keys()]
    problems += [f"the kernel {name} is in the cubin and not in the PTX." for name in got.keys() - wanted.keys()]
    problems += [
        f"the kernel {name} has parameters (offset, size) {wanted[name]} in the PTX, {got[name]} in the cubin."
        for name in wanted.keys() & got.keys()
        if wanted[name] != got[name]
    ]
    if problems:
        raise FinishError(sorted(problems))
    return len(got)
