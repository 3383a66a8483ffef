"""Answers for vLLM's compiled functions: from dated rules, the CUDA version and the kernels that are there."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm121.target import Capability


@dataclass(frozen=True, slots=True)
class _Rule:
    lowest: int
    below: int
    cuda: CudaVersion
    family: str


@lru_cache(maxsize=1)
def _functions() -> dict[str, tuple[_Rule, ...]]:
    data = tomllib.loads((files("sm121.audit") / "data" / "compiled.toml").read_text("utf-8"))
    return {
        row["name"]: tuple(
            _Rule(rule["from"], rule["below"], CudaVersion.parse(rule["cuda"]), rule.get("family", ""))
            for rule in row["rules"]
        )
        for row in data["function"]
    }


def compiled_answers(
    capability: Capability, cuda: CudaVersion | None, has_family: Callable[[str], bool | None]
) -> Callable[[str], bool | None]:
    """Make the answerer that `Facts.native` takes.

    `has_family` says whether kernels of a family run on the chip, None if that was not looked at; then the answer
    is None too, and the question stays open.
    """

    def answer(question: str) -> bool | None:
        match = re.fullmatch(r"([\w.]+)\((\d+)\)", question)
        rules = _functions().get(match[1]) if match else None
        if rules is None or match is None or int(match[2]) != capability.number:
            return None
        rule = next((rule for rule in rules if rule.lowest <= capability.number < rule.below), None)
        if rule is None:
            return False
        if cuda is None or cuda.release < rule.cuda:
            return None if cuda is None else False
        return has_family(rule.family) if rule.family else True

    return answer
