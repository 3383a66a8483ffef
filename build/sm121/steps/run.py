"""One run of one plan: what every step's code is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.pins import FilePin
    from sm121.plan.cache import CompilerCache
    from sm121.plan.model import Plan
    from sm121.progress import Progress
    from sm121.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a plan runs."""

    work: Workspace
    dist: Path
    progress: Progress
    patches: Path
    mirror: Path | None = None
    cuda_home: Path | None = None
    replace: bool = False
    """Whether a wheel of the same name with other bytes may be replaced in `dist`."""
    cache: CompilerCache | None = None
    """The plan's compiler cache with its login and mode, which no plan holds."""


@dataclass(frozen=True, slots=True)
class Run:
    """A plan, where it runs, and the pinned files that were brought for it."""

    plan: Plan
    context: Context
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def work(self) -> Workspace:
        return self.context.work

    @property
    def progress(self) -> Progress:
        return self.context.progress

    def result(self, step: str) -> Path:
        """The folder of a step's result."""
        return self.work.result(self.plan.step(step))

    def file_pin(self, role: str) -> FilePin:
        """The pin of the file of that role."""
        return next(each.pin for each in self.plan.downloads if each.role == role)

    def file(self, role: str) -> Path:
        """The pinned file of that role."""
        return self.files[self.file_pin(role).filename]
