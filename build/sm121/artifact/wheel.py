"""A wheel: its members, and what its name and its contents say it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from sm121.artifact.installed import survey
from sm121.artifact.member import Kind, Member, printable
from sm121.artifact.record import record_findings
from sm121.artifact.zipreader import ZipArchive, ZipContent
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sm121.artifact.distribution import Distribution
    from sm121.artifact.installed import Survey
    from sm121.artifact.member import Limits, Wanted


@dataclass(frozen=True, slots=True)
class WheelName:
    """The parts of `NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl` as they are written."""

    project: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @classmethod
    def parse(cls, filename: str) -> Self:
        """Read a file name; raises ArtifactError if it is no wheel's."""
        try:
            parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            raise ArtifactError(
                f"{printable(filename)} is no name of a wheel: {printable(str(error))}.",
                do="name it NAME-VERSION-PYTHON-ABI-PLATFORM.whl, as it was when it was built.",
            ) from error
        project, version, *build, python, abi, platform = filename.removesuffix(".whl").split("-")
        return cls(project, version, "".join(build), python, abi, platform)

    @property
    def tags(self) -> frozenset[str]:
        """All tags, the compressed ones written out: `cp38-abi3-manylinux_2_28_aarch64`."""
        return frozenset(str(tag) for tag in parse_tag(f"{self.python}-{self.abi}-{self.platform}"))


@dataclass(frozen=True, slots=True)
class WheelIdentity:
    """What a wheel says about itself, and whether its own list of files is true.

    `name` is None if the file is not named as a wheel, `distribution` if there is no .dist-info at its root.
    `problems` hold the faults of the archive, of the documents, and of RECORD.
    """

    name: WheelName | None
    distribution: Distribution | None
    problems: tuple[Finding, ...]


class Wheel:
    """An opened wheel file. Raises ArtifactError if it is no readable zip file."""

    kind = Kind.WHEEL

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.name = path.name
        self.archive = ZipArchive(path, limits) if limits else ZipArchive(path)
        self._last = {entry.path: entry for entry in self.archive.entries if not (entry.folder or entry.symlink)}

    @property
    def problems(self) -> list[Finding]:
        """Faults of the archive: damage, paths that leave the folder, what stands there twice."""
        return self.archive.problems

    def members(self, wanted: Wanted | None = None) -> Iterator[Member]:
        """Its files in the order of the archive; of a path that stands there twice the last, as installers do."""
        for path in self._last:
            if wanted is None or wanted(path):
                yield self._member(path)

    def find(self, path: str) -> Member | None:
        """The file at `path`."""
        return self._member(path) if path in self._last else None

    def identify(self, seen: Survey | None = None) -> WheelIdentity:
        """Read names, tags, metadata and versions, and verify RECORD.

        Every file is hashed for it, unless `seen` is a Survey that was shown all members already.
        """
        seen = seen or survey(self)
        problems = [*self.problems, *seen.problems]
        name = None
        try:
            name = WheelName.parse(self.name)
        except ArtifactError as error:
            problems.append(
                Finding("wheel.name", printable(self.name), Verdict.FAIL, error.problems[0].rstrip("."))
            )
        inside = [dist for dist in seen.distributions() if dist.site == "" and dist.folder.endswith(".dist-info")]
        if len(inside) != 1:
            folders = ", ".join(printable(dist.folder) for dist in inside) or "none"
            got = f"has {len(inside)} .dist-info folders ({folders})"
            problems.append(Finding("wheel.metadata", self.name, Verdict.FAIL, got, "one"))
        for dist in inside:
            problems += dist.problems
            if dist.wheel is None:
                problems.append(Finding("wheel.metadata", printable(dist.folder), Verdict.FAIL, "has no WHEEL"))
            if dist.check is None:
                problems.append(Finding("wheel.record", printable(dist.folder), Verdict.FAIL, "has no RECORD"))
            else:
                problems += record_findings(dist.check, dist.record)
        return WheelIdentity(name, inside[0] if len(inside) == 1 else None, tuple(problems))

    def close(self) -> None:
        self.archive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _member(self, path: str) -> Member:
        entry = self._last[path]
        content = ZipContent(self.archive, entry)
        return Member(path, entry.size, content, executable=bool(entry.mode & 0o111), packed=entry.stored)
