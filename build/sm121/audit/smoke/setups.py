"""The ladder of set-ups that a version of vLLM can be started with, and what each is expected to do."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sm121.audit.delivery import Supplies
from sm121.audit.explain import Explanation, Request, explain
from sm121.audit.modules import Role
from sm121.audit.schemes import Number
from sm121.audit.selection import Layer
from sm121.audit.switches import read_flags, read_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.audit.checkpoint import Checkpoint
    from sm121.audit.source import SourceTree


@dataclass(frozen=True, slots=True)
class Setup:
    """How a server is started: arguments and variables beside the user's own, and what explain says of it."""

    name: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    expected: Explanation | None = None
    """None if there is no checkpoint to explain."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A rung that is not tried, with the reason."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rungs in the order in which they are tried."""

    setups: tuple[Setup, ...]
    left_out: tuple[LeftOut, ...] = ()


@lru_cache(maxsize=1)
def _rows() -> list[dict[str, Any]]:
    data = tomllib.loads((files("sm121.audit.smoke") / "ladder.toml").read_text("utf-8"))
    return list(data["rung"])


def rung_names() -> tuple[str, ...]:
    """All rungs that are known, in order."""
    return tuple(row["name"] for row in _rows())


def ladder(
    tree: SourceTree, checkpoint: Checkpoint | None, *, wanted: Sequence[str] = (), base: Request | None = None
) -> Ladder:
    """Choose flags and variables that this version reads; leave out what it has not, or refuses for this model.

    `wanted` limits the rungs by name; `base` is the request that all of them share.
    """
    flags, variables = read_flags(tree), set(read_variables(tree))
    setups: list[Setup] = []
    left_out: list[LeftOut] = []
    for row in _rows():
        name = row["name"]
        if wanted and name not in wanted:
            continue
        chosen = _chosen(row, flags, variables, checkpoint)
        if isinstance(chosen, str):
            left_out.append(LeftOut(name, chosen))
            continue
        setup = _explained(chosen, tree, checkpoint, base or Request())
        refusal = _refusal(setup)
        if refusal and name != _rows()[0]["name"]:
            left_out.append(LeftOut(name, refusal))
        else:
            setups.append(setup)
    return Ladder(tuple(setups), tuple(left_out))


def _chosen(
    row: Mapping[str, Any], flags: Mapping[str, Sequence[str]], variables: set[str], checkpoint: Checkpoint | None
) -> Setup | str:
    """The set-up, or why there is none."""
    backend = row.get("backend", "")
    if not backend:
        return Setup(row["name"])
    if checkpoint is not None and not _quantized(checkpoint):
        return "the checkpoint is stored in 16 bits, where this changes nothing"
    arguments: list[str] = []
    environment: dict[str, str] = {}
    for flag in _wanted_flags(row, checkpoint):
        if backend in flags.get(flag, ()):
            arguments += [flag, backend]
        elif (variable := row.get("before", {}).get(flag)) in variables and variable:
            environment[variable] = backend
    if not arguments and not environment:
        return f"this vLLM has no backend {backend} that could be asked for"
    also = {name: value for name, value in row.get("also", {}).items() if name in variables}
    return Setup(row["name"], tuple(arguments), {**environment, **also})


def _quantized(checkpoint: Checkpoint) -> bool:
    return any(scheme.weights is not Number.FULL for found in checkpoint.schemes.values() for scheme in found)


def _wanted_flags(row: Mapping[str, Any], checkpoint: Checkpoint | None) -> list[str]:
    """With experts and dense layers in a model, a rung may be meant for the experts alone."""
    experts = checkpoint is None or Role.EXPERTS in checkpoint.schemes
    if row.get("experts_first") and checkpoint is not None:
        return ["--moe-backend"] if experts else ["--linear-backend"]
    return ["--moe-backend", "--linear-backend"] if experts else ["--linear-backend"]


def _explained(setup: Setup, tree: SourceTree, checkpoint: Checkpoint | None, base: Request) -> Setup:
    if checkpoint is None:
        return setup
    words = dict(zip(setup.arguments[::2], setup.arguments[1::2], strict=True))
    request = replace(
        base,
        moe_backend=words.get("--moe-backend", base.moe_backend),
        linear_backend=words.get("--linear-backend", base.linear_backend),
        environment={**base.environment, **setup.environment},
    )
    return replace(setup, expected=explain(checkpoint, tree, Supplies(), request))


def _refusal(setup: Setup) -> str:
    """Upstream's own words, where every outcome for some kind of layer is a refusal."""
    for part in setup.expected.parts if setup.expected else ():
        choices = part.selection.choices
        if part.selection.layer is not Layer.ATTENTION and choices and all(choice.error for choice in choices):
            return f"vLLM would refuse {part.selection.title}: {choices[0].error}"
    return ""
