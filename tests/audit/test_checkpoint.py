"""Checkpoints of every public quantization format, and configurations that are odd or hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm121.audit.checkpoint import Checkpoint
from sm121.audit.loose import Loose
from sm121.audit.modules import Role
from sm121.audit.schemes import Number
from sm121.errors import ArtifactError
from sm121.expressions import compiled

FOLDER = Path(__file__).parent / "checkpoints"


def read(name: str) -> Checkpoint:
    return Checkpoint.read(FOLDER / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "role", "wanted"),
    [
        ("moe-nvfp4-w4a4", Role.EXPERTS, "NVFP4 W4A4"),
        ("moe-nvfp4-w4a4", Role.ATTENTION, "NVFP4 W4A4"),
        ("moe-nvfp4-w4a4", Role.HEAD, "16-bit"),
        ("dense-nvfp4-w4a16", Role.DENSE, "NVFP4 W4A16"),
        ("dense-nvfp4-head", Role.HEAD, "NVFP4 W4A4"),
        ("dense-mixed", Role.ATTENTION, "FP8 W8A8 channel"),
        ("dense-mixed", Role.DENSE, "NVFP4 W4A4"),
        ("hybrid-modelopt-nvfp4", Role.EXPERTS, "NVFP4 W4A4"),
        ("hybrid-modelopt-nvfp4", Role.MAMBA, "16-bit"),
        ("hybrid-modelopt-nvfp4", Role.MTP, "16-bit"),
        ("modelopt-w4a16", Role.EXPERTS, "NVFP4 W4A16"),
        ("modelopt-fp8", Role.DENSE, "FP8 W8A8 tensor"),
        ("gpt-oss-mxfp4", Role.EXPERTS, "MXFP4 W4A16"),
        ("gpt-oss-mxfp4", Role.ATTENTION, "16-bit"),
        ("deepseek-fp8-block", Role.EXPERTS, "FP8 W8A8 block 128x128"),
        ("fp8-token", Role.DENSE, "FP8 W8A8 channel"),
        ("awq", Role.DENSE, "INT4 W4A16"),
        ("awq", Role.HEAD, "16-bit"),
        ("gptq-head", Role.HEAD, "INT4 W4A16"),
        ("vision-gated-delta", Role.EXPERTS, "NVFP4 W4A4"),
        ("vision-gated-delta", Role.MAMBA, "16-bit"),
        ("plain", Role.DENSE, "16-bit"),
        ("unknown-method", Role.DENSE, "quark (not read)"),
    ],
)
def test_scheme_of_each_role(name: str, role: Role, wanted: str) -> None:
    scheme = read(name).scheme(role)
    assert scheme is not None
    assert scheme.name == wanted


def test_weight_only_is_told_from_weights_and_activations() -> None:
    assert read("dense-nvfp4-w4a16").weight_only
    assert read("modelopt-w4a16").weight_only
    assert not read("moe-nvfp4-w4a4").weight_only
    assert not read("plain").weight_only


def test_hybrid_layers_of_a_pattern() -> None:
    layers = read("hybrid-modelopt-nvfp4").layers
    assert (layers.total, layers.attention, layers.recurrent, layers.predictors) == (52, 6, 23, 1)


def test_hybrid_layers_of_an_interval_in_a_nested_configuration() -> None:
    checkpoint = read("vision-gated-delta")
    assert (checkpoint.layers.attention, checkpoint.layers.recurrent) == (10, 30)
    assert checkpoint.mixture is not None
    assert checkpoint.mixture.shared == 1


def test_sliding_layers_and_the_clamp() -> None:
    checkpoint = read("gpt-oss-mxfp4")
    assert (checkpoint.layers.sliding, checkpoint.layers.window) == (18, 128)
    assert checkpoint.mixture is not None
    assert checkpoint.mixture.limit == 7.0


def test_latent_attention_keeps_one_vector() -> None:
    kv = read("deepseek-fp8-block").kv
    assert kv is not None
    assert kv.elements == 576


def test_an_unknown_method_is_undecided_not_unquantized() -> None:
    checkpoint = read("unknown-method")
    assert checkpoint.undecided
    assert any("quark" in problem for problem in checkpoint.problems)


def test_static_and_dynamic_activation_scales() -> None:
    groups = read("fp8-token").quantization.groups
    assert groups[0].scheme.activation_scaling == "dynamic-token"
    assert read("modelopt-fp8").quantization.kv_cache == "fp8"


def test_the_index_overrules_the_configuration_for_the_head(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((FOLDER / "dense-nvfp4-head.json").read_bytes())
    names = {"lm_head.weight": "a", "model.layers.0.mlp.gate_proj.weight_packed": "a"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    head = Checkpoint.read(tmp_path).scheme(Role.HEAD)
    assert head is not None
    assert head.weights is Number.FULL


def test_the_index_names_the_modules(tmp_path: Path) -> None:
    config = json.loads((FOLDER / "moe-nvfp4-w4a4.json").read_text())
    config["quantization_config"]["ignore"] = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
    ]
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = {
        f"model.layers.{layer}.{module}.{kind}": "a"
        for layer in range(2)
        for module, kind in (("self_attn.q_proj", "weight"), ("mlp.experts.3.up_proj", "weight_packed"))
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    checkpoint = Checkpoint.read(tmp_path)
    assert [scheme.name for scheme in checkpoint.schemes[Role.ATTENTION]] == ["16-bit"]
    assert [scheme.name for scheme in checkpoint.schemes[Role.EXPERTS]] == ["NVFP4 W4A4"]


def test_modelopt_configuration_in_a_file_of_its_own(tmp_path: Path) -> None:
    plain = json.loads((FOLDER / "plain.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(plain))
    inner = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": ["lm_head"],
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": inner}))
    checkpoint = Checkpoint.read(tmp_path)
    scheme = checkpoint.scheme(Role.DENSE)
    assert scheme is not None
    assert scheme.name == "NVFP4 W4A4"
    assert checkpoint.quantization.kv_cache == "fp8"


def test_modelopt_mixed_precision_by_layer() -> None:
    config: dict[str, Any] = json.loads((FOLDER / "plain.json").read_text())
    algorithms = {"self_attn.q_proj": "FP8", "mlp.gate_proj": "NVFP4"}
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            f"model.layers.{layer}.{module}": {"quant_algo": algorithm}
            for layer in range(80)
            for module, algorithm in algorithms.items()
        },
    }
    checkpoint = Checkpoint.parse(Loose.of(config, "config.json"))
    attention, dense = checkpoint.scheme(Role.ATTENTION), checkpoint.scheme(Role.DENSE)
    assert attention is not None
    assert dense is not None
    assert (attention.name, dense.name) == ("FP8 W8A8 tensor", "NVFP4 W4A4")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe", b"[]", b"null", b"{", b"{}", b'"text"', b"[" * 100_000, b'{"a":' * 50_000, b"NaN",
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError):
        Checkpoint.read(path)


def test_a_quantization_table_of_another_type_is_undecided() -> None:
    checkpoint = Checkpoint.parse(Loose.of({"quantization_config": 3}, "config.json"))
    assert checkpoint.undecided
    assert checkpoint.problems


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        Checkpoint.read(tmp_path)


def test_wrong_types_are_all_named_at_once() -> None:
    config = {
        "num_hidden_layers": "eighty",
        "num_key_value_heads": -4,
        "hidden_size": True,
        "architectures": [1],
        "quantization_config": {"quant_method": "awq", "bits": {}, "group_size": "x", "zero_point": 7},
    }
    checkpoint = Checkpoint.parse(Loose.of(config, "config.json"))
    text = "\n".join(checkpoint.problems)
    for word in ("eighty", "-4", "hidden_size", "architectures", "bits", "zero_point"):
        assert word in text


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        (".*mlp.gate$", True),
        (r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj", True),
        ("(a+)+$", False),
        ("((.+))+x", False),
        ("(a|a)*$", False),
        ("(", False),
        ("x" * 500, False),
        ("[(+*]x", True),
    ],
)
def test_patterns_that_could_run_for_ever_are_not_compiled(expression: str, accepted: bool) -> None:
    assert (compiled(expression) is not None) == accepted


def test_a_pattern_that_is_not_evaluated_is_named() -> None:
    config = json.loads((FOLDER / "moe-nvfp4-w4a4.json").read_text())
    config["quantization_config"]["ignore"].append("re:(a+)+$")
    problems = Checkpoint.parse(Loose.of(config, "config.json")).problems
    assert any("(a+)+$" in problem for problem in problems)


KEYS = [
    "quant_method", "config_groups", "ignore", "quantization", "quant_algo", "weights", "num_bits", "group_size",
    "input_activations", "weight_block_size", "quantized_layers", "strategy", "type", "block_structure",
    "dynamic", "kv_cache_scheme", "bits", "lm_head", "targets", "format", "scale_dtype",
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
METHODS = ["compressed-tensors", "modelopt", "mxfp4", "fp8", "awq", "gptq", "fbgemm_fp8", "quark"]


@settings(deadline=None)
@given(
    table=st.dictionaries(st.sampled_from(KEYS), json_values, max_size=8),
    method=st.sampled_from(METHODS) | json_values,
    rest=st.dictionaries(
        st.sampled_from(
            ["num_hidden_layers", "layer_types", "num_experts", "head_dim", "text_config", "attn_layer_period",
             "hybrid_override_pattern", "swiglu_limit", "sliding_window", "moe_layer_freq", "attn_layer_indices"]
        ),
        json_values,
        max_size=6,
    ),
)  # fmt: skip
def test_no_configuration_gives_a_traceback(table: dict[str, Any], method: object, rest: dict[str, Any]) -> None:
    config = {**rest, "model_type": "x", "quantization_config": {**table, "quant_method": method}}
    checkpoint = Checkpoint.parse(Loose.of(config, "config.json"))
    assert Role.HEAD in checkpoint.schemes
