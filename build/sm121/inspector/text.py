"""The report for people: a verdict, what it rests on, and a table that fits one screen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sm121.findings import Verdict
from sm121.inspector.coverage import STATES
from sm121.inspector.judge.ledger import CHECK as LEDGER
from sm121.inspector.words import joined, shown, span
from sm121.progress import plural, size
from sm121.tables import print_table
from sm121.target import LoadsAs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from sm121.findings import Finding
    from sm121.inspector.report import Library, Report

STYLES = {
    Verdict.PASS: "green", Verdict.INFO: "cyan", Verdict.WARN: "yellow", Verdict.UNKNOWN: "magenta", Verdict.FAIL: "red",
}  # fmt: skip
_LOADS = {
    LoadsAs.NATIVE: "green", LoadsAs.FAMILY: "green", LoadsAs.SAME_MAJOR: "green", LoadsAs.JIT: "yellow", LoadsAs.NO: "dim",
}  # fmt: skip
_MACHINE = tuple(str(how) for how in LoadsAs if how.machine_code)
_NOUNS = {Verdict.FAIL: "failure", Verdict.UNKNOWN: "open question", Verdict.WARN: "warning"}
_FEW_ROWS, _MOST_ROWS = 20, 40


def report_text(report: Report, console: Console, verbosity: int = 0, *, rest: str = "-v shows them") -> None:
    """Print the report; verbosity 1 adds families and all findings, 2 adds images and steps of delivery.

    `rest` says where the findings are that are not printed: only the verbs that look have `-v`.
    """
    _verdict(report, console)
    if report.libraries:
        console.print()
        print_table(_libraries(report, verbosity), console)
    if verbosity and report.families:
        console.print()
        print_table(_families(report), console)
    delivery = _delivery(report, verbosity)
    if delivery.row_count:
        console.print()
        print_table(delivery, console)
    least = Verdict.PASS if verbosity else Verdict.WARN
    findings = report.at_least(least)
    if findings:
        console.print()
        _findings(findings, console)
    hidden = len(report.findings) - len(findings)
    if hidden:
        console.print(Text(f"\n{plural(hidden, 'more finding')} passed or only inform: {rest}.", style="dim"))


def summary(report: Report) -> list[str]:
    """What the verdict rests on, in sentences."""
    states = report.states
    machine = sum(states.get(state, 0) for state in _MACHINE)
    total = sum(states.values())
    lines = []
    if total:
        parts = [f"{machine} of {plural(total, 'kernel')} run as machine code"]
        if jit := states.get(LoadsAs.JIT, 0):
            parts.append(f"{jit} after the driver compiled them")
        if dead := states.get("stub", 0) + states.get("foreign", 0):
            parts.append(f"{dead} are there in name only")
        if other := states.get(LoadsAs.NO, 0):
            parts.append(f"{other} are for other chips")
        lines.append(joined(parts) + ".")
    elif report.libraries:
        units = [library for library in report.libraries if library.units]
        lines.append(
            f"{plural(len(units), 'library', 'libraries')} with device code, "
            f"{len(report.libraries) - len(units)} without."
            + ("" if report.question.kernels else " Kernels were not looked into.")
        )
    if report.jit.units:
        needs = f"; needs a driver of CUDA {report.jit.needs_cuda}" if report.jit.needs_cuda else ""
        lines.append(
            f"The driver must compile {size(report.jit.text)} of PTX: {span(*report.jit.seconds)} on one core{needs}."
        )
    lines += [
        f"{item.subject} {item.got}."
        for item in report.findings
        if item.check == LEDGER and item.verdict is Verdict.PASS
    ]
    return lines


def tally(report: Report) -> str:
    """`2 failures, 1 warning`, "" if there is nothing to worry about."""
    parts = []
    for verdict, noun in _NOUNS.items():
        count = sum(1 for item in report.findings if item.verdict is verdict)
        parts += [plural(count, noun)] if count else []
    return ", ".join(parts)


def _verdict(report: Report, console: Console) -> None:
    graver = tally(report)
    line = Text()
    line.append(str(report.verdict).upper(), style=f"bold {STYLES[report.verdict]}")
    line.append(f"  {shown(report.artifact.name)}", style="bold")
    line.append(f" on compute capability {report.question.capability}" + (f": {graver}" if graver else ""))
    console.print(line, soft_wrap=True)
    about = [report.artifact.kind, size(report.artifact.size)]
    about += [f"{item.name} {item.version}" for item in report.distributions[:1]]
    if len(report.distributions) > 1:
        about.append(f"{len(report.distributions) - 1} more distributions")
    if report.artifact.sha256:
        about.append(f"sha256:{report.artifact.sha256[:12]}…")
    console.print(Text(", ".join(about), style="dim"))
    for text in summary(report):
        console.print(Text(text))


def _libraries(report: Report, verbosity: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("library", overflow="fold", ratio=1)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("loads as", no_wrap=True)
    table.add_column("units", justify="right", no_wrap=True)
    for heading in ("kernels", "JIT", "dead", "other"):
        table.add_column(heading, justify="right", no_wrap=True)
    if verbosity > 1:
        table.add_column("images", overflow="fold")
    names = {item.path: item.path for item in report.libraries} if verbosity else _short(report.libraries)
    rows = sorted(report.libraries, key=_weight)
    most = len(rows) if verbosity or len(rows) <= _FEW_ROWS else _shown_rows(rows)
    for library in rows[:most]:
        table.add_row(*_row(library, names[library.path], verbosity))
    if rest := rows[most:]:
        device = sum(1 for library in rest if library.units)
        parts = ([f"{device} with device code"] if device else []) + [f"{len(rest) - device} with host code"]
        table.add_row(Text(f"… and {joined(parts)}: -v", style="dim"))
    return table


def _weight(library: Library) -> tuple[int, str]:
    """Libraries with device code first, then what could not be read."""
    return 0 if library.units else 1 if not library.format else 2, library.path


def _shown_rows(rows: Sequence[Library]) -> int:
    """How many rows fit a screen: host code is what nobody asks for."""
    return min(_MOST_ROWS, sum(1 for library in rows if library.units or not library.format))


def _short(libraries: Sequence[Library]) -> dict[str, str]:
    """Paths by their last part without its endings, as long as that is unique."""
    paths = [library.path for library in libraries]
    tails = {path: path.rpartition("/")[2].removesuffix(".so").removesuffix(".abi3") for path in paths}
    counts = Counter(tails.values())
    return {path: tail if counts[tail] == 1 else path for path, tail in tails.items()}


def _row(library: Library, title: str, verbosity: int) -> list[Text]:
    name = Text(shown(title) + (f" ({library.files} files)" if library.files > 1 else ""))
    if not library.units:
        state = Text("host code", style="dim") if library.format else Text("unreadable", style="red")
        return [name, Text(size(library.size)), state]
    machine = sum(library.kernels.get(state, 0) for state in _MACHINE)
    numbers = (
        machine, library.kernels.get(LoadsAs.JIT, 0),
        library.kernels.get("stub", 0) + library.kernels.get("foreign", 0), library.kernels.get(LoadsAs.NO, 0),
    )  # fmt: skip
    row = [
        name, Text(size(library.size)), Text(str(library.loads_as), style=_LOADS[library.loads_as]),
        Text(_units(library.units)), *(Text(str(number) if number else "·") for number in numbers),
    ]  # fmt: skip
    if verbosity > 1:
        row.append(Text(", ".join(f"{target} {count}" for target, count in library.images.items())))
    return row


def _units(units: Mapping[str, int]) -> str:
    """Units that load, of all: `85+6/111` are 85 with machine code and 6 with PTX, of 111."""
    machine, jit = sum(units.get(state, 0) for state in _MACHINE), units.get(LoadsAs.JIT, 0)
    return f"{machine}{f'+{jit}' if jit else ''}/{sum(units.values())}"


def _families(report: Report) -> Table:
    present = [state for state in STATES if any(family.kernels.get(state) for family in report.families)]
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel family", overflow="fold", ratio=1)
    for state in present:
        table.add_column(state, justify="right", no_wrap=True)
    table.add_column("code", justify="right", no_wrap=True)
    for family in report.families:
        numbers = (family.kernels.get(state, 0) for state in present)
        table.add_row(
            escape(family.name), *(str(number) if number else "·" for number in numbers),
            size(sum(family.bytes.values())),
        )  # fmt: skip
    return table


def _delivery(report: Report, verbosity: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in ("library", "asked of the compiler", "promised", "delivered", "lost"):
        table.add_column(heading, overflow="fold")
    for step in report.delivery.steps:
        if verbosity or step.gencodes or step.promised or step.lost:
            parts = (step.gencodes, step.promised, step.delivered)
            texts = (", ".join(f"{target} {count}" for target, count in part.items()) for part in parts)
            table.add_row(
                escape(shown(step.library)), *map(escape, texts), Text(", ".join(step.lost), style="red")
            )
    return table


def _findings(findings: Iterable[Finding], console: Console) -> None:
    for finding in findings:
        line = Text(f"{finding.verdict:<8}", style=STYLES[finding.verdict])
        line.append(finding.check, style="bold")
        line.append(f"  {shown(finding.message, 1200)}", style="default")
        if finding.source:
            line.append(f" {finding.source}", style="dim")
        console.print(line, soft_wrap=not console.is_terminal)
