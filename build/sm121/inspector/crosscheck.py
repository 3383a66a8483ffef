"""The second opinion: cuobjdump reads the same libraries, and every difference is a failure of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import ArtifactError, ProgramError
from sm121.findings import Finding, Verdict
from sm121.inspector.facts import ABSENT
from sm121.inspector.listing import NOTHING, read_dump, read_listing, read_tool_version
from sm121.inspector.words import joined, listed, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.artifact import Artifact, Member
    from sm121.inspector.facts import LibraryFacts, UnitFacts
    from sm121.inspector.listing import Shown

_CHECK = "cross-check.cuobjdump"
_SHOWS_ALL_SUFFIXES = (13, 1)
_TIMEOUT = 600.0
_COPY = 1 << 20

Key = tuple[str, int, str, frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class Tool:
    """A cuobjdump that answers. Before 13.1 it does not show every suffix."""

    path: str
    version: tuple[int, int]

    @property
    def name(self) -> str:
        return f"cuobjdump {self.version[0]}.{self.version[1]}"

    @property
    def shows_suffixes(self) -> bool:
        return self.version >= _SHOWS_ALL_SUFFIXES


def cross_check(artifact: Artifact, libraries: tuple[LibraryFacts, ...], wanted: str = "") -> list[Finding]:
    """Compare every library with what cuobjdump (`wanted`, or the one on PATH) finds in it.

    Without a cuobjdump that answers nothing is known: that is UNKNOWN, never a pass.
    """
    path = wanted or process.find("cuobjdump") or ""
    if not path:
        got = "cuobjdump was not found on PATH"
        advice = "Install nvidia-cuda-cuobjdump, or name the program with --cuobjdump."
        return [Finding(_CHECK, "cuobjdump", Verdict.UNKNOWN, got, "a second reader", advice)]
    try:
        version = read_tool_version(process.run([path, "--version"], timeout=60).stdout)
    except ProgramError as error:
        got = shown(" ".join(error.problems), 400)
        return [Finding(_CHECK, "cuobjdump", Verdict.UNKNOWN, got, "a cuobjdump that runs")]
    if version is None:
        got = f"{path} does not say its version"
        return [Finding(_CHECK, "cuobjdump", Verdict.UNKNOWN, got, "a cuobjdump of CUDA")]
    by_path = {library.path: library for library in libraries if library.format and library.files == 1}
    findings = []
    with tempfile.TemporaryDirectory(prefix="sm121-") as folder:
        for member in artifact.members(by_path.__contains__):
            findings += _member(member, by_path[member.path], Tool(path, version), Path(folder))
    left = [library.path for library in libraries if library.files > 1]
    if left:
        got = f"bare images are not cross-checked: {listed(left)}"
        findings.append(Finding(_CHECK, "cuobjdump", Verdict.INFO, got))
    return findings


def _member(member: Member, library: LibraryFacts, tool: Tool, folder: Path) -> list[Finding]:
    """cuobjdump reads files, so the member becomes one, for as long as it is read."""
    file = folder / ("library" + "".join(Path(member.name).suffixes[-1:]))
    try:
        with member.open() as source, file.open("wb") as target:
            shutil.copyfileobj(source, target, _COPY)
        return list(_compare(file, library, tool))
    except (ArtifactError, ProgramError) as error:
        return [Finding(_CHECK, library.path, Verdict.UNKNOWN, shown(" ".join(error.problems), 400), "an answer")]
    finally:
        file.unlink(missing_ok=True)


def _compare(file: Path, library: LibraryFacts, tool: Tool) -> Iterator[Finding]:
    options = ["-symbols"] if library.looked_into else ["--list-elf", "--list-ptx"]
    runs = [process.run([tool.path, "-all", option, file], timeout=_TIMEOUT, check=False) for option in options]
    said = " ".join(run.stdout[-200:] + run.stderr for run in runs)
    if any(run.returncode for run in runs):
        yield _refusal(said, library, tool)
        return
    try:
        theirs = (
            read_dump(runs[0].stdout)
            if library.looked_into
            else [image for run in runs for image in read_listing(run.stdout.splitlines())]
        )
    except ValueError as error:
        yield Finding(_CHECK, library.path, Verdict.UNKNOWN, f"{tool.name} prints what cannot be read: {error}")
        return
    if library.format == "cubin" and not theirs:
        yield Finding(_CHECK, library.path, Verdict.INFO, f"{tool.name} names no target of a bare cubin")
        return
    yield from compare(library, theirs, tool)


def _refusal(said: str, library: LibraryFacts, tool: Tool) -> Finding:
    if NOTHING in said and library.host_only:
        return Finding(_CHECK, library.path, Verdict.PASS, f"{tool.name} finds no device code either")
    if library.damage:
        return Finding(
            _CHECK, library.path, Verdict.INFO, f"{tool.name} cannot read it either: {shown(said.strip())}"
        )
    got = f"{tool.name} finds nothing in it: {shown(said.strip())}"
    return Finding(_CHECK, library.path, Verdict.FAIL, got, plural(len(library.units), "unit"))


def compare(library: LibraryFacts, images: list[Shown], tool: Tool) -> Iterator[Finding]:
    """Image by image: kind, target, kernels. LTO-IR is shown by no version of cuobjdump."""
    names = library.looked_into
    theirs: Counter[Key] = Counter(
        (image.kind, image.arch.number, image.arch.suffix, image.kernels if names else None) for image in images
    )
    ours = Counter(_keys(library, names=names))
    if not (tool.shows_suffixes and names):
        theirs, ours = _blurred(theirs, tool, names=names), _blurred(ours, tool, names=names)
    missing, surplus = ours - theirs, theirs - ours
    if not missing and not surplus:
        kernels = sum(len(key[3] or ()) * count for key, count in ours.items())
        got = f"{tool.name} finds the same {plural(ours.total(), 'image')}" + (
            f" with {kernels} kernels" if names else ""
        )
        yield Finding(_CHECK, library.path, Verdict.PASS, got)
        return
    sides = (("here", missing), (f"by {tool.name}", surplus))
    got = joined([f"{side.total()} images found only {where}: {_named(side)}" for where, side in sides if side])
    advice = "Report it with the file: one of the two readers is wrong."
    yield Finding(_CHECK, library.path, Verdict.FAIL, got, "the same images", advice)


def _keys(library: LibraryFacts, *, names: bool) -> Iterator[Key]:
    for unit in library.units:
        for index, image in enumerate(unit.images):
            if image.kind != "lto":
                kernels = _kernels(unit, index) if names and image.kind == "cubin" else None
                yield image.kind, image.arch.number, image.arch.suffix, kernels


def _kernels(unit: UnitFacts, index: int) -> frozenset[str]:
    return frozenset(kernel.name for kernel in unit.kernels if kernel.sizes[index] != ABSENT)


def _blurred(keys: Counter[Key], tool: Tool, *, names: bool) -> Counter[Key]:
    """Without the suffixes that this cuobjdump, or its list, does not show."""
    hidden = {"f"} if tool.shows_suffixes else {"a", "f"}
    if names and tool.shows_suffixes:
        return keys
    blurred: Counter[Key] = Counter()
    for (kind, number, suffix, kernels), count in keys.items():
        blurred[kind, number, "" if suffix in hidden else suffix, kernels] += count
    return blurred


def _named(side: Counter[Key]) -> str:
    targets: Counter[str] = Counter()
    for (kind, number, suffix, _), count in side.items():
        targets[f"{'sm' if kind == 'cubin' else 'compute'}_{number}{suffix}"] += count
    return ", ".join(f"{target} ({count})" for target, count in sorted(targets.items()))
