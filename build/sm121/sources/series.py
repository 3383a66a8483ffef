"""Patches as files: `patches/<project>/<versions>/series` and the numbered patches that it lists.

A patch is what `git format-patch` writes. Its message says, as fields in the way of git's trailers, why it is
there, what upstream thinks of it, to which versions it belongs, when to drop it and which kernels it touches.
`<versions>` is a version (`0.33.0`), a range with both ends in it (`0.29.0..0.33.0`, open ends allowed) or a PEP
440 specifier. Words behind a name in `series`: `optional` may fail to apply, `off` is applied only on request.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sm121.errors import PatchError
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SERIES = "series"
FIELDS = ("Why", "Upstream", "Applies-to", "Drop-when", "Kernels")
"""What every patch of a series must say, besides its subject."""
_MARKS = ("optional", "off")
_FIELD = re.compile(rf"({'|'.join(FIELDS)}):\s*(.*)")


class UpstreamState(StrEnum):
    """What upstream did with a change."""

    NONE = "none"
    """Not offered to upstream."""
    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Upstream:
    """A link and the state that it had on a day: `https://… open 2026-09-08`, or `none 2026-09-08`."""

    link: str
    state: UpstreamState
    on: date

    @classmethod
    def parse(cls, text: str) -> Self:
        match = re.fullmatch(r"(?:(https?://\S+) (open|merged|closed)|(none)) (\d{4}-\d\d-\d\d)", text)
        try:
            if match:
                return cls(match[1] or "", UpstreamState(match[2] or match[3]), date.fromisoformat(match[4]))
        except ValueError:
            pass
        raise ValueError(f"looks like 'LINK open|merged|closed YYYY-MM-DD' or 'none YYYY-MM-DD', found {text!r}")

    def __str__(self) -> str:
        return f"{self.link} {self.state} {self.on}".strip()


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch: its name, its exact bytes, what its message says; `optional` and `off` come from the series."""

    name: str
    data: bytes
    optional: bool = False
    off: bool = False
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    subject: str = ""

    @classmethod
    def parse(cls, name: str, data: bytes, *, optional: bool = False, off: bool = False) -> Self:
        """Read a patch; a bare diff is one without message."""
        message = _message(data.decode("utf-8", "replace"))
        return cls(name, data, optional, off, _fields(message), _subject(message))

    @property
    def sha256(self) -> Sha256:
        return Sha256.of_bytes(self.data)

    def value(self, name: str) -> str:
        """A field's text, several separated by semicolons, "" if the patch does not say."""
        return "; ".join(self.fields.get(name, ()))

    @property
    def upstream(self) -> tuple[Upstream, ...]:
        return tuple(Upstream.parse(text) for text in self.fields.get("Upstream", ()))

    def faults(self) -> Iterator[str]:
        """What a patch of a series lacks."""
        if not self.subject:
            yield f"{self.name} has no subject; it should be what git format-patch writes."
        for name in FIELDS:
            if not self.value(name):
                yield f"{self.name} has no field {name}:."
        for text in self.fields.get("Upstream", ()):
            try:
                Upstream.parse(text)
            except ValueError as error:
                yield f"{self.name}: Upstream {error}."


@dataclass(frozen=True, slots=True)
class Series:
    """The patches of one folder, in their order, for `versions` of `project`."""

    project: str
    folder: Path
    versions: SpecifierSet
    patches: tuple[Patch, ...]

    def covers(self, version: str) -> bool:
        """Whether a version is in the range; a local version counts as its public one."""
        return self.versions.contains(Version(version).public, prereleases=True)


def versions_of(text: str) -> SpecifierSet:
    """Read a version, a range `A..B` or a PEP 440 specifier. Raises ValueError."""
    try:
        if text[:1] in set("<>=!~"):
            return SpecifierSet(text)
        low, dots, high = text.partition("..")
        if not dots:
            return SpecifierSet(f"=={Version(low)}")
        ends = [*([f">={Version(low)}"] if low else []), *([f"<={Version(high)}"] if high else [])]
        if ends:
            return SpecifierSet(",".join(ends))
    except (InvalidSpecifier, InvalidVersion):
        pass
    raise ValueError(f"looks like 0.33.0, 0.29.0..0.33.0 or '>=0.29,<0.34', found {text!r}")


def load_series(root: Path, project: str, version: str | None = None) -> list[Series]:
    """Read every series of `project` below `root` that covers `version` (all of them without one).

    A project without a folder has no patches. Raises one PatchError with all that is wrong: unreadable names, a
    listed patch that is not there, a patch that is not listed, missing fields.
    """
    home = root / canonicalize_name(project)
    if not home.is_dir():
        return []
    found, faults = [], list[str]()
    for folder in sorted(entry for entry in home.iterdir() if entry.is_dir()):
        try:
            versions = versions_of(folder.name)
        except ValueError as error:
            faults.append(f"{folder} is named after no version: a version or range {error}.")
            continue
        series = Series(project, folder, versions, tuple(_patches(folder, faults)))
        if version is None or series.covers(version):
            found.append(series)
    if faults:
        raise PatchError(faults, do="mend the files; nothing was applied.")
    return found


def chosen(series: list[Series], extra: frozenset[str] = frozenset()) -> list[Patch]:
    """The patches to apply: all that are not off, and those that `extra` names (with or without `.patch`).

    Raises PatchError for a name that no series has.
    """
    patches = [patch for one in series for patch in one.patches]
    names = {patch.name.removesuffix(".patch"): patch for patch in patches}
    wanted = {name.removesuffix(".patch") for name in extra}
    unknown = sorted(wanted - set(names))
    if unknown:
        raise PatchError(
            [f"there is no patch {name!r}{_nearest(name, list(names))}." for name in unknown],
            do=f"choose among: {', '.join(sorted(names)) or 'none are there for this version'}.",
        )
    return [patch for patch in patches if not patch.off or patch.name.removesuffix(".patch") in wanted]


def load_patches(root: Path, project: str, version: str, extra: Iterable[str] = ()) -> list[Patch]:
    """The patches that a build of `version` applies: of every covering series those not off, and `extra`.

    Raises PatchError as `load_series` and `chosen` do.
    """
    return chosen(load_series(root, project, version), frozenset(extra))


def read_list(folder: Path) -> list[tuple[str, frozenset[str]]]:
    """The names in `folder/series` with their marks. Raises PatchError."""
    path = folder / SERIES
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PatchError(f"{path} cannot be read: {error}.") from error
    listed = list[tuple[str, frozenset[str]]]()
    faults = list[str]()
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *marks = words
        if Path(name).name != name:
            faults.append(f"{path}:{number}: {name!r} is not a file beside the series.")
        if name in {known for known, _ in listed}:
            faults.append(f"{path}:{number}: {name} is listed twice.")
        faults += [
            f"{path}:{number}: {mark!r} is no mark{_nearest(mark, list(_MARKS))}; known are {', '.join(_MARKS)}."
            for mark in marks
            if mark not in _MARKS
        ]
        listed.append((name, frozenset(marks)))
    if faults:
        raise PatchError(faults)
    return listed


def _patches(folder: Path, faults: list[str]) -> Iterator[Patch]:
    try:
        listed = read_list(folder)
    except PatchError as error:
        faults += error.problems
        return
    for name, marks in listed:
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            faults.append(f"{folder / SERIES} lists {name}, which cannot be read: {error.strerror}.")
            continue
        patch = Patch.parse(name, data, optional="optional" in marks, off="off" in marks)
        faults += [f"{folder}: {fault}" for fault in patch.faults()]
        applies_to = patch.value("Applies-to")
        if applies_to and applies_to != folder.name:
            faults.append(f"{folder}: {name} says Applies-to: {applies_to}, and lies in {folder.name}.")
        yield patch
    names = {name for name, _ in listed}
    faults += [
        f"{path} is not listed in {SERIES}; list it or remove it."
        for path in sorted(folder.glob("*.patch"))
        if path.name not in names
    ]


def _message(text: str) -> str:
    """What stands before the diff: up to `---` of a mail, or to the first file header."""
    match = re.search(r"^(?:---$|---\s|diff --git |Index: )", text, re.MULTILINE)
    return text[: match.start()] if match else text


def _fields(message: str) -> dict[str, tuple[str, ...]]:
    """Fields with their continuation lines, which are indented."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in message.splitlines():
        match = _FIELD.fullmatch(line)
        if match:
            current = found.setdefault(match[1], [])
            current.append(match[2].strip())
        elif current and line[:1].isspace() and line.strip():
            current[-1] = f"{current[-1]} {line.strip()}".strip()
        else:
            current = None
    return {name: tuple(values) for name, values in found.items()}


def _subject(message: str) -> str:
    match = re.search(r"^Subject:\s*(.*(?:\n[ \t].*)*)", message, re.MULTILINE)
    return re.sub(r"^\[PATCH[^]]*\]\s*", "", re.sub(r"\s+", " ", match[1]).strip()) if match else ""


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
