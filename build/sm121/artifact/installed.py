"""Finds the distributions in a wheel, a folder, an environment or an image, and compares RECORD with the files."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sm121.artifact.distribution import DOCUMENTS, Distribution
from sm121.artifact.member import LIMITS, Kind, printable
from sm121.artifact.metadata import Stamp
from sm121.artifact.record import Measured, RecordRow, check_record
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.artifact.member import Artifact, Buffer, Member

_INFO = re.compile(r"(?:.*/)?[^/]+\.(?:dist-info|egg-info)", re.DOTALL)
_STAMPS = frozenset({"_version.py", "_build_meta.py", "version.py"})
_SITES = frozenset({"site-packages", "dist-packages"})


class Survey:
    """Takes note of members while they pass, so that one pass over an artifact serves all questions.

    Files that RECORD lists and that were not shown to `see` are looked up in the artifact: on disk they are
    hashed then, in an image only their size is compared. With `hashes` off nothing is hashed, and every RECORD
    stays unverified. Members that cannot be read are named in `problems`.
    """

    def __init__(self, artifact: Artifact, *, hashes: bool = True) -> None:
        self.problems: list[Finding] = []
        self._artifact = artifact
        self._hashes = hashes
        self._seen: dict[str, Measured] = {}
        self._documents: dict[str, dict[str, bytes]] = {}
        self._layers: dict[str, str] = {}
        self._sources: dict[str, bytes] = {}

    def wants(self, path: str) -> bool:
        """Whether a path is of use here: it belongs to a wheel or a site folder, or is a program."""
        if self._artifact.kind is Kind.WHEEL or _document(path):
            return True
        *folders, _ = path.split("/")
        return not _SITES.isdisjoint(folders) or folders[-1:] == ["bin"]

    @staticmethod
    def keeps(path: str) -> bool:
        """Whether the content of a file is read here: it describes a distribution, or says its version."""
        return _document(path) is not None or path.rpartition("/")[2] in _STAMPS

    def see(self, member: Member, data: Buffer | None = None) -> None:
        """Take note of a member; `data` is its content if the caller has it already."""
        if data is None and member.link in self._seen and _document(member.path) is None:
            self._seen[member.path] = self._seen[member.link]
            return
        try:
            kept = self._kept(member, data)
            self._seen[member.path] = self._measured(member, data if kept is None else kept)
        except ArtifactError as error:
            self._seen[member.path] = Measured(member.size, "", "")
            got = error.problems[0].rstrip(".")
            self.problems.append(Finding("archive.damage", printable(member.path), Verdict.FAIL, got))

    def measured(self, member: Member, sha256: str) -> None:
        """Take note of a member that the caller has read; `sha256` is hexadecimal, "" if it was not computed."""
        self._seen[member.path] = Measured.of_sha256(member.size, sha256)

    def distributions(self) -> tuple[Distribution, ...]:
        """What the members make up, in the order of their folders."""
        made = [
            Distribution.read(folder, documents, self._layers[folder])
            for folder, documents in sorted(self._documents.items())
        ]
        sites = {dist.site for dist in made}
        return tuple(self._completed(dist, sites) for dist in made)

    def unclaimed(self, distributions: Sequence[Distribution]) -> tuple[str, ...]:
        """Files of site folders that no RECORD lists; compiled files apart."""
        claimed = {dist.where(row.path) for dist in distributions for row in dist.rows}
        without = tuple(f"{dist.folder}/" for dist in distributions if not dist.rows)
        sites = tuple({f"{dist.site}/".lstrip("/") for dist in distributions if dist.rows and not dist.vendored})
        files = (path for path in self._seen if path.startswith(sites) and not path.startswith(without))
        return tuple(sorted(path for path in files if path not in claimed and not path.endswith(".pyc")))

    def _kept(self, member: Member, data: Buffer | None) -> bytes | None:
        """The bytes of a member that is a document, kept for later; None for others."""
        if (place := _document(member.path)) is not None:
            folder, name = place
            limit = LIMITS.record if name == "RECORD" else LIMITS.document
            kept = member.read(limit) if data is None else bytes(data[:limit])
            self._documents.setdefault(folder, {})[name] = kept
            self._layers[folder] = member.layer
            return kept
        if member.name in _STAMPS:
            kept = self._sources[member.path] = member.read() if data is None else bytes(data)
            return kept
        return None

    def _measured(self, member: Member, data: Buffer | None) -> Measured:
        if not self._hashes or member.path.endswith(".pyc"):
            return Measured(member.size, "", "")
        return Measured.of_member(member) if data is None else Measured.of(data)

    def _completed(self, dist: Distribution, sites: set[str]) -> Distribution:
        """Compare RECORD with the files, and read the version modules that it lists."""
        vendored = posixpath.basename(dist.site) not in _SITES and any(
            site in sites for site in _ancestors(dist.site)
        )
        if not dist.has_record:
            return replace(dist, vendored=vendored)
        whole = self._artifact.kind is Kind.WHEEL and not dist.site
        check = check_record(
            dist.rows, dist.row_faults, lambda row: self._measure(dist, row), record=dist.record,
            present=self._seen if whole else (),
        )  # fmt: skip
        paths = [path for row in dist.rows if row.path.count("/") == 1 and (path := dist.where(row.path))]
        stamps = tuple(Stamp.parse(path, self._sources[path]) for path in paths if path in self._sources)
        return replace(dist, check=check, stamps=stamps, vendored=vendored)

    def _measure(self, dist: Distribution, row: RecordRow) -> Measured | None:
        """What a row's file is; without a digest where it cannot be hashed here."""
        path = dist.where(row.path)
        if path is None:
            return Measured(row.size or 0, "", "")
        seen = self._seen.get(path)
        if seen is not None and (not row.algorithm or seen.algorithm == row.algorithm):
            return seen
        member = self._artifact.find(path)
        if member is None:
            return seen
        seen = self._seen.get(member.path, Measured(member.size, "", ""))
        if not row.algorithm or seen.algorithm == row.algorithm or not self._hashes or member.layer:
            return seen
        try:
            return Measured.of_member(member, row.algorithm)
        except (ArtifactError, ValueError):  # ValueError: a hash that is not known here
            return seen


def survey(artifact: Artifact, *, hashes: bool = True) -> Survey:
    """Read all of an artifact that has to do with distributions, in one pass."""
    made = Survey(artifact, hashes=hashes)
    for member in artifact.members(made.wants):
        made.see(member)
    return made


def _document(path: str) -> tuple[str, str] | None:
    """The folder and the name of a document of a distribution; None for other files."""
    folder, _, name = path.rpartition("/")
    if name in DOCUMENTS and _INFO.fullmatch(folder):
        return folder, name
    return (path, "PKG-INFO") if name.endswith(".egg-info") else None


def _ancestors(folder: str) -> list[str]:
    """All folders above, nearest first, down to the root ""."""
    found = []
    while folder:
        folder = posixpath.dirname(folder)
        found.append(folder)
    return found
