"""The report and its views: stable, described by its schema, and harmless whatever the artifact is called."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from importlib import resources
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from made_facts import SILENT, distribution, host_library, image, library, unit
from rich.console import Console

import sm121.inspector.report as report_module
from sm121.errors import UsageError
from sm121.findings import Finding, Verdict
from sm121.inspector.ci import report_junit, report_sarif
from sm121.inspector.codec import decode, encode
from sm121.inspector.facts import ArtifactFacts
from sm121.inspector.inspection import Options, judge
from sm121.inspector.page import report_html
from sm121.inspector.promise import Promise
from sm121.inspector.report import Report, dump_report, load_report, report_json
from sm121.inspector.text import report_text, summary
from sm121.inspector.words import span
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from sm121.inspector.facts import LibraryFacts

EVIL = "</script><img src=x onerror=alert(1)>\x1b[31m"
SCHEMA = json.loads(resources.files("sm121.inspector").joinpath("report.schema.json").read_text(encoding="utf-8"))


def made(
    *libraries: LibraryFacts, name: str = "vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl", **options: Any
) -> Report:
    facts = ArtifactFacts(
        "wheel", name, 123456, libraries, (distribution("vllm", "0.33.0", requires=["torch==2.14.0"]),),
        tuple(item.path for item in libraries), "ab" * 32, (Finding("archive.path", EVIL, Verdict.FAIL, EVIL),),
    )  # fmt: skip
    return judge(facts, Options(**options))


def everything() -> Report:
    kernels: dict[str, list[int | None]] = {
        "marlin6Marlin": [500, 600],
        "MainloopSm100TmaUmma_x": [4000, 4000],
        "cache": [300, 9000],
        EVIL: [700, None],
    }
    machine = library(
        "vllm/_C_stable_libtorch.abi3.so",
        [unit(["sm_120f", "sm_90a"], kernels, code={"cache": SILENT})],
        host=host_library(["libcudart.so.13", "libtorch.so"], versions={"libc.so.6": ("GLIBC_2.17",)}),
    )
    ptx = library(
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", [unit([image("compute_80", size=50_000_000)], {"flash": [0]})]
    )
    other = library("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", [unit(["sm_90a"], {"hopper": [900]})])
    host = library(f"vllm/{EVIL}.so")
    promise = Promise(
        requested=("12.1a",), configured={"generic": ("12.0",), "gated": ("12.0f",)},
        gencodes={"vllm/_C_stable_libtorch.abi3.so": {"sm_120f": 2}},
        libraries={"vllm/_C_stable_libtorch.abi3.so": {"sm_120f": 1}},
    )  # fmt: skip
    return made(machine, ptx, other, host, promise=promise, driver=CudaVersion(13, 0))


def test_the_report_is_what_its_schema_says() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    data = json.loads(dump_report(everything()))
    jsonschema.validate(data, SCHEMA)
    data["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_the_schema_knows_every_field() -> None:
    records = {
        item.__name__.lower(): {field.name for field in dataclasses.fields(item)}
        for item in vars(report_module).values()
        if isinstance(item, type) and dataclasses.is_dataclass(item)
    }
    top = records.pop("report")
    assert set(SCHEMA["properties"]) == top
    for name, fields in records.items():
        assert set(SCHEMA["$defs"][name]["properties"]) == fields


def test_equal_facts_give_equal_bytes() -> None:
    assert dump_report(everything()) == dump_report(everything())


def test_a_report_comes_back_from_its_json() -> None:
    report = everything()
    assert load_report(dump_report(report)) == report


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(version=7), "wanted version 1"),
        (lambda data: data.pop("findings"), "findings is missing"),
        (lambda data: data.update(more=1), "more is not known"),
        (lambda data: data["artifact"].update(size="big"), "artifact.size: wanted int"),
        (lambda data: data["kernels"][0].update(library=True), r"kernels\[0\].library: wanted int"),
        (lambda data: data.update(verdict="fine"), "verdict"),
        (lambda data: data["jit"].update(seconds=[1.0]), "wanted 2 items"),
    ],
)
def test_a_wrong_report_is_refused_by_its_place(change: Any, said: str) -> None:
    data = report_json(everything())
    change(data)
    with pytest.raises(UsageError, match=said):
        load_report(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000, '{"version": 1}'])
def test_other_json_is_no_report(text: str) -> None:
    with pytest.raises(UsageError, match="no report"):
        load_report(text)


def test_the_codec_takes_whole_numbers_for_floats_only() -> None:
    data = report_json(everything())
    data["jit"]["seconds"] = [1, 2]
    assert decode(Report, data).jit.seconds == (1.0, 2.0)
    assert encode((Verdict.PASS, None)) == ["pass", None]


def test_findings_are_sorted_gravest_first_and_said_once() -> None:
    findings = everything().findings
    assert [item.verdict.rank for item in findings] == sorted(
        (item.verdict.rank for item in findings), reverse=True
    )
    assert len(set(findings)) == len(findings)


def shown(report: Report, verbosity: int = 0, width: int = 100, *, terminal: bool = False) -> str:
    out = StringIO()
    report_text(report, Console(file=out, width=width, force_terminal=terminal, no_color=not terminal), verbosity)
    return out.getvalue()


def test_text_puts_the_verdict_first_and_fits_a_screen() -> None:
    text = shown(everything(), width=80)
    lines = text.splitlines()
    assert lines[0].startswith("FAIL  vllm-0.33.0")
    assert "on compute capability 12.1" in lines[0]
    assert max(len(line) for line in lines[:12] if not line.startswith("FAIL")) <= 80
    assert len(text.split("\n\n")[1].splitlines()) <= 12
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_on_any_terminal_a_librarys_name_is_whole(width: int, verbosity: int) -> None:
    report = everything()
    lines = shown(report, verbosity, width).splitlines()
    for path in (item.path for item in report.libraries):
        name = path if verbosity else path.rpartition("/")[2].partition(".")[0]
        assert any(line.startswith(name) for line in lines)


def test_on_a_narrow_terminal_the_numbers_stand_below_the_name() -> None:
    beside = shown(everything(), width=80).split("\n\n")[1].splitlines()
    below = shown(everything(), width=60).split("\n\n")[1].splitlines()
    assert max(map(len, below)) <= 60
    assert [word for line in below for word in line.split()] == [word for line in beside for word in line.split()]
    at = below.index("_C_stable_libtorch")
    assert below[at + 1].startswith("  ")


def test_verbosity_adds_families_findings_and_images() -> None:
    report = everything()
    plain, more, most = (shown(report, level, 160) for level in range(3))
    assert "Marlin dense" not in plain
    assert "Marlin dense" in more
    assert "device.stub" in more
    assert "sm_120f 1" not in more.split("delivered")[0]
    assert "sm_120f 1" in most.split("delivered")[0]


def test_colour_goes_to_terminals_only() -> None:
    assert "\x1b[" in shown(everything(), terminal=True)
    assert "\x1b[31m" + "<" not in shown(everything(), terminal=True)


def test_the_summary_counts_what_runs() -> None:
    first, second = summary(everything())
    assert first == (
        "2 of 6 kernels run as machine code, 1 after the driver compiled them, 2 are there in name only "
        "and 1 are for other chips."
    )
    assert "50.0 MB of PTX" in second
    assert "CUDA 13.0" in second


def test_a_build_points_to_the_report_where_inspect_points_to_its_option() -> None:
    report = everything()
    assert shown(report).rstrip().endswith("-v shows them.")
    out = StringIO()
    report_text(report, Console(file=out, width=100), rest="the report has them")
    assert out.getvalue().rstrip().endswith("passed or only inform: the report has them.")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((0.0, 0.0), "less than 1 s"),
        ((2.0, 2.04), "2.0 s"),
        ((2.0, 3.0), "2.0 s to 3.0 s"),
        ((0.2, 1504.0), "0.2 s to 25 min 04 s"),
    ],
)
def test_a_span_that_is_none_is_not_spelled_as_one(seconds: tuple[float, float], said: str) -> None:
    assert span(*seconds) == said


class _Page(HTMLParser):
    """Collects elements, and what would make a browser load or run something."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            f"{tag} {name}={value}"
            for name, value in attrs
            if name in {"src", "srcset", "data"} or name.startswith("on")
        ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_loads_nothing_and_shows_names_as_text() -> None:
    html = report_html(everything())
    page = _Page()
    page.feed(html)
    assert page.loads == []
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert "default-src 'none'" in html
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|eval\(", html)
    assert set(re.findall(r'(?:href|src)="(https?:[^"]*)"', html)) <= {
        item.source for item in everything().findings
    }
    assert any("onerror=alert(1)" in text for text in page.texts)


def test_html_carries_the_kernels_for_its_search() -> None:
    report = everything()
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', report_html(report), re.DOTALL)
    assert match
    data = json.loads(match[1])
    assert [row[0] for row in data["kernels"]] == [kernel.name for kernel in report.kernels]
    assert {data["states"][row[3]] for row in data["kernels"]} == set(report.states)
    assert {data["families"][row[2]] for row in data["kernels"]} == {family.name for family in report.families}


def test_html_shows_the_way_from_request_to_bytes() -> None:
    html = report_html(everything())
    assert "Requested: <code>12.1a</code>" in html
    assert "gated 12.0f" in html
    assert '<td class="lost">sm_120f</td>' in html


def test_sarif_has_one_result_per_finding() -> None:
    report = everything()
    log = json.loads(report_sarif(report))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert len(run["results"]) == len(report.findings)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]] == result["ruleId"] == finding.check
        assert (result["kind"] == "fail") == (result["level"] in {"error", "warning"})
        assert (result["level"] == "error") == (finding.verdict is Verdict.FAIL)
        assert result["message"]["text"] == finding.message


def test_junit_counts_failures_and_open_questions() -> None:
    report = everything()
    suite = ET.fromstring(report_junit(report))
    assert int(suite.attrib["tests"]) == len(report.findings) == len(suite.findall("testcase"))
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) > 0
    assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error"))


def test_host_code_does_not_fill_the_screen() -> None:
    many = [library(f"pkg/lib{number}.so") for number in range(60)]
    text = shown(made(library("pkg/_C.so", [unit(["sm_121a"])]), *many))
    assert "_C " in text
    assert "… and 60 with host code" in text
    assert "lib59" not in text
    assert "lib59" in shown(made(*many), 1)
