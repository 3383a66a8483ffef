"""What the wheels of FlashInfer's modules must hold, by the inspector's own rules."""

from __future__ import annotations

import pytest

from sm121.findings import Finding, Verdict
from sm121.inspector.judge.families import judge_presence
from sm121.inspector.policy import policy
from sm121.inspector.rules import Code, Expectation, Presence

PROVIDER = "flashinfer-jit-cache-sm121a"
PACKAGE = "flashinfer_jit_cache_sm121a/jit_cache"


def expectation(version: str, name: str = PROVIDER) -> Expectation:
    project = policy().project(name)
    assert project is not None
    return project.expects(version)


def presence(version: str, *modules: str) -> list[Finding]:
    paths = [f"{PACKAGE}/{name}/{name}.so" for name in modules]
    return [f for f in judge_presence(expectation(version), paths) if f.check == "expected.library"]


def test_the_module_that_121_asks_for_must_be_there() -> None:
    (finding,) = presence("0.7.2.post1+cu130.sm121", "page", "fp4_quantization_121")
    assert finding.verdict is Verdict.FAIL
    assert "fp4_quantization_120f" in finding.got
    (finding,) = presence("0.7.2.post1+cu130.sm121", "page", "fp4_quantization_120f")
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize("version", ["0.7.2.post1+cu130.sm121.partial", "0.6.14+cu130.sm121.partial"])
def test_a_wheel_that_says_that_it_is_a_part_may_lack_it(version: str) -> None:
    (finding,) = presence(version, "page")
    assert finding.verdict is Verdict.WARN
    assert "says that it is a part" in finding.got


@pytest.mark.parametrize(
    "version", ["0.7.2.post1", "0.7.2.post1+cu130.sm121.partially", "0.7.2.post1.dev1+partial.x"]
)
def test_only_the_word_itself_says_so(version: str) -> None:
    (finding,) = presence(version, "page")
    assert finding.verdict is (Verdict.WARN if version.endswith("+partial.x") else Verdict.FAIL)


@pytest.mark.parametrize("name", ["flashinfer-jit-cache", PROVIDER, "flashinfer_jit_cache_sm121a"])
def test_wheels_of_both_kinds_have_the_rules(name: str) -> None:
    assert expectation("0.7.2.post1+cu130.sm121", name).known


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("spdlog", Code.HOST),
        ("batch_prefill_with_attention_sink_kv_cache_dtype_q_bf16_use_swa_True__sm90", Code.NONE),
        ("fp4_quantization_120", Code.NONE),
        ("fp4_quantization_120f", Code.MACHINE),
    ],
)
def test_modules_of_which_less_is_expected(module: str, code: Code) -> None:
    """Upstream compiles four modules for 9.0a whatever the list says (0.6.14 and 0.6.18.post1)."""
    rule = expectation("0.6.18.post1", "flashinfer-jit-cache").library(
        f"flashinfer_jit_cache/jit_cache/{module}/{module}.so"
    )
    assert rule is not None
    assert rule.code is code
    assert rule.presence is (Presence.MUST if module == "fp4_quantization_120f" else Presence.MAY)
