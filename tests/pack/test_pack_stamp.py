from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from sm121.errors import PackError
from sm121.findings import Verdict, overall
from sm121.pack.stamp import Stamp, judge_override, judge_version, version_fields
from sm121.target import GB10

CASES: list[dict[str, Any]] = [
    case
    for case in tomllib.loads((Path(__file__).parents[1] / "cases" / "versions.toml").read_text())["case"]
    if case["id"].startswith(("B30", "B32"))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_known_failures_of_versions(case: dict[str, Any]) -> None:
    given, expect = case["given"], case["expect"]
    normal = None
    if "metadata_version" in given:
        findings = [judge_version(given["metadata_version"], given["pinned_ref"])]
    else:
        findings, normal = judge_override(given["source_dir"], has_git=given["has_git"], env=given["env"])
    told = "\n".join(finding.message for finding in findings).lower()
    assert overall(findings).value.upper() in {expect["verdict"], *expect.get("accept", [])}
    assert not expect.get("word") or any(word.lower() in told for word in expect["word"])
    assert all(word.lower() in told for word in expect.get("all_words", []))
    if "normalised" in expect:
        assert normal == expect["normalised"]


def test_all_cases_are_here() -> None:
    assert {case["id"] for case in CASES} == {"B30-a", "B30-b", "B32-a", "B32-b", "B32-c"}


def test_line_and_target_stand_in_the_version_once() -> None:
    stamp = Stamp.of("flashinfer-python", "v0.7.2.post1", "cu130", GB10)
    assert stamp.version == "0.7.2.post1+cu130.sm121"
    assert str(Version(stamp.version)) == stamp.version
    assert stamp.dist_info == "flashinfer_python-0.7.2.post1+cu130.sm121.dist-info"


@pytest.mark.parametrize(
    ("pinned", "line", "words"),
    [
        ("0.1.dev7557+g977180c", "cu130", ["development version", "name the CUDA line twice"]),
        ("0.33.0+cu130", "cu130", ["'cu130' would stand there beside ours"]),
        ("0.33.0+cu130+cu130", "cu130", ["two plus signs"]),
        ("main", "cu130", ["'main'", "PEP 440"]),
        ("0.33.0", "cu13", ["'cu13'"]),
        ("0.33.0", "cu130.sm121", ["'cu130.sm121'"]),
        ("", "", ["found ''"]),
    ],
)
def test_what_makes_no_stamp(pinned: str, line: str, words: list[str]) -> None:
    with pytest.raises(PackError) as raised:
        Stamp.of("vllm", pinned, line, GB10)
    assert all(word in str(raised.value) for word in words)


def test_all_faults_of_a_stamp_come_at_once() -> None:
    with pytest.raises(PackError) as raised:
        Stamp.of("v/llm", "main", "13", GB10)
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("0.33.0", (0, 33, 0)),
        ("0.33.0rc1", (0, 33, 0, "rc1")),
        ("0.7.2.post1+cu130.sm121", (0, 7, 2, "post1", "cu130.sm121")),
        ("0.1.dev7557+g977180c", (0, 1, "dev7557", "g977180c")),
        ("1!2.0", ("1!", 2, 0)),
    ],
)
def test_version_fields_as_setuptools_scm_writes_them(version: str, fields: tuple[int | str, ...]) -> None:
    assert version_fields(Version(version)) == fields


def test_a_version_of_other_sources_fails() -> None:
    assert judge_version("0.26.1", "v0.26.0").verdict is Verdict.FAIL
    assert judge_version("0.26.0+cu130.sm121", "0.26.0").verdict is Verdict.PASS
    assert judge_version("nonsense", "0.26.0").verdict is Verdict.FAIL
