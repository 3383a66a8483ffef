"""The report as one HTML file: no network, nothing from the artifact that could run.

Everything but the kernel search is plain HTML. What comes from the artifact is escaped in the HTML, and reaches the
script as JSON that the script only ever writes as text; the page's own policy forbids it to load anything.
"""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from sm121.findings import Verdict
from sm121.inspector.coverage import STATES
from sm121.inspector.text import summary, tally
from sm121.progress import plural, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sm121.inspector.report import Library, Report

_MOST_UNITS = 600
"""Units of a library that are drawn one by one."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_WORDS = {"no": "other"}
_MEANING = {
    "native": "made for this chip", "family": "made for its family", "same-major": "generic, same major",
    "jit": "PTX, compiled by the driver", "foreign": "another chip's code in it", "stub": "empty body",
    "no": "for other chips",
}  # fmt: skip


def report_html(report: Report) -> str:
    """The whole page."""
    title = f"{report.artifact.name} on {report.question.capability}"
    body = "".join(
        part
        for section in (_head, _libraries, _families, _delivery, _findings, _kernels, _foot)
        for part in section(report)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n{body}"
        f'<script type="application/json" id="data">{_data(report)}</script>\n'
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(f"data/{name}").read_text(encoding="utf-8")


def _data(report: Report) -> str:
    """The kernels for the search; `<` is escaped, so that no name ends the script element."""
    families = [family.name for family in report.families]
    number = {name: index for index, name in enumerate(families)}
    kernels = [
        [
            kernel.name, kernel.library, number[kernel.family], STATES.index(kernel.state), kernel.body, kernel.size,
            kernel.registers, kernel.fp4, kernel.fp8,
        ]
        for kernel in report.kernels
    ]  # fmt: skip
    data = {
        "states": STATES,
        "families": families,
        "libraries": [library.path for library in report.libraries],
        "kernels": kernels,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _head(report: Report) -> Iterator[str]:
    yield f'<header><span class="badge {report.verdict}">{report.verdict}</span><div>'
    yield f"<h1>{escape(report.artifact.name)}</h1>"
    graver = tally(report)
    asked = f"on compute capability {report.question.capability}"
    if report.question.driver_cuda:
        asked += f" with a driver of CUDA {report.question.driver_cuda}"
    yield f"<p>{escape(asked)}{escape(f': {graver}' if graver else '')}</p>"
    about = [report.artifact.kind, size(report.artifact.size)]
    about += [f"{item.name} {item.version} ({item.commit or 'no commit'})" for item in report.distributions[:3]]
    yield f'<p class="soft">{escape(", ".join(about))}'
    if report.artifact.sha256:
        yield f'<br><span class="mono">sha256:{escape(report.artifact.sha256)}</span>'
    yield "</p></div></header>\n"
    for sentence in summary(report):
        yield f"<p>{escape(sentence)}</p>\n"
    if report.kernels:
        yield _bar(report.states, len(report.kernels)) + "\n"


def _legend(states: Iterable[str]) -> str:
    items = "".join(f'<span><i class="{state}"></i>{state}: {_MEANING[state]}</span>' for state in states)
    return f'<div class="legend">{items}</div>\n'


def _libraries(report: Report) -> Iterator[str]:
    if not report.libraries:
        return
    yield "<h2>Libraries and their translation units</h2>\n"
    yield _legend(state for state in STATES if state not in {"foreign", "stub"})
    yield '<table><thead><tr><th>library</th><th class="n">size</th><th>units, one square each</th><th>images</th>'
    yield "<th>made by</th></tr></thead><tbody>\n"
    for library in sorted(report.libraries, key=lambda item: (not item.units, item.path)):
        files = f' <span class="soft">({library.files} files)</span>' if library.files > 1 else ""
        yield f'<tr><td class="name">{escape(library.path)}{files}</td><td class="n">{size(library.size)}</td>'
        yield f"<td>{_units(library)}</td><td>{escape(_counts(library.images))}</td>"
        yield f"<td>{escape(', '.join(library.toolkits))}</td></tr>\n"
    yield "</tbody></table>\n"


def _units(library: Library) -> str:
    if not library.units:
        return '<span class="soft">host code</span>' if library.format else '<span class="lost">unreadable</span>'
    if len(library.details) > _MOST_UNITS:
        return _bar(library.units, sum(library.units.values()))
    units = sorted(library.details, key=lambda unit: unit.loads_as.rank)
    squares = "".join(
        f'<i class="{unit.loads_as}" title="unit {unit.index}: {escape(_unit_title(unit.target, unit.member))}"></i>'
        for unit in units
    )
    return f'<div class="units">{squares}</div><span class="soft">{escape(_ordered(library.units))}</span>'


def _unit_title(target: str, member: str) -> str:
    return (target or "nothing loads") + (f" ({member})" if member else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _ordered(units: Mapping[str, int]) -> str:
    """How many units load how, best first."""
    return ", ".join(f"{units[state]} {_WORDS.get(state, state)}" for state in STATES if units.get(state))


def _bar(counts: Mapping[str, int], whole: int) -> str:
    """A bar of parts, each as wide as its share of `whole`."""
    parts = "".join(
        f'<i class="{state}" style="width:{100 * counts[state] / whole:.3f}%" title="{state}: {counts[state]}"></i>'
        for state in STATES
        if counts.get(state) and whole
    )
    return f'<div class="bar">{parts}</div>'


def _families(report: Report) -> Iterator[str]:
    if not report.families:
        return
    present = [state for state in STATES if any(family.kernels.get(state) for family in report.families)]
    largest = max((sum(family.bytes.values()) for family in report.families), default=0)
    yield "<h2>Kernel families: how they load, and their machine code</h2>\n"
    yield _legend(present)
    yield '<table class="grid"><thead><tr><th>family</th>'
    yield "".join(f'<th class="n">{state}</th>' for state in present)
    yield '<th class="n">kernels</th><th class="n">machine code</th><th class="track"></th></tr></thead><tbody>\n'
    for family in report.families:
        total = sum(family.kernels.values())
        code = sum(family.bytes.values())
        yield f'<tr><td class="name">{escape(family.name)}</td>'
        for state in present:
            count = family.kernels.get(state, 0)
            share = f"{0.12 + 0.5 * count / total:.2f}"
            shade = f'<i class="{state}" style="--share:{share}"></i><span>{count}</span>' if count else ""
            yield f'<td class="c">{shade}</td>'
        yield f'<td class="n">{total}</td><td class="n">{size(code) if code else ""}</td>'
        yield f'<td class="track">{_bar(family.bytes, largest) if code else ""}</td></tr>\n'
    yield "</tbody></table>\n"


def _delivery(report: Report) -> Iterator[str]:
    delivery = report.delivery
    if not delivery.steps:
        return
    yield "<h2>From the request to the bytes</h2>\n"
    if delivery.requested:
        yield f"<p>Requested: <code>{escape(' '.join(delivery.requested))}</code>"
        groups = "; ".join(f"{group} {' '.join(archs)}" for group, archs in delivery.configured.items())
        yield f" → configured: <code>{escape(groups)}</code></p>\n" if groups else "</p>\n"
    yield "<table><thead><tr><th>library</th><th>asked of the compiler</th><th>promised</th><th>delivered</th>"
    yield "<th>lost</th></tr></thead><tbody>\n"
    for step in delivery.steps:
        cells = (_counts(part) for part in (step.gencodes, step.promised, step.delivered))
        yield f'<tr><td class="name">{escape(step.library)}</td>'
        yield "".join(f"<td>{escape(cell) or '<span class=soft>none</span>'}</td>" for cell in cells)
        yield f'<td class="lost">{escape(", ".join(step.lost))}</td></tr>\n'
    yield "</tbody></table>\n"


def _findings(report: Report) -> Iterator[str]:
    yield '<h2>Findings</h2>\n<div class="controls">'
    for verdict in reversed(Verdict):
        count = sum(1 for finding in report.findings if finding.verdict is verdict)
        if count:
            pressed = "true" if verdict.rank >= Verdict.INFO.rank else "false"
            yield f'<button data-verdict="{verdict}" aria-pressed="{pressed}">{verdict} {count}</button>'
    yield "</div>\n<table><thead><tr><th>verdict</th><th>check</th><th>subject and finding</th></tr></thead><tbody>\n"
    for finding in report.findings:
        yield f'<tr data-of="{finding.verdict}"><td><span class="v {finding.verdict}">{finding.verdict}</span></td>'
        yield f'<td class="mono">{escape(finding.check)}</td><td class="name"><b>{escape(finding.subject)}</b>: '
        yield f"{escape(finding.got)}."
        if finding.wanted:
            yield f' <span class="soft">Wanted: {escape(finding.wanted)}.</span>'
        if finding.advice:
            yield f" {escape(finding.advice)}"
        if finding.source.startswith("https://"):
            yield f' <a href="{escape(finding.source)}" rel="noreferrer">why</a>'
        yield "</td></tr>\n"
    yield "</tbody></table>\n"


def _kernels(report: Report) -> Iterator[str]:
    if not report.kernels:
        return
    yield f'<h2>{plural(len(report.kernels), "kernel")}</h2>\n<div class="controls">'
    yield '<input type="search" id="search" placeholder="words in the mangled name" aria-label="search kernels">'
    for name in ("state", "family", "library"):
        what = "libraries" if name == "library" else "families" if name == "family" else "states"
        yield f'<select id="{name}" aria-label="{name}"><option value="">all {what}</option></select>'
    yield '<span class="soft" id="count"></span></div>\n<noscript>The search needs JavaScript.</noscript>\n'
    yield '<table id="kernels"><thead><tr><th>kernel</th><th>family</th><th>state</th><th class="n">bytes</th>'
    yield '<th class="n">registers</th><th class="n">FP4</th><th class="n">FP8</th></tr></thead>'
    yield '<tbody id="rows"></tbody></table>\n'


def _foot(report: Report) -> Iterator[str]:
    rules = ", ".join(f"{name} {date}" for name, date in report.rules.items())
    yield f"<footer>{escape(report.made_by)}, report version {report.version}. Rules: {escape(rules)}.</footer>\n"
