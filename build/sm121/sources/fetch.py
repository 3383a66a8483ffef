"""Pinned files by hash: from the user's package index or a mirror folder, several at a time.

What a file is called and where it lies is only a hint; its pin's size and sha256 decide.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sm121 import index
from sm121.errors import DigestError, FetchError, PinsError, Sm121Error, StorageError, UsageError
from sm121.progress import size as shown_size
from sm121.sources.disk import fault, writing
from sm121.sources.download import Download, session
from sm121.sources.offers import instead
from sm121.sources.store import FilePin, Store, mismatch
from sm121.values import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sm121.progress import Counter, Progress

__all__ = ["FilePin", "IndexOrigin", "MirrorOrigin", "Origin", "Store", "Transfer", "fetch"]

WORKERS = 4


class _Stopped(Exception):  # noqa: N818
    """Another file's fault or the user ends this transfer."""


class Transfer:
    """How a running transfer talks to the rest: bytes that came in, waiting, being told to stop."""

    def __init__(self, told: Callable[[int], None], stop: threading.Event) -> None:
        self._told, self._stop = told, stop
        self.came = 0
        """The bytes that are there now, those of an earlier run included."""

    def tick(self, count: int) -> None:
        """Count bytes; negative for some that were thrown away."""
        self.came += count
        self._told(count)

    def moved(self, count: int) -> None:
        """Count bytes, and end here if the others have been told to stop."""
        if self._stop.is_set():
            raise _Stopped
        self.tick(count)

    def pause(self, seconds: float) -> None:
        """Wait, but not for long after being told to stop."""
        if self._stop.wait(seconds):
            raise _Stopped


class Origin(Protocol):
    """Where files come from."""

    def bring(self, pin: FilePin, part: Path, transfer: Transfer) -> None:
        """Make `part` hold the pinned number of bytes. Raises FetchError, DigestError or StorageError."""


class IndexOrigin:
    """The package indexes of the user's configuration."""

    def __init__(self, files: Callable[[str], Sequence[index.IndexFile]] = index.project_files) -> None:
        self._files = files
        self._pages: dict[str, Sequence[index.IndexFile] | Sm121Error] = {}
        self._guard = threading.Lock()

    def bring(self, pin: FilePin, part: Path, transfer: Transfer) -> None:
        files = self._page(pin.name)
        listed = next((file for file in files if file.filename == pin.filename), None)
        if listed is None:
            raise _absent(pin, "the package index", [file.filename for file in files])
        if listed.sha256 not in {None, pin.sha256}:
            raise mismatch(pin, f"{listed.sha256} listed at {index.public(listed.url)}")
        with session() as opened:
            Download(opened, listed.url, pin, part, transfer.moved, transfer.pause).run()

    def _page(self, project: str) -> Sequence[index.IndexFile]:
        """Ask once per project, whatever the answer was."""
        with self._guard:
            if project not in self._pages:
                try:
                    self._pages[project] = self._files(project)
                except FetchError as error:
                    self._pages[project] = error
            page = self._pages[project]
        if isinstance(page, Sm121Error):
            raise page
        return page


def require_mirror(folder: Path | None) -> None:
    """Raise UsageError for a mirror that is asked for and is not there: it is known before anything is fetched."""
    if folder is None or folder.is_dir():
        return
    found = "is not a folder" if folder.exists() else "does not exist"
    raise UsageError(
        f"the mirror {folder} {found}.", do="give a folder that holds the files, or leave --mirror out."
    )


class MirrorOrigin:
    """A folder that holds the files, itself or in folders one level down (by project, by hash, anyhow)."""

    def __init__(self, folder: Path) -> None:
        require_mirror(folder)
        self.folder = folder
        self._files: dict[str, list[Path]] = {}
        for place in (folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())):
            for path in sorted(place.iterdir()):
                if path.is_file():
                    self._files.setdefault(path.name, []).append(path)

    def bring(self, pin: FilePin, part: Path, transfer: Transfer) -> None:
        candidates = self._files.get(pin.filename, [])
        if not candidates:
            raise _absent(pin, f"the mirror {self.folder}", [name for name in self._files if _of(pin, name)])
        fitting = [path for path in candidates if path.stat().st_size == pin.size]
        if not fitting:
            raise mismatch(pin, f"{candidates[0].stat().st_size} bytes at {candidates[0]}")
        try:
            source = fitting[0].open("rb")
        except OSError as error:
            raise FetchError(f"{fitting[0]} cannot be read: {error.strerror}.") from error
        transfer.moved(-_present(part))
        with source, writing(part, wanted=pin.size), part.open("wb") as target:
            while piece := source.read(CHUNK):
                target.write(piece)
                transfer.moved(len(piece))


def fetch(
    pins: Iterable[FilePin],
    into: Path,
    *,
    mirror: Path | None = None,
    progress: Progress,
    origin: Origin | None = None,
    rehash: bool = False,
    workers: int = WORKERS,
) -> dict[str, Path]:
    """Bring the pinned files into the store `into`; return file name -> path.

    Files that the store holds are not fetched again; `rehash` reads all their bytes once more. With `mirror`
    only that folder is asked, never a network. Two processes may fetch into one store at the same time.
    All files are tried before an error is raised, and it names every file that failed.

    Raises FetchError, DigestError, StorageError; PinsError if two pins want different bytes under one name.
    """
    wanted = _distinct(pins)
    if into.exists() and not into.is_dir():
        raise StorageError(f"{into} is not a folder.", do="name another one for the fetched files.")
    store = Store(into)
    missing = [pin for pin in wanted.values() if not store.holds(pin, rehash=rehash)]
    if missing:
        _require_space(store, missing)
        source = origin or (MirrorOrigin(mirror) if mirror is not None else IndexOrigin())
        _Fetching(store, source, progress).all(missing, workers)
    return {name: store.path(pin) for name, pin in wanted.items()}


def _distinct(pins: Iterable[FilePin]) -> dict[str, FilePin]:
    wanted: dict[str, FilePin] = {}
    faults = []
    for pin in pins:
        before = wanted.setdefault(pin.filename, pin)
        if before.sha256 != pin.sha256:
            faults.append(f"{pin.filename} is pinned twice, as {before.sha256} and as {pin.sha256}.")
        if Path(pin.filename).name != pin.filename:
            faults.append(f"{pin.filename!r} is no file name.")
    if faults:
        raise PinsError(faults)
    return wanted


def _require_space(store: Store, missing: Iterable[FilePin]) -> None:
    needed = sum(pin.size - _present(store.part(pin)) for pin in missing)
    folder = next(place for place in (store.root, *store.root.absolute().parents) if place.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{shown_size(needed)} are to be fetched, {folder} has {shown_size(free)} left.",
            do="free space or name another folder.",
        )


def _present(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Fetching:
    """Several transfers at a time, one counter, one error."""

    def __init__(self, store: Store, origin: Origin, progress: Progress) -> None:
        self._store, self._origin, self._progress = store, origin, progress
        self._stop = threading.Event()

    def all(self, missing: Sequence[FilePin], workers: int) -> None:
        errors: list[Sm121Error] = []
        total = sum(pin.size for pin in missing)
        title = missing[0].filename if len(missing) == 1 else f"{len(missing)} files"
        with (
            self._progress.counter(f"fetch {title}", total, "B") as counter,
            ThreadPoolExecutor(max(1, workers)) as pool,
            self._stopping(),
        ):
            tally = _Tally(counter)
            running = [pool.submit(self._one, pin, tally) for pin in missing]
            for done in as_completed(running):
                error = done.exception()
                if isinstance(error, Sm121Error):
                    errors.append(error)
                    if isinstance(error, StorageError):
                        self._stop.set()
                elif error is not None and not isinstance(error, _Stopped):
                    raise error
        if errors:
            raise _together(errors)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Whatever ends the waiting also ends the transfers, and the bytes that came in stay for the next run."""
        try:
            yield
        except BaseException:
            self._stop.set()
            raise

    def _one(self, pin: FilePin, tally: _Tally) -> None:
        if self._stop.is_set():
            raise _Stopped
        transfer = Transfer(lambda count: tally.add(count, pin.filename), self._stop)
        told = False

        def wait() -> None:
            nonlocal told
            if self._stop.is_set():
                raise _Stopped
            if not told:
                self._progress.say(f"  {pin.filename}: another process is fetching it; waiting.")
            told = True

        with self._store.lock(pin, wait=wait):
            if self._store.holds(pin):
                tally.add(pin.size, pin.filename)
                return
            try:
                self._bring(pin, transfer)
            except OSError as error:
                raise fault(self._store.part(pin), error, wanted=pin.size) from error

    def _bring(self, pin: FilePin, transfer: Transfer) -> None:
        left = _present(self._store.part(pin))
        transfer.tick(left)
        try:
            self._take(pin, transfer)
        except DigestError:
            if not left:
                raise
            # The bytes of an earlier, interrupted run may be at fault: once more, from the first byte on.
            self._progress.say(f"  {pin.filename}: what an earlier run left does not fit; fetching all of it.")
            self._take(pin, transfer)

    def _take(self, pin: FilePin, transfer: Transfer) -> None:
        part = self._store.part(pin)
        try:
            self._origin.bring(pin, part, transfer)
            self._store.admit(pin)
        except DigestError:
            transfer.tick(-transfer.came)
            part.unlink(missing_ok=True)
            raise


class _Tally:
    """The bytes of all transfers together."""

    def __init__(self, counter: Counter) -> None:
        self._counter, self._done, self._guard = counter, 0, threading.Lock()

    def add(self, count: int, note: str) -> None:
        with self._guard:
            self._done += count
            self._counter.update(self._done, note)


def _absent(pin: FilePin, where: str, filenames: Sequence[str]) -> FetchError:
    found = instead(pin.filename, filenames) or f"It has no file of {pin.name}."
    return FetchError(
        f"{pin.filename} is not in {where}. {found}",
        do="point to an index or a folder that has the file, or change the pin.",
    )


def _of(pin: FilePin, filename: str) -> bool:
    """Whether a file in a flat folder is of the pin's project, in any spelling."""
    plain = pin.name.lower().replace("-", "_").replace(".", "_")
    return filename.lower().replace("-", "_").replace(".", "_").startswith(f"{plain}_")


def _together(errors: Sequence[Sm121Error]) -> Sm121Error:
    """One error of the gravest kind with all problems and all advice."""
    kind = next(
        kind
        for kind in (StorageError, DigestError, FetchError, Sm121Error)
        if any(isinstance(error, kind) for error in errors)
    )
    problems = dict.fromkeys(problem for error in errors for problem in error.problems)
    advice = dict.fromkeys(error.do.removesuffix(".") for error in errors if error.do)
    return kind(problems, do=f"{'; '.join(advice)}.")
