"""FlashInfer's modules, the sets that a build can be asked for, and what compiling costs. Dated data."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sm121.errors import UsageError
from sm121.expressions import typed
from sm121.pins.reading import closest
from sm121.plan.patterns import expand
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEFAULT_SET = "serving"
_NAME = 200
"""Characters of a word that matches nothing which are compared with the names: none is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One library of FlashInfer's ahead-of-time cache."""

    name: str
    family: str
    sources: tuple[str, ...]
    """File names, sorted."""
    target: ArchSpec | None
    """What its CUDA sources are compiled for; None for host code alone."""
    left_out: str = ""
    """Why it is in no set."""
    extra: str = ""
    """Upstream's generator (MODULE:FUNCTION), where its ahead-of-time set for the list lacks the module."""

    @property
    def units(self) -> int:
        """CUDA translation units: device images that the library must hold."""
        return sum(source.endswith(".cu") for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a set promises to serve without compiling, and the modules that it takes."""

    what: str
    called_by: str
    modules: tuple[str, ...]
    """Shell patterns; each must match at least one module."""
    calls: tuple[str, ...] = ()
    """MODULE:EXPRESSION; what FlashInfer runs to load the modules on 12.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSet:
    """A named set with its reason. No claims: whatever there is."""

    name: str
    why: str
    claims: tuple[Claim, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The modules of one build: why each is there, and what the set claims."""

    name: str
    """Name of the set, or `own`."""
    why: str
    modules: tuple[Module, ...]
    claims: tuple[Claim, ...]
    reasons: Mapping[str, str]
    """Module to the claim that takes it."""


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Measured cost of one translation unit: CPU seconds, peak bytes of the largest process."""

    seconds: float
    peak: int


def known_versions() -> list[str]:
    """The FlashInfer versions whose modules are known."""
    return sorted(_load("flashinfer_modules.toml")["releases"])


@cache
def all_modules(version: str, arch: ArchSpec) -> tuple[Module, ...]:
    """Every module of that version for a list of the one target `arch`; empty if the version is not in the data."""
    table = _load("flashinfer_modules.toml")
    if version not in table["releases"]:
        return ()
    families = (family for family in table["family"] if version in family.get("versions", [version]))
    return tuple(module for family in families for module in _family(family, arch))


def _family(family: Mapping[str, Any], arch: ArchSpec) -> Iterable[Module]:
    code = family.get("code", "")
    for pattern in family["modules"]:
        for name, chosen in expand(pattern):
            sources = sorted(source for each in family["sources"] for source, _ in expand(each, chosen))
            yield Module(
                name=name, family=family["name"], sources=tuple(sources),
                target=None if code == "host" else ArchSpec.parse(code) if code else arch,
                left_out=family.get("left-out", ""), extra=family.get("extra", ""),
            )  # fmt: skip


def sets(version: str) -> dict[str, ModuleSet]:
    """The named sets for that version, by name."""
    found = {}
    for name, table in _load("flashinfer_sets.toml").items():
        claims = tuple(
            Claim(
                what=row["what"], called_by=row["called-by"],
                modules=tuple(name for pattern in row["modules"] for name, _ in expand(pattern)),
                calls=tuple(name for pattern in row.get("calls", ()) for name, _ in expand(pattern)),
            )
            for row in table.get("claim", ()) if version in row.get("versions", [version])
        )  # fmt: skip
        found[name] = ModuleSet(name=name, why=table["why"], claims=claims, source=table.get("source", ""))
    return found


def select(version: str, arch: ArchSpec, wanted: Sequence[str]) -> Selection:
    """The modules for `wanted`: nothing for the default set, the name of a set, or names and regular expressions.

    A regular expression must match the whole name. Raises UsageError naming every word that selects nothing.
    """
    modules = {module.name: module for module in all_modules(version, arch)}
    named = sets(version)
    words = list(wanted) or [DEFAULT_SET]
    if len(words) == 1 and words[0] in named:
        return _of_set(named[words[0]], modules)
    chosen: dict[str, str] = {}
    problems = []
    for word in words:
        if word in named:
            problems.append(f"the set {word!r} is asked for beside other modules.")
            continue
        try:
            matching = [name for name in modules if typed(word).fullmatch(name)]
        except ValueError as error:
            problems.append(f"{word!r} {error}.")
            continue
        tied = [name for name in matching if modules[name].left_out]
        if tied and len(tied) == len(matching):
            problems.append(f"{tied[0]} is not compiled ahead of time: {modules[tied[0]].left_out}.")
        elif not matching:
            problems.append(
                f"{word!r} is no set, and matches no module of FlashInfer {version} for {arch}"
                f"{closest(word[:_NAME], [*named, *modules]) or '.'}"
            )
        chosen.update((name, f"asked for by {word}") for name in matching if name not in tied)
    if problems:
        raise UsageError(
            problems,
            do=f"name one of the sets {', '.join(named)}, or modules by regular expressions; "
            "`sm121 build --only flashinfer --modules all --dry-run --json` lists all.",
        )
    return Selection(
        name="own", why="modules by name", modules=tuple(modules[name] for name in modules if name in chosen),
        claims=(), reasons=chosen,
    )  # fmt: skip


def _of_set(named: ModuleSet, modules: Mapping[str, Module]) -> Selection:
    reasons: dict[str, str] = {}
    for claim in named.claims:
        for pattern in claim.modules:
            for name in modules:
                if fnmatchcase(name, pattern):
                    reasons.setdefault(name, claim.what)
    if not named.claims:
        reasons = {name: module.family for name, module in modules.items() if not module.left_out}
    return Selection(
        name=named.name, why=named.why, modules=tuple(modules[name] for name in modules if name in reasons),
        claims=named.claims, reasons=reasons,
    )  # fmt: skip


def unserved(claims: Iterable[Claim], modules: Iterable[str]) -> list[str]:
    """One sentence per module that a claim needs and `modules` lack: it would be compiled when it is first used."""
    have = list(modules)
    return [
        f"{pattern} would be compiled when it is first used: {claim.what} ({claim.called_by})."
        for claim in claims
        for pattern in claim.modules
        if not any(fnmatchcase(name, pattern) for name in have)
    ]


@cache
def unit_cost(module: str, source: str) -> UnitCost:
    """What compiling one source of a module costs, by the first row of the data that fits."""
    for pattern, seconds, gib in _costs():
        if fnmatchcase(f"{module}/{source}", pattern):
            return UnitCost(seconds, int(gib * (1 << 30)))
    raise AssertionError("the last row of flashinfer_costs.toml fits everything")


def costs_measured() -> str:
    """Where and when the costs were measured."""
    measured: str = _load("flashinfer_costs.toml")["measured"]
    return measured


@cache
def _costs() -> tuple[tuple[str, float, float], ...]:
    return tuple(
        (pattern, float(seconds), float(gib)) for pattern, seconds, gib in _load("flashinfer_costs.toml")["unit"]
    )


@cache
def _load(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
