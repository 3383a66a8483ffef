"""Who serves while a set-up is validated: a server that runs already, or one that we start, wait for and end."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sm121.audit.smoke.client import Server
from sm121.audit.smoke.follow import Follower
from sm121.errors import ServerError, Sm121Error, UsageError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sm121.audit.bootlog import BootLog
    from sm121.audit.explain import Explanation
    from sm121.audit.smoke.setups import Setup
    from sm121.progress import Counter, Progress

_POLL = 1.0
_DOOMED = 60.0
"""Seconds that a server gets to end by itself, or to come up all the same, after a fault in its log."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server during its validation. `failure` says why there is none, `log` grows while it is read along."""

    url: str
    log: BootLog | None = None
    failure: Finding | None = None
    ended: Callable[[], str] = lambda: ""
    """How the server ended by itself, "" while it runs or where nobody can tell."""
    started: float | None = None
    """Seconds that it took to come up."""


class Offer(Protocol):
    """One set-up to be validated."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str:
        """What a user reads: an address, or how the server is started."""

    @property
    def log(self) -> Path | None: ...

    @property
    def expected(self) -> Explanation | None:
        """What explain says of it, if it was asked."""

    def serve(self, progress: Progress) -> AbstractContextManager[Served]:
        """Serve until the block ends; then nothing that was started for it runs any more."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A set-up that somebody else serves: a name (auto, b12x, marlin), its address, its log file if there is one."""

    name: str
    url: str
    log: Path | None = None
    expected: Explanation | None = None

    @property
    def where(self) -> str:
        return self.url

    @contextmanager
    def serve(self, progress: Progress) -> Iterator[Served]:  # noqa: ARG002 -- nothing is started
        """Nothing is started, and nothing is ended."""
        with ExitStack() as stack:
            log = stack.enter_context(Follower(self.log)).log if self.log else None
            yield Served(self.url, log)


class Started(Protocol):
    """A server that a Starter has started."""

    @property
    def url(self) -> str: ...

    def ended(self) -> str:
        """How it ended, "" while it runs."""

    def stop(self) -> None:
        """End it and all that belongs to it; harmless when it has ended."""


class Starter(Protocol):
    """Starts servers of one artifact."""

    @property
    def artifact(self) -> str: ...

    def start(self, setup: Setup, log: Path) -> Started:
        """Start one; all that it prints goes to `log`. Raises Sm121Error."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A set-up that we serve ourselves. `patience` bounds its start, in seconds."""

    setup: Setup
    starter: Starter
    log: Path
    patience: float = 3600.0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.setup.name

    @property
    def where(self) -> str:
        variables = [f"{name}={value}" for name, value in self.setup.environment.items()]
        return " ".join([*variables, self.starter.artifact, *self.setup.arguments])

    @property
    def expected(self) -> Explanation | None:
        return self.setup.expected

    @contextmanager
    def serve(self, progress: Progress) -> Iterator[Served]:
        """Start, wait by log and address until it is up; end it when the block ends, however that comes."""
        began = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        progress.say(f"  log: {self.log}", style="dim")
        try:
            started = self.starter.start(self.setup, self.log)
        except Sm121Error as error:
            yield Served("", failure=_failed(" ".join(error.problems), error.do))
            return
        try:
            # The log is closed before the server is ended: what it says while it is told to end is no fault.
            with Follower(self.log) as follower:
                failure = self._wait(started, follower, progress)
                took = time.monotonic() - began
                yield Served(started.url, follower.log, failure, started.ended, None if failure else took)
        finally:
            progress.say("  ending the server", style="dim")
            started.stop()

    def _wait(self, started: Started, follower: Follower, progress: Progress) -> Finding | None:
        """None once the server answers; otherwise why it never will."""
        began = time.monotonic()
        doomed: float | None = None
        with progress.counter("start", self.patience, "s") as bar:
            while (waited := time.monotonic() - began) < self.patience:
                if said := started.ended():
                    return _failed(f"it {said} before it was up", f"Read {self.log}.")
                if self._answers(started):
                    return None
                if doomed is None and follower.log.verdict is Verdict.FAIL and follower.log.findings:
                    doomed = waited
                if doomed is not None and waited - doomed > _DOOMED:
                    return _failed("its log shows a fault, and it neither came up nor ended", f"Read {self.log}.")
                self._show(bar, waited, follower)
                time.sleep(_POLL)
        return _failed(
            f"it is not up after {self.patience:g} s",
            f"Read {self.log}; a first start without modules compiled ahead took 43 minutes: raise --start-seconds.",
        )

    def _answers(self, started: Started) -> bool:
        try:
            Server(started.url, deadline=5, headers=self.headers).find_model()
        except ServerError:
            return False
        return True

    @staticmethod
    def _show(bar: Counter, waited: float, follower: Follower) -> None:
        bar.update(round(waited), follower.last[:100])


def _failed(got: str, advice: str) -> Finding:
    return Finding("smoke.start", "the server", Verdict.FAIL, got, "a server that is up", advice)


def require_no_password(urls: Sequence[str]) -> None:
    """An address is shown and kept in the results: what must not be read there is refused, and not repeated."""
    if any(re.search(r"//[^/]*@", url) for url in urls):
        raise UsageError(
            "an address of --url or --control holds a user's name or a password, which results would show.",
            do="leave it out, and name the variable that holds the server's key with --api-key-from.",
        )
