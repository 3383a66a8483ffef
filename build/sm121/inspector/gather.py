"""Reads an artifact into facts: every member once; libraries on all cores where any process can reach them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact import Kind, Survey
from sm121.inspector.container import contents_of
from sm121.inspector.facts import ArtifactFacts, LibraryFacts, PlainFacts
from sm121.inspector.pool import read_all
from sm121.inspector.reading import may_hold_code, read_library

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.artifact import Artifact, Member
    from sm121.inspector.reading import Depth
    from sm121.progress import Progress

_OF_INTEREST = ("vllm", "flashinfer")
_LOOSE = {"cubin": "*.cubin", "ptx": "*.ptx"}


def gather(
    artifact: Artifact, depth: Depth, *, jobs: int | None = None, progress: Progress | None = None
) -> ArtifactFacts:
    """Read everything; `jobs` limits the processes."""
    found = _Found(artifact, depth)
    whole = ""
    if artifact.kind is Kind.IMAGE:
        for member in artifact.members():
            found.stream(member)
    else:
        members = list(artifact.members())
        wanted = [(member, found.depth(member.path)) for member in members if found.is_candidate(member)]
        with read_all(artifact, wanted, jobs=jobs, progress=progress) as results:
            for member in members:
                if not found.is_candidate(member):
                    found.pass_by(member)
            whole = _sha256(artifact) if depth.digest else ""
            for member, library in results:
                found.take(member, library)
    return found.facts(whole)


class _Found:
    """What has come in so far."""

    def __init__(self, artifact: Artifact, depth: Depth) -> None:
        self._artifact = artifact
        self._depth = depth
        self._survey = Survey(artifact, hashes=depth.digest)
        self._libraries: list[LibraryFacts] = []
        self._paths: list[str] = []
        self._size = 0
        self._contents = contents_of(artifact)

    def stream(self, member: Member) -> None:
        """Read a member of an image, whose bytes pass once."""
        if self._contents is not None:
            member = self._contents.see(member)
        if self.is_candidate(member):
            self.take(member, read_library(member, self.depth(member.path)))
        else:
            self.pass_by(member)

    def is_candidate(self, member: Member) -> bool:
        """Whether a member is looked at for device code; of METADATA and its like no mode makes a program."""
        executable = member.executable and not self._survey.keeps(member.path)
        return self._artifact.kind is Kind.FILE or may_hold_code(member.path, executable=executable)

    def depth(self, path: str) -> Depth:
        """Symbols are kept where somebody compares them: alone, in wheels, in packages of interest, of the runtime."""
        *folders, name = path.split("/")
        interest = (
            self._artifact.kind in {Kind.WHEEL, Kind.FILE}
            or any(part.startswith(_OF_INTEREST) for part in folders)
            or name.startswith("libcudart.so")
        )
        return replace(
            self._depth,
            symbols=self._depth.symbols and interest,
            digest=self._depth.digest and self._survey.wants(path),
        )

    def take(self, member: Member, library: LibraryFacts | PlainFacts) -> None:
        """Keep what was read of a candidate."""
        self._note(member)
        if self._survey.wants(member.path):
            self._survey.measured(member, library.sha256)
        if isinstance(library, LibraryFacts):
            self._libraries.append(library)

    def pass_by(self, member: Member) -> None:
        """A member that holds no device code can still say something about a distribution."""
        self._note(member)
        if self._survey.wants(member.path):
            self._survey.see(member)

    def _note(self, member: Member) -> None:
        self._paths.append(member.path)
        self._size += member.size

    def facts(self, sha256: str) -> ArtifactFacts:
        """All of it."""
        file = _file(self._artifact)
        distributions = self._survey.distributions()
        contents = self._contents
        container = contents.container() if contents is not None else None
        return ArtifactFacts(
            kind=str(self._artifact.kind),
            name=self._artifact.name,
            size=file.stat().st_size if file is not None else self._size,
            libraries=tuple(_collected(self._libraries, single=self._artifact.kind is Kind.FILE)),
            distributions=distributions,
            paths=tuple(sorted(self._paths)),
            sha256=sha256,
            problems=(
                *self._artifact.problems,
                *self._survey.problems,
                *(contents.problems if contents else ()),
            ),
            container=container,
        )


def _file(artifact: Artifact) -> Path | None:
    """The file that the artifact is, None if it is none."""
    path = getattr(artifact, "path", None)
    return path if isinstance(path, Path) and path.is_file() else None


def _sha256(artifact: Artifact) -> str:
    file = _file(artifact)
    if file is None:
        return ""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _collected(libraries: Iterable[LibraryFacts], *, single: bool) -> list[LibraryFacts]:
    """Libraries by path, with bare cubins (and PTX files) of one package put together."""
    kept = []
    loose: dict[str, list[LibraryFacts]] = defaultdict(list)
    for library in libraries:
        if single or library.format not in _LOOSE:
            kept.append(library)
        else:
            loose[f"{_package(library.path)}/{_LOOSE[library.format]}"].append(library)
    kept += [_together(path, sorted(group, key=lambda item: item.path)) for path, group in loose.items()]
    return sorted(kept, key=lambda library: library.path)


def _together(path: str, group: list[LibraryFacts]) -> LibraryFacts:
    units = [replace(unit, member=library.path) for library in group for unit in library.units]
    return LibraryFacts(
        path=path,
        size=sum(library.size for library in group),
        format=f"{group[0].format}s",
        machine=group[0].machine,
        units=tuple(replace(unit, index=index) for index, unit in enumerate(units)),
        damage=tuple(f"{library.path}: {text}" for library in group for text in library.damage),
        notices=tuple(f"{library.path}: {text}" for library in group for text in library.notices),
        looked_into=group[0].looked_into,
        files=len(group),
    )


def _package(path: str) -> str:
    """The folder of the package that a file belongs to: what follows the site folder, or the first of all."""
    parts = path.split("/")
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-2]:
            return "/".join(parts[: parts.index(folder) + 2])
    return parts[0] if len(parts) > 1 else "."
