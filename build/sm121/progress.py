"""What a user sees while work goes on: steps with times, counters with an end in sight.

On a terminal a counter is a live bar; elsewhere it is one line every half minute, so that a CI log shows life
and stays short. Everything goes to standard error: standard output belongs to results.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Task

QUIET_INTERVAL = 30.0
"""Seconds between two lines of a counter when nobody watches a terminal."""
_BAR = 40
_NARROW = 100
"""Columns of a terminal below which a bar gets half its length, so that what it is about keeps its place."""
_LEAST_NOTE = 8


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """`512 B`, `4.2 MB`: decimal units, as package indexes show them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 unit`, `3 units`, `2 libraries`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def shortened(text: str, width: int) -> str:
    """A text cut in its middle to `width` characters: of a file's name both ends tell most."""
    if len(text) <= width:
        return text
    if width < 2:
        return text[:width]
    head = width // 2
    return f"{text[:head]}…{text[head + 1 - width :]}" if width - head > 1 else f"{text[:head]}…"


@dataclass
class Counter:
    """A running count of something with a known end."""

    _progress: Progress
    title: str
    total: float
    unit: str
    _bar: Bar | None
    _room: int = 0
    """Columns of the bar's line that its note may take."""
    _started: float = field(default_factory=time.monotonic)
    _spoke: float = field(default_factory=time.monotonic)

    def update(self, done: float, note: str = "", *, total: float | None = None) -> None:
        """Show that `done` of the total is reached, with what is being worked on."""
        if total is not None:
            self.total = total
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=done, total=self.total, note=escape(self._fitting(note))
            )
            return
        now = time.monotonic()
        if now - self._spoke < QUIET_INTERVAL:
            return
        self._spoke = now
        shown = (
            f"{size(done)} of {size(self.total)}"
            if self.unit == "B"
            else f"{done:g} of {self.total:g} {self.unit}"
        )
        self._progress.say(f"  {self.title}: {shown}, {duration(now - self._started)}  {note}".rstrip())

    def _fitting(self, note: str) -> str:
        return shortened(note, self._room) if self._room >= _LEAST_NOTE else ""


class _Amount(ProgressColumn):
    """How much of how much: bytes as sizes, anything else as counts."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(_amount(task.completed, task.total or 0, self.unit), style="progress.download")


def _amount(done: float, total: float, unit: str) -> str:
    if unit == "B":
        return f"{size(done):>8} of {size(total)}"
    return f"{int(done):{len(str(int(total)))}d}/{int(total)}"


class Progress:
    """Writes steps and counters to standard error."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.quiet = quiet

    def say(self, text: str, *, style: str = "") -> None:
        """One line."""
        if not self.quiet:
            self.console.print(text, style=style, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step and, when it ends well, its time."""
        started = time.monotonic()
        self.say(f"> {title}", style="bold")
        yield
        self.say(f"  done in {duration(time.monotonic() - started)}", style="dim")

    def kept(self, title: str) -> None:
        """Say that a step was finished before."""
        self.say(f"> {title}: already done", style="dim")

    @contextmanager
    def counter(self, title: str, total: float, unit: str = "") -> Iterator[Counter]:
        """Count towards `total`; unit "B" is shown as bytes."""
        if self.quiet or not self.console.is_terminal:
            yield Counter(self, title, total, unit, None)
            return
        width = self.console.width
        long = _BAR if width >= _NARROW else _BAR // 2
        room = width - len(f"  {title} {'':{long}} {_amount(total, total, unit)} 0:00:00 ")
        bar = Bar(
            TextColumn("  {task.description}"), BarColumn(long), _Amount(unit), TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}"), console=self.console, transient=True,
        )  # fmt: skip
        with bar:
            bar.add_task(escape(title), total=total, note="")
            yield Counter(self, title, total, unit, bar, room)
