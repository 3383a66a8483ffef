"""Logs as vLLM writes them, with what is known to go wrong in them; and the comparison with a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_explain import NVCC, run

from sm121.audit.bootlog import BootLog
from sm121.audit.chain import compare
from sm121.findings import Verdict

if TYPE_CHECKING:
    from sm121.audit.explain import Explanation

GOOD = """\
(APIServer pid=1) INFO 11-20 10:00:01 [entry.py:120] version 0.33.0
(APIServer pid=1) INFO 11-20 10:00:01 [startup.py:96] non-default args: {'model': 'm', 'moe_backend': 'auto'}
(EngineCore pid=77) INFO 11-20 10:00:09 [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='m'
(EngineCore pid=77) \x1b[32mINFO\x1b[0m 11-20 10:00:10 [cuda.py:509] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].
(EngineCore pid=77) INFO 11-20 10:00:11 [__init__.py:1303] Using CutlassNvFp4LinearKernel for NVFP4 GEMM
(EngineCore pid=77) INFO 11-20 10:00:11 [nvfp4.py:230] Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['FLASHINFER_CUTLASS', 'VLLM_CUTLASS'].
(EngineCore pid=77) INFO 11-20 10:01:10 [gpu_model_runner.py:5089] Model loading took 17.43 GiB memory and 55.000000 seconds
(EngineCore pid=77) INFO 11-20 10:01:20 [monitor.py:20] torch.compile took 8.50 s in total
(EngineCore pid=77) INFO 11-20 10:01:30 [gpu_worker.py:773] Available KV cache memory: 6.78 GiB
(EngineCore pid=77) INFO 11-20 10:01:30 [kv_cache_utils.py:1140] GPU KV cache size: 584,000 tokens, Maximum concurrency for 131,072 tokens per request: 4.46x
(EngineCore pid=77) INFO 11-20 10:01:40 [gpu_model_runner.py:6517] Graph capturing finished in 12 secs, took 0.91 GiB
(APIServer pid=1) INFO:     Application startup complete.
"""  # noqa: E501 -- as it is written


def read(text: str) -> BootLog:
    return BootLog().read(text.splitlines())


def test_what_was_chosen_and_the_numbers() -> None:
    log = read(GOOD)
    assert log.version == "0.33.0"
    assert log.names("experts") == ["VLLM_CUTLASS"]
    assert log.names("dense") == ["CutlassNvFp4LinearKernel"]
    assert log.names("attention") == ["FLASH_ATTN"]
    assert log.numbers == {
        "weights_gib": 17.43, "compile_seconds": 8.5, "cache_gib": 6.78, "cache_tokens": 584000.0, "concurrency": 4.46,
        "longest_request": 131072.0, "graphs_seconds": 12.0, "graphs_gib": 0.91,
    }  # fmt: skip
    assert log.verdict is Verdict.PASS


def test_bytes_per_token_are_the_pool_by_its_tokens() -> None:
    cost = read(GOOD).bytes_per_token
    assert cost is not None
    assert 12_400 < cost < 12_500


def test_each_boot_of_a_log_has_its_own_pair_of_numbers() -> None:
    second = GOOD.replace("6.78 GiB", "13.56 GiB")
    log = read(GOOD + second)
    assert log.bytes_per_token is not None
    assert 24_800 < log.bytes_per_token < 25_000
    assert log.starts == 2
    assert [item.check for item in log.closing()] == ["bootlog.restarted"]
    assert log.verdict is Verdict.WARN
    assert not read(GOOD + GOOD.partition("(EngineCore")[0]).ready


def test_a_pool_below_nothing_is_a_fault() -> None:
    log = read("Available KV cache memory: -2.31 GiB\n")
    assert log.unusable == {"cache_gib": "-2.31"}
    assert log.count("bootlog.no-room") == 1
    assert read("Available KV cache memory: 0.31 GiB\n").count("bootlog.no-room") == 0


@pytest.mark.parametrize(
    "text", ["", "npm WARN deprecated\n" * 40, "\x00\xff\n", "INFO 11-20 10:00:01 nothing of it\n"]
)
def test_a_log_of_something_else_says_what_is_wanted(text: str) -> None:
    (finding,) = read(text).closing()
    assert finding.verdict is Verdict.UNKNOWN
    assert "docker logs" in finding.advice


def test_a_log_that_ends_before_the_server_is_up_is_unknown() -> None:
    assert read(GOOD.rpartition("(APIServer")[0]).verdict is Verdict.UNKNOWN
    assert BootLog().verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("line", "check", "verdict"),
    [
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "no-kernel-image",
            Verdict.FAIL,
        ),
        ("Failed to run cutlass FP4 gemm on sm120. Error: Error Internal", "cutlass-fp4-internal", Verdict.FAIL),
        ("Failed to run cutlass FP4 gemm on sm121 ... Error Internal", "cutlass-fp4-internal", Verdict.FAIL),
        ("NotImplementedError: No compiled nvfp4 mm kernel for SM 121", "nvfp4-not-compiled", Verdict.FAIL),
        ("This kernel only supports sm120.", "sm120-guard", Verdict.FAIL),
        ("csrc/cutlass_gemm_caller.cuh:51 Error Internal", "cutlass-fp8-internal", Verdict.FAIL),
        ("CUDA error: an illegal memory access was encountered", "illegal-access", Verdict.FAIL),
        ("the provided PTX was compiled with an unsupported toolchain.", "ptx-toolchain", Verdict.FAIL),
        ("NVFP4 linear falling back to the slow and unoptimized emulation backend as", "emulation", Verdict.WARN),
        (
            "Your GPU does not have native support for FP4 computation but FP4 quantization",
            "weight-only",
            Verdict.WARN,
        ),
        ("FlashInfer kernels are disabled: flashinfer-cubin is not installed", "flashinfer-off", Verdict.WARN),
        (
            "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.",
            "no-backend",
            Verdict.FAIL,
        ),
        ("ValueError: moe_backend='b12x' is not supported for NvFp4 MoE.", "backend-refused", Verdict.WARN),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out-of-memory", Verdict.FAIL),
        ("Unknown vLLM environment variable detected: VLLM_NVFP4_GEMM_BACKEND", "unknown-variable", Verdict.WARN),
        (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue",
            "engine-died",
            Verdict.FAIL,
        ),
        ("ImportError: x.so: undefined symbol: _ZN3c104cuda9", "undefined-symbol", Verdict.FAIL),
    ],
)
def test_bad_lines_have_a_meaning_and_a_next_step(line: str, check: str, verdict: Verdict) -> None:
    log = BootLog()
    found = log.feed(f"(EngineCore pid=7) ERROR 11-20 10:00:00 [x.py:1] {line}")
    assert [item.check for item in found] == [f"bootlog.{check}"]
    assert found[0].verdict is verdict
    assert found[0].advice
    assert "link:" in found[0].source
    assert not log.feed(line)
    assert log.count(f"bootlog.{check}") == 2


@pytest.mark.parametrize("line", GOOD.splitlines())
def test_no_good_line_is_taken_for_a_fault(line: str) -> None:
    assert not BootLog().feed(line)


def test_the_arguments_of_the_run_give_the_reason_of_an_illegal_access() -> None:
    bad = "CUDA error: an illegal memory access was encountered"
    for arguments, word in (
        ("'speculative_config': {'method': 'mtp'}", "MTP"),
        ("'moe_backend': 'flashinfer_b12x'", "B12X"),
    ):
        log = read(f"non-default args: {{{arguments}}}\n{bad}")
        assert word in log.findings[0].got
    assert "CUDA_LAUNCH_BLOCKING" in read(bad).findings[0].advice


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=200) | st.binary(max_size=60).map(lambda data: data.decode("utf-8", "replace"))))
def test_unknown_lines_never_hurt(lines: list[str]) -> None:
    log = BootLog().read(lines)
    assert log.lines == len(lines)


def test_a_line_without_end_is_cut() -> None:
    log = BootLog()
    log.feed("x" * 5_000_000 + "no kernel image is available")
    assert not log.findings


def test_numbers_that_are_none_are_left_out() -> None:
    log = read("Available KV cache memory: ... GiB\nGPU KV cache size: ,,, tokens")
    assert not log.numbers
    assert log.bytes_per_token is None


def predicted() -> Explanation:
    return run(answers=NVCC)


def test_a_run_as_predicted() -> None:
    log = read(GOOD.replace("0.33.0", "9.9.9"))
    findings = compare(log, predicted())
    assert {item.verdict for item in findings} == {Verdict.PASS}
    assert {item.subject.split()[0] for item in findings} == {"vLLM", "dense", "experts", "attention"}


def test_another_choice_than_predicted_breaks_the_link() -> None:
    log = read(GOOD.replace("0.33.0", "9.9.9").replace("'VLLM_CUTLASS' NvFp4", "'MARLIN' NvFp4"))
    broken = [item for item in compare(log, predicted()) if item.verdict is Verdict.FAIL]
    assert [item.subject for item in broken] == ["experts NVFP4 W4A4"]
    assert broken[0].got == "MARLIN was taken"
    assert "VLLM_CUTLASS" in broken[0].wanted


def test_another_version_than_explained() -> None:
    findings = compare(read(GOOD), predicted())
    assert findings[0].check == "chain.version"
    assert findings[0].verdict is Verdict.FAIL


def test_a_choice_under_a_condition_tells_that_the_condition_held() -> None:
    log = read(GOOD.replace("0.33.0", "9.9.9"))
    text = " ".join(item.got for item in compare(log, run()))
    assert "so not: the program nvcc is on the machine" in text


def test_a_log_that_does_not_tell_is_unknown() -> None:
    findings = compare(read("Application startup complete"), predicted())
    assert {item.verdict for item in findings} == {Verdict.UNKNOWN}
