"""Stands in for `nox` in the steps of a workflow: the real sessions of noxfile.py, in this environment.

A session's own function runs with what the step passed; it installs nothing, `python` is this Python, and a verb that
would build for hours gets `--dry-run`. What was run goes to the file that SM121_RAN names.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nox.registry

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
LONG = {"build", "image"}


class Session:
    """As much of a nox session as the sessions of this project use."""

    invoked_from = str(ROOT)
    chdir = staticmethod(contextlib.chdir)

    def __init__(self, posargs: list[str]) -> None:
        self.posargs = posargs

    def install(self, *_arguments: str) -> None:
        """Everything is here."""

    def run(self, program: str, *arguments: str, env: Mapping[str, str] | None = None, **_how: Any) -> None:
        """Run it, with `--dry-run` where it would take hours."""
        command = [sys.executable if program == "python" else program, *arguments]
        verb = arguments[2] if arguments[:2] == ("-m", "sm121") else ""
        with Path(os.environ["SM121_RAN"]).open("a") as log:
            log.write(" ".join(["sm121" if verb else program, *arguments[2 if verb else 0 :]]) + "\n")
        if verb in LONG:
            command.append("--dry-run")
        if program == "python" and not verb:
            return
        done = subprocess.run(command, env={**os.environ, **(env or {})}, cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(done.returncode)


def main() -> None:
    """`nox -s NAME [-- ARGUMENTS]`."""
    assert sys.argv[1] == "-s", sys.argv
    sys.path.insert(0, str(ROOT))
    __import__("noxfile")
    sessions = nox.registry.get()
    if sys.argv[2] not in sessions:
        sys.exit(f"Sessions not found: {sys.argv[2]}")
    sessions[sys.argv[2]](Session(sys.argv[4:]))


if __name__ == "__main__":
    main()
