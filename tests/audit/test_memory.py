"""Cache cost from configurations, and what fits into one memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm121.audit.checkpoint import Checkpoint
from sm121.audit.loose import Loose
from sm121.audit.memory import GIB, Plan, cache_cost, judge_memory
from sm121.findings import Verdict

FOLDER = Path(__file__).parent / "checkpoints"


@pytest.mark.parametrize(
    ("name", "kv_cache", "per_token"),
    [
        ("moe-nvfp4-w4a4", "auto", 48 * 4 * (128 + 128) * 2),
        ("moe-nvfp4-w4a4", "fp8", 48 * 4 * (128 + 128)),
        ("plain", "auto", 80 * 8 * 256 * 2),
        ("modelopt-fp8", "auto", 80 * 8 * 256),
        ("hybrid-modelopt-nvfp4", "auto", 6 * 2 * 256),
        ("vision-gated-delta", "auto", 10 * 2 * 512 * 2),
        ("deepseek-fp8-block", "auto", 61 * 576 * 2),
        ("gpt-oss-mxfp4", "auto", 18 * 8 * 128 * 2),
    ],
)
def test_bytes_per_token(name: str, kv_cache: str, per_token: float) -> None:
    assert cache_cost(Checkpoint.read(FOLDER / f"{name}.json"), kv_cache).per_token == per_token


def test_sliding_layers_cost_their_window_once() -> None:
    cost = cache_cost(Checkpoint.read(FOLDER / "gpt-oss-mxfp4.json"))
    assert cost.per_sequence == 18 * 8 * 128 * 2 * 128


def test_what_is_not_counted_is_named() -> None:
    cost = cache_cost(Checkpoint.read(FOLDER / "hybrid-modelopt-nvfp4.json"))
    assert "23 linear-attention layers" in cost.left_out[0]
    assert "MTP" in cost.left_out[1]


def test_unknown_sizes_are_unknown() -> None:
    bare = Checkpoint.parse(Loose.of({"model_type": "x", "num_hidden_layers": 4}, "config.json"))
    assert cache_cost(bare).per_token is None


def verdicts(plan: Plan) -> dict[str, Verdict]:
    return {item.check: item.verdict for item in judge_memory(plan)}


def test_a_set_up_that_fits() -> None:
    plan = Plan(per_token=12_400, weights=17 * GIB, utilization=0.8, sequences=8, length=131_072)
    assert verdicts(plan) == {"memory.host": Verdict.PASS, "memory.cache": Verdict.PASS}
    assert plan.tokens > 8 * 131_072


def test_the_host_is_left_too_little() -> None:
    found = list(judge_memory(Plan(per_token=12_400, utilization=0.95)))
    assert found[0].verdict is Verdict.WARN
    assert "0.87" in found[0].advice


def test_weights_alone_are_too_large() -> None:
    assert verdicts(Plan(per_token=1, weights=120 * GIB))["memory.weights"] is Verdict.FAIL


def test_too_many_sequences_name_what_would_be_enough() -> None:
    small = list(
        judge_memory(Plan(per_token=12_400, weights=20 * GIB, utilization=0.25, sequences=8, length=131_072))
    )
    assert small[1].verdict is Verdict.WARN
    assert "is enough" in small[1].advice
    large = list(judge_memory(Plan(per_token=163_840, weights=40 * GIB, sequences=64, length=131_072)))
    assert "lower --max-num-seqs" in large[1].advice


def test_a_cost_of_zero_divides_nothing() -> None:
    assert Plan(per_token=0).tokens == 0
