"""From what a user names - files, kernels, a patch, or whatever was changed - to units."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import UsageError
from sm121.expressions import typed
from sm121.inspector.policy import policy
from sm121.loop.affected import Edits, affected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sm121.compile.edges import Edge
    from sm121.loop.ground import Ground

FILES = (
    ".cu",
    ".cuh",
    ".h",
    ".hpp",
    ".hxx",
    ".inl",
    ".inc",
    ".c",
    ".cc",
    ".cpp",
    ".cxx",
    ".jinja",
    ".py",
    ".txt",
    ".cmake",
)
"""Endings that make a word a file; any other is a kernel's name, a pattern or a family."""
_WORD = re.compile(r"[A-Za-z_]\w{2,}")


def by_edits(
    ground: Ground, edits: Edits, commands: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """The units that edits reach, with the reasons."""
    return affected(ground.units.values(), edits, ground.reads, ground.closure, commands)


def word_problems(words: Iterable[str]) -> list[str]:
    """What is wrong with the words whatever the sources are: known before anything is compiled."""
    problems = []
    for word in words:
        if not word.endswith(FILES):
            try:
                typed(word)
            except ValueError as error:
                problems.append(f"{word!r} {error}.")
    return problems


def by_words(ground: Ground, words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The units that the words name. Raises one UsageError with every word that names nothing."""
    found: dict[str, tuple[str, ...]] = {}
    faults = []
    for word in words:
        try:
            one = by_file(ground, word) if word.endswith(FILES) else by_kernel(ground, word)
        except UsageError as error:
            faults += error.problems
            continue
        for unit, why in one.items():
            found[unit] = tuple(dict.fromkeys([*found.get(unit, ()), *why]))
    if faults:
        raise UsageError(
            faults,
            do="name a source file or header, a kernel, a regular expression or a family (sm121 inspect lists them).",
        )
    return found


def by_file(ground: Ground, word: str) -> dict[str, tuple[str, ...]]:
    """The units that read a file. Raises UsageError if there is none, or several fit."""
    path = locate(word, [*ground.files], ground.roots)
    one = by_edits(ground, Edits(frozenset({path})))
    if not one:
        raise UsageError(f"{path} is read by no unit that this build compiles.")
    return one


def locate(word: str, files: Sequence[str], roots: Sequence[Path]) -> str:
    """The source path that a word means: itself, below one of the roots, or the only one that ends so."""
    given = Path(word)
    inside = [str(given.absolute().relative_to(root)) for root in roots if given.absolute().is_relative_to(root)]
    wanted = [name for name in [word.removeprefix("./"), *inside] if name in files]
    if wanted:
        return wanted[0]
    fitting = [] if given.is_absolute() else [name for name in files if name.endswith(f"/{word}")]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{word} can be {', '.join(fitting)}.")
    names = {Path(name).name: name for name in files}
    near = difflib.get_close_matches(given.name, names, 3)
    raise UsageError(f"there is no source {word}{_maybe([names[name] for name in near])}.")


def by_kernel(ground: Ground, word: str) -> dict[str, tuple[str, ...]]:
    """The units with a kernel of that name (mangled or not), that matches, or of that family.

    Units that were never compiled are chosen by their text: by the pattern, or by any identifier in it.
    """
    try:
        pattern = typed(word)
    except ValueError as error:
        raise UsageError(f"{word!r} {error}.") from error
    kernels = ground.kernels
    families = policy().families
    names = sorted({name for unit in kernels.values() for name in unit})
    plain = dict(zip(names, demangled(names), strict=True))
    of_family = {name for name in names if families.of_name(name).casefold() == word.casefold()}
    found: dict[str, tuple[str, ...]] = {}
    for unit in ground.units.values():
        if unit.name in kernels:
            hits = [
                n for n in kernels[unit.name] if n in of_family or pattern.search(n) or pattern.search(plain[n])
            ]
            if hits:
                found[unit.name] = (f"{len(hits)} kernels",)
        elif _in_text(ground, unit, word, pattern):
            found[unit.name] = ("its text",)
    if not found:
        known = sorted({families.of_name(name) for name in names})
        near = difflib.get_close_matches(
            word, [*known, *{text.partition("<")[0].split()[-1] for text in plain.values() if text}], 3
        )
        raise UsageError(f"no unit has a kernel or family {word!r}{_maybe(near)}.")
    return found


def demangled(names: Sequence[str]) -> list[str]:
    """The names as one writes them, by binutils' c++filt; as they are where that is not installed."""
    program = process.find("c++filt")
    if not names or program is None:
        return list(names)
    done = process.run([program], stdin="\n".join(names) + "\n", check=False)
    lines = done.stdout.splitlines()
    return lines if len(lines) == len(names) else list(names)


def _in_text(ground: Ground, unit: Edge, word: str, pattern: re.Pattern[str]) -> bool:
    identifiers = [re.compile(rf"\b{found}") for found in _WORD.findall(word)]
    texts = (ground.text(path) for path in ground.closure(unit.path))
    return any(pattern.search(text) or any(one.search(text) for one in identifiers) for text in texts)


def _maybe(near: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
