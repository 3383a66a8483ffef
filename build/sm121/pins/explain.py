"""Why a version is pinned: who demands it, since when, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sm121.errors import UsageError
from sm121.pins.audit import demands
from sm121.pins.knowledge import known, toolkit_releases
from sm121.pins.reading import closest
from sm121.values import parsed_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.index import IndexFile
    from sm121.pins.facts import Facts
    from sm121.pins.model import Cpu, FilePin, Line, Package, Release, Toolkit


@dataclass(frozen=True, slots=True)
class Place:
    """Where a package is pinned."""

    role: str
    version: str
    files: tuple[FilePin, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything there is to say about one name."""

    name: str
    places: tuple[Place, ...]
    demanded: tuple[str, ...]
    """`vllm: torch==2.14.0`."""
    known: tuple[str, ...]
    since: str
    """The day on which the index got the pinned version, "" if it was not asked."""
    newest: str
    """The newest released version on the index, "" if it was not asked."""


def explain(
    name: str, line: Line, release: Release, cpu: Cpu, facts: Facts | None, listing: Sequence[IndexFile] = ()
) -> Explanation:
    """Gather what is pinned, demanded and known. Raises UsageError for a name that nothing mentions.

    `listing` is what the index has of that project.
    """
    wanted = canonicalize_name(name)
    places = [place for place in _places(line, release) if place.files and place.files[0].name == wanted]
    demanded = _demanded(wanted, release, facts, cpu)
    told = _known(wanted)
    if not (places or demanded or told):
        names = {place.files[0].name for place in _places(line, release) if place.files}
        raise UsageError(f"nothing is pinned or known about {name!r}{closest(wanted, names) or '.'}")
    version = parsed_version(places[0].version) if places else None
    since = min(
        (file.uploaded for file in listing if file.uploaded and parsed_version(file.version) == version),
        default="",
    )
    released = [
        number
        for file in listing
        if (number := parsed_version(file.version)) and not _early(number) and not file.yanked
    ]
    return Explanation(
        wanted, tuple(places), tuple(demanded), tuple(told), since, str(max(released)) if released else ""
    )


def _places(line: Line, release: Release) -> list[Place]:
    places = [
        Place("vLLM", release.version, (*release.wheels, release.sdist), f"commit {release.commit}"),
        _place("sources of the kernels that are compiled ahead of time", release.flashinfer),
    ]
    places += [
        _place("compiled against and run with", torch) for torch in line.torches if torch.version == release.torch
    ]
    places += [_place("shares the environment", package) for package in release.companions]
    kits = {kit.release: (title, kit) for title, kit in _kits(line)}
    for title, kit in kits.values():
        places += [_place(f"{title}, release {kit.release}, {', '.join(part.roles)}", part) for part in kit.parts]
    return [*places, *(_place("program of the build", tool) for tool in line.programs)]


def _kits(line: Line) -> list[tuple[str, Toolkit]]:
    """The toolkits of a line with their titles; the compiler's comes last, so that it names a shared one."""
    return [("toolkit at run time", line.runtime_toolkit), ("toolkit that compiles", line.compiler_toolkit)]


def _place(role: str, package: Package) -> Place:
    note = "; ".join(
        text
        for text in (
            package.note,
            f"built for CUDA {package.cuda}" if package.cuda else "",
            f"commit {package.commit}" if package.commit else "",
        )
        if text
    )
    return Place(role, package.version, package.files, note)


def _demanded(name: str, release: Release, facts: Facts | None, cpu: Cpu) -> list[str]:
    if facts is not None:
        asked = [
            f"{owner}: {wish}" for owner, wish in demands(facts, cpu) if canonicalize_name(wish.name) == name
        ]
        if facts.resolution is not None:
            told = {line.partition("[")[0].partition(":")[0] for line in asked}
            asked += [
                f"{owner}: some version" for owner in facts.resolution.via.get(name, ()) if owner not in told
            ]
        return asked
    return [f"vllm: {text}" for text in release.requires if canonicalize_name(Requirement(text).name) == name]


def _known(name: str) -> list[str]:
    told = []
    for bad in known().bad:
        if name in {bad.package, bad.beside}:
            company = f" beside {bad.beside}{bad.beside_versions}" if bad.beside else ""
            told.append(f"{bad.package}{bad.versions}{company} {bad.what}; {bad.remedy} ({bad.dated.link})")
    for collision in known().collisions:
        if name in collision.owners:
            owners = " and ".join(f"{owner}{versions}" for owner, versions in collision.owners.items())
            told.append(f"{collision.path} is owned by {owners}: {collision.what} ({collision.dated.link})")
    for pair in known().pairs:
        if name == pair.package:
            newest = max(pair.torch, key=Version)
            told.append(f"{name} {newest} was built against torch{pair.torch[newest]} (as of {pair.dated.read})")
    releases = [release for release, parts in toolkit_releases().items() if name in parts]
    if releases:
        newest = max(releases, key=Version)
        told.append(
            f"part of CUDA toolkits {min(releases, key=Version)} to {newest}, there {toolkit_releases()[newest][name]}"
        )
    return told


def _early(version: Version) -> bool:
    return version.is_prerelease or version.is_devrelease
