"""`sm121 pins check | update | lock | explain`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from sm121 import index
from sm121.documents import read_text_document
from sm121.errors import (
    ArtifactError,
    FetchError,
    StorageError,
    UsageError,
    VerdictFail,
    VerdictUnknown,
    VerdictWarning,
)
from sm121.findings import Verdict, overall
from sm121.pins.audit import check, judge, sorted_findings
from sm121.pins.choose import PYTHON
from sm121.pins.edit import Edits
from sm121.pins.environment import Environment
from sm121.pins.explain import explain
from sm121.pins.facts import gather
from sm121.pins.images import load_images
from sm121.pins.loading import load
from sm121.pins.lock import lock
from sm121.pins.model import Cpu
from sm121.pins.update import add_release, newest_release, toolkit_table, update_tools, verify
from sm121.progress import Progress
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.findings import Finding
    from sm121.pins.explain import Explanation
    from sm121.pins.facts import Facts
    from sm121.pins.model import Line, Pins, Release

JSON_VERSION = 1
_ROOT = Path(__file__).resolve().parents[3]


def add_pins_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pins` with its own verbs."""
    pins = verbs.add_parser(
        "pins", help="check, update, lock or explain the pins", description="Looks after the pins."
    )
    add_arguments(pins)
    pins.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the four actions."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    checking = actions.add_parser("check", help="do the pinned versions fit together?")
    _what(checking)
    checking.add_argument("--offline", action="store_true", help="judge versions only, ask no index")
    checking.add_argument("--freeze", metavar="FILE", type=Path, help="judge this output of `pip freeze` instead")
    checking.add_argument("--cuda", metavar="X.Y", help="with --freeze: CUDA release of the image")
    checking.add_argument("--json", action="store_true", help="findings as JSON")
    checking.add_argument("--strict", action="store_true", help="end non-zero on warnings, too")
    checking.set_defaults(pins_action=_check)
    updating = actions.add_parser("update", help="pin a vLLM release with all that it demands")
    updating.add_argument("--pins", metavar="DIR", type=Path, default=_ROOT / "pins", help="folder of the pins")
    updating.add_argument("--vllm", metavar="VERSION", help="release to pin (default: the newest)")
    updating.add_argument("--default", action="store_true", help="make it the default release")
    updating.add_argument("--tools", action="store_true", help="newest build programs; alone: nothing else")
    updating.add_argument(
        "--toolkit-table", action="store_true", help="read the table of CUDA toolkit parts anew"
    )
    updating.add_argument("--dry-run", action="store_true", help="show the difference, write nothing")
    updating.set_defaults(pins_action=_update)
    locking = actions.add_parser("lock", help="the complete hashed runtime environment")
    _what(locking)
    locking.add_argument(
        "--output", "-o", metavar="FILE", type=Path, help="write here instead of standard output"
    )
    locking.add_argument(
        "--python", metavar="VERSION", type=_python, default=PYTHON,
        help=f"Python of the machine or image that will hold it (default: {PYTHON[0]}.{PYTHON[1]})",
    )  # fmt: skip
    locking.set_defaults(pins_action=_lock)
    explaining = actions.add_parser("explain", help="why this version, who demands it, what is known about it")
    explaining.add_argument("name", metavar="NAME", help="a package")
    _what(explaining)
    explaining.add_argument("--offline", action="store_true", help="ask no index")
    explaining.add_argument("--json", action="store_true", help="as JSON")
    explaining.set_defaults(pins_action=_explain)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked and return the exit status."""
    status: int = arguments.pins_action(arguments)
    return status


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Findings in a stable form."""
    return {
        "version": JSON_VERSION,
        "verdict": str(overall(findings)),
        "findings": [dataclasses.asdict(finding) | {"verdict": str(finding.verdict)} for finding in findings],
    }


def explanation_json(told: Explanation) -> dict[str, Any]:
    """An explanation in a stable form."""
    return {
        "version": JSON_VERSION,
        "name": told.name,
        "pinned": [
            {
                "role": place.role,
                "version": place.version,
                "note": place.note,
                "files": [
                    {"file": file.filename, "size": file.size, "sha256": file.sha256.hex, "read": file.read}
                    for file in place.files
                ],
            }
            for place in told.places
        ],
        "demanded": list(told.demanded),
        "known": list(told.known),
        "since": told.since,
        "newest": told.newest,
    }


def _what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--line", default="", help="CUDA line (default: the pins' default)")
    parser.add_argument("--vllm", metavar="VERSION", default="", help="vLLM release (default: the pins' default)")
    parser.add_argument("--cpu", choices=[str(cpu) for cpu in Cpu], default="aarch64", help="default: aarch64")
    parser.add_argument(
        "--with", dest="beside", metavar="REQUIREMENT", action="append", default=[],
        help="a further requirement of the environment, such as b12x==1.5.1; may be repeated",
    )  # fmt: skip
    parser.add_argument("--pins", metavar="DIR", type=Path, default=_ROOT / "pins", help="folder of the pins")


def _chosen(arguments: argparse.Namespace) -> tuple[Pins, Line, Release, Cpu]:
    pins = load(arguments.pins)
    for text in arguments.beside:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise UsageError(f"--with {text!r} is no requirement, wanted something like b12x==1.5.1.") from error
    return pins, pins.line(arguments.line), pins.vllm(arguments.vllm), Cpu(arguments.cpu)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.freeze is not None:
        findings = judge(_frozen(arguments.freeze, Cpu(arguments.cpu), arguments.cuda))
    else:
        _, line, release, cpu = _chosen(arguments)
        load_images(arguments.pins)  # what images are made of is checked by its form
        facts = None if arguments.offline else _asked(line, release, cpu, arguments.beside, Progress())
        findings = check(line, release, cpu, facts, beside=arguments.beside)
    findings = sorted_findings(findings)
    if arguments.json:
        print(json.dumps(findings_json(findings), indent=2))
    else:
        for finding in findings:
            print(f"{finding.verdict.upper():7} {finding.check:20} {finding.message}")
            if finding.source and finding.verdict not in {Verdict.PASS, Verdict.INFO}:
                print(f"{'':28} {finding.source}")
        print(f"{overall(findings).upper()}: {len(findings)} findings")
    return _status(overall(findings), strict=arguments.strict)


def _asked(line: Line, release: Release, cpu: Cpu, beside: Sequence[str], progress: Progress) -> Facts:
    """What upstream says about the pins; takes some seconds, and says so."""
    with progress.step(f"ask upstream about line {line.name}, vLLM {release.version}, {cpu}"):
        return gather(line, release, cpu, beside=beside, progress=progress)


def _frozen(path: Path, cpu: Cpu, cuda: str | None) -> Environment:
    try:
        text = read_text_document(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read as a list of versions: {error}.") from error
    try:
        release = CudaVersion.parse(cuda) if cuda else None
    except ValueError as error:
        raise UsageError(f"--cuda: {error}.") from error
    return Environment.of_lines(text.splitlines(), cpu=cpu, cuda=release)


def _status(verdict: Verdict, *, strict: bool) -> int:
    if verdict is Verdict.FAIL:
        return VerdictFail.exit_code
    if verdict is Verdict.UNKNOWN:
        return VerdictUnknown.exit_code
    return VerdictWarning.exit_code if verdict is Verdict.WARN and strict else 0


def _update(arguments: argparse.Namespace) -> int:
    progress = Progress()
    if arguments.toolkit_table:
        return _update_table(progress, dry=arguments.dry_run)
    pins = load(arguments.pins)
    edits = Edits.of(arguments.pins)
    version = pins.default_release
    if arguments.vllm or not arguments.tools:
        version = arguments.vllm or newest_release(index.project_files("vllm"))
        add_release(edits, pins, version.removeprefix("v"), progress)
        version = version.removeprefix("v")
    if arguments.tools:
        with progress.step("look for newer build programs"):
            update_tools(edits)
    if arguments.default:
        edits.documents["vllm.toml"]["default"] = version
    difference = edits.difference()
    if not difference:
        progress.say(f"vLLM {version}: every pin is as upstream demands, nothing to change.")
        return 0
    print(difference, end="")
    for finding in sorted_findings(verify(edits, version, Cpu.AARCH64, progress)):
        if finding.verdict not in {Verdict.PASS, Verdict.INFO}:
            progress.say(f"{finding.verdict}: {finding.message}", style="yellow")
    if arguments.dry_run:
        progress.say("nothing was written (--dry-run).")
    else:
        edits.write()
        progress.say(f"written to {arguments.pins}.")
    return 0


def _update_table(progress: Progress, *, dry: bool) -> int:
    with progress.step("read every cuda-toolkit release"):
        text = toolkit_table()
    if dry:
        print(text, end="")
    else:
        _write(Path(__file__).with_name("data") / "toolkits.toml", text)
    return 0


def _lock(arguments: argparse.Namespace) -> int:
    _, line, release, cpu = _chosen(arguments)
    progress = Progress()
    with progress.step(f"resolve line {line.name}, vLLM {release.version}, {cpu}"):
        text = lock(line, release, cpu, beside=arguments.beside, python=arguments.python)
    if arguments.output is None:
        print(text, end="")
    else:
        _write(arguments.output, text)
        progress.say(f"{text.count('--hash')} wheels locked in {arguments.output}")
    return 0


def _python(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"3\.(\d{1,2})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a Python version looks like 3.12, found {text!r}")
    return 3, int(match[1])


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.") from error


def _explain(arguments: argparse.Namespace) -> int:
    _, line, release, cpu = _chosen(arguments)
    facts = None
    listing: list[index.IndexFile] = []
    if not arguments.offline:
        progress = Progress()
        facts = _asked(line, release, cpu, arguments.beside, progress)
        try:
            with progress.step(f"list the versions of {arguments.name}"):
                listing = index.project_files(arguments.name)
        except FetchError:
            # A name that no index has may still be known; explain says so if it is not.
            listing = []
    told = explain(arguments.name, line, release, cpu, facts, listing)
    if arguments.json:
        print(json.dumps(explanation_json(told), indent=2))
        return 0
    print(told.name)
    for place in told.places:
        print(f"  {place.version}  {place.role}" + (f" ({place.note})" if place.note else ""))
        for file in place.files:
            print(f"      {file.filename}  {file.size} bytes  {file.sha256}  ({file.read})")
    if told.since or told.newest:
        print(
            f"  on the index since {told.since or 'an unknown day'}; the newest release is {told.newest or 'unknown'}"
        )
    for heading, lines in (("demanded by", told.demanded), ("known", told.known)):
        print(f"  {heading}:" + ("" if lines else " nothing"))
        for line_ in lines:
            print(f"    {line_}")
    return 0
