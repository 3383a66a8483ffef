"""git, kept away from the user's settings and from any repository around."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121 import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NAME, _MAIL = "sm121", "sm121@localhost"
_OFFSET = re.compile(r"^Hunk #\d+ succeeded at \d+ \(offset -?\d+ lines?\)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


@dataclass(frozen=True, slots=True)
class Hunks:
    """The hunks of one file that do not apply, numbered from 1, and how many it has."""

    path: str
    failed: tuple[int, ...]
    total: int

    def __str__(self) -> str:
        numbers = ", ".join(str(number) for number in self.failed)
        return f"{self.path} (hunk {numbers} of {self.total})"


@dataclass(frozen=True, slots=True)
class Applied:
    """What `git apply` answered: its exit code and all that it said."""

    code: int
    said: str

    @property
    def offset(self) -> bool:
        """Whether hunks were found at other lines than the patch says."""
        return bool(_OFFSET.search(self.said))

    @property
    def errors(self) -> tuple[str, ...]:
        """Its error lines, without the context that it searched for."""
        lines = (line.partition(": ") for line in self.said.splitlines())
        return tuple(
            text for kind, _, text in lines if kind in {"error", "fatal"} and text != "while searching for:"
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """The files that it wanted to change and did not find."""
        ending = ": No such file or directory"
        return tuple(dict.fromkeys(e.removesuffix(ending) for e in self.errors if e.endswith(ending)))

    @property
    def rejected(self) -> tuple[Hunks, ...]:
        """With --reject: the hunks that found no place, file by file."""
        found: dict[str, tuple[list[int], int]] = {}
        path = ""
        for line in self.said.splitlines():
            if start := re.fullmatch(r"Applying patch (.+) with \d+ rejects?\.\.\.", line):
                path = start[1]
            elif hunk := re.fullmatch(r"(Rejected hunk|Hunk) #(\d+)(\.| applied cleanly\.)", line):
                failed, total = found.get(path, ([], 0))
                failed += [int(hunk[2])] if hunk[1] == "Rejected hunk" else []
                found[path] = (failed, max(total, int(hunk[2])))
        return tuple(Hunks(path, tuple(failed), total) for path, (failed, total) in found.items() if failed)


@dataclass(frozen=True, slots=True)
class Stat:
    """Which paths a patch names, old names of renamed files too, and how many lines it adds and removes."""

    paths: tuple[str, ...]
    added: int
    removed: int


def settings(folder: Path) -> Mapping[str, str]:
    """An environment in which git ignores the user's settings and finds no repository above `folder`."""
    return process.environment(
        {
            "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }
    )


def program() -> str:
    """Where git is; its bare name if nowhere, and starting that says what to do."""
    return process.find("git") or "git"


def run(
    folder: Path, *words: str | Path, env: Mapping[str, str] | None = None, check: bool = True
) -> process.Completed:
    """Run git in `folder`, a repository of our own, and return what it printed.

    Raises ProgramError if it fails (with `check`).
    """
    own = {
        "GIT_AUTHOR_NAME": _NAME, "GIT_AUTHOR_EMAIL": _MAIL, "GIT_COMMITTER_NAME": _NAME,
        "GIT_COMMITTER_EMAIL": _MAIL, "GIT_EDITOR": "true",
    }  # fmt: skip
    return process.run(
        [program(), *words], cwd=folder, env={**settings(folder), **own, **(env or {})}, check=check
    )


def apply(folder: Path, patch: Path, *options: str) -> Applied:
    """`git apply` the file `patch` in `folder`, which is no repository."""
    done = process.run(
        [program(), "apply", "-v", "--whitespace=nowarn", *options, patch.absolute()],
        cwd=folder, env=settings(folder), check=False,
    )  # fmt: skip
    return Applied(done.returncode, done.stderr + done.stdout)


def stat(folder: Path, patch: Path) -> Stat | Applied:
    """What a patch is about, or git's answer if it cannot read the patch."""
    done = process.run(
        [program(), "apply", "--numstat", "-z", patch.absolute()],
        cwd=folder, env=settings(folder), check=False,
    )  # fmt: skip
    if done.returncode:
        return Applied(done.returncode, done.stderr)
    rows = [row.split("\t", 2) for row in done.stdout.split("\0") if row]
    counts = [(int(a), int(b)) for a, b, _ in rows if a != "-"]
    paths = [*(path for _, _, path in rows), *_sources(patch.read_bytes())]
    return Stat(tuple(dict.fromkeys(paths)), sum(a for a, _ in counts), sum(b for _, b in counts))


def _sources(patch: bytes) -> Iterator[str]:
    """The old names of renamed and copied files, which --numstat leaves out."""
    for line in patch.partition(b"diff --git ")[2].splitlines():
        for start in (b"rename from ", b"copy from "):
            if line.startswith(start):
                yield os.fsdecode(_plain(line.removeprefix(start)))


def _plain(name: bytes) -> bytes:
    """Undo git's quoting of unusual names."""
    if not name.startswith(b'"'):
        return name

    def restored(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(restored, name[1:-1])
