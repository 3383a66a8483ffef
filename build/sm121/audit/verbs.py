"""What the verbs explain and oracle do with their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.audit.checkpoint import Checkpoint
from sm121.audit.delivery import Supplies, read_supplies
from sm121.audit.explain import Explanation, Request, explain
from sm121.audit.explain_report import explain_json, explain_text
from sm121.audit.oracle import read_oracle
from sm121.audit.oracle_report import diff_json, diff_text, oracle_json, oracle_text
from sm121.audit.output import exit_status, print_json, standard_output
from sm121.audit.source import SourceTree
from sm121.errors import UsageError
from sm121.progress import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


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
    supplies = Supplies(remedy="Leave --no-inspect out, so that the libraries are looked into.")
    if not arguments.no_inspect:
        with progress.step("look into the libraries"):
            supplies = read_supplies(arguments.artifact, tree, request.capability, progress)
    with progress.step("follow the selection"):
        return explain(checkpoint, tree, supplies, request)


def run_explain(arguments: argparse.Namespace) -> int:
    """The verb explain; returns the exit status."""
    explanation = _explanation(arguments)
    if arguments.json:
        print_json(explain_json(explanation))
    else:
        explain_text(explanation, standard_output())
    return exit_status(explanation.verdict, strict=arguments.strict)


def run_oracle(arguments: argparse.Namespace) -> int:
    """The verb oracle; returns the exit status."""
    if bool(arguments.artifact) == bool(arguments.diff):
        raise UsageError(
            "oracle takes artifacts, or --diff with two.",
            do="name a wheel, a source distribution or an installation.",
        )
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
            print_json(oracle_json(oracles[0]))
        else:
            oracle_text(oracles[0], standard_output())
    elif arguments.json:
        print_json(diff_json(oracles[0], oracles[1]))
    else:
        diff_text(oracles[0], oracles[1], standard_output())
    return 0


def predicted(arguments: argparse.Namespace) -> Explanation | None:
    """What explain says for the arguments of bootlog, None if no comparison is asked for."""
    if bool(arguments.checkpoint) != bool(arguments.artifact):
        lacking = "--artifact" if arguments.checkpoint else "--checkpoint"
        raise UsageError(
            "a comparison needs both --checkpoint and --artifact.", do=f"give {lacking} too, or neither of them."
        )
    return _explanation(arguments) if arguments.checkpoint else None
