"""Every published case about the build host, by its own words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sm121.findings import Finding, Verdict, overall
from sm121.resources import (
    GIB,
    compile_jobs,
    job_count,
    judge_cache,
    judge_cutlass,
    judge_nvcc_flags,
    judge_source_folders,
    judge_submodules,
    judge_toolkit,
)
from sm121.values import CudaVersion

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent.parent / "cases" / "resources.toml").read_text(encoding="utf-8")
)["case"]


def judge(given: dict[str, Any]) -> list[Finding]:
    if "nvcc_flags" in given:
        return judge_nvcc_flags(given["nvcc_flags"], CudaVersion.parse(given["cuda"]), given.get("min_driver"))
    if "nvcc" in given:
        return judge_toolkit(given["nvcc"], given["env"], CudaVersion.parse(given["cuda"]), given["torch"])
    if "mem_available_gib" in given:
        free = (given["mem_available_gib"] - given["reserve_gib"]) * GIB
        jobs = compile_jobs(cores=given["cpus"], memory=max(0, free), heaviest=given["per_job_gib"] * GIB)
        return list(jobs.findings)
    if "ccache" in given:
        return judge_cache("ccache", given["ccache"])
    if "sccache" in given:
        return judge_cache("sccache", given["sccache"], ptx="+PTX" in given["arch_list"])
    if "offline" in given:
        return judge_source_folders(given["env"], given["needed"], offline=given["offline"])
    if "pin" in given:
        return judge_cutlass(given["file"], given["text"], given["pin"])
    return judge_submodules(given["project"], given["files"], given["empty_dirs"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    given, expect = case["given"], case["expect"]
    findings = judge(given)
    said = "\n".join(finding.message for finding in findings)
    assert overall(findings).upper() in {expect["verdict"], *expect.get("accept", [])}, said
    if "word" in expect:
        assert any(word.lower() in said.lower() for word in expect["word"]), said
    for word in expect.get("all_words", []):
        assert word in said
    if "value" in expect:
        jobs = job_count(
            cpus=given["cpus"],
            memory=given["mem_available_gib"],
            reserve=given["reserve_gib"],
            per_job=given["per_job_gib"],
        )
        assert jobs == expect["value"]
    if overall(findings) is Verdict.FAIL:
        assert any(finding.advice or finding.wanted for finding in findings)


def test_every_case_is_here_once() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 13
