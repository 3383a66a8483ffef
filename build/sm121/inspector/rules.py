"""The rules as records that apply themselves to a name, a size or a version; what they say is data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from packaging.specifiers import SpecifierSet

    from sm121.findings import Verdict
    from sm121.values import CudaVersion


class Presence(StrEnum):
    """Whether a project holds a library."""

    MUST = "must"
    MAY = "may"
    MUST_NOT = "must-not"


class Code(StrEnum):
    """The least that is expected of a library or a family."""

    MACHINE = "machine-code"
    JIT = "jit"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LibraryRule:
    """What is expected of the libraries that match `path` (a shell pattern)."""

    path: str
    presence: Presence
    code: Code
    why: str = ""

    def matches(self, path: str) -> bool:
        """Whether `path` is, or ends with, what the rule names."""
        return fnmatchcase(path, self.path) or fnmatchcase(path, f"*/{self.path}")


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """Kernel families that a project must hold, and the verdict if one is missing."""

    names: tuple[str, ...]
    wants: Code
    missing: Verdict


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one version of a project must, may and must not hold.

    `read` are the versions that somebody looked at; `known` says whether this is one of them.
    """

    project: str
    version: str
    libraries: tuple[LibraryRule, ...]
    families: tuple[FamilyRule, ...]
    known: bool
    read: tuple[str, ...]

    def library(self, path: str) -> LibraryRule | None:
        """The rule for a library, if there is one."""
        return next((rule for rule in self.libraries if rule.matches(path)), None)


@dataclass(frozen=True, slots=True)
class Release:
    """The rules of a range of versions."""

    versions: SpecifierSet
    libraries: tuple[LibraryRule, ...]
    families: tuple[FamilyRule, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """A package with rules; those of the project hold for every version."""

    name: str
    read: tuple[str, ...]
    libraries: tuple[LibraryRule, ...]
    releases: tuple[Release, ...]

    def expects(self, version: str) -> Expectation:
        """The rules for `version`; for one that has no valid version or no rules, those of the project alone."""
        try:
            public: Version | None = Version(Version(version).base_version)
        except ValueError:
            public = None
        release = next(
            (item for item in self.releases if public and item.versions.contains(public, prereleases=True)), None
        )
        known = version.partition("+")[0] in self.read
        return Expectation(
            self.name, version, (*(release.libraries if release else ()), *self.libraries),
            release.families if release else (), known, self.read,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Families:
    """How a kernel is given its family."""

    other: str
    libraries: tuple[tuple[str, str, re.Pattern[str] | None], ...]
    prefixes: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, re.Pattern[str]], ...]
    any_name: re.Pattern[str]
    """Found in every name that one of `names` is found in: most kernels need one search."""

    def of_library(self, path: str) -> str | None:
        """The family that all kernels of a library belong to, None if their names decide."""
        name = path.rpartition("/")[2]
        for family, glob, pattern in self.libraries:
            if (glob and fnmatchcase(name, glob)) or (pattern and pattern.search(path)):
                return family
        return None

    def of_name(self, kernel: str) -> str:
        """The family of a mangled name."""
        if not self.any_name.search(kernel):
            return self.other
        return next(family for family, pattern in self.names if pattern.search(kernel))

    def prefix(self, path: str) -> str:
        """What stands before the families of this library's kernels."""
        name = path.rpartition("/")[2]
        return next((prefix for glob, prefix in self.prefixes if fnmatchcase(name, glob)), "")


@dataclass(frozen=True, slots=True)
class Bodies:
    """How a body that does nothing, or does another chip's work, is told from a real one."""

    stub_bytes: int
    stub_times: int
    foreign: tuple[tuple[re.Pattern[str], frozenset[int]], ...]

    def foreign_to(self, kernel: str, major: int) -> bool:
        """Whether the name belongs to the main loop of chips of another major."""
        return any(major not in majors and pattern.search(kernel) for pattern, majors in self.foreign)

    def small(self, size: int, elsewhere: int) -> bool:
        """Whether a body of `size` bytes is too small beside the `elsewhere` bytes of the same kernel."""
        return size <= self.stub_bytes and elsewhere > self.stub_times * size


@dataclass(frozen=True, slots=True)
class Drivers:
    """Which driver reads which PTX, and what compiling it costs (seconds per 10^6 bytes of text: least, most)."""

    ptx: Mapping[tuple[int, int], CudaVersion]
    seconds_per_mb: tuple[float, float]
    warn_mb: float

    def needs(self, isa: tuple[int, int]) -> CudaVersion | None:
        """The oldest CUDA version whose driver reads PTX of this ISA, None if the ISA is not known."""
        return self.ptx.get(isa)


@dataclass(frozen=True, slots=True)
class Channel:
    """A place where wheels are published, with its limit in bytes."""

    name: str
    limit: int
    exclusive: bool
    source: str

    def allows(self, size: int) -> bool:
        return size < self.limit or (size == self.limit and not self.exclusive)


@dataclass(frozen=True, slots=True)
class Provider:
    """Who defines a group of symbols."""

    name: str
    needs: tuple[str, ...]
    pattern: re.Pattern[str]

    def defines(self, symbol: str, needed: Iterable[str]) -> bool:
        """Whether `symbol` is one of these, and the provider is among the libraries asked for."""
        if not self.pattern.match(symbol):
            return False
        return not self.needs or any(fnmatchcase(library, glob) for library in needed for glob in self.needs)


@dataclass(frozen=True, slots=True)
class Uncalled:
    """Functions that code names and never calls, and that nobody defines."""

    pattern: re.Pattern[str]
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is known about libraries by their names."""

    providers: tuple[Provider, ...]
    uncalled: tuple[Uncalled, ...]
    driver_only: frozenset[str]
    cuda_major: frozenset[str]
    grafted: frozenset[str]
    driver: frozenset[str]
    owners: frozenset[str]
    runtime_providers: frozenset[str]

    def provider(self, symbol: str, needed: Iterable[str]) -> Provider | None:
        """Who defines `symbol` for a library that asks for `needed`."""
        return next((item for item in self.providers if item.defines(symbol, needed)), None)

    def belongs_to(self, symbol: str) -> Provider | None:
        """Whose symbol it is by its name, whether that provider is asked for or not."""
        return next((item for item in self.providers if item.pattern.match(symbol)), None)

    def never_called(self, symbol: str) -> Uncalled | None:
        """Why nobody calls `symbol`, a function that nobody defines."""
        return next((item for item in self.uncalled if item.pattern.match(symbol)), None)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the CUDA runtime of one major exports: symbol to the first release that has it.

    `given` names the file it was read from, "" where it stands for all releases of the major; `versions` are the symbol
    versions of that file.
    """

    major: int
    read: tuple[CudaVersion, ...]
    symbols: Mapping[str, CudaVersion]
    versions: frozenset[str] = frozenset()
    given: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules together."""

    families: Families
    bodies: Bodies
    drivers: Drivers
    channels: Mapping[str, Channel]
    libraries: Libraries
    runtimes: Mapping[int, Runtime]
    projects: tuple[Project, ...]
    project_majors: frozenset[int]
    dates: Mapping[str, str] = field(default_factory=dict)

    def project(self, name: str) -> Project | None:
        """The rules of a package; `flashinfer-jit-cache-sm121a` follows those of `flashinfer-jit-cache`."""
        wanted = canonicalize_name(name)
        exact = next((project for project in self.projects if project.name == wanted), None)
        return exact or next(
            (project for project in self.projects if wanted.startswith(f"{project.name}-sm")), None
        )
