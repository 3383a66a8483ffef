"""The scratch folder: finished steps by key, locks, logs. Nothing in it is precious.

A step writes into a temporary folder that gets its name when the step has ended well; so a folder with a step's
name is always complete, whatever was interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sm121.plan.model import Step
    from sm121.progress import Progress


_MARK = ".done"
"""File in a finished step's folder."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths below one scratch folder."""

    root: Path

    @property
    def files(self) -> Path:
        """Downloaded files by hash."""
        return self.root / "files"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        """The compiler cache."""
        return self.root / "cache"

    def tree(self, name: str) -> Path:
        """The build tree of one wheel: kept between builds, so that only what changed is compiled."""
        return self.root / "trees" / name

    def result(self, step: Step) -> Path:
        """Where the finished step is."""
        return self.root / "steps" / step.name / step.key

    def shard(self, step: Step, number: int, count: int) -> Path:
        """What a shard of a step wrote down."""
        return self.root / "shards" / step.key / f"{number}-of-{count}" / "shard.json"

    def done(self, step: Step) -> bool:
        """Whether the step's result is there. Its mark is written last, so an emptied folder has none."""
        return (self.result(step) / _MARK).is_file()

    def log(self, name: str) -> Path:
        """A new log file."""
        self.logs.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return self.logs / f"{stamp}-{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder for one build. Raises LockedError if another has it, StorageError if it is not ours."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / "lock").open("a+")
        except OSError as error:
            raise StorageError(
                f"the scratch folder {self.root} cannot be written: {error.strerror}.",
                do="name another folder with --work.",
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise LockedError(
                    f"another build works in {self.root} (process {file.read().strip() or 'unknown'}).",
                    do="wait for it, or name another folder with --work.",
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def do(self, step: Step, action: Callable[[Path], None], progress: Progress) -> Path:
        """Do `step` unless its result is there. Returns the folder with the result."""
        result = self.result(step)
        if self.done(step):
            progress.kept(step.title)
            return result
        scratch = result.with_name(f".{step.key}.new")
        with progress.step(step.title), storage(self.root):
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            action(scratch)
            (scratch / _MARK).write_text(f"{step.key}\n")
            if result.is_symlink() or result.is_file():
                result.unlink()
            shutil.rmtree(result, ignore_errors=True)
            scratch.rename(result)
        return result


@contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into a StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        where = error.filename or folder
        raise StorageError(
            f"{where} cannot be written: {error.strerror}.",
            do="free space, or name other folders with --work and --dist; what is finished is kept.",
        ) from error
