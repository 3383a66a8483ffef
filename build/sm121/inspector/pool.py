"""Reads libraries in as many processes as there are cores.

Only paths travel to the workers and only facts travel back. A pool is started where the work is worth it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from typing import TYPE_CHECKING

from sm121.artifact import Wheel
from sm121.errors import ArtifactError
from sm121.inspector.facts import LibraryFacts
from sm121.inspector.reading import read_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sm121.artifact import Artifact, Member
    from sm121.inspector.facts import PlainFacts
    from sm121.inspector.reading import Depth
    from sm121.progress import Counter, Progress

Wanted = tuple["Member", "Depth"]
Result = tuple["Member", "LibraryFacts | PlainFacts"]

WORTH_IT = 32 << 20
"""Bytes of libraries from which starting processes pays."""
_TOGETHER = 8 << 20
"""Bytes of small libraries that travel as one task."""


@contextmanager
def read_all(
    artifact: Artifact, wanted: Sequence[Wanted], *, jobs: int | None, progress: Progress | None
) -> Iterator[Iterator[Result]]:
    """Start reading `wanted`; the iterator gives each member with its facts, in any order.

    With processes the work goes on between entering the block and taking from the iterator.
    """
    total = sum(member.size for member, _ in wanted)
    workers = min(jobs or _cores(), len(wanted))
    if workers < 2 or total < WORTH_IT:
        with _counter(progress, total) as counter:
            yield _counted(((member, read_library(member, depth)) for member, depth in wanted), counter)
        return
    # The bar has a thread of its own, and a process must not be forked beside one: the pool comes first.
    forked = sys.platform.startswith("linux") and threading.active_count() == 1
    wheel = artifact if isinstance(artifact, Wheel) else None
    opened = wheel if forked or wheel is None else wheel.path
    pool = ProcessPoolExecutor(workers, get_context("fork" if forked else "spawn"), _open, (opened,))
    try:
        tasks = {
            pool.submit(_read, [(member.path if wheel else member, depth) for member, depth in batch]): batch
            for batch in _batches(wanted)
        }
        with _counter(progress, total) as counter:
            yield _counted(_finished(tasks), counter)
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Large libraries alone, small ones together, the most work first."""
    batch: list[Wanted] = []
    held = 0
    for item in sorted(wanted, key=lambda item: item[0].packed or item[0].size, reverse=True):
        if batch and held + item[0].size > _TOGETHER:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += item[0].size
    if batch:
        yield batch


def _finished(tasks: dict[Future[list[LibraryFacts | PlainFacts]], list[Wanted]]) -> Iterator[Result]:
    for future in as_completed(tasks):
        batch = tasks[future]
        try:
            results = future.result()
        except BrokenProcessPool:
            lost = "the process that read it was ended by the system; memory may have run out"
            results = [LibraryFacts(member.path, member.size, "", "", unread=lost) for member, _ in batch]
        yield from ((member, library) for (member, _), library in zip(batch, results, strict=True))


def _counted(results: Iterator[Result], counter: Counter | None) -> Iterator[Result]:
    done = 0
    for member, library in results:
        done += member.size
        if counter is not None:
            counter.update(done, member.name)
        yield member, library


def _counter(progress: Progress | None, total: int) -> AbstractContextManager[Counter | None]:
    return progress.counter("reading libraries", total, "B") if progress is not None else nullcontext()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_wheel: list[Wheel] = []
"""In a worker: the wheel that it reads from."""


def _open(wheel: Wheel | Path | None) -> None:
    """Take over the wheel that was opened before the fork, or open it anew."""
    gc.disable()  # facts hold no cycles, and looking for some is a tenth of the work
    _wheel[:] = [] if wheel is None else [wheel if isinstance(wheel, Wheel) else Wheel(wheel)]


def _read(batch: list[tuple[str | Member, Depth]]) -> list[LibraryFacts | PlainFacts]:
    return [read_library(item if not isinstance(item, str) else _member(item), depth) for item, depth in batch]


def _member(path: str) -> Member:
    member = _wheel[0].find(path)
    if member is None:
        raise ArtifactError(
            f"{path} is no longer in {_wheel[0].name}.", do="leave the file alone while it is read."
        )
    return member
