"""Runs one program beside another and ends it, with everything it started, when the other one is gone.

A program of its own, started by `process.start`: `python -I guard.py GRACE PROGRAM [ARGUMENT...]`. Its standard input is a
pipe that the starter holds open. When the pipe closes, whatever closed it (a stop, a crash, a kill), the program and
all its descendants get SIGTERM, and SIGKILL after GRACE seconds. It ends with the program's own status.
Uses the standard library alone: it runs with `-I`, without the package.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans of the program become children of this one, so that none is lost."""
_POLL = 0.1
_NOT_STARTED = 127
_LEFT = 2.0
"""Seconds that processes get which outlive the program."""
_KILLED = 10.0
"""Seconds in which killed processes must be gone."""


def main(grace: float, argv: list[str]) -> int:
    """Run `argv` until it ends or standard input does; returns its status, 128 + number for a signal."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", flush=True)
        return _NOT_STARTED
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # From here on the pipe alone decides, so that the program is never left without its guard.
        signal.signal(number, signal.SIG_IGN)
    asked = False
    while child.poll() is None and not asked:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL)
        asked = bool(readable) and not os.read(sys.stdin.fileno(), 1)
    end_all(child, grace)
    status = child.wait()
    return 128 - status if status < 0 else status


def end_all(child: subprocess.Popen[bytes], grace: float) -> None:
    """End the program with its group, then what has left the group; afterwards nothing is left."""
    _send(os.killpg, child.pid, signal.SIGTERM)
    ends = time.monotonic() + grace
    while time.monotonic() < ends and child.poll() is None:
        time.sleep(_POLL)
    for number, patience in ((signal.SIGTERM, _LEFT), (signal.SIGKILL, _KILLED)):
        ends = time.monotonic() + patience
        while (left := descendants(os.getpid())) and time.monotonic() < ends:
            for process in left:
                _send(os.kill, process, number)
            time.sleep(_POLL)
            child.poll()


def descendants(root: int) -> list[int]:
    """Processes below `root` that still run, deepest last."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _send(how: Callable[[int, int], None], process: int, number: int) -> None:
    try:
        how(process, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    os._exit(main(float(sys.argv[1]), sys.argv[2:]))
