"""What is known of each release of vLLM and FlashInfer: vllm.toml and flashinfer.toml, checked when loaded."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, Self

from packaging.version import Version

from sm121.arch_lists.intersect import Matching
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Archs = tuple[ArchSpec, ...]
GenericUse = Literal["", "with", "instead", "not 10-11"]


@dataclass(frozen=True, slots=True)
class Banded:
    """A list of targets that depends on the CUDA release: the newest entry that is not newer counts."""

    bands: tuple[tuple[CudaVersion, Archs], ...]

    @classmethod
    def load(cls, table: Mapping[str, str]) -> Self:
        rows = [(CudaVersion.parse(cuda), archs_of(text)) for cuda, text in table.items()]
        return cls(tuple(sorted(rows, key=lambda row: row[0])))

    def at(self, cuda: CudaVersion) -> Archs:
        """The targets for that release; none before the first entry."""
        return next((archs for first, archs in reversed(self.bands) if first <= cuda.release), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sources of one extension that get the same targets; the fields are explained in vllm.toml."""

    extension: str
    name: str
    units: int
    gates: tuple[str, ...] = ()
    first: bool = False
    generic: GenericUse = ""
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRelease:
    """The rules of one or more vLLM releases."""

    versions: tuple[Version, ...]
    matching: Matching
    supported: Banded
    gates: Mapping[str, Banded]
    sm12x: str
    groups: tuple[Group, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixRule:
    """What FlashInfer appends to an item without a suffix, or from which CUDA release on it accepts it."""

    majors: tuple[int, int]
    minor: int | None = None
    cuda: CudaVersion | None = None
    suffix: str = ""
    refused: CudaVersion | None = None

    def fits(self, arch: ArchSpec, cuda: CudaVersion) -> bool:
        """Whether this rule speaks about `arch` with that toolkit."""
        first, last = self.majors
        known = self.cuda is None or cuda.release >= self.cuda
        return known and first <= arch.major <= last and self.minor in {None, arch.minor}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGroup:
    """Modules of FlashInfer's ahead-of-time set whose names match `name`."""

    name: str
    units: int
    only: ArchSpec | None = None
    when: frozenset[ArchSpec] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferRelease:
    """The rules of FlashInfer from release `first` on."""

    first: Version
    read: tuple[Version, ...]
    suffixes: tuple[SuffixRule, ...]
    groups: tuple[ModuleGroup, ...]
    source: str


@cache
def vllm_releases() -> tuple[VllmRelease, ...]:
    """All known vLLM releases, oldest first."""
    releases = []
    for row in _load("vllm.toml")["release"]:
        gates = {name: Banded.load(bands) for name, bands in row["gates"].items()}
        groups = tuple(Group(**{**group, "gates": tuple(group.get("gates", ()))}) for group in row["group"])
        used = {gate for group in groups for gate in group.gates} | {row["sm12x"]}
        if used != set(gates):
            raise ValueError(
                f"vllm.toml, {row['versions']}: gates used and gates defined differ: {used ^ set(gates)}"
            )
        releases.append(
            VllmRelease(
                versions=tuple(Version(text) for text in row["versions"]),
                matching=Matching(row["matching"]),
                supported=Banded.load(row["supported"]),
                gates=gates,
                sm12x=row["sm12x"],
                groups=groups,
                source=row["source"],
            )
        )
    return tuple(sorted(releases, key=lambda release: release.versions))


@cache
def flashinfer_releases() -> tuple[FlashInferRelease, ...]:
    """All known FlashInfer rules, oldest first."""
    releases = [
        FlashInferRelease(
            first=Version(row["first"]),
            read=tuple(Version(text) for text in row["read"]),
            suffixes=tuple(_suffix_rule(rule) for rule in row["suffixes"]),
            groups=tuple(_module_group(group) for group in row.get("groups", ())),
            source=row["source"],
        )
        for row in _load("flashinfer.toml")["release"]
    ]
    return tuple(sorted(releases, key=lambda release: release.first))


def vllm_release(version: str) -> tuple[VllmRelease, bool]:
    """The rules for `version`, and whether they were read from that very release."""
    releases = vllm_releases()
    asked = release_of(version)
    if asked is None:
        return releases[-1], False
    for release in releases:
        if asked in release.versions:
            return release, True
    older = [release for release in releases if release.versions[0] < asked]
    return (older[-1] if older else releases[0]), False


def flashinfer_release(version: str) -> tuple[FlashInferRelease, bool]:
    """The rules for `version`, and whether they cover it: read from it, or from one before and one after."""
    releases = flashinfer_releases()
    asked = release_of(version)
    if asked is None:
        return releases[-1], False
    older = [release for release in releases if release.first <= asked]
    if not older:
        return releases[0], False
    release = older[-1]
    later = release is not releases[-1]
    return release, asked in release.read or later or release.first <= asked < release.read[-1]


def added_archs(patches: Collection[str], cuda: CudaVersion) -> Archs:
    """Architectures that join the supported ones through patches, by their file names."""
    return tuple(
        arch
        for row in _load("patches.toml")["patch"]
        if row["name"] in patches and cuda >= CudaVersion.parse(row["since"])
        for arch in archs_of(row["adds"])
    )


def release_of(version: str) -> Version | None:
    """The public version without its local part; None if it is empty or no version."""
    try:
        return Version(Version(version).public)
    except ValueError:
        return None


def archs_of(text: str) -> Archs:
    """Targets out of a list with semicolons."""
    return tuple(ArchSpec.parse(word) for word in text.split(";") if word)


def _suffix_rule(row: Mapping[str, Any]) -> SuffixRule:
    first, last = row["majors"]
    return SuffixRule(
        majors=(first, last),
        minor=row.get("minor"),
        cuda=CudaVersion.parse(row["cuda"]) if "cuda" in row else None,
        suffix=row.get("suffix", ""),
        refused=CudaVersion.parse(row["refused"]) if "refused" in row else None,
    )


def _module_group(row: Mapping[str, Any]) -> ModuleGroup:
    return ModuleGroup(
        name=row["name"],
        units=row["units"],
        only=ArchSpec.parse(row["only"]) if "only" in row else None,
        when=frozenset(ArchSpec.parse(word) for word in row.get("when", ())),
    )


def _load(name: str) -> Mapping[str, Any]:
    return tomllib.loads(files("sm121.arch_lists").joinpath(name).read_text(encoding="utf-8"))
