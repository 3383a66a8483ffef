"""Knowledge about packages that ages: dated data files beside this module, each entry with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet

from sm121.findings import Verdict


@dataclass(frozen=True, slots=True)
class Dated:
    """Where a piece of knowledge comes from."""

    read: str
    """The day, ISO."""
    sources: tuple[str, ...]

    @property
    def link(self) -> str:
        """The first public thread, or the measurement."""
        return next((source for source in self.sources if source.startswith("https://")), self.sources[0])


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What the package index offers as torch for a CPU."""

    cpu: str
    versions: SpecifierSet
    build: str
    """A CUDA release such as 13.0, or "cpu"."""
    disputed: bool
    dated: Dated


@dataclass(frozen=True, slots=True)
class Pair:
    """Which torch a companion was compiled against, by the companion's version."""

    package: str
    torch: dict[str, SpecifierSet]
    dated: Dated


@dataclass(frozen=True, slots=True)
class Bad:
    """Versions that do not work on 12.1; with `beside`, only where that package is installed, too."""

    package: str
    versions: SpecifierSet
    beside: str
    beside_versions: SpecifierSet
    unless: str
    """An environment variable that makes it work."""
    verdict: Verdict
    what: str
    remedy: str
    dated: Dated


@dataclass(frozen=True, slots=True)
class Collision:
    """A file that several distributions own with different content."""

    path: str
    owners: dict[str, SpecifierSet]
    verdict: Verdict
    what: str
    remedy: str
    dated: Dated


@dataclass(frozen=True, slots=True)
class Known:
    """All of it."""

    torch: tuple[TorchBuild, ...]
    pairs: tuple[Pair, ...]
    bad: tuple[Bad, ...]
    collisions: tuple[Collision, ...]


@cache
def known() -> Known:
    """What is known about versions."""
    data = _data("known.toml")
    return Known(
        tuple(_torch(entry) for entry in data["torch"]),
        tuple(_pair(entry) for entry in data["pair"]),
        tuple(_bad(entry) for entry in data["bad"]),
        tuple(_collision(entry) for entry in data["collision"]),
    )


@cache
def toolkit_releases() -> dict[str, dict[str, SpecifierSet]]:
    """Toolkit release -> part -> versions that belong to it, as the cuda-toolkit package's METADATA says."""
    releases: dict[str, dict[str, str]] = _data("toolkits.toml")["release"]
    return {
        release: {part: SpecifierSet(wanted) for part, wanted in parts.items()}
        for release, parts in releases.items()
    }


def _data(name: str) -> dict[str, Any]:
    return tomllib.loads(files("sm121.pins").joinpath("data", name).read_text(encoding="utf-8"))


def _torch(entry: dict[str, Any]) -> TorchBuild:
    disputed = entry.get("disputed", False)
    return TorchBuild(entry["cpu"], SpecifierSet(entry["versions"]), entry["build"], disputed, _dated(entry))


def _pair(entry: dict[str, Any]) -> Pair:
    return Pair(
        entry["package"], {own: _specifier(torch) for own, torch in entry["torch"].items()}, _dated(entry)
    )


def _bad(entry: dict[str, Any]) -> Bad:
    return Bad(
        package=entry["package"],
        versions=SpecifierSet(entry["versions"]),
        beside=entry.get("beside", ""),
        beside_versions=SpecifierSet(entry.get("beside-versions", "")),
        unless=entry.get("unless", ""),
        verdict=Verdict(entry["verdict"]),
        what=entry["what"],
        remedy=entry["remedy"],
        dated=_dated(entry),
    )


def _collision(entry: dict[str, Any]) -> Collision:
    owners = {name: SpecifierSet(text) for name, text in entry["owners"].items()}
    verdict = Verdict(entry["verdict"])
    return Collision(entry["path"], owners, verdict, entry["what"], entry["remedy"], _dated(entry))


def _dated(entry: dict[str, Any]) -> Dated:
    return Dated(entry["read"], tuple(entry["sources"]))


def _specifier(text: str) -> SpecifierSet:
    return SpecifierSet(text if text[0] in "<>=!~" else f"=={text}")
