from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm121.findings import Finding, Verdict, overall
from sm121.resources import (
    empty_folders,
    judge_cache,
    judge_cutlass,
    judge_nvcc_flags,
    judge_source_folders,
    judge_submodules,
    judge_toolkit,
)
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

PLANNED = CudaVersion(13, 0)
TWO = {"/usr/bin/nvcc": "11.5.119", "/usr/local/cuda/bin/nvcc": "13.0.88"}


def said(findings: list[Finding]) -> str:
    return "\n".join(finding.message for finding in findings)


@pytest.mark.parametrize(
    ("flags", "cuda", "driver", "verdict", "word"),
    [
        ("-O3 -std=c++17", "12.9", "", Verdict.PASS, ""),
        ("--compress-mode=size", "12.6", None, Verdict.FAIL, "12.8"),
        ("-compress-mode size", "12.6", None, Verdict.FAIL, "12.8"),
        ("--compress-mode=tiny", "13.0", None, Verdict.FAIL, "tiny"),
        ("--compress-mode=size", "12.9", None, Verdict.INFO, "550"),
        ("--compress-mode=balance", "12.8", "535.104.05", Verdict.WARN, "550"),
        ("--compress-mode=size", "12.9", "550.54.14", Verdict.PASS, ""),
        ("--compress-mode=speed", "12.9", "535", Verdict.PASS, ""),
        ("--compress-mode=none", "12.9", "530", Verdict.PASS, ""),
        ("-O3", "13.0", "570", Verdict.WARN, "580"),
        ("--compress-mode=size", "13.0", "570", Verdict.WARN, "580"),
        ("--compress-mode=size", "13.0", "", Verdict.PASS, ""),
        ("--compress-mode=size", "12.9", "new", Verdict.UNKNOWN, "new"),
        ("-gencode arch=compute_121a,code=sm_121a", "12.8", None, Verdict.FAIL, "12.9"),
        ("-gencode=arch=compute_121a,code=[sm_121a,compute_121a]", "12.9", None, Verdict.PASS, ""),
        ("-arch=sm_120f", "12.8", None, Verdict.FAIL, "sm_120f"),
        ("--gpu-architecture sm_12", "13.0", None, Verdict.FAIL, "sm_12"),
        ("-arch sm_150", "14.0", None, Verdict.UNKNOWN, "sm_150"),
        ("-static-global-template-stub=false", "12.6", None, Verdict.FAIL, "12.8"),
        ("-allow-unsupported-compiler", "13.0", None, Verdict.WARN, "host compiler"),
        ("-G", "13.0", None, Verdict.WARN, "optimiser"),
        ("-DX='a", "13.0", None, Verdict.FAIL, "taken apart"),
        ("", "13.0", None, Verdict.PASS, ""),
    ],
)
def test_nvcc_flags(flags: str, cuda: str, driver: str | None, verdict: Verdict, word: str) -> None:
    findings = judge_nvcc_flags(flags, CudaVersion.parse(cuda), driver)
    assert overall(findings) is verdict
    assert word in said(findings)


def test_all_faults_of_a_line_of_flags_at_once() -> None:
    findings = judge_nvcc_flags("--compress-mode=size -arch=sm_121a", CudaVersion(12, 6))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL, Verdict.FAIL]


@pytest.mark.parametrize(
    ("found", "env", "verdict", "word"),
    [
        (TWO, {"PATH": "/usr/bin"}, Verdict.FAIL, "CUDA_HOME=/usr/local/cuda"),
        (TWO, {"PATH": "/usr/local/cuda/bin:/usr/bin"}, Verdict.INFO, "11.5"),
        (TWO, {"PATH": "/usr/bin", "CUDA_HOME": "/usr/local/cuda"}, Verdict.WARN, "first on PATH"),
        (TWO, {"PATH": "/usr/local/cuda/bin", "CUDA_HOME": "/usr/local/cuda/"}, Verdict.INFO, "13.0.88"),
        (TWO, {"PATH": "/bin"}, Verdict.INFO, "usual place"),
        (TWO, {"PATH": "/bin", "CUDA_HOME": "/opt/cuda"}, Verdict.FAIL, "holds no bin/nvcc"),
        ({}, {"PATH": "/usr/bin"}, Verdict.FAIL, "none on this machine"),
        ({"/usr/bin/nvcc": "13.0"}, {"PATH": "/usr/bin"}, Verdict.PASS, ""),
        ({"/usr/bin/nvcc": ""}, {"PATH": "/usr/bin"}, Verdict.UNKNOWN, "no version"),
        ({"/usr/bin/nvcc": "13.4.92"}, {"PATH": "/usr/bin"}, Verdict.FAIL, "13.4"),
        ({"/usr/bin/nvcc": "12.8.93"}, {"PATH": "/usr/bin"}, Verdict.FAIL, "wanted CUDA 13.0"),
        ({"/usr/bin/nvcc": "13.0"}, {"PATH": "/usr/bin", "NVCC_APPEND_FLAGS": "-G"}, Verdict.WARN, "Unset"),
    ],
)
def test_toolkit(found: dict[str, str], env: dict[str, str], verdict: Verdict, word: str) -> None:
    findings = judge_toolkit(found, env, PLANNED)
    assert overall(findings) is verdict
    assert word in said(findings)


@pytest.mark.parametrize(
    ("torch", "verdict"),
    [
        ("2.14.0+cu130", Verdict.PASS),
        ("2.14.0", Verdict.PASS),
        ("2.14.0+cpu", Verdict.PASS),
        ("2.14.0+cu134", Verdict.INFO),
        ("2.14.0+cu128", Verdict.FAIL),
    ],
)
def test_torch_is_of_the_same_major_release(torch: str, verdict: Verdict) -> None:
    assert overall(judge_toolkit({"/usr/bin/nvcc": "13.0"}, {"PATH": "/usr/bin"}, PLANNED, torch)) is verdict


@pytest.mark.parametrize(
    ("name", "version", "ptx", "cuda", "verdict"),
    [
        ("ccache", "4.5.1", False, None, Verdict.WARN),
        ("ccache", "4.9.9", False, None, Verdict.WARN),
        ("ccache", "4.10", True, None, Verdict.PASS),
        ("ccache", "4.14.2", True, "13.4", Verdict.PASS),
        ("sccache", "0.18.0", True, None, Verdict.WARN),
        ("sccache", "0.18.0", False, None, Verdict.PASS),
        ("sccache", "0.16.0", True, "13.0", Verdict.PASS),
        ("sccache", "0.16.0", True, "13.3", Verdict.WARN),
        ("sccache", "", False, None, Verdict.UNKNOWN),
        ("fcache", "1.0", False, None, Verdict.UNKNOWN),
    ],
)
def test_caches(name: str, version: str, ptx: bool, cuda: str | None, verdict: Verdict) -> None:
    release = CudaVersion.parse(cuda) if cuda else None
    assert overall(judge_cache(name, version, ptx=ptx, cuda=release)) is verdict


def test_source_folders() -> None:
    env = {"A": "/src/a", "B": "b", "C": "", "D": "~/d", "E": "/src/e"}
    findings = judge_source_folders(
        env, ["A", "B", "C", "D", "E", "F"], offline=True, is_folder=lambda p: p == "/src/a"
    )
    verdicts = {finding.subject: finding.verdict for finding in findings}
    assert verdicts.pop("A") is Verdict.PASS
    assert set(verdicts.values()) == {Verdict.FAIL}
    assert "relative" in said(findings)
    online = judge_source_folders({}, ["F"], offline=False)
    assert overall(online) is Verdict.INFO


VERSION_H = "#pragma once\n#define CUTLASS_MAJOR 4\n  # define CUTLASS_MINOR  7\n#define CUTLASS_PATCH 1\n"


@pytest.mark.parametrize(
    ("text", "pin", "verdict"),
    [
        (VERSION_H, "4.7.1", Verdict.PASS),
        (VERSION_H, "v4.7.1", Verdict.PASS),
        (VERSION_H, "v4.7", Verdict.FAIL),
        (VERSION_H, "4.8.0", Verdict.FAIL),
        (VERSION_H, "b273a02621d3", Verdict.UNKNOWN),
        ("#define CUTLASS_MAJOR 4\n", "4.7.1", Verdict.UNKNOWN),
        ("", "4.7.1", Verdict.UNKNOWN),
    ],
)
def test_cutlass(text: str, pin: str, verdict: Verdict) -> None:
    assert overall(judge_cutlass("version.h", text, pin)) is verdict


@pytest.mark.parametrize(
    ("names", "empty", "verdict"),
    [
        (["csrc/a.cu", "3rdparty/cutlass/include/cutlass/cutlass.h"], [], Verdict.PASS),
        (["csrc/a.cu", "3rdparty/cutlass/"], ["3rdparty/cutlass/"], Verdict.FAIL),
        (["csrc/a.cu", "3rdparty/cutlass/a.h"], ["3rdparty/spdlog"], Verdict.FAIL),
        (["csrc/a.cu", "3rdparty/spdlog/a.h"], [], Verdict.FAIL),
        (["csrc/a.cu", "3rdparty/cutlass/a.h"], ["docs/empty"], Verdict.PASS),
    ],
)
def test_submodules(names: list[str], empty: list[str], verdict: Verdict) -> None:
    assert overall(judge_submodules("flashinfer", names, empty)) is verdict


def test_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "3rdparty" / "cutlass").mkdir(parents=True)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.cu").touch()
    assert empty_folders(tmp_path) == ["3rdparty/cutlass"]
