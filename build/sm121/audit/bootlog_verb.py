"""What the verb bootlog does with its arguments."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121.audit.bootlog import BootLog
from sm121.audit.chain import compare
from sm121.audit.explain_report import finding_json, findings_text
from sm121.audit.log_lines import LogLines
from sm121.audit.output import exit_status, open_log, print_json, standard_output
from sm121.findings import Verdict, overall

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from sm121.audit.explain import Explanation
    from sm121.findings import Finding


def run_bootlog(
    arguments: argparse.Namespace, explained: Callable[[argparse.Namespace], Explanation | None]
) -> int:
    """The verb bootlog; `explained` gives the prediction to compare with, if one is asked for."""
    explanation = explained(arguments)
    log, console = BootLog(), standard_output()
    lines: LogLines | None = None
    try:
        with (
            nullcontext(sys.stdin.buffer if sys.stdin else io.BytesIO())
            if arguments.log == "-"
            else open_log(Path(arguments.log)) as stream
        ):
            lines = LogLines(stream)
            for line in lines:
                fresh = log.feed(line)
                if fresh and not arguments.json:
                    # At once: who follows a log wants to know while the server still runs.
                    findings_text(fresh, console, least=Verdict.INFO)
    except KeyboardInterrupt:
        # Following a log is ended this way; what was read is the answer.
        pass
    cut = lines.finding if lines else None
    compared = [*([cut] if cut else []), *log.closing(), *(compare(log, explanation) if explanation else [])]
    findings = [*log.findings, *compared]
    verdict = overall(findings) if findings else log.verdict
    if arguments.json:
        print_json(_json(log, findings, verdict))
    else:
        _text(log, compared, verdict, console)
    return exit_status(verdict, strict=arguments.strict)


def _text(log: BootLog, compared: Sequence[Finding], verdict: Verdict, console: Console) -> None:
    console.print(
        f"vLLM {log.version or '(not named)'}, {log.lines} lines, {'up' if log.ready else 'not up'}", markup=False
    )
    for item in log.chosen:
        console.print(f"  {item.layer}: {item.name}{f' for {item.kind}' if item.kind else ''}", markup=False)
    for name, value in log.numbers.items():
        console.print(f"  {name.replace('_', ' ')}: {value:,g}", markup=False)
    if log.bytes_per_token is not None:
        console.print(f"  cache: {log.bytes_per_token / 1000:.1f} kB per token", markup=False)
    repeated = {
        finding.check: log.count(finding.check) for finding in log.findings if log.count(finding.check) > 1
    }
    for check, count in repeated.items():
        console.print(f"  {check}: {count} lines", markup=False)
    findings_text(list(compared), console, least=Verdict.PASS)
    console.print(f"verdict: {verdict}", markup=False)


def _json(log: BootLog, findings: Sequence[Finding], verdict: Verdict) -> dict[str, Any]:
    return {
        "version": 1,
        "verdict": str(verdict),
        "vllm": log.version,
        "lines": log.lines,
        "ready": log.ready,
        "chosen": [{"layer": item.layer, "name": item.name, "kind": item.kind} for item in log.chosen],
        "numbers": log.numbers,
        "bytes_per_token": log.bytes_per_token,
        "findings": [{**finding_json(item), "lines": log.count(item.check)} for item in findings],
    }
