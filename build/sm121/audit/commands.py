"""The verbs explain, oracle, memory, bootlog, hardware and smoke: arguments in, answers out, a verdict as exit status."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121.audit.bootlog_verb import run_bootlog
from sm121.audit.hardware import run_hardware
from sm121.audit.memory import GIB, TOTAL
from sm121.audit.memory_verb import run_memory
from sm121.audit.smoke.verb import add_smoke_arguments, run_smoke
from sm121.audit.verbs import predicted, run_explain, run_oracle
from sm121.errors import VerdictFail, VerdictUnknown, VerdictWarning
from sm121.target import GB10, Capability
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Callable

_EXIT = (
    f"Exit status: 0 passed, {VerdictWarning.exit_code} warnings with --strict, {VerdictFail.exit_code} failed, "
    f"{VerdictUnknown.exit_code} could not tell."
)
_ARTIFACT = "a vLLM wheel, sdist, environment or image; several together count as installed side by side"


def add_audit_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add explain, oracle, memory, bootlog, hardware and smoke to the command line."""
    one = verbs.add_parser(
        "explain", help="say which backends a checkpoint will run on, and whether their code is there", epilog=_EXIT,
        description="Joins what a checkpoint declares, what vLLM selects and what the artifact delivers. Runs nothing.",
    )  # fmt: skip
    _explaining(one, needed=True)
    _output(one)
    one.set_defaults(run=run_explain)

    one = verbs.add_parser(
        "oracle", help="print what a vLLM can choose from on a chip, or what changed between two",
        description="Reads ordered lists and support checks out of an artifact's own Python, which is never imported.",
    )  # fmt: skip
    one.add_argument("artifact", metavar="ARTIFACT", nargs="*", help=_ARTIFACT)
    one.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two artifacts instead")
    _chip(one)
    _output(one, verdict=False)
    one.set_defaults(run=run_oracle)

    one = verbs.add_parser(
        "memory", help="KV cache cost, what fits, and what the host keeps", epilog=_EXIT,
        description="Unified-memory arithmetic from a configuration or from a boot log.",
    )  # fmt: skip
    _memory(one)
    _output(one)
    one.set_defaults(run=run_memory)

    one = verbs.add_parser(
        "bootlog", help="read a server's log: choices, numbers, known faults", epilog=_EXIT,
        description="Reads a log file, or a stream with `-` (docker logs -f NAME 2>&1 | sm121 bootlog -). "
        "At most 256 MiB and 2 million lines are read; what is longer is unknown, not passed.",
    )  # fmt: skip
    one.add_argument("log", metavar="FILE", help="the log, or - for standard input")
    _explaining(one, needed=False)
    _output(one)
    one.set_defaults(run=partial(run_bootlog, explained=predicted))

    one = verbs.add_parser(
        "hardware", help="attach a chip's report to a build's manifest", epilog=_EXIT,
        description=(
            "Judges what tests/hardware wrote on a machine with the chip, checks by digest that it is about the build of "
            "the manifest, and writes the attachment beside it."
        ),
    )  # fmt: skip
    one.add_argument("report", metavar="REPORT", type=Path, help="written by SM121_HARDWARE_REPORT=REPORT pytest")
    one.add_argument(
        "--manifest", metavar="FILE", type=Path, required=True, help="the manifest of the tested build"
    )
    one.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="default: the manifest's name with .hardware.json"
    )
    _output(one)
    one.set_defaults(run=run_hardware)

    one = verbs.add_parser(
        "smoke", help="validate a server: one that runs, an image, or a wheel", epilog=_EXIT,
        description=(
            "Version, warm-up, raw text, structured output, speed and load, bounded. A server that runs is asked by its "
            "address; an image or a wheel is served here, once for each rung of the ladder (auto, b12x, marlin), and the "
            "fastest sound one is adopted. Nothing that was started is left running."
        ),
    )  # fmt: skip
    add_smoke_arguments(one, _positive)
    _output(one)
    one.set_defaults(run=run_smoke)


# -- arguments -------------------------------------------------------------------------------------------------


def _chip(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--target",
        type=_capability,
        default=GB10,
        metavar="CAPABILITY",
        help="compute capability (default: 12.1)",
    )
    one.add_argument(
        "--cuda", type=_cuda, metavar="VERSION", help="CUDA version of torch, e.g. 13.0 (default: open)"
    )
    one.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable that will be set"
    )
    one.add_argument(
        "--answer", action="append", default=[], metavar="QUESTION=yes|no",
        help="answer a question that a former run left open, in its words",
    )  # fmt: skip


def _explaining(one: argparse.ArgumentParser, *, needed: bool) -> None:
    one.add_argument(
        "--checkpoint", type=Path, required=needed, metavar="DIR|config.json", help="the model's configuration"
    )
    one.add_argument(
        "--artifact", action="append", required=needed, default=None, metavar="ARTIFACT", help=_ARTIFACT
    )
    one.add_argument("--moe-backend", default="auto", metavar="NAME", help="as for vLLM")
    one.add_argument("--linear-backend", default="auto", metavar="NAME", help="as for vLLM")
    one.add_argument("--attention-backend", default="", metavar="NAME", help="as for vLLM")
    one.add_argument("--kv-cache-dtype", default="auto", metavar="NAME", help="as for vLLM")
    one.add_argument(
        "--speculative", default="", metavar="METHOD", help="the method of speculative decoding: mtp, eagle, ..."
    )
    one.add_argument(
        "--no-inspect",
        action="store_true",
        help="do not look into the libraries; what they deliver stays unknown",
    )
    _chip(one)


def _memory(one: argparse.ArgumentParser) -> None:
    source = one.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, metavar="DIR|config.json", help="compute the cost from it")
    source.add_argument("--bootlog", type=Path, metavar="FILE", help="take cost and weights from a log")
    one.add_argument("--kv-cache-dtype", default="auto", metavar="NAME", help="as for vLLM")
    one.add_argument("--gpu-memory-utilization", type=_share, default=0.85, metavar="SHARE", help="default: 0.85")
    one.add_argument(
        "--weights-gib", type=_positive, default=None, metavar="GIB", help="size of the loaded model"
    )
    one.add_argument("--max-num-seqs", type=_count, default=0, metavar="N", help="sequences at a time")
    one.add_argument(
        "--max-model-len",
        type=_count,
        default=0,
        metavar="N",
        help="tokens of each (default: the model's longest)",
    )
    one.add_argument(
        "--total-gib", type=_positive, default=TOTAL / GIB, metavar="GIB", help="memory of the machine"
    )
    one.add_argument("--host-gib", type=_positive, default=15.0, metavar="GIB", help="what the host must keep")


def _output(one: argparse.ArgumentParser, *, verdict: bool = True) -> None:
    one.add_argument("--json", action="store_true", help="print plain data instead of text")
    one.add_argument("-q", "--quiet", action="store_true", help="no progress")
    if verdict:
        one.add_argument("--strict", action="store_true", help="warnings count as well")


def _typed(read: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{what}: {error}") from error

    return convert


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not least < value <= most:
            raise ValueError(f"{text} is not above {least:g} and at most {most:g}")
        return value

    return read


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1 << 40:
        raise ValueError(f"{text} is not at least 1 and at most {1 << 40}")
    return value


_count = _typed(_whole, "a number")
_capability = _typed(Capability.parse, "a compute capability")
_cuda = _typed(CudaVersion.parse, "a CUDA version")
_share = _typed(_number(0, 1), "a share")
_positive = _typed(_number(0, 1e9), "a number")
