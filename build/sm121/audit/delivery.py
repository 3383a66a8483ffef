"""Whether an artifact has the code of the kernel that vLLM takes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from sm121.artifact import open_artifact
from sm121.audit.source import is_sdist
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.target import LoadsAs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.audit.source import SourceTree
    from sm121.progress import Progress
    from sm121.target import Capability

_MODULE = re.compile(r"(?:cached_ops|jit_cache|data/aot)/([^/]+)/[^/]+\.so$")
_OWN = re.compile(r"(?:^|/)vllm/.*\.so$")
_MACHINE = {str(how) for how in LoadsAs if how.machine_code}


class State(StrEnum):
    """How the code gets onto the chip."""

    DELIVERED = "delivered"
    DRIVER = "compiled by the driver at load"
    MACHINE = "compiled on the machine at first use"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The verdict for one kernel class, with what it rests on."""

    kernel: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True)
class Supplies:
    """What an artifact brings.

    `families` counts, for each kernel family, kernels per state; None if no library was looked into (an sdist).
    `flashinfer` are the names of FlashInfer modules that are compiled ahead for the chip.
    `nvcc` says whether a compiler is there for the others; None if the artifact does not tell.
    """

    families: Mapping[str, Mapping[str, int]] | None = None
    flashinfer: frozenset[str] = frozenset()
    nvcc: bool | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    """Importable package -> the distribution whose file answers the import."""
    complete: bool = False
    remedy: str = ""
    """If no library was looked into: what to do about it."""

    def has_family(self, name: str) -> bool | None:
        """Whether kernels of a family run on the chip, be it through the driver's compiler."""
        if self.families is None:
            return None
        states = self.families.get(name, {})
        return any(count for state, count in states.items() if state in _MACHINE or state == LoadsAs.JIT)


def read_supplies(
    references: Sequence[str | Path], tree: SourceTree, capability: Capability, progress: Progress | None = None
) -> Supplies:
    """Inspect the artifacts. Source distributions have no libraries and are passed over."""
    families: dict[str, dict[str, int]] = {}
    modules: set[str] = set()
    looked = False
    for reference in references:
        if is_sdist(reference):
            continue
        with open_artifact(reference) as artifact:
            report = inspect_artifact(artifact, Options(capability=capability, progress=progress))
        looked = looked or any(_OWN.search(library.path) for library in report.libraries)
        for family in report.families:
            mine = families.setdefault(family.name, {})
            for state, count in family.kernels.items():
                mine[state] = mine.get(state, 0) + count
        for library in report.libraries:
            module = _MODULE.search(library.path)
            if module and library.loads_as.machine_code:
                modules.add(module[1])
    packages = {name: tree.answers_import(name) or name for name in tree.packages}
    nvcc = "nvcc" in tree.programs if tree.complete else ("nvcc" in tree.programs or None)
    remedy = "" if looked else (
        "A source distribution has no libraries: name the wheel, environment or image that is to run."
        if all(map(is_sdist, references)) else "No library of vLLM's is in it: name the wheel, environment or image."
    )  # fmt: skip
    return Supplies(families if looked else None, frozenset(modules), nvcc, packages, tree.complete, remedy)


@dataclass(frozen=True, slots=True)
class _Rule:
    kernel: re.Pattern[str]
    families: tuple[str, ...]
    flashinfer: tuple[str, ...]
    package: str
    runtime: str


@lru_cache(maxsize=1)
def _rules() -> tuple[_Rule, ...]:
    data = tomllib.loads((files("sm121.audit") / "data" / "delivery.toml").read_text("utf-8"))
    return tuple(
        _Rule(
            re.compile(row["kernel"]), tuple(row.get("families", ())), tuple(row.get("flashinfer", ())),
            row.get("package", ""), row.get("runtime", ""),
        )
        for row in data["rule"]
    )  # fmt: skip


_WORST = (State.MISSING, State.UNKNOWN, State.MACHINE, State.DRIVER, State.DELIVERED)


def judge_delivery(kernel: str, supplies: Supplies) -> Delivery:
    """Say where the code of a kernel class comes from; what no rule names is unknown."""
    rule = next((rule for rule in _rules() if rule.kernel.search(kernel)), None)
    if rule is None:
        return Delivery(kernel, State.UNKNOWN, "it is not known which code this class needs")
    parts = [_of_family(name, supplies) for name in rule.families]
    parts += [_of_module(pattern, supplies) for pattern in rule.flashinfer]
    if rule.package:
        parts.append(_of_package(rule.package, supplies))
    if rule.runtime:
        parts.append(_of_runtime(rule.runtime))
    state = min((state for state, _ in parts), key=_WORST.index)
    return Delivery(kernel, state, "; ".join(dict.fromkeys(text for _, text in parts)))


def _of_family(name: str, supplies: Supplies) -> tuple[State, str]:
    if supplies.families is None:
        return State.UNKNOWN, f"no library was looked into for {name}"
    states = supplies.families.get(name, {})
    machine = sum(count for state, count in states.items() if state in _MACHINE)
    if machine:
        return State.DELIVERED, f"{machine} kernel{'s' if machine > 1 else ''} of {name}"
    if states.get(LoadsAs.JIT):
        return State.DRIVER, f"{states[LoadsAs.JIT]} kernels of {name} as PTX only"
    there = sum(states.values())
    return (
        State.MISSING,
        f"none of {there} kernels of {name} runs on this chip" if there else f"no kernel of {name}",
    )


def _of_module(pattern: str, supplies: Supplies) -> tuple[State, str]:
    found = sorted(name for name in supplies.flashinfer if fnmatchcase(name, pattern))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return State.DELIVERED, f"FlashInfer module {found[0]}{more} compiled ahead"
    if supplies.nvcc:
        return State.MACHINE, f"FlashInfer compiles {pattern} with the artifact's nvcc"
    if supplies.nvcc is None:
        return (
            State.UNKNOWN,
            f"FlashInfer module {pattern} is not compiled ahead here; nvcc on the machine would do it",
        )
    return State.MISSING, f"FlashInfer module {pattern} is neither compiled ahead nor is there an nvcc"


def _of_package(name: str, supplies: Supplies) -> tuple[State, str]:
    owner = supplies.packages.get(name)
    if owner is not None:
        return State.DELIVERED, f"import {name} is answered by {owner}"
    if supplies.complete:
        return State.MISSING, f"the package {name} is not in the artifact"
    return State.UNKNOWN, f"the artifact does not tell whether the package {name} will be there"


_AT_RUN_TIME = {
    "triton": "Triton compiles it on the machine, with its own assembler",
    "cute-dsl": "CuTe DSL compiles it on the machine, with its own assembler",
    "deep-gemm": "DeepGEMM compiles it on the machine and needs a CUDA toolkit there",
    "humming": "Humming compiles it on the machine",
}


def _of_runtime(kind: str) -> tuple[State, str]:
    if kind == "torch":
        return State.DELIVERED, "torch brings it"
    return State.MACHINE, _AT_RUN_TIME[kind]
