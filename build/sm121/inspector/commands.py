"""The verbs inspect, diff and matrix: arguments in, reports out, a verdict as exit status."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121.artifact import open_artifact
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.documents import read_text_document, write_document
from sm121.errors import ArtifactError, Sm121Error, UsageError, VerdictFail, VerdictUnknown, VerdictWarning
from sm121.findings import Verdict
from sm121.inspector.ci import report_junit, report_sarif
from sm121.inspector.codec import encode
from sm121.inspector.differences import diff, matrix
from sm121.inspector.image_options import add_image_options, base_image, expected_wheels
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.inspector.judge.tags import Interpreter
from sm121.inspector.page import report_html
from sm121.inspector.policy import policy
from sm121.inspector.promise import Promise
from sm121.inspector.report import Report, dump_report, load_report
from sm121.inspector.runtimes import read_runtime
from sm121.inspector.tables import diff_text, matrix_text
from sm121.inspector.text import report_text
from sm121.progress import Progress
from sm121.target import GB10, Capability
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.artifact import Artifact, Platform

_CODES = {
    Verdict.FAIL: VerdictFail.exit_code, Verdict.UNKNOWN: VerdictUnknown.exit_code,
}  # fmt: skip

_EXIT = (
    f"Exit status: 0 passed, {VerdictWarning.exit_code} warnings with --strict, {VerdictFail.exit_code} failed,\n"
    f"{VerdictUnknown.exit_code} could not tell, also where nothing was found that could run on a GPU."
)
_WHAT = (
    "a wheel, library (.so .a .o .cubin .fatbin), folder, environment, image archive or layout, "
    "docker-daemon:NAME or docker://REGISTRY/NAME@DIGEST"
)


def add_inspect_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add inspect, diff and matrix to the command line."""
    one = verbs.add_parser(
        "inspect", help="say what of an artifact runs on a compute capability",
        epilog="examples:\n  sm121 inspect vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl\n"
        "  sm121 inspect -v .venv/lib/python3.12/site-packages\n"
        "  sm121 inspect docker-daemon:vllm/vllm-openai:latest --html report.html\n"
        f"  sm121 inspect some.so --json --strict\n\n{_EXIT}",
        description="Reads an artifact's bytes and says what of it runs on the target, without CUDA and without a GPU.",
    )  # fmt: skip
    one.add_argument("artifact", metavar="ARTIFACT", help=_WHAT)
    _judging(one)
    one.add_argument("--expect-version", default="", metavar="VERSION", help="the version or tag it must carry")
    one.add_argument(
        "--manifest", type=Path, metavar="FILE", help="what its maker promised, as JSON; compared with the bytes"
    )
    one.add_argument("--line", type=_cuda, metavar="CUDA", help="the CUDA line it was built for, e.g. 12.9")
    one.add_argument(
        "--runtime", default="", metavar="FILE",
        help="the CUDA runtime that it will meet: a wheel of nvidia-cuda-runtime, or a libcudart.so.N",
    )  # fmt: skip
    one.add_argument(
        "--torch", default="", metavar="VERSION", help="torch where it is to be used, e.g. 2.14.0+cu130"
    )
    one.add_argument(
        "--python", default="", metavar="VERSION", help="Python where it is to be installed, e.g. 3.12"
    )
    one.add_argument(
        "--glibc", default="", metavar="VERSION", help="glibc where it is to be installed, e.g. 2.39"
    )
    one.add_argument("--machine", default="aarch64", help="CPU where it is to be installed (default: aarch64)")
    one.add_argument(
        "--channel", default="", choices=["", *sorted(policy().channels)], help="where it is to be published"
    )
    one.add_argument(
        "--cross-check", action="store_true", help="let cuobjdump read it too; a difference is a failure"
    )
    one.add_argument(
        "--cuobjdump", default="", metavar="PROGRAM", help="which cuobjdump (default: the one on PATH)"
    )
    add_image_options(one)
    one.add_argument("--strict", action="store_true", help="warnings count as well")
    _json_option(one, "the report")
    one.add_argument("--html", metavar="FILE", help="write the report as one HTML file")
    one.add_argument("--sarif", metavar="FILE", help="write the findings as SARIF; - is standard output")
    one.add_argument("--junit", metavar="FILE", help="write the findings as JUnit XML; - is standard output")
    one.set_defaults(run=run_inspect)

    two = verbs.add_parser(
        "diff", help="say what changed between two artifacts", description="Compares two artifacts, or their JSON reports.",
        epilog="Exit status: 0 equal, 1 different.",
    )  # fmt: skip
    two.add_argument("before", metavar="BEFORE", help=f"{_WHAT}; or a report in JSON")
    two.add_argument("after", metavar="AFTER")
    _judging(two)
    _json_option(two, "the difference")
    two.set_defaults(run=run_diff)

    many = verbs.add_parser(
        "matrix",
        help="one table over several artifacts",
        description="One table over artifacts, or their JSON reports.",
    )
    many.add_argument("artifacts", metavar="ARTIFACT", nargs="+", help=f"{_WHAT}; or a report in JSON")
    _judging(many)
    _json_option(many, "the table")
    many.set_defaults(run=run_matrix)


def run_inspect(arguments: argparse.Namespace) -> int:
    """`sm121 inspect`: print, write, and return the status of the verdict."""
    console, progress = _consoles(arguments.json, arguments.sarif, arguments.junit)
    report = _inspect(arguments.artifact, _options(arguments, progress), arguments.platform)
    for target, write in (
        (arguments.json, dump_report), (arguments.html, report_html), (arguments.sarif, report_sarif),
        (arguments.junit, report_junit),
    ):  # fmt: skip
        if target:
            write_document(target, write(report))
    report_text(report, console, arguments.verbose)
    if report.verdict is Verdict.WARN and arguments.strict:
        return VerdictWarning.exit_code
    return _CODES.get(report.verdict, 0)


def run_diff(arguments: argparse.Namespace) -> int:
    """`sm121 diff`: 0 if nothing differs, 1 if something does."""
    console, progress = _consoles(arguments.json)
    options = _options(arguments, progress)
    difference = diff(*_reports([arguments.before, arguments.after], options))
    if arguments.json:
        write_document(arguments.json, _json(difference))
    diff_text(difference, console, arguments.verbose)
    return 0 if difference.equal else 1


def run_matrix(arguments: argparse.Namespace) -> int:
    """`sm121 matrix`: a table; it judges nothing."""
    console, progress = _consoles(arguments.json)
    options = _options(arguments, progress)
    table = matrix(_reports(arguments.artifacts, options))
    if arguments.json:
        write_document(arguments.json, _json(table))
    matrix_text(table, console, arguments.verbose)
    return 0


def _json_option(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const="-",
        help=f"write {what} as JSON; without FILE, or with -, to standard output",
    )  # fmt: skip


def _judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        type=_capability,
        default=GB10,
        metavar="CAPABILITY",
        help="compute capability (default: 12.1)",
    )
    parser.add_argument(
        "--driver-cuda", type=_cuda, metavar="CUDA", help="the driver's CUDA version, as nvidia-smi shows it"
    )
    parser.add_argument(
        "--no-kernels", action="store_true", help="read headers only: faster, and no kernel names"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="more; twice for all")


def _options(arguments: argparse.Namespace, progress: Progress) -> Options:
    known = vars(arguments)
    return Options(
        capability=arguments.target,
        driver=arguments.driver_cuda,
        version=known.get("expect_version", ""),
        promise=Promise.load(known["manifest"]) if known.get("manifest") else None,
        line=known.get("line"),
        runtime=read_runtime(known["runtime"]) if known.get("runtime") else None,
        torch=known.get("torch", ""),
        interpreter=_interpreter(known),
        channel=known.get("channel", ""),
        kernels=not arguments.no_kernels,
        cross_check=known.get("cross_check", False) or bool(known.get("cuobjdump")),
        cuobjdump=known.get("cuobjdump", ""),
        jobs=arguments.jobs,
        progress=progress,
        wheels=expected_wheels(known.get("wheel", ())),
        base=base_image(known.get("base", ""), known.get("platform", LINUX_ARM64)),
    )


def _interpreter(known: dict[str, Any]) -> Interpreter | None:
    if not known.get("python"):
        if known.get("glibc"):
            raise UsageError("--glibc was given without --python.", do="add --python, e.g. --python 3.12.")
        return None
    try:
        return Interpreter.parse(known["python"], known["glibc"], known["machine"])
    except ValueError as error:
        raise UsageError(f"{error}.") from error


def _inspect(reference: str, options: Options, platform: Platform = LINUX_ARM64) -> Report:
    with open_artifact(reference, platform=platform) as artifact:
        return inspect_artifact(artifact, options)


def _reports(references: Sequence[str], options: Options) -> list[Report]:
    """Reports, read from JSON or made by an inspection. All are opened before the first is read.

    One error names everything that cannot be opened.
    """
    errors: list[Sm121Error] = []
    with ExitStack() as stack:
        opened: list[Report | Artifact] = []
        for reference in references:
            try:
                opened.append(_loaded(reference) or stack.enter_context(open_artifact(reference)))
            except Sm121Error as error:
                errors.append(error)
        if errors:
            kinds = {type(error) for error in errors}
            kind = kinds.pop() if len(kinds) == 1 else ArtifactError
            problems = dict.fromkeys(problem for error in errors for problem in error.problems)
            raise kind(problems, do=next((error.do for error in errors if error.do), ""))
        return [each if isinstance(each, Report) else inspect_artifact(each, options) for each in opened]


def _loaded(reference: str) -> Report | None:
    """A report that was written before; None if the reference is no JSON file."""
    path = Path(reference)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        return load_report(read_text_document(path), reference)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{reference} cannot be read: {error}.") from error


def _consoles(*outputs: str | None) -> tuple[Console, Progress]:
    """Where people read. Standard output belongs to a document, if one is written there."""
    if sum(output == "-" for output in outputs) > 1:
        raise UsageError("two documents would be written to standard output.", do="give one of them a file name.")
    return Console(stderr="-" in outputs), Progress(quiet=not sys.stderr.isatty())


def _json(record: object) -> str:
    return json.dumps(encode(record), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _capability(text: str) -> Capability:
    try:
        return Capability.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cuda(text: str) -> CudaVersion:
    try:
        return CudaVersion.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
