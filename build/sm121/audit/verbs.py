"""What the verbs explain, oracle, memory, bootlog and smoke do with their arguments."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121.audit.bootlog import BootLog
from sm121.audit.chain import compare
from sm121.audit.checkpoint import Checkpoint
from sm121.audit.delivery import Supplies, read_supplies
from sm121.audit.explain import Explanation, Request, explain
from sm121.audit.explain_report import explain_json, explain_text, finding_json, findings_text
from sm121.audit.memory import GIB, Plan, cache_cost, judge_memory
from sm121.audit.oracle import read_oracle
from sm121.audit.oracle_report import diff_json, diff_text, oracle_json, oracle_text
from sm121.audit.smoke.procedure import Bounds, Rung, validate
from sm121.audit.smoke.report import smoke_html, smoke_json, smoke_text
from sm121.audit.source import SourceTree
from sm121.errors import ArtifactError, StorageError, UsageError, VerdictFail, VerdictUnknown, VerdictWarning
from sm121.findings import Verdict, overall
from sm121.progress import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from sm121.findings import Finding


def _pairs(words: Iterable[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    wrong = [word for word in words if "=" not in word]
    if wrong:
        raise UsageError([f"{what} {word!r} has no `=`." for word in wrong])
    for word in words:
        name, _, value = word.rpartition("=") if what == "--answer" else word.partition("=")
        found[name] = value
    return found


def _answers(words: Iterable[str]) -> dict[str, bool]:
    pairs = _pairs(words, "--answer")
    wrong = [value for value in pairs.values() if value not in {"yes", "no"}]
    if wrong:
        raise UsageError([f"--answer ends with {value!r}; wanted yes or no." for value in wrong])
    return {question: value == "yes" for question, value in pairs.items()}


def _request(arguments: argparse.Namespace) -> Request:
    return Request(
        capability=arguments.target,
        cuda=arguments.cuda,
        moe_backend=arguments.moe_backend,
        linear_backend=arguments.linear_backend,
        attention_backend=arguments.attention_backend,
        kv_cache=arguments.kv_cache_dtype,
        speculative=arguments.speculative,
        environment=_pairs(arguments.env, "--env"),
        answers=_answers(arguments.answer),
    )


def _explanation(arguments: argparse.Namespace) -> Explanation:
    progress = Progress(quiet=arguments.quiet)
    request = _request(arguments)
    checkpoint = Checkpoint.read(arguments.checkpoint)
    with progress.step("read vLLM's Python"):
        tree = SourceTree.read(arguments.artifact)
    supplies = Supplies()
    if not arguments.no_inspect:
        with progress.step("look into the libraries"):
            supplies = read_supplies(arguments.artifact, tree, request.capability, progress)
    with progress.step("follow the selection"):
        return explain(checkpoint, tree, supplies, request)


def run_explain(arguments: argparse.Namespace) -> int:
    """The verb explain; returns the exit status."""
    explanation = _explanation(arguments)
    if arguments.json:
        _print_json(explain_json(explanation))
    else:
        explain_text(explanation, _console())
    return _status(explanation.verdict, strict=arguments.strict)


def run_oracle(arguments: argparse.Namespace) -> int:
    """The verb oracle; returns the exit status."""
    if bool(arguments.artifact) == bool(arguments.diff):
        raise UsageError("oracle takes artifacts, or --diff with two.")
    base = Request(
        capability=arguments.target, cuda=arguments.cuda, environment=_pairs(arguments.env, "--env"),
        answers=_answers(arguments.answer),
    ).facts(None)  # fmt: skip
    progress = Progress(quiet=arguments.quiet)
    oracles = []
    for references in [arguments.artifact] if arguments.artifact else [[one] for one in arguments.diff]:
        with progress.step(f"read {', '.join(references)}"):
            oracles.append(read_oracle(SourceTree.read(references), base))
    if len(oracles) == 1:
        if arguments.json:
            _print_json(oracle_json(oracles[0]))
        else:
            oracle_text(oracles[0], _console())
    elif arguments.json:
        _print_json(diff_json(oracles[0], oracles[1]))
    else:
        diff_text(oracles[0], oracles[1], _console())
    return 0


def run_memory(arguments: argparse.Namespace) -> int:
    """The verb memory; returns the exit status."""
    per_token, per_sequence, weights, basis = _cost(arguments)
    given = arguments.weights_gib if arguments.weights_gib is not None else weights
    plan = Plan(
        per_token=per_token, per_sequence=per_sequence, total=int(arguments.total_gib * GIB),
        utilization=arguments.gpu_memory_utilization, weights=(given or 0) * GIB, sequences=arguments.max_num_seqs,
        length=arguments.max_model_len, host=arguments.host_gib * GIB,
    )  # fmt: skip
    findings = list(judge_memory(plan))
    if arguments.json:
        _print_json({
            "version": 1, "bytes_per_token": per_token, "bytes_per_sequence": per_sequence, "basis": basis,
            "pool_bytes": plan.pool, "tokens": plan.tokens, "host_bytes": plan.headroom,
            "needed_bytes": plan.needed, "enough_utilization": plan.enough, "findings": list(map(finding_json, findings)),
        })  # fmt: skip
    else:
        console = _console()
        console.print(
            f"{per_token / 1000:.1f} kB per token of context: {'; '.join(basis)}", markup=False, soft_wrap=True
        )
        if per_sequence:
            console.print(f"{per_sequence / 1e6:.1f} MB more for each sequence (sliding windows)", markup=False)
        console.print(f"pool {plan.pool / GIB:.1f} GiB: {plan.tokens:,} tokens", markup=False)
        if given is None:
            console.print(
                "weights are not known and count as 0; give --weights-gib", style="yellow", markup=False
            )
        findings_text(findings, console, least=Verdict.PASS)
    return _status(overall(findings), strict=arguments.strict)


def _cost(arguments: argparse.Namespace) -> tuple[float, float, float | None, list[str]]:
    if arguments.bootlog is not None:
        log = BootLog()
        with _open(arguments.bootlog) as lines:
            log.read(lines)
        if log.bytes_per_token is None:
            wanted = "`Available KV cache memory` and `KV cache size`"
            raise ArtifactError(
                f"{arguments.bootlog} has not both lines {wanted}.", do="give the log from its start."
            )
        return log.bytes_per_token, 0, log.numbers.get("weights_gib"), ["by the boot log"]
    checkpoint = Checkpoint.read(arguments.checkpoint)
    cost = cache_cost(checkpoint, arguments.kv_cache_dtype)
    if cost.per_token is None:
        raise ArtifactError(f"{arguments.checkpoint}: {cost.basis}.", do="take the numbers from a boot log.")
    left_out = [f"not counted: {text}" for text in cost.left_out]
    return cost.per_token, cost.per_sequence or 0, None, [cost.basis, *left_out]


def run_bootlog(arguments: argparse.Namespace) -> int:
    """The verb bootlog; returns the exit status."""
    if bool(arguments.checkpoint) != bool(arguments.artifact):
        raise UsageError("a comparison needs both --checkpoint and --artifact.")
    explanation = _explanation(arguments) if arguments.checkpoint else None
    log, console = BootLog(), _console()
    try:
        with (
            nullcontext(sys.stdin.buffer if sys.stdin else io.BytesIO())
            if arguments.log == "-"
            else _open_bytes(Path(arguments.log)) as stream
        ):
            for line in iter(lambda: stream.readline(1 << 16), b""):
                fresh = log.feed(line.decode("utf-8", "replace"))
                if fresh and not arguments.json:
                    findings_text(fresh, console, least=Verdict.INFO)
    except KeyboardInterrupt:
        # Following a log is ended this way; what was read is the answer.
        pass
    findings = [*log.findings, *(compare(log, explanation) if explanation else [])]
    verdict = overall(findings) if findings else log.verdict
    if arguments.json:
        _print_json(_bootlog_json(log, findings, verdict))
    else:
        _bootlog_text(log, [finding for finding in findings if finding not in log.findings], verdict, console)
    return _status(verdict, strict=arguments.strict)


def _bootlog_text(log: BootLog, compared: Sequence[Finding], verdict: Verdict, console: Console) -> None:
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


def _bootlog_json(log: BootLog, findings: Sequence[Finding], verdict: Verdict) -> dict[str, Any]:
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


def run_smoke(arguments: argparse.Namespace) -> int:
    """The verb smoke; returns the exit status."""
    rungs = _rungs(arguments.url, arguments.log)
    wrong = [f"{name} must be at least {least}." for name, value, least in (
        ("--width", arguments.width, 1), ("--requests", arguments.requests, 0),
    ) if value < least]  # fmt: skip
    if wrong:
        raise UsageError(wrong)
    bounds = Bounds(
        deadline=arguments.deadline, warm_up=arguments.warm_up, requests=arguments.requests, width=arguments.width,
        soak_seconds=arguments.soak_seconds,
    )  # fmt: skip
    progress = Progress(quiet=arguments.quiet)
    result = validate(
        rungs, bounds, progress, expect=arguments.expect_version, model=arguments.model, control=arguments.control,
        headers=_key(arguments.api_key_from),
    )  # fmt: skip
    if arguments.html is not None:
        _write(arguments.html, smoke_html(result))
    if arguments.json:
        _print_json(smoke_json(result))
    else:
        smoke_text(result, _console(), everything=True)
    return _status(result.verdict, strict=arguments.strict)


def _rungs(urls: Sequence[str], logs: Sequence[str]) -> list[Rung]:
    def named(words: Sequence[str], first: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for word in words:
            name, sign, value = word.partition("=")
            plain = not sign or "/" in name or ":" in name
            key, value = (first, word) if plain else (name, value)
            if key in found:
                raise UsageError(f"two of them are called {key!r}; give each a name, as in NAME={value}.")
            found[key] = value
        return found

    addresses, files = named(urls, "auto"), named(logs, "auto")
    unknown = sorted(set(files) - set(addresses))
    if unknown:
        raise UsageError([f"--log {name}=... belongs to no --url." for name in unknown])
    return [Rung(name, url, Path(files[name]) if name in files else None) for name, url in addresses.items()]


def _key(variable: str) -> dict[str, str]:
    if not variable:
        return {}
    value = os.environ.get(variable)
    if not value:
        raise UsageError(f"the variable {variable} is not set.")
    return {"Authorization": f"Bearer {value}"}


# -- output ----------------------------------------------------------------------------------------------------


def _console() -> Console:
    return Console(highlight=False)


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False))


def _status(verdict: Verdict, *, strict: bool) -> int:
    if verdict is Verdict.WARN:
        return VerdictWarning.exit_code if strict else 0
    return {Verdict.FAIL: VerdictFail.exit_code, Verdict.UNKNOWN: VerdictUnknown.exit_code}.get(verdict, 0)


def _open(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error


def _open_bytes(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error
