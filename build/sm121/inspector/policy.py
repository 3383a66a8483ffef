"""The rules, as data: loaded from the TOML files of this package, checked once, never changed.

What ages stands in `data/`, each file with its date and its sources.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from packaging.specifiers import SpecifierSet

from sm121.findings import Verdict
from sm121.inspector.container_rules import container_rules
from sm121.inspector.rules import (
    Bodies,
    Channel,
    Code,
    Drivers,
    Families,
    FamilyRule,
    Libraries,
    LibraryRule,
    Policy,
    Presence,
    Project,
    Provider,
    Release,
    Runtime,
    Uncalled,
)
from sm121.values import CudaVersion


@cache
def policy() -> Policy:
    """The rules of this package."""
    files = {name: _read(name) for name in _FILES}
    projects = files["projects"]
    return Policy(
        families=_families(files["families"]),
        bodies=_bodies(files["bodies"]),
        drivers=_drivers(files["drivers"]),
        channels={row["name"]: _channel(row) for row in files["channels"]["channel"]},
        libraries=_libraries(files["symbols"]),
        runtimes={int(major): _runtime(int(major), row) for major, row in files["cudart"]["libcudart"].items()},
        projects=tuple(_project(row) for row in projects["project"]),
        project_majors=frozenset(projects["majors"]),
        dates={name: str(content["date"]) for name, content in files.items()}
        | {"images": container_rules().date},
    )


_FILES = ("families", "bodies", "drivers", "channels", "symbols", "cudart", "projects")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))


def _families(data: dict[str, Any]) -> Families:
    return Families(
        data["other"],
        tuple(
            (row["family"], row.get("library", ""), re.compile(row["path"]) if "path" in row else None)
            for row in data["library"]
        ),
        tuple((row["library"], row["prefix"]) for row in data["prefix"]),
        tuple((row["family"], re.compile(row["pattern"])) for row in data["name"]),
        _any_of([row["pattern"] for row in data["name"]]),
    )


def _bodies(data: dict[str, Any]) -> Bodies:
    foreign = tuple((re.compile(row["pattern"]), frozenset(row["majors"])) for row in data["foreign"])
    return Bodies(data["stub"]["bytes"], data["stub"]["times"], foreign)


def _drivers(data: dict[str, Any]) -> Drivers:
    least, most = data["cost"]["seconds_per_mb"]
    return Drivers(
        {_isa(isa): CudaVersion.parse(cuda) for isa, cuda in data["ptx"].items()},
        (least, most),
        data["cost"]["warn_mb"],
    )


def _isa(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _channel(row: dict[str, Any]) -> Channel:
    return Channel(row["name"], row["bytes"], row.get("exclusive", False), row["source"])


def _libraries(data: dict[str, Any]) -> Libraries:
    cuda = data["cuda"]
    return Libraries(
        tuple(
            Provider(row["name"], tuple(row["needs"]), _any_of(row["patterns"]))
            for row in data["provider"]
        ),
        tuple(
            Uncalled(re.compile(row["pattern"]), row["why"], row["source"]) for row in data["uncalled"]
        ),
        frozenset(data["driver"]["libraries"]), frozenset(cuda["major"]), frozenset(cuda["grafted"]),
        frozenset(cuda["driver"]), frozenset(cuda["owners"]), frozenset(cuda["providers"]),
    )  # fmt: skip


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{item})" for item in patterns))


def _runtime(major: int, data: dict[str, Any]) -> Runtime:
    read = tuple(CudaVersion.parse(text) for text in data["read"])
    symbols = dict.fromkeys(data["always"], read[0].release)
    for release, names in data.get("since", {}).items():
        symbols.update(dict.fromkeys(names, CudaVersion.parse(release)))
    return Runtime(major, read, symbols)


def _project(row: dict[str, Any]) -> Project:
    return Project(
        row["name"], tuple(row["read"]), _rules(row.get("library", [])),
        tuple(_release(item) for item in row.get("release", [])),
    )  # fmt: skip


def _release(row: dict[str, Any]) -> Release:
    return Release(
        SpecifierSet(row["versions"]), _rules(row.get("library", [])), _family_rules(row.get("family", []))
    )


def _rules(rows: list[dict[str, Any]]) -> tuple[LibraryRule, ...]:
    return tuple(
        LibraryRule(row["path"], Presence(row["presence"]), Code(row["code"]), row.get("why", "")) for row in rows
    )


def _family_rules(rows: list[dict[str, Any]]) -> tuple[FamilyRule, ...]:
    return tuple(FamilyRule(tuple(row["names"]), Code(row["wants"]), Verdict(row["missing"])) for row in rows)
