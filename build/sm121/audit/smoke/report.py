"""Shows a validation as text, plain data and one HTML page."""

from __future__ import annotations

from html import escape as html
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from sm121.audit.explain_report import STYLES, finding_json, findings_text
from sm121.audit.smoke.steps import Rates
from sm121.findings import Verdict
from sm121.progress import duration

if TYPE_CHECKING:
    from rich.console import Console

    from sm121.audit.smoke.procedure import Arm, SmokeResult


def smoke_text(result: SmokeResult, console: Console, *, everything: bool = False) -> None:
    """Print each arm's findings (passes only with `everything`), then what is adopted."""
    for arm in result.arms:
        about = f"vLLM {arm.version or '?'}, {arm.model or 'no model'}"
        where = arm.where or arm.rung.url
        console.print(f"[bold]{escape(arm.rung.name)}[/bold]  {escape(where)}  {escape(about)}", soft_wrap=True)
        findings_text(arm.findings, console, least=Verdict.PASS if everything else Verdict.INFO)
        console.print(f"  verdict: [{STYLES[arm.verdict]}]{arm.verdict}[/]\n")
    findings_text(result.left_out, console, least=Verdict.INFO)
    if len(result.arms) > 1:
        for cells in comparison(result):
            console.print(
                "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)), markup=False
            )
    best = _adopted(result)
    chosen = "nothing" if best is None else f"{best.rung.name}, {best.where}" if best.where else best.rung.name
    console.print(
        f"adopted: {chosen} ({result.why}), after {duration(result.seconds)}", markup=False, soft_wrap=True
    )


_WIDTHS = (12, 8, 12, 16, 16, 16, 9)


def comparison(result: SmokeResult) -> list[tuple[str, ...]]:
    """The arms side by side: a head, then one row each; what is not known is a dash."""

    def cell(value: float | None, unit: str, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f} {unit}"

    rows: list[tuple[str, ...]] = [("rung", "verdict", "first token", "prefill", "decode", "under load", "start")]
    for arm in result.arms:
        rates, load = arm.rates or Rates(None, None, None, 0), arm.soak
        rows.append((
            arm.rung.name, str(arm.verdict), cell(rates.first_token, "s", 2), cell(rates.prefill, "tokens/s"),
            cell(rates.decode, "tokens/s"), cell(load.rate if load else None, "tokens/s"), cell(arm.started, "s"),
        ))  # fmt: skip
    return rows


def _adopted(result: SmokeResult) -> Arm | None:
    return next((arm for arm in result.arms if arm.rung.name == result.adopted), None)


def smoke_json(result: SmokeResult) -> dict[str, Any]:
    """The validation as plain data, version 1."""
    return {
        "version": 1,
        "verdict": str(result.verdict),
        "adopted": result.adopted,
        "why": result.why,
        "seconds": round(result.seconds, 3),
        "arms": [_arm_json(arm) for arm in result.arms],
        "left_out": [{"name": item.subject, "why": item.got} for item in result.left_out],
    }


def _arm_json(arm: Arm) -> dict[str, Any]:
    rates, extraction, soak = arm.rates, arm.extraction, arm.soak
    return {
        "name": arm.rung.name,
        "url": arm.rung.url,
        "where": arm.where,
        "log": None if arm.rung.log is None else str(arm.rung.log),
        "start_seconds": arm.started,
        "vllm": arm.version,
        "model": arm.model,
        "verdict": str(arm.verdict),
        "warm_up_seconds": arm.warm_up,
        "rates": None if rates is None else {
            "first_token_seconds": rates.first_token, "prefill_tokens_per_second": rates.prefill,
            "decode_tokens_per_second": rates.decode, "runs": rates.runs,
        },
        "extraction": None if extraction is None else {
            "right": extraction.right, "total": extraction.total, "failed": extraction.failed,
        },
        "soak": None if soak is None else {
            "wanted": soak.wanted, "sent": soak.sent, "failures": soak.failures, "garbage": soak.incoherent,
            "tokens_per_second": soak.rate, "seconds": soak.seconds, "ended_early": soak.gave_up,
        },
        "findings": [finding_json(finding) for finding in arm.findings],
    }  # fmt: skip


_COLOURS = {
    Verdict.PASS: "#1a7f37", Verdict.INFO: "#0969da", Verdict.WARN: "#9a6700", Verdict.UNKNOWN: "#8250df",
    Verdict.FAIL: "#cf222e",
}  # fmt: skip
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>sm121 smoke</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; margin: 0.5rem 0 2rem; }}
td, th {{ border-bottom: 1px solid #d0d7de; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }}
</style></head><body>
<h1>Validation: <span style="color:{colour}">{verdict}</span></h1>
<p>Adopted: <b>{adopted}</b> {where} ({why}). It took {seconds}.</p>
<table>{table}</table>
{arms}
</body></html>
"""


def smoke_html(result: SmokeResult) -> str:
    """The validation as one page without anything outside it."""
    head, *rows = comparison(result)
    lines = [f"<tr>{''.join(f'<th>{html(cell)}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html(cell)}</td>' for cell in row)}</tr>" for row in rows]
    arm = _adopted(result)
    return _PAGE.format(
        where=html(arm.where if arm else ""), table="\n".join(lines),
        colour=_COLOURS[result.verdict], verdict=result.verdict, adopted=html(result.adopted or "nothing"),
        why=html(result.why), seconds=duration(result.seconds), arms="\n".join(_arm_html(arm) for arm in result.arms),
    )  # fmt: skip


def _arm_html(arm: Arm) -> str:
    rows = "\n".join(
        f'<tr><td style="color:{_COLOURS[item.verdict]}">{item.verdict}</td><td>{html(item.check)}</td>'
        f"<td>{html(item.message)}</td></tr>"
        for item in sorted(arm.findings, key=lambda item: -item.verdict.rank)
    )
    title = f'{html(arm.rung.name)}: <span style="color:{_COLOURS[arm.verdict]}">{arm.verdict}</span>'
    about = html(f"{arm.where or arm.rung.url}, vLLM {arm.version or '?'}, {arm.model or 'no model'}")
    return f"<h2>{title}</h2><p>{about}</p><table><tr><th></th><th>check</th><th>finding</th></tr>{rows}</table>"
