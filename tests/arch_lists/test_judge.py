from __future__ import annotations

import pytest

from sm121.arch_lists import effective, judge_arch_list, judge_source
from sm121.findings import Finding, Verdict, overall
from sm121.target import GB10, Capability
from sm121.values import CudaVersion


def judge(
    arch_list: str, cuda: str, *, project: str = "vllm", version: str = "", capability: Capability = GB10
) -> list[Finding]:
    newest = {"vllm": "0.33.0", "flashinfer": "0.7.2.post1", "torch": ""}
    return judge_arch_list(project, version or newest[project], CudaVersion.parse(cuda), arch_list, capability)


def said(findings: list[Finding], *verdicts: Verdict) -> str:
    return "\n".join(finding.message for finding in findings if finding.verdict in verdicts)


@pytest.mark.parametrize(
    ("arch_list", "usable_12_8", "usable_12_9", "usable_13"),
    [
        ("12.0", False, False, True),
        ("12.0a", False, False, False),
        ("12.0f", False, True, True),
        ("12.1", False, True, True),
        ("12.1a", False, True, True),
        ("12.1f", False, True, True),
        ("12.0;12.1", False, True, True),
        ("12.0;12.1a", False, True, True),
        ("12.0a;12.1a", False, True, False),
        ("12.0f;12.1a", False, True, True),
        ("12.0a;12.0f", False, False, False),
        ("12.1;12.1a", False, True, True),
        ("8.0;12.0", False, False, True),
        ("11.0", False, False, False),
        ("9.0", False, False, False),
        ("8.0+PTX", False, False, False),
    ],
)
def test_usable_on_12_1(arch_list: str, usable_12_8: bool, usable_12_9: bool, usable_13: bool) -> None:
    found = [overall(judge(arch_list, cuda)) is not Verdict.FAIL for cuda in ("12.8", "12.9", "13.0")]
    assert found == [usable_12_8, usable_12_9, usable_13]


@pytest.mark.parametrize("arch_list", ["12.1", "12.1a", "12.1f", "12.0f"])
def test_cuda_12_8_is_refused_with_the_release_that_is_needed(arch_list: str) -> None:
    assert "needs CUDA 12.9" in said(judge(arch_list, "12.8"), Verdict.FAIL)


def test_the_remedy_fits_the_toolkit() -> None:
    assert "Use 12.1a." in said(judge("12.0", "12.9"), Verdict.FAIL)
    assert "Use 12.0f." in said(judge("12.0a", "13.0"), Verdict.FAIL)
    assert "Use a toolkit of CUDA 12.9 or newer." in said(judge("12.0a", "12.8"), Verdict.FAIL)


def test_becoming_12_0_on_cuda_13_is_information() -> None:
    findings = judge("12.1a", "13.0")
    assert overall(findings) is Verdict.INFO
    assert "12.0 (sm_120)" in said(findings, Verdict.INFO)
    assert "12.0f (sm_120f)" in said(findings, Verdict.INFO)


def test_12_0a_swallows_12_1a() -> None:
    findings = judge("12.0a;12.1a", "13.0")
    assert "12.0a (sm_120a) only" in said(findings, Verdict.FAIL)
    assert "12.1a is dropped" in said(findings, Verdict.INFO)


def test_fp4_marlin_and_scaled_mm_are_named_where_only_they_are_lost() -> None:
    lost = said(judge("12.0", "12.9"), Verdict.FAIL)
    assert "Marlin" in lost
    assert "most kernels" not in lost
    assert "most kernels" in said(judge("12.0a", "12.9"), Verdict.FAIL)


def test_marlin_by_jit_is_a_warning_beside_the_failure() -> None:
    assert "Marlin FP16" in said(judge("8.0;12.0", "12.9"), Verdict.WARN)


def test_ptx_is_dropped_with_a_warning() -> None:
    findings = judge("12.0+PTX", "13.0")
    assert overall(findings) is Verdict.WARN
    assert "Write 12.0." in said(findings, Verdict.WARN)


def test_another_chip_dropped_is_a_warning() -> None:
    assert "7.0 is dropped" in said(judge("7.0;12.0f", "13.0"), Verdict.WARN)


def test_qutlass_for_the_other_family_is_a_warning() -> None:
    assert "QuTLASS" in said(judge("10.0;12.0f", "13.0"), Verdict.WARN)
    assert overall(judge("12.0f", "13.0")) is Verdict.INFO


@pytest.mark.parametrize(
    ("arch_list", "cuda", "capability", "verdict"),
    [
        ("11.0a", "13.0", Capability(11, 0), Verdict.INFO),
        ("11.0", "12.9", Capability(11, 0), Verdict.FAIL),
        ("10.1", "13.0", Capability(11, 0), Verdict.FAIL),
        ("10.1", "12.9", Capability(10, 1), Verdict.INFO),
        ("12.0a", "13.0", Capability(12, 0), Verdict.INFO),
        ("12.1a", "13.0", Capability(12, 0), Verdict.INFO),
        ("12.1a", "12.9", Capability(12, 0), Verdict.FAIL),
        ("8.6", "13.0", Capability(8, 6), Verdict.PASS),
        ("9.0", "13.0", Capability(9, 0), Verdict.INFO),
    ],
)
def test_other_capabilities(arch_list: str, cuda: str, capability: Capability, verdict: Verdict) -> None:
    assert overall(judge(arch_list, cuda, capability=capability)) is verdict


def test_the_old_name_of_a_chip_is_told() -> None:
    message = said(judge("11.0", "12.9", capability=Capability(11, 0)), Verdict.FAIL)
    assert "called 10.1" in message
    assert "CUDA 13.0" in message
    assert "called 11.0" in said(judge("10.1;12.0f", "13.0"), Verdict.WARN)


def test_a_chip_that_does_not_exist() -> None:
    assert "knows a chip 12.7" in said(judge("12.7;12.1a", "12.9"), Verdict.FAIL)


@pytest.mark.parametrize("version", ["0.34.0", "0.30.0", "nightly"])
def test_an_unknown_release_is_judged_by_the_nearest_with_a_warning(version: str) -> None:
    findings = judge("12.0f", "13.0", version=version)
    assert overall(findings) is Verdict.WARN
    assert "those of vLLM 0." in said(findings, Verdict.WARN)


def test_a_newer_toolkit_is_a_warning() -> None:
    assert overall(judge("12.0f", "13.9")) is Verdict.WARN
    assert overall(judge("12.0f", "13.5")) is Verdict.INFO


@pytest.mark.parametrize(
    ("arch_list", "cuda", "version", "verdict", "word"),
    [
        ("12.1a", "13.0", "0.7.2.post1", Verdict.INFO, "fp4_quantization_120f"),
        ("12.0f 12.1a", "13.0", "0.7.2.post1", Verdict.INFO, "12.0a"),
        ("12.0f", "13.0", "0.7.2.post1", Verdict.WARN, "fences"),
        ("12.0", "12.8", "0.7.2.post1", Verdict.FAIL, "12.0a"),
        ("12.0", "12.8", "0.6.14", Verdict.FAIL, "requires CUDA >= 12.9"),
        ("12.1", "12.8", "0.7.2.post1", Verdict.FAIL, "requires CUDA >= 12.9"),
        ("12.1a", "12.8", "0.7.2.post1", Verdict.FAIL, "needs CUDA 12.9"),
        ("12.0a", "13.0", "0.7.2.post1", Verdict.FAIL, "does not load on 12.1"),
        ("9.0", "13.0", "0.7.2.post1", Verdict.FAIL, "9.0a"),
        ("12.1a", "13.0", "0.9.0", Verdict.WARN, "0.7.2.post1"),
        ("12.0f 12.1a", "13.0", "0.7.1", Verdict.INFO, "12.1a"),
    ],
)
def test_flashinfer(arch_list: str, cuda: str, version: str, verdict: Verdict, word: str) -> None:
    findings = judge(arch_list, cuda, project="flashinfer", version=version)
    assert overall(findings) is verdict
    assert word in said(findings, verdict)


def test_an_extension_built_by_torch() -> None:
    assert overall(judge("12.1a", "13.0", project="torch")) is Verdict.PASS
    assert overall(judge("12.0a", "13.0", project="torch")) is Verdict.FAIL
    assert overall(judge("12.0f", "13.0", project="torch")) is Verdict.FAIL


def guard(text: str, arch_list: str, cuda: str, capability: Capability = GB10) -> list[Finding]:
    targets = effective("vllm", "0.33.0", CudaVersion.parse(cuda), arch_list)
    return judge_source("a.cu", text, targets.all, capability)


def test_a_guard_for_12_0_in_a_12_1_compile() -> None:
    (finding,) = guard("int x;\n  enable_sm120_only<Kernel>\n", "12.1a", "12.9")
    assert finding.verdict is Verdict.WARN
    assert finding.subject == "a.cu:2"
    assert "12.0f" in finding.advice


def test_code_for_12_1_in_a_12_0_compile() -> None:
    (finding,) = guard("#if __CUDA_ARCH__ == 1210\n", "12.1a", "13.0")
    assert finding.verdict is Verdict.WARN
    assert "12.1a" in finding.advice
    assert guard("#if __CUDA_ARCH__ == 1210\n", "12.1a", "12.9") == []


@pytest.mark.parametrize(
    "text",
    [
        "enable_sm120_family<Kernel>",
        "// enable_sm120_only<Kernel>",
        "struct enable_sm120_only : Kernel {",
        "#if __CUDA_ARCH__ >= 1200 && __CUDA_ARCH__ < 1300",
        "#if (__CUDA_ARCH__ == 1200) || \\\n    (__CUDA_ARCH__ == 1210)",
        "#if __CUDA_ARCH__ == 890",
        "#if __CUDA_ARCH__ == 1000",
    ],
)
@pytest.mark.parametrize("cuda", ["12.9", "13.0"])
def test_no_false_alarm(text: str, cuda: str) -> None:
    assert guard(text, "12.1a", cuda) == []


def test_another_branch_for_our_compile_makes_it_information() -> None:
    (finding,) = guard("#if __CUDA_ARCH__ == 1200\n#elif __CUDA_ARCH__ == 1210\n#endif\n", "12.1a", "12.9")
    assert finding.verdict is Verdict.INFO


def test_a_list_with_both_runs_the_native_one() -> None:
    assert guard("enable_sm120_only<K>", "12.0f;12.1a", "12.9") != []
    assert guard("enable_sm120_only<K>", "12.0f", "13.0") == []
    assert guard("enable_sm120_only<K>", "12.0a", "13.0") == []  # nothing of it loads at all
