"""Version sets beyond the reported cases: near misses, other lines, other CPUs."""

from __future__ import annotations

import datetime

import pytest

from sm121.errors import UsageError
from sm121.findings import Verdict, overall
from sm121.pins.audit import judge
from sm121.pins.commits import commits_known
from sm121.pins.environment import Environment
from sm121.pins.knowledge import known, toolkit_releases
from sm121.pins.model import Cpu
from sm121.values import CudaVersion

CU130 = CudaVersion(13, 0)
CU129 = CudaVersion(12, 9)


def verdict(
    *lines: str,
    check: str,
    cuda: CudaVersion | None = CU130,
    cpu: Cpu = Cpu.AARCH64,
    index: bool = False,
    env: dict[str, str] | None = None,
) -> Verdict:
    """The gravest verdict of one check."""
    made = Environment.of_lines(lines, cpu=cpu, cuda=cuda, from_index=index)
    findings = judge(Environment(made.installed, cpu, cuda, index, env or {}))
    return overall(finding for finding in findings if finding.check == check)


@pytest.mark.parametrize(
    ("requirement", "cuda", "cpu", "wanted"),
    [
        ("torch==2.14.0", CU130, Cpu.AARCH64, Verdict.PASS),
        ("torch==2.14.1", CU130, Cpu.X86_64, Verdict.PASS),
        ("torch==2.7.1", CU130, Cpu.AARCH64, Verdict.FAIL),
        ("torch==2.9.0", CU130, Cpu.AARCH64, Verdict.WARN),
        ("torch==2.10.0", CU130, Cpu.AARCH64, Verdict.FAIL),
        ("torch==2.9.1", CU130, Cpu.X86_64, Verdict.FAIL),
        ("torch==2.9.1", CU129, Cpu.X86_64, Verdict.WARN),
        ("torch==2.14.0", CU129, Cpu.AARCH64, Verdict.FAIL),
        ("torch==2.15.0", CU130, Cpu.AARCH64, Verdict.INFO),
        ("torch==2.14.0", CudaVersion(13, 5), Cpu.AARCH64, Verdict.WARN),
        ("torch==3.0.0", CU130, Cpu.AARCH64, Verdict.UNKNOWN),
        ("torch==2.14.0+cu129", CU130, Cpu.AARCH64, Verdict.FAIL),
        ("torch==2.14.0+cu130", CU130, Cpu.AARCH64, Verdict.PASS),
        ("torch==2.14.0+rocm7.2", CU130, Cpu.X86_64, Verdict.FAIL),
        ("torch==2.14.0+gitabcdef0", CU130, Cpu.AARCH64, Verdict.UNKNOWN),
    ],
)
def test_torch_from_the_index(requirement: str, cuda: CudaVersion, cpu: Cpu, wanted: Verdict) -> None:
    assert verdict(requirement, check="pins.torch-build", cuda=cuda, cpu=cpu, index=True) is wanted


def test_torch_of_unknown_origin_is_never_a_pass() -> None:
    assert verdict("torch==2.14.0", check="pins.torch-build") is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("torch==2.14.0+cu130", "torchvision==0.29.0+cpu"), Verdict.FAIL),
        (("torch==2.14.0+cu130", "torchvision==0.29.0+cu130"), Verdict.PASS),
        (("torch==2.14.0+cu130", "torchaudio==2.11.0"), Verdict.UNKNOWN),
        (("torchvision==0.29.0", "torchaudio==2.11.0"), Verdict.UNKNOWN),
    ],
)
def test_one_line_for_the_family(lines: tuple[str, ...], wanted: Verdict) -> None:
    assert verdict(*lines, check="pins.torch-family") is wanted


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("torch==2.14.0+cu130", "torchvision==0.28.0+cu130"), Verdict.FAIL),
        (("torch==2.14.1+cu130", "torchvision==0.29.1+cu130"), Verdict.PASS),
        (("torch==2.13.0+cu130", "torchaudio==2.11.0+cu130"), Verdict.PASS),
        (("torch==2.9.1+cu130", "torchaudio==2.11.0+cu130"), Verdict.FAIL),
        (("torch==2.14.0+cu130", "torchvision==0.99.0+cu130"), Verdict.UNKNOWN),
    ],
)
def test_pairs_that_were_built_for_each_other(lines: tuple[str, ...], wanted: Verdict) -> None:
    assert verdict(*lines, check="pins.torch-pair") is wanted


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.48"), Verdict.FAIL),
        (("nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-runtime==13.0.96"), Verdict.FAIL),
        (("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-runtime==13.0.96", "nvidia-cublas==13.1.1.3"), Verdict.PASS),
        (("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-runtime==13.0.48"), Verdict.WARN),
        (("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-cccl==13.3.5.0.6"), Verdict.WARN),
        (("nvidia-cuda-runtime==13.0.96", "nvidia-cublas==13.10.0.20"), Verdict.INFO),
        (("nvidia-cuda-nvcc==13.5.37", "nvidia-cublas==13.10.0.20"), Verdict.PASS),
        (("nvidia-cuda-nvcc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79"), Verdict.PASS),
        (("nvidia-cuda-nvcc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.8.90"), Verdict.FAIL),
        (("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-runtime-cu12==12.8.90"), Verdict.UNKNOWN),
        (("nvidia-cuda-nvcc==13.9.1", "nvidia-nvvm==13.0.88"), Verdict.FAIL),
        (("nvidia-cuda-nvcc==13.1.115", "nvidia-nvvm==13.1.80", "nvidia-cuda-runtime==13.1.80"), Verdict.FAIL),
    ],
)
def test_toolkit_parts(lines: tuple[str, ...], wanted: Verdict) -> None:
    assert verdict(*lines, check="pins.toolkit") is wanted


def test_what_torch_pins_is_the_measure() -> None:
    """torch fixes the runtime's headers, so a newer nvcc is the part to change."""
    lines = [
        "nvidia-cuda-runtime==13.0.96",
        "nvidia-cuda-nvcc==13.5.37",
        "nvidia-nvvm==13.5.37",
        "nvidia-cuda-crt==13.5.37",
    ]
    faults = [finding for finding in judge(Environment.of_lines(lines)) if finding.verdict is Verdict.FAIL]
    assert [finding.subject.split()[0] for finding in faults] == [
        "nvidia-cuda-crt",
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
    ]
    assert "Pin nvidia-cuda-nvcc==13.0.88" in faults[1].advice


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("flashinfer-python==0.6.14", "flashinfer-jit-cache==0.6.18+cu130"), Verdict.FAIL),
        (("flashinfer-python==0.6.1", "flashinfer-jit-cache==0.6.18+cu130"), Verdict.FAIL),
        (("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2+cu130"), Verdict.FAIL),
        (("flashinfer-python==0.7.2.post1", "flashinfer-cubin==0.6.13"), Verdict.WARN),
        (("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2.post1+cu130"), Verdict.PASS),
        (("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2.post1+cu130.sm121"), Verdict.PASS),
        (("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2.post1+cu132"), Verdict.WARN),
        (("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2.post1+cu129"), Verdict.FAIL),
        (("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2.post1"), Verdict.UNKNOWN),
        (("flashinfer-jit-cache==0.7.2.post1+cu130",), Verdict.WARN),
    ],
)
def test_flashinfer_sets(lines: tuple[str, ...], wanted: Verdict) -> None:
    assert verdict(*lines, check="pins.flashinfer") is wanted


def test_a_provider_must_have_the_version_of_its_shim() -> None:
    shim = ("flashinfer-python==0.7.2.post1", "flashinfer-jit-cache==0.7.2.post1+cu130")
    assert (
        verdict(*shim, "flashinfer-jit-cache-sm121a==0.7.2.post1+cu130", check="pins.flashinfer") is Verdict.PASS
    )
    assert verdict(*shim, "flashinfer-jit-cache-sm121a==0.7.2.post1", check="pins.flashinfer") is Verdict.FAIL


@pytest.mark.parametrize("value", ["", "0"])
def test_a_version_check_that_is_on(value: str) -> None:
    env = {"FLASHINFER_DISABLE_VERSION_CHECK": value}
    assert verdict("flashinfer-python==0.6.16", check="pins.flashinfer", env=env) is Verdict.PASS


@pytest.mark.parametrize(
    ("lines", "env", "wanted"),
    [
        (("nvidia-cutlass-dsl==4.5.0",), {}, Verdict.FAIL),
        (("nvidia-cutlass-dsl==4.8.0",), {}, Verdict.PASS),
        (("nvidia-cutlass-dsl-libs-base==4.5.2", "nvidia-cutlass-dsl-libs-cu13==4.5.2"), {}, Verdict.FAIL),
        (("nvidia-cutlass-dsl-libs-base==4.6.0", "nvidia-cutlass-dsl-libs-cu13==4.6.0"), {}, Verdict.PASS),
        (("apache-tvm-ffi==0.1.8.post0",), {}, Verdict.FAIL),
        (("apache-tvm-ffi==0.1.8.post1",), {}, Verdict.PASS),
        (("apache-tvm-ffi==0.1.9", "nvidia-cutlass-dsl==4.6.0"), {}, Verdict.FAIL),
        (("apache-tvm-ffi==0.1.9", "nvidia-cutlass-dsl==4.5.2"), {}, Verdict.PASS),
        (("triton==3.5.1",), {}, Verdict.FAIL),
        (("triton==3.5.1",), {"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}, Verdict.INFO),
        (("triton==3.6.0",), {}, Verdict.PASS),
        (("cuda-python==12.6.2.post1", "cuda-bindings==13.5.0"), {}, Verdict.FAIL),
        (("cuda-python==13.4.4", "cuda-bindings==13.4.4"), {}, Verdict.PASS),
        (("b12x==1.5.1", "nvidia-cutlass-dsl==4.5.2"), {}, Verdict.FAIL),
    ],
)
def test_known_bad_versions(lines: tuple[str, ...], env: dict[str, str], wanted: Verdict) -> None:
    assert verdict(*lines, check="pins.known-bad", env=env) is wanted


def test_two_owners_of_one_file() -> None:
    assert verdict("b12x==1.5.1", "flashinfer-python==0.7.2.post1", check="pins.file-owners") is Verdict.FAIL
    assert verdict("b12x==1.5.1", "flashinfer-python==0.6.18.post1", check="pins.file-owners") is Verdict.UNKNOWN


def test_nothing_installed_is_nothing_known() -> None:
    assert overall(judge(Environment({}))) is Verdict.UNKNOWN


def test_reading_a_frozen_list() -> None:
    made = Environment.of_lines(
        ["# comment", "", "-r other.txt", "Torch_Vision==0.29.0+cu130  # via vllm", "torch===2.14.0",
         "triton==3.8.0 \\", "    --hash=sha256:00", "mine @ file:///tmp/mine.whl"]
    )  # fmt: skip
    assert made.installed == {"torch-vision": "0.29.0+cu130", "torch": "2.14.0", "triton": "3.8.0"}


def test_lines_that_are_no_versions_are_named_ten_at_most() -> None:
    with pytest.raises(UsageError) as caught:
        Environment.of_lines([f"line {number}" for number in range(25)])
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "And 15 more lines."
    with pytest.raises(UsageError, match=r"line 1 names no exact version: 'torch>=2'"):
        Environment.of_lines(["torch>=2"])


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("54dc64d5d", True),
        ("g4ba787ec9", True),
        ("a" * 40, True),
        ("", False),
        ("unknown", False),
        ("main", False),
        ("v0.33.0", False),
    ],
)
def test_commits(value: str, good: bool) -> None:
    found = commits_known({"vllm_commit": value, "note": "x"})
    assert [finding.verdict for finding in found] == [Verdict.PASS if good else Verdict.FAIL]


def test_knowledge_is_dated_and_sourced() -> None:
    everything = known()
    dates = [entry.dated for part in (everything.torch, everything.pairs) for entry in part]
    dates += [entry.dated for part in (everything.bad, everything.collisions) for entry in part]
    assert len(dates) > 15
    for dated in dates:
        datetime.date.fromisoformat(dated.read)
        assert all(source.startswith(("https://", "measured: ")) for source in dated.sources)
    assert {build.cpu for build in known().torch} == set(Cpu)


def test_torch_ranges_do_not_overlap() -> None:
    for cpu in Cpu:
        for version in ("2.5.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.14.1", "2.15.0"):
            hits = [build for build in known().torch if build.cpu == cpu and version in build.versions]
            assert len(hits) <= 1, (cpu, version)


def test_the_table_of_toolkits_is_complete_in_itself() -> None:
    for release, parts in toolkit_releases().items():
        suffix = "-cu12" if release.startswith("12.") else ""
        assert f"nvidia-cuda-nvcc{suffix}" in parts
        assert f"nvidia-cuda-runtime{suffix}" in parts
