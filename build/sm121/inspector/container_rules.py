"""The rules for images, from `data/images.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING

from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Named:
    """A pattern and what it finds."""

    name: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Secrets:
    """How secrets are told: names of variables by their parts, values and files by their form."""

    names: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    harmless: re.Pattern[str]
    forms: tuple[Named, ...]
    files: tuple[Named, ...]

    def by_name(self, variable: str) -> bool:
        """Whether the name says that its value is secret: HF_TOKEN is, TOKENIZERS_PARALLELISM is not."""
        parts = variable.upper().split("_")
        return not self.names.isdisjoint(parts) or any(pair in self.pairs for pair in pairwise(parts))

    def by_form(self, text: str) -> str:
        """What kind of secret stands in a text, "" if none is seen."""
        return next((form.name for form in self.forms if form.pattern.search(text)), "")


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """All of them. `date` is the day on which the file was looked through."""

    date: str
    ptxas: Mapping[str, CudaVersion]
    drivers: Mapping[str, CudaVersion]
    ptxas_names: frozenset[str]
    nvcc_names: frozenset[str]
    triton: re.Pattern[str]
    version: re.Pattern[bytes]
    compilers: tuple[str, ...]
    loader: re.Pattern[str]
    flavours: Mapping[str, bool]
    caches: tuple[Named, ...]
    staged: re.Pattern[str]
    secrets: Secrets


@cache
def container_rules() -> ContainerRules:
    """The rules of this package."""
    data = tomllib.loads(resources.files(__package__).joinpath("data/images.toml").read_text(encoding="utf-8"))
    tool, secret = data["tool"], data["secret"]
    return ContainerRules(
        date=str(data["date"]),
        ptxas={capability: CudaVersion.parse(cuda) for capability, cuda in data["ptxas"].items()},
        drivers={branch: CudaVersion.parse(cuda) for branch, cuda in data["drivers"].items()},
        ptxas_names=frozenset(tool["ptxas"]),
        nvcc_names=frozenset(tool["nvcc"]),
        triton=re.compile(rf"(?:^|/){tool['triton']}"),
        version=re.compile(tool["version"].encode()),
        compilers=tuple(tool["compilers"]),
        loader=re.compile(data["loader"]["files"]),
        flavours=dict(data["flavour"]),
        caches=_named(data["cache"]),
        staged=re.compile("|".join(f"(?:{item})" for item in data["staged"]["patterns"])),
        secrets=Secrets(
            frozenset(secret["names"]),
            frozenset((first, second) for first, second in secret["pairs"]),
            re.compile(secret["harmless"]),
            tuple(Named(row["name"], re.compile(row["value"])) for row in data["form"]),
            _named(data["file"]),
        ),
    )


def _named(rows: list[dict[str, str]]) -> tuple[Named, ...]:
    return tuple(Named(row["name"], re.compile(row["path"])) for row in rows)
