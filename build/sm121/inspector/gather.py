"""Reads an artifact into facts: every member once; libraries on all cores where any process can reach them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sm121.artifact import Kind
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict
from sm121.inspector.distributions import Collection, is_document, largest
from sm121.inspector.facts import ArtifactFacts, FileFacts, LibraryFacts
from sm121.inspector.pool import read_all
from sm121.inspector.reading import may_hold_code, read_library
from sm121.inspector.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sm121.artifact import Artifact, Member
    from sm121.inspector.reading import Depth
    from sm121.progress import Progress

_CHUNK = 1 << 20
_OF_INTEREST = ("vllm", "flashinfer")
_LOOSE = {"cubin": "*.cubin", "ptx": "*.ptx"}


@dataclass(slots=True)
class _Found:
    """What has come in so far."""

    depth: Depth
    kind: str
    libraries: list[LibraryFacts] = field(default_factory=list)
    files: dict[str, FileFacts] = field(default_factory=dict)
    documents: Collection = field(default_factory=Collection)
    problems: list[Finding] = field(default_factory=list)

    def for_member(self, path: str) -> Depth:
        """Digests and symbols are read where somebody compares them: in wheels and in packages of interest."""
        interest = self.kind in {Kind.WHEEL, Kind.FILE} or any(
            part.startswith(_OF_INTEREST) for part in path.split("/")[:-1]
        )
        return replace(self.depth, digest=self.depth.digest and interest, symbols=self.depth.symbols and interest)

    def library(self, member: Member, library: LibraryFacts | None) -> None:
        """Keep a library; a script that was executable is a file like others."""
        if library is None:
            self.file(member)
        else:
            self.libraries.append(library)
            self.files[member.path] = FileFacts(library.sha256, member.size)

    def file(self, member: Member) -> None:
        """Hash a file without device code where that is wanted, and keep what it says of a distribution."""
        hashed, document = self.for_member(member.path).digest, is_document(member.path)
        digest = ""
        try:
            if document:
                data = member.read(largest(member.path))
                self.documents.add(member.path, data)
                digest = hashlib.sha256(data).hexdigest()
            elif hashed:
                digest = _sha256(member)
        except ArtifactError as error:
            problems = (f"cannot be read: {problem}" for problem in error.problems)
            self.problems += [
                Finding("archive.damage", shown(member.path), Verdict.FAIL, got) for got in problems
            ]
        self.files[member.path] = FileFacts(digest, member.size)


def gather(
    artifact: Artifact,
    path: Path | None,
    depth: Depth,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ArtifactFacts:
    """Read everything. `path` is where the artifact lies on disk, if it does; `jobs` limits the processes."""
    found = _Found(depth, artifact.kind)
    if artifact.kind is Kind.IMAGE:
        for member in artifact.members():
            if may_hold_code(member.path, executable=member.executable):
                found.library(member, read_library(member, found.for_member(member.path)))
            else:
                found.file(member)
    else:
        members = list(artifact.members())
        single = artifact.kind is Kind.FILE
        candidates = [
            member for member in members if single or may_hold_code(member.path, executable=member.executable)
        ]
        chosen = {member.path for member in candidates}
        wanted = [(member, found.for_member(member.path)) for member in candidates]
        with read_all(artifact, wanted, jobs=jobs, progress=progress) as results:
            for member in members:
                if member.path not in chosen:
                    found.file(member)
            for member, library in results:
                found.library(member, library)
    return _facts(artifact, path, found)


def _facts(artifact: Artifact, path: Path | None, found: _Found) -> ArtifactFacts:
    file = path is not None and path.is_file()
    return ArtifactFacts(
        kind=str(artifact.kind),
        name=artifact.name,
        size=path.stat().st_size
        if path is not None and file
        else sum(item.size for item in found.files.values()),
        libraries=tuple(_collected(found.libraries, single=artifact.kind is Kind.FILE)),
        distributions=found.documents.distributions(),
        files=found.files,
        sha256=_of_path(path) if path is not None and file and found.depth.digest else "",
        problems=(*artifact.problems, *found.problems, *found.documents.problems),
    )


def _collected(libraries: Iterable[LibraryFacts], *, single: bool) -> list[LibraryFacts]:
    """Libraries by path, with bare cubins (and PTX files) of one package put together."""
    kept = []
    loose: dict[str, list[LibraryFacts]] = defaultdict(list)
    for library in libraries:
        if single or library.format not in _LOOSE:
            kept.append(library)
        else:
            loose[f"{_package(library.path)}/{_LOOSE[library.format]}"].append(library)
    for path, group in loose.items():
        group.sort(key=lambda library: library.path)
        units = [replace(unit, member=library.path) for library in group for unit in library.units]
        kept.append(
            LibraryFacts(
                path, sum(library.size for library in group), f"{group[0].format}s", group[0].machine,
                tuple(replace(unit, index=index) for index, unit in enumerate(units)),
                tuple(f"{library.path}: {text}" for library in group for text in library.damage),
                tuple(f"{library.path}: {text}" for library in group for text in library.notices),
                looked_into=group[0].looked_into, files=len(group),
            )
        )  # fmt: skip
    return sorted(kept, key=lambda library: library.path)


def _package(path: str) -> str:
    """The folder of the package that a file belongs to: what follows the site folder, or the first of all."""
    parts = path.split("/")
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-2]:
            return "/".join(parts[: parts.index(folder) + 2])
    return parts[0] if len(parts) > 1 else "."


def _sha256(member: Member) -> str:
    hasher = hashlib.sha256()
    with member.open() as stream:
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _of_path(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
