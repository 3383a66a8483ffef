from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_wheels import FILENAME, INFO, MAIN, members, write_wheel

from sm121.errors import UnpackError
from sm121.findings import Finding, Verdict, overall
from sm121.pack.checks import (
    SPARK,
    Place,
    channels,
    judge_grafts,
    judge_install,
    judge_names,
    judge_size,
    judge_wheel,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

CASES: list[dict[str, Any]] = [
    case
    for case in tomllib.loads((Path(__file__).parents[1] / "cases" / "wheels.toml").read_text())["case"]
    if case["id"].startswith(("B33", "B48", "B49", "B52"))
]


def judged(given: dict[str, Any]) -> Iterable[Finding]:
    if "dist_info" in given:
        return judge_names(given["filename"], given["dist_info"], given["metadata_version"], given["wheel_tags"])
    if "needed" in given:
        return judge_grafts(given["project"], given["files"])
    if "channel" in given:
        return [judge_size(given["bytes"], given["channel"], given.get("limit_bytes"))]
    return judge_install(given["wheel"], Place(given["python"], given["glibc"], given["machine"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_known_failures_of_wheels(case: dict[str, Any]) -> None:
    findings, expect = list(judged(case["given"])), case["expect"]
    told = "\n".join(finding.message for finding in findings).lower()
    assert overall(findings).value.upper() in {expect["verdict"], *expect.get("accept", [])}
    assert not expect.get("word") or any(word.lower() in told for word in expect["word"])
    assert all(word.lower() in told for word in expect.get("all_words", []))


def test_all_cases_are_here() -> None:
    assert {case["id"] for case in CASES} == {
        "B33-a", "B48-a", "B48-b", "B49-a", "B49-b", "B49-c", "B49-d", "B52-a", "B52-b", "B52-c",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("member", "verdict"),
    [
        ("vllm.libs/libc10-0a1b2c3d.so", Verdict.FAIL),
        ("vllm/lib/libnccl.so.2", Verdict.FAIL),
        ("vllm.libs/libcudnn_ops-deadbeef.so.9.1.0", Verdict.FAIL),
        ("vllm.libs/libtorch_cpu.so", Verdict.FAIL),
        ("vllm.libs/libgomp-24e2ab19.so.1.0.0", Verdict.PASS),
        ("vllm.libs/libcurl-0123abcd.so.4", Verdict.PASS),
        ("vllm.libs/libcudaextras.so", Verdict.PASS),
        ("vllm/libcuda.so.txt", Verdict.PASS),
        (MAIN, Verdict.PASS),
    ],
)
def test_which_libraries_must_not_lie_in_a_wheel(member: str, verdict: Verdict) -> None:
    assert overall(judge_grafts("vllm", [member])) is verdict


def test_packages_of_the_libraries_themselves_may_hold_them() -> None:
    for project in ("nvidia-cuda-runtime", "nvidia_cublas", "torch"):
        assert overall(judge_grafts(project, ["lib/libcudart.so.13"])) is Verdict.INFO


def test_a_channel_that_nobody_knows_is_unknown_without_a_limit() -> None:
    assert judge_size(1, "carrier pigeon").verdict is Verdict.UNKNOWN
    assert judge_size(1, "carrier pigeon", 2).verdict is Verdict.PASS
    assert channels()["private"] is None


@pytest.mark.parametrize(
    ("filename", "place", "words"),
    [
        (FILENAME, SPARK, []),
        (FILENAME.replace("aarch64", "x86_64"), SPARK, ["x86_64", "a wheel for aarch64"]),
        (FILENAME, Place("3.12", "2.27", "aarch64"), ["glibc 2.28", "found 2.27"]),
        (FILENAME.replace("cp38-abi3", "cp312-cp312"), Place("3.13", "2.39", "aarch64"), ["cp312", "3.13"]),
        (FILENAME.replace("cp38-abi3", "cp313-cp313t"), Place("3.13t", "2.39", "aarch64"), []),
        ("x-1-py3-none-any.whl", Place("3.13t", "2.39", "aarch64"), []),
        ("x-1-cp312-cp312-linux_aarch64.whl", SPARK, []),
    ],
)
def test_where_a_wheel_installs(filename: str, place: Place, words: list[str]) -> None:
    findings = judge_install(filename, place)
    assert overall(findings) is (Verdict.FAIL if words else Verdict.PASS)
    assert all(word in " ".join(each.message for each in findings) for word in words)


def test_a_place_that_cannot_be_read_is_unknown() -> None:
    assert overall(judge_install(FILENAME, Place("2.7", "2.39", "aarch64"))) is Verdict.UNKNOWN
    assert overall(judge_install("vllm.whl", SPARK)) is Verdict.FAIL


def test_a_renamed_wheel_with_upstreams_own_tag_fails(tmp_path: Path) -> None:
    """What the official wheels look like: the name says manylinux_2_28, WHEEL says linux."""
    findings = judge_wheel(write_wheel(tmp_path / FILENAME))
    assert overall(findings) is Verdict.FAIL
    assert "cp38-abi3-linux_aarch64" in findings[0].message


@pytest.mark.parametrize(
    "lacking", [[f"{INFO}/METADATA"], [f"{INFO}/WHEEL"], [f"{INFO}/METADATA", f"{INFO}/WHEEL"]]
)
def test_a_wheel_without_its_records_fails(tmp_path: Path, lacking: list[str]) -> None:
    content = {name: data for name, data in members().items() if name not in lacking}
    findings = judge_wheel(write_wheel(tmp_path / FILENAME, content))
    assert overall(findings) is Verdict.FAIL
    assert all(name.split("/")[1] in findings[0].message for name in lacking)


def test_what_is_no_wheel_is_said_so(tmp_path: Path) -> None:
    (tmp_path / FILENAME).write_bytes(b"<html>")
    with pytest.raises(UnpackError, match="damaged"):
        judge_wheel(tmp_path / FILENAME)
