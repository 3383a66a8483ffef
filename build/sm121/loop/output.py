"""What compilers printed about the units that failed: errors with file and line, in the developer's own folder."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.compile.edges import SOURCE
from sm121.compile.logs import LogReader
from sm121.findings import Finding, Verdict
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT = r"(?P<text>.{1,600})"
_NVCC = re.compile(
    r"^(?P<path>[^\s(][^(\n]{0,400})\((?P<line>\d{1,7})\): "
    rf"(?:catastrophic |internal )?error(?: #[\w-]{{1,12}})?: {_TEXT}"
)
_GCC = re.compile(
    rf"^(?P<path>[^\s:][^:\n]{{0,400}}):(?P<line>\d{{1,7}})(?::\d{{1,6}})?: (?:fatal )?error: {_TEXT}"
)
_PLAIN = re.compile(
    r"^(?P<tool>ptxas|nvcc|nvlink|cicc|cudafe\+\+|cc1plus|fatbinary|[\w.+-]{0,40}g\+\+|ccache|sccache)\b"
    rf".{{0,300}}?(?:error|fatal)\s{{0,8}}: ?{_TEXT}"
)
_AFTERMATH = re.compile(r"aborted due to errors|exited with (?:code|status)")
MOST = 20
"""Errors of one unit that are kept: what follows is mostly of their making."""


@dataclass(frozen=True, slots=True)
class CompilerError:
    """One error: `path` in the source folder and `line`, "" and 0 if it names no source; the compiler's `text`."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a unit did not compile: its errors, known causes, and the raw lines."""

    errors: tuple[CompilerError, ...]
    causes: tuple[Finding, ...]
    lines: tuple[str, ...]


def outputs(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Object -> what its command printed, of the commands that failed, from ninja's lines."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if line.startswith("FAILED: "):
            name = re.sub(r"^FAILED: (?:\[code=-?\d+\] )?", "", line).partition(" ")[0]
            current = found.setdefault(name, [])
        elif re.match(r"\[\d+/\d+\] |ninja: ", line):
            current = None
        elif current is not None:
            current.append(line)
    return {name: tuple(said[1:]) for name, said in found.items()}


def read_failure(lines: Sequence[str]) -> Failure:
    """Read what one failed command printed."""
    reader = LogReader(GB10)
    errors: dict[CompilerError, None] = {}
    for line in lines:
        reader.feed(line)
        if match := _NVCC.match(line) or _GCC.match(line):
            errors[CompilerError(source_path(match["path"]), int(match["line"]), match["text"].strip())] = None
        elif (match := _PLAIN.match(line)) and not _AFTERMATH.search(line):
            errors[CompilerError("", 0, f"{match['tool']}: {match['text'].strip()}")] = None
    causes = tuple(finding for finding in reader.diagnoses(1) if finding.verdict is Verdict.FAIL)
    return Failure(tuple(errors)[:MOST], causes, tuple(lines))


def source_path(path: str) -> str:
    """A path as a compiler spells it, as one of the source folder; unchanged if it lies elsewhere."""
    plain = posixpath.normpath(path.strip())
    for start in (posixpath.normpath(SOURCE) + "/", "source/"):
        if plain.startswith(start):
            return plain.removeprefix(start)
    _, found, rest = plain.partition("/source/")
    return rest if found and rest.startswith(("csrc/", "cmake/")) else plain
