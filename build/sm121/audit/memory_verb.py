"""What the verb memory does with its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121.audit.bootlog import BootLog
from sm121.audit.checkpoint import Checkpoint
from sm121.audit.explain_report import finding_json, findings_text
from sm121.audit.log_lines import CUT_ADVICE, LogLines
from sm121.audit.memory import GIB, Plan, cache_cost, judge_memory
from sm121.audit.output import exit_status, open_log, print_json, standard_output
from sm121.errors import ArtifactError, UsageError
from sm121.findings import Finding, Verdict, overall

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Cost:
    """Bytes of the cache, and what they rest on. `weights` in bytes, `longest` in tokens, None if not known."""

    per_token: float
    per_sequence: float
    weights: float | None
    longest: int | None
    basis: tuple[str, ...]
    doubts: tuple[str, ...] = ()


def run_memory(arguments: argparse.Namespace) -> int:
    """The verb memory; returns the exit status."""
    if arguments.host_gib >= arguments.total_gib:
        raise UsageError(
            f"--host-gib {arguments.host_gib:g} leaves nothing of --total-gib {arguments.total_gib:g}.",
            do="give the host less than the machine has.",
        )
    cost = _of_log(arguments.bootlog) if arguments.bootlog is not None else _of_configuration(arguments)
    plan = Plan(
        per_token=cost.per_token, per_sequence=cost.per_sequence, total=int(arguments.total_gib * GIB),
        utilization=arguments.gpu_memory_utilization,
        weights=cost.weights if arguments.weights_gib is None else arguments.weights_gib * GIB,
        sequences=arguments.max_num_seqs, length=_length(arguments, cost), host=arguments.host_gib * GIB,
    )  # fmt: skip
    doubts = [Finding("memory.configuration", "the configuration", Verdict.UNKNOWN, text) for text in cost.doubts]
    findings = [*doubts, *judge_memory(plan)]
    if arguments.json:
        print_json(_json(plan, cost, findings))
    else:
        _text(plan, cost, findings)
    return exit_status(overall(findings), strict=arguments.strict)


def _length(arguments: argparse.Namespace, cost: _Cost) -> int:
    """Tokens of one sequence: as asked for, or the model's longest, as vLLM takes it."""
    if arguments.max_model_len and not arguments.max_num_seqs:
        raise UsageError("--max-model-len alone says nothing about a cache.", do="give --max-num-seqs too.")
    if arguments.max_num_seqs and not arguments.max_model_len and cost.longest is None:
        raise UsageError(
            "it is not known how long the sequences are.", do="give --max-model-len beside --max-num-seqs."
        )
    return int(arguments.max_model_len or cost.longest or 0)


def _of_log(path: Path) -> _Cost:
    log = BootLog()
    with open_log(path) as file:
        lines = LogLines(file)
        log.read(lines)
    if lines.cut:
        raise ArtifactError(f"{path} cannot be taken as a log: {lines.cut}.", do=CUT_ADVICE)
    if log.bytes_per_token is None:
        wanted = "`Available KV cache memory: N GiB` and, after it, `KV cache size: N tokens`"
        bad = [f"{name.replace('_', ' ')} {text!r} cannot be right" for name, text in log.unusable.items()]
        raise ArtifactError(
            f"{path} has no usable pair of lines {wanted}{': ' if bad else ''}{', '.join(bad)}.",
            do="give the log from its start to the line that says that the server is up.",
        )
    weights, longest = log.numbers.get("weights_gib"), log.numbers.get("longest_request")
    return _Cost(
        log.bytes_per_token, 0, weights * GIB if weights else None, int(longest) if longest else None, ("by the boot log",)
    )  # fmt: skip


def _of_configuration(arguments: argparse.Namespace) -> _Cost:
    checkpoint = Checkpoint.read(arguments.checkpoint)
    cost = cache_cost(checkpoint, arguments.kv_cache_dtype)
    if cost.per_token is None:
        raise ArtifactError(f"{arguments.checkpoint}: {cost.basis}.", do="take the numbers from a boot log.")
    left_out = [f"not counted: {text}" for text in cost.left_out]
    return _Cost(
        cost.per_token, cost.per_sequence or 0, checkpoint.stored_bytes, checkpoint.longest_context,
        (cost.basis, *left_out), checkpoint.doubts,
    )  # fmt: skip


def _json(plan: Plan, cost: _Cost, findings: list[Finding]) -> dict[str, Any]:
    return {
        "version": 1, "bytes_per_token": cost.per_token, "bytes_per_sequence": cost.per_sequence,
        "basis": list(cost.basis), "weights_bytes": plan.weights, "pool_bytes": plan.pool, "tokens": plan.tokens,
        "host_bytes": plan.headroom, "needed_bytes": plan.needed, "enough_utilization": plan.enough,
        "findings": [finding_json(finding) for finding in findings],
    }  # fmt: skip


def _text(plan: Plan, cost: _Cost, findings: list[Finding]) -> None:
    console = standard_output()
    lines = [f"{cost.per_token / 1000:.1f} kB per token of context: {'; '.join(cost.basis)}"]
    if cost.per_sequence:
        lines.append(f"{cost.per_sequence / 1e6:.1f} MB more for each sequence (sliding windows)")
    if plan.weights is not None:
        lines.append(f"weights {plan.weights / GIB:.1f} GiB")
    lines.append(f"pool {plan.pool / GIB:.1f} GiB: {plan.tokens:,} tokens")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    findings_text(findings, console, least=Verdict.PASS)
