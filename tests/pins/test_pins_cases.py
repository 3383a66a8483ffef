"""Every case of tests/cases/pins.toml, and those of versions.toml that are about commits."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sm121.findings import Finding, overall
from sm121.pins.audit import judge
from sm121.pins.commits import commits_known
from sm121.pins.environment import Environment
from sm121.pins.model import Cpu
from sm121.values import CudaVersion

CASES = Path(__file__).parents[1] / "cases"


def cases(name: str, prefix: str = "") -> list[dict[str, Any]]:
    entries = tomllib.loads((CASES / f"{name}.toml").read_text(encoding="utf-8"))["case"]
    return [entry for entry in entries if entry["id"].startswith(prefix)]


def environment(given: dict[str, Any]) -> Environment:
    lines = list(given.get("installed", []))
    if "requirement" in given:
        lines.append(given["requirement"])
    lines += [f"{name}=={given[name]}" for name in ("torch", "torchvision", "torchaudio") if name in given]
    lines += [
        f"{name.replace('_', '-')}=={given[name]}"
        for name in ("flashinfer_python", "flashinfer_cubin", "flashinfer_jit_cache")
        if name in given
    ]
    cuda = given.get("cuda", "")
    image = given.get("image", "")
    made = Environment.of_lines(
        lines,
        cpu=Cpu(given.get("platform", "aarch64")),
        cuda=CudaVersion.parse(cuda or f"{image[2:4]}.{image[4:]}") if cuda or image else None,
        from_index="index" in given,
    )
    return Environment(made.installed, made.cpu, made.cuda, made.from_index, given.get("env", {}))


def assert_expected(findings: list[Finding], expect: dict[str, Any]) -> None:
    verdict = overall(findings).upper()
    assert verdict in {expect["verdict"], *expect.get("accept", [])}, [finding.message for finding in findings]
    gravest = [finding for finding in findings if finding.verdict.upper() == verdict]
    text = " ".join(finding.message for finding in gravest).lower()
    words = expect.get("word", [])
    assert not words or any(word.lower() in text for word in words), text
    assert all(word.lower() in text for word in expect.get("all_words", [])), text


@pytest.mark.parametrize("case", cases("pins"), ids=lambda case: case["id"])
def test_version_sets(case: dict[str, Any]) -> None:
    assert_expected(judge(environment(case["given"])), case["expect"])


@pytest.mark.parametrize("case", cases("versions", "B29"), ids=lambda case: case["id"])
def test_commits_of_a_record(case: dict[str, Any]) -> None:
    assert_expected(commits_known(case["given"]["manifest"]), case["expect"])
