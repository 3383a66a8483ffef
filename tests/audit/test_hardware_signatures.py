"""The hardware cases call vLLM as its releases define it: each call is bound to the definition in the source."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from test_oracle_real import SDISTS, tree

pytestmark = pytest.mark.network

CASES = Path(__file__).parents[1] / "hardware" / "kernel_cases.py"
VERSIONS = [version for version in SDISTS if version != "0.22.0"]
OPERATORS = {"scaled_fp4_quant", "cutlass_scaled_fp4_mm", "cutlass_fp4_moe_mm", "cutlass_scaled_mm"}


def imported(cases: ast.Module) -> dict[str, tuple[str, str]]:
    """Names that the cases import from vLLM: local name -> (module, name there; "" for the module itself)."""
    found = {}
    for node in ast.walk(cases):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm"):
            for item in node.names:
                local = item.asname or item.name
                whole = f"{node.module}.{item.name}"
                found[local] = (whole, "") if local in {"ops", "fp4"} else (node.module, item.name)
    return found


def calls(cases: ast.Module) -> list[tuple[str, str, ast.Call]]:
    """Calls of vLLM's functions: module, function, call."""
    names, found = imported(cases), []
    for node in ast.walk(cases):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            module, rest = names.get(node.func.value.id, ("", "x"))
            if module and not rest:
                found.append((module, node.func.attr, node))
        elif isinstance(node.func, ast.Name) and node.func.id in names:
            module, name = names[node.func.id]
            found.append((module, name, node))
    return found


def signature(function: ast.FunctionDef) -> inspect.Signature:
    """The signature of a definition; defaults are only there or not."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    bare = len(plain) - len(arguments.defaults)
    kinds = inspect.Parameter
    found = [
        kinds(item.arg, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if place < bare else None)
        for place, item in enumerate(plain)
    ]
    found += [
        kinds(item.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else None)
        for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return inspect.Signature(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_fits_the_definition(version: str) -> None:
    source = tree(version)
    found = calls(ast.parse(CASES.read_text()))
    assert {name for _, name, _ in found} >= {
        *OPERATORS,
        "apply_fp4_marlin_linear",
        "rand_marlin_weight_nvfp4_like",
    }
    for module, name, call in found:
        parsed = source.module(module)
        assert parsed is not None, f"{version} has no {module}"
        defined = [node for node in parsed.body if isinstance(node, ast.FunctionDef) and node.name == name]
        assert defined, f"{version}: {module} has no {name}"
        words = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        signature(defined[-1]).bind(*[None] * len(call.args), **words)


@pytest.mark.parametrize("version", ["0.33.0"])
def test_the_order_of_the_operators_arguments_is_the_one_that_the_cases_use(version: str) -> None:
    parsed = tree(version).module("vllm._custom_ops")
    assert parsed is not None
    wanted = {
        "cutlass_scaled_fp4_mm": ["a", "b", "block_scale_a", "block_scale_b", "alpha", "out_dtype"],
        "cutlass_fp4_moe_mm": [
            "out_tensors", "a_tensors", "b_tensors", "a_scales", "b_scales", "alphas", "problem_sizes",
            "expert_offsets", "sf_offsets",
        ],
        "cutlass_scaled_mm": ["a", "b", "scale_a", "scale_b", "out_dtype"],
        "scaled_fp4_quant": ["input", "input_global_scale"],
    }  # fmt: skip
    for node in parsed.body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            names = [item.arg for item in node.args.args]
            assert names[: len(wanted[node.name])] == wanted[node.name]
