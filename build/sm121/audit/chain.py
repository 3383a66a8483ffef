"""Compares what a server's log shows with what was predicted, and says where the chain broke."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.audit.conditions import alternatives
from sm121.audit.selection import Layer
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.audit.bootlog import BootLog
    from sm121.audit.explain import Explanation, Part
    from sm121.audit.selection import Choice


def compare(log: BootLog, explanation: Explanation) -> list[Finding]:
    """One finding for each kind of layer and for the version."""
    return [*_version(log, explanation), *(finding for part in explanation.parts for finding in _part(log, part))]


def _version(log: BootLog, explanation: Explanation) -> Iterator[Finding]:
    if not log.version or not explanation.version:
        return
    same = log.version.split("+", 1)[0] == explanation.version.split("+", 1)[0]
    verdict = Verdict.PASS if same else Verdict.FAIL
    advice = "" if same else "Explain the artifact that really runs; a mis-stamped build is disqualified."
    yield Finding("chain.version", "vLLM", verdict, f"the log says {log.version}", explanation.version, advice)


def _part(log: BootLog, part: Part) -> Iterator[Finding]:
    layer, subject = part.selection.layer, part.selection.title
    if not part.selection.function:
        return
    seen = log.names(str(layer))
    predicted = {name: choice for choice in part.selection.choices for name in _names(choice, layer) if name}
    met = [name for name in seen if name in predicted]
    wanted = " or ".join(dict.fromkeys(choice.backend for choice in part.selection.choices if choice.backend))
    if not seen:
        if any(choice.log for choice in part.selection.choices) and log.ready:
            yield Finding(
                "chain.selected", subject, Verdict.UNKNOWN, "the log names no choice for it", wanted or "a refusal",
                "Give the whole log, from the first line on, at level INFO.",
            )  # fmt: skip
        return
    if met:
        choice = predicted[met[0]]
        note = "" if choice.certain else f": so {alternatives(choice.conditions)}"
        yield Finding("chain.selected", subject, Verdict.PASS, f"{met[0]} was taken, as predicted{note}")
        return
    if _others_explain(seen, part, layer):
        return
    yield Finding(
        "chain.selected", subject, Verdict.FAIL, f"{', '.join(seen)} was taken", wanted or "nothing",
        "The link `selected` broke: compare artifact, environment and flags of the run with those explained.",
    )  # fmt: skip


def _names(choice: Choice, layer: Layer) -> tuple[str, ...]:
    """The spellings under which a log may name a choice."""
    if layer is Layer.ATTENTION and choice.log:
        return (choice.backend, choice.log.split()[1])
    return (choice.backend, choice.kernel)


def _others_explain(seen: list[str], part: Part, layer: Layer) -> bool:
    """Whether what the log names is of another format than this part (a model with both NVFP4 and FP8 layers)."""
    if layer is not Layer.DENSE:
        return False
    short = part.selection.scheme.split()[0].lower()
    return not any(short[:5] in name.lower() for name in seen) and not any(
        "linear" in name.lower() for name in seen
    )
