"""Configures and runs one build in a laid-out tree."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121 import process
from sm121.compile.caching import NOT_MEASURED
from sm121.compile.logs import LogReader
from sm121.compile.ninja import Unit, arrange, object_name, relative, units
from sm121.errors import CompileError, OutOfMemoryError
from sm121.findings import Verdict
from sm121.progress import duration
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sm121.progress import Counter, Progress

TICK = 2.0
"""Seconds between two looks at what is being compiled."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one compile command cost: wall and CPU seconds, peak resident size in bytes; `note` says why one is None."""

    name: str
    wall: float
    cpu: float | None
    peak: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the build is run: jobs, how many heavy ones among them, and what is known of each object's cost."""

    jobs: int
    heavy_jobs: int
    seconds: Mapping[str, float]
    heavy: frozenset[str]


def configure(
    tree: Path, argv: Sequence[str], env: Mapping[str, str], log: Path, schedule: Schedule
) -> list[str]:
    """Run CMake, then make its ninja files relative and ordered. Returns CMake's status lines.

    Raises CompileError with the diagnoses of the log if CMake fails, or if it says that a kernel family that 12.1
    needs is not built.
    """
    lines: list[str] = []
    reader = LogReader(GB10)

    def on_line(line: str) -> None:
        lines.append(line)
        reader.feed(line)

    obj = tree / "obj"
    (obj / "build.ninja").unlink(missing_ok=True)
    status = process.stream(argv, log=log, on_line=on_line, cwd=tree, env=env)
    bad = [d for d in reader.diagnoses(status) if d.verdict is Verdict.FAIL]
    if status or bad:
        raise CompileError(
            [
                f"upstream's CMake ended with {status}; its log is {log}.",
                *(d.message for d in bad),
                *(f"    {line}" for line in _error_lines(lines)),
            ],
            do="mend what the log names and run the same command again.",
        )
    absolute = str(tree.resolve())
    rules = obj / "CMakeFiles" / "rules.ninja"
    rules.write_text(relative(rules.read_text(), absolute))
    build = obj / "build.ninja"
    scratch = build.with_suffix(".new")
    scratch.write_text(
        arrange(
            build.read_text(), tree=absolute, seconds=schedule.seconds, heavy=schedule.heavy,
            heavy_jobs=schedule.heavy_jobs,
        )
    )  # fmt: skip
    scratch.replace(build)
    return [line for line in lines if line.startswith("-- ")]


def planned_units(tree: Path) -> list[Unit]:
    """The translation units of the configured build with the device code each is asked for."""
    return units((tree / "obj" / "build.ninja").read_text())


def build(
    tree: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    schedule: Schedule,
    progress: Progress,
    retry_flag: str = "--jobs",
    listen: Callable[[str], None] | None = None,
) -> list[Cost]:
    """Run ninja and return what each command cost; `listen` gets every line that it prints.

    Raises OutOfMemoryError when the compiler was ended for want of memory, CompileError otherwise, each with the
    failing file and the compiler's own lines.
    """
    obj = tree / "obj"
    costs = obj / "costs.jsonl"
    costs.unlink(missing_ok=True)
    reader = LogReader(GB10)
    tail: deque[str] = deque(maxlen=200)
    with progress.counter("compile", 1, "commands") as counter:
        watch = _Watch(costs, counter, schedule)

        def on_line(line: str) -> None:
            tail.append(line)
            reader.feed(line)
            watch.line(line)
            if listen:
                listen(line)

        with watch:
            status = process.stream(argv, log=log, on_line=on_line, cwd=obj, env=env)
    if status:
        raise _failure(status, reader, tail, log, schedule, retry_flag)
    return read_costs(costs)


def read_costs(file: Path) -> list[Cost]:
    """The finished commands recorded by the launcher."""
    return [
        Cost(object_name(each["end"]), float(each["wall"]), None, None, f"CPU time and memory: {NOT_MEASURED}")
        if each["cpu"] is None
        else Cost(object_name(each["end"]), float(each["wall"]), float(each["cpu"]), int(each["peak_kib"]) * 1024)
        for each in _records(file)
        if "end" in each and each.get("status") == 0
    ]


def _records(file: Path) -> list[dict[str, Any]]:
    records = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:  # a line cut off by a kill
            continue
    return records


class _Watch:
    """Feeds a counter from ninja's lines and, between them, from the launcher's record."""

    def __init__(self, costs: Path, counter: Counter, schedule: Schedule) -> None:
        self._costs, self._counter, self._schedule = costs, counter, schedule
        self._done, self._total = 0, 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def line(self, line: str) -> None:
        if match := re.match(r"\[(\d+)/(\d+)\]", line):
            self._done, self._total = int(match[1]), int(match[2])

    def _look(self) -> None:
        while not self._stop.wait(TICK):
            self._counter.update(self._done, self._note(), total=self._total)

    def _note(self) -> str:
        running: dict[str, None] = {}
        finished: set[str] = set()
        for record in _records(self._costs):
            if "start" in record:
                running[record["start"]] = None
            else:
                running.pop(record.get("end", ""), None)
                finished.add(object_name(record.get("end", "")))
        left = sum(seconds for name, seconds in self._schedule.seconds.items() if name not in finished)
        names = ", ".join(Path(path).name.removesuffix(".o") for path in running)
        expected = f"about {duration(left / self._schedule.jobs)} left if nothing is cached; " if left else ""
        return f"{expected}now: {names}" if names else expected


def _failure(
    status: int, reader: LogReader, tail: deque[str], log: Path, schedule: Schedule, retry_flag: str
) -> CompileError:
    diagnoses = [d for d in reader.diagnoses(status) if d.verdict is Verdict.FAIL]
    said = [f"    {line}" for line in _error_lines(list(tail))]
    if any(d.check.endswith("out-of-memory") for d in diagnoses):
        fewer = max(1, schedule.jobs // 2)
        return OutOfMemoryError(
            [f"the compiler was ended for want of memory with {schedule.jobs} jobs; the log is {log}.", *said],
            do=f"run the same command again with {retry_flag} {fewer}; what is compiled is kept.",
        )
    return CompileError(
        [f"ninja ended with {status}; the complete log is {log}.", *(d.message for d in diagnoses), *said],
        do="mend the first error and run the same command again; what is compiled is kept.",
    )


def _error_lines(lines: Sequence[str], limit: int = 25) -> list[str]:
    wanted = [
        line for line in lines if re.search(r"\b(error|FAILED|fatal|Killed|No space)\b", line, re.IGNORECASE)
    ]
    return [line[:400] for line in (wanted or list(lines))[:limit]]
