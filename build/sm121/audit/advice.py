"""What operators learned, applied: dated rules over a checkpoint, a request and what vLLM selects."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from sm121.audit.modules import Role
from sm121.audit.schemes import Number
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sm121.audit.checkpoint import Checkpoint
    from sm121.audit.schemes import Scheme


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rules look at. `selected` are backends and kernel classes; `speculative` is "", "mtp" or a method."""

    checkpoint: Checkpoint | None = None
    version: str = ""
    moe_backend: str = "auto"
    linear_backend: str = "auto"
    speculative: str = ""
    selected: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    """What is selected under some condition only."""
    automatic: tuple[str, ...] = ()
    """The backends that `--moe-backend auto` walks through, as this artifact's own list names them."""

    @property
    def schemes(self) -> list[Scheme]:
        """The schemes of the layers that carry most of the work."""
        if self.checkpoint is None:
            return []
        roles = (Role.EXPERTS, Role.DENSE, Role.ATTENTION)
        found = (self.checkpoint.scheme(role) for role in roles)
        return [scheme for scheme in found if scheme is not None and scheme.weights is not Number.FULL]


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads((files("sm121.audit") / "data" / "advice.toml").read_text("utf-8"))


def advise(situation: Situation) -> list[Finding]:
    """All rules that match."""
    return [_finding(row, situation) for row in _data()["advice"] if _matches(row["when"], situation)]


def _finding(row: Mapping[str, Any], situation: Situation) -> Finding:
    """A rule as a finding; what rests on a selection that is only possible is no warning yet."""
    verdict, got = Verdict(row["verdict"]), row["got"]
    wanted = row["when"].get("selected")
    if wanted and not any(re.search(wanted, name) for name in situation.selected):
        verdict, got = Verdict.INFO, f"under the conditions named with it, {got}"
    return Finding(
        row["check"],
        _subject(situation),
        verdict,
        got,
        advice=row["advice"],
        source=f"{row['source']} ({row['date']})",
    )


def _subject(situation: Situation) -> str:
    return situation.checkpoint.name if situation.checkpoint else "the request"


def _matches(when: Mapping[str, Any], situation: Situation) -> bool:
    return all(_holds(key, value, situation) for key, value in when.items())


def _holds(key: str, value: Any, situation: Situation) -> bool:  # noqa: PLR0911 -- one answer a key
    checkpoint, schemes = situation.checkpoint, situation.schemes
    match key:
        case "moe_backend":
            return situation.moe_backend in value
        case "linear_backend":
            return situation.linear_backend in value
        case "selected":
            return any(re.search(value, name) for name in (*situation.selected, *situation.possible))
        case "automatic" | "not_automatic":
            return (value in situation.automatic) is (key == "automatic")
        case "not_selected":
            return value not in situation.selected
        case "weights":
            return any(scheme.weights == value for scheme in schemes)
        case "weight_only":
            return bool(schemes) and any(scheme.weight_only is value for scheme in schemes)
        case "quantized_head":
            bits = _head_bits(checkpoint)
            return bits is not None and bits <= value
        case "speculative":
            return bool(situation.speculative) and value in {"true", situation.speculative}
        case "predictors":
            return bool(checkpoint and checkpoint.layers.predictors) is value
        case "model_type":
            return bool(checkpoint and re.search(value, checkpoint.model_type))
        case "below" | "from":
            return _version_holds(key, value, situation.version)
    raise ValueError(f"advice.toml: the key {key!r} of a rule is unknown")


def _head_bits(checkpoint: Checkpoint | None) -> int | None:
    scheme = checkpoint.scheme(Role.HEAD) if checkpoint else None
    return scheme.weights.bits if scheme and scheme.weights is not Number.FULL else None


def _version_holds(key: str, value: str, version: str) -> bool:
    try:
        mine = Version(version)
    except ValueError:
        return False
    return mine < Version(value) if key == "below" else mine >= Version(value)


def judge_variables(environment: Mapping[str, str], known: Sequence[str], version: str) -> Iterator[Finding]:
    """Variables of vLLM's that are set but that this version does not read: they do nothing, and nobody says so."""
    gone = {row["name"]: row for row in _data()["variable"]}
    for name in sorted(environment):
        if not name.startswith("VLLM_") or name in known or not known:
            continue
        row = gone.get(name)
        since = f"; it went with {row['gone']}" if row else ""
        advice = f"Use {row['instead']}." if row else "Take it out of the recipe, or look for a misspelling."
        yield Finding(
            "explain.variable",
            name,
            Verdict.WARN,
            f"vLLM {version or 'here'} does not read it{since}",
            advice=advice,
        )
