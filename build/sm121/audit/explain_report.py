"""Shows an explanation as text and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from sm121.audit.conditions import alternatives
from sm121.audit.delivery import State
from sm121.findings import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from sm121.audit.explain import Explanation, Part
    from sm121.findings import Finding

STYLES = {
    Verdict.PASS: "green", Verdict.INFO: "cyan", Verdict.WARN: "yellow", Verdict.UNKNOWN: "magenta",
    Verdict.FAIL: "bold red",
}  # fmt: skip
_STATES = {
    State.DELIVERED: "green", State.DRIVER: "yellow", State.MACHINE: "cyan", State.UNKNOWN: "magenta",
    State.MISSING: "bold red",
}  # fmt: skip


def findings_text(findings: tuple[Finding, ...] | list[Finding], console: Console, *, least: Verdict) -> None:
    """Print findings, gravest first, from a verdict on."""
    for finding in sorted(findings, key=lambda item: -item.verdict.rank):
        if finding.verdict.rank >= least.rank:
            label = f"[{STYLES[finding.verdict]}]{finding.verdict:>7}[/]"
            source = f" [dim]{escape(finding.source)}[/dim]" if finding.source else ""
            console.print(f"{label}  {escape(finding.message)}{source}", soft_wrap=True)


def explain_text(explanation: Explanation, console: Console) -> None:
    """Print the answer: per kind of layer what is taken and why, then what to mind."""
    checkpoint = explanation.checkpoint
    console.print(f"checkpoint  {checkpoint.name}: {_described(explanation)}", markup=False, soft_wrap=True)
    version = explanation.version or "(version unknown)"
    console.print(f"artifact    {explanation.artifact}: vLLM {version}", markup=False, soft_wrap=True)
    console.print(f"chip        compute capability {explanation.request.capability}\n", markup=False)
    for part in explanation.parts:
        _part_text(part, console)
    findings_text(explanation.findings, console, least=Verdict.INFO)
    console.print(f"verdict: [{STYLES[explanation.verdict]}]{explanation.verdict}[/]")


def _described(explanation: Explanation) -> str:
    checkpoint = explanation.checkpoint
    words = [checkpoint.model_type or "unknown model type", checkpoint.quantization.method]
    words += [
        f"{role}: {' / '.join(scheme.name for scheme in found)}" for role, found in checkpoint.schemes.items()
    ]
    return ", ".join(words)


def _part_text(part: Part, console: Console) -> None:
    roles = f" ({', '.join(part.roles)})" if part.roles else ""
    heading = f"{part.selection.title}{roles}"
    console.print(f"[bold]{escape(heading)}[/bold]  [dim]{escape(part.selection.function)}[/dim]")
    for choice, delivery in zip(part.selection.choices, part.deliveries, strict=True):
        name = choice.backend or "nothing"
        kernel = f" ({choice.kernel})" if choice.kernel not in {"", choice.backend} else ""
        console.print(f"  -> {name}{kernel}", markup=False)
        if not choice.certain:
            console.print(f"     if {alternatives(choice.conditions)}", markup=False, soft_wrap=True)
        if choice.assumed:
            console.print(
                f"     taken as given: {', '.join(choice.assumed)}", style="dim", markup=False, soft_wrap=True
            )
        for text in filter(None, (choice.error, choice.stuck)):
            console.print(f"     {text}", style="red", markup=False, soft_wrap=True)
        if choice.backend:
            console.print(
                f"     [{_STATES[delivery.state]}]{delivery.state}[/]: {escape(delivery.detail)}", soft_wrap=True
            )
        for candidate in choice.candidates:
            if not candidate.taken:
                reason = candidate.reason or "it was not asked further"
                console.print(
                    f"     passed over: {candidate.kernel}: {reason}", style="dim", markup=False, soft_wrap=True
                )
    if part.selection.note:
        console.print(f"     {part.selection.note}", style="dim", markup=False)
    console.print()


def finding_json(finding: Finding) -> dict[str, str]:
    """One finding as plain data."""
    return {
        "check": finding.check, "subject": finding.subject, "verdict": str(finding.verdict), "got": finding.got,
        "wanted": finding.wanted, "advice": finding.advice, "source": finding.source,
    }  # fmt: skip


def explain_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain data, version 1."""
    checkpoint = explanation.checkpoint
    return {
        "version": 1,
        "verdict": str(explanation.verdict),
        "capability": str(explanation.request.capability),
        "artifact": {"name": explanation.artifact, "vllm": explanation.version},
        "checkpoint": {
            "name": checkpoint.name,
            "model_type": checkpoint.model_type,
            "method": checkpoint.quantization.method,
            "schemes": {str(role): [item.name for item in found] for role, found in checkpoint.schemes.items()},
            "problems": list(checkpoint.problems),
        },
        "layers": [_part_json(part) for part in explanation.parts],
        "findings": [finding_json(finding) for finding in explanation.findings],
    }


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "layer": str(part.selection.layer),
        "scheme": part.selection.scheme,
        "roles": [str(role) for role in part.roles],
        "function": part.selection.function,
        "choices": [
            {
                "backend": choice.backend,
                "kernel": choice.kernel,
                "certain": choice.certain,
                "conditions": [
                    [{"question": item.question, "holds": item.holds} for item in group]
                    for group in choice.conditions
                ],
                "assumed": list(choice.assumed),
                "log": choice.log,
                "error": choice.error,
                "stuck": choice.stuck,
                "delivery": {"state": str(delivery.state), "detail": delivery.detail},
                "passed_over": [
                    {"backend": item.backend, "kernel": item.kernel, "reason": item.reason}
                    for item in choice.candidates
                    if not item.taken
                ],
            }
            for choice, delivery in zip(part.selection.choices, part.deliveries, strict=True)
        ],
    }
