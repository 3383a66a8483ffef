"""The three links joined: checkpoint, a small package that selects like vLLM, and what an artifact brings."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from fake_vllm import FILES, fake_tree
from rich.console import Console

from sm121.audit.advice import Situation, advise, judge_variables
from sm121.audit.checkpoint import Checkpoint
from sm121.audit.delivery import State, Supplies, judge_delivery
from sm121.audit.explain import Explanation, Request, explain
from sm121.audit.explain_report import explain_json, explain_text
from sm121.audit.selection import Layer
from sm121.findings import Finding, Verdict
from sm121.values import CudaVersion

FOLDER = Path(__file__).parent / "checkpoints"
DENSE = "NVFP4 dense GEMM (CUTLASS Sm120 BlockScaled)"
GROUPED = "NVFP4 grouped/MoE GEMM (Sm120Array BlockScaled)"
QUANT = "NVFP4 quant/act-quant/KV (cvt_fp16_to_fp4, nvfp4)"
FULL = Supplies(
    families={
        name: {"family": 4} for name in (DENSE, GROUPED, QUANT, "Marlin dense", "Marlin MoE", "FlashAttention-2")
    } | {"Marlin/AWQ/GPTQ repack & gemm": {"jit": 3}},
    nvcc=False,
)  # fmt: skip


def read(name: str = "moe-nvfp4-w4a4") -> Checkpoint:
    return Checkpoint.read(FOLDER / f"{name}.json")


def run(
    name: str = "moe-nvfp4-w4a4",
    supplies: Supplies = FULL,
    changes: dict[str, str] | None = None,
    **request: object,
) -> Explanation:
    asked = Request(cuda=CudaVersion(13, 0), **request)  # type: ignore[arg-type]
    return explain(read(name), fake_tree(changes), supplies, asked)


def finding(explanation: Explanation, check: str) -> Finding:
    return next(item for item in explanation.findings if item.check == check)


NVCC = {"the program nvcc is on the machine": False}


def test_the_compiled_kernels_are_taken_and_are_there() -> None:
    explanation = run(answers=NVCC)
    dense, experts = explanation.part(Layer.DENSE), explanation.part(Layer.EXPERTS)
    assert dense is not None
    assert experts is not None
    assert [choice.backend for choice in dense.selection.choices] == ["CutlassNvFp4LinearKernel"]
    assert [choice.backend for choice in experts.selection.choices] == ["VLLM_CUTLASS"]
    assert experts.deliveries[0].state is State.DELIVERED
    assert finding(explanation, "explain.experts").verdict is Verdict.PASS
    passed = {item.kernel: item.reason for item in dense.selection.choices[0].candidates if not item.taken}
    assert passed == {"BlackwellKernel": "requires sm_10x", "FlashInferKernel": "FlashInfer required"}


def test_a_wheel_without_sm12x_code_falls_to_marlin_with_a_warning() -> None:
    bare = Supplies(
        families={DENSE: {"no": 4}, "Marlin dense": {"jit": 8}, "Marlin/AWQ/GPTQ repack & gemm": {"jit": 1}}
    )
    explanation = run(supplies=bare, answers=NVCC)
    dense = explanation.part(Layer.DENSE)
    assert dense is not None
    assert dense.selection.choices[0].backend == "MarlinNvFp4LinearKernel"
    assert dense.deliveries[0].state is State.DRIVER
    assert finding(explanation, "advice.native-fp4-not-used").verdict is Verdict.WARN


def test_code_that_is_missing_for_what_is_taken_fails() -> None:
    lacking = Supplies(families={DENSE: {"family": 4}, QUANT: {"family": 1}, GROUPED: {"no": 2}}, nvcc=False)
    explanation = run(supplies=lacking, answers=NVCC)
    found = finding(explanation, "explain.experts")
    assert found.verdict is Verdict.FAIL
    assert "none of 2 kernels" in found.got
    assert explanation.verdict is Verdict.FAIL


def test_what_nobody_looked_into_stays_unknown() -> None:
    explanation = run(supplies=Supplies())
    assert explanation.verdict is Verdict.UNKNOWN
    assert "torch.ops._C.cutlass_scaled_mm_supports_fp4(121)" in json.dumps(explain_json(explanation))


def test_a_weight_only_checkpoint_goes_to_marlin_rightly() -> None:
    explanation = run("dense-nvfp4-w4a16", answers=NVCC)
    dense = explanation.part(Layer.DENSE)
    assert dense is not None
    assert dense.selection.choices[0].backend == "MarlinNvFp4LinearKernel"
    assert finding(explanation, "advice.weight-only-checkpoint").verdict is Verdict.INFO
    assert not any(item.check == "advice.native-fp4-not-used" for item in explanation.findings)


def test_a_refusal_is_told_in_upstreams_words() -> None:
    explanation = run(moe_backend="deep-gemm", answers=NVCC)
    assert "moe_backend='deep_gemm' is not supported" in finding(explanation, "explain.experts").got
    assert explanation.verdict is Verdict.FAIL


def test_disabled_kernels_are_passed_over() -> None:
    explanation = run(environment={"VLLM_DISABLED_KERNELS": "CutlassNvFp4LinearKernel"}, answers=NVCC)
    dense = explanation.part(Layer.DENSE)
    assert dense is not None
    assert dense.selection.choices[0].backend == "MarlinNvFp4LinearKernel"


def test_variables_that_are_not_read_are_named() -> None:
    explanation = run(environment={"VLLM_NVFP4_GEMM_BACKEND": "marlin", "VLLM_HAS_CUBIN": "1"})
    found = [item for item in explanation.findings if item.check == "explain.variable"]
    assert [item.subject for item in found] == ["VLLM_NVFP4_GEMM_BACKEND"]
    assert "--linear-backend" in found[0].advice


def test_variables_are_not_judged_where_none_could_be_read() -> None:
    assert not list(judge_variables({"VLLM_X": "1"}, (), "1"))


def test_a_selection_that_moved_is_unknown() -> None:
    changes = {
        "vllm.model_executor.kernels.linear": FILES["vllm.model_executor.kernels.linear"].replace(
            "init_nvfp4", "new"
        )
    }
    found = finding(run(changes=changes), "explain.dense")
    assert found.verdict is Verdict.UNKNOWN
    assert "init_nvfp4_linear_kernel" in found.got


def test_an_attention_backend_that_is_asked_for() -> None:
    explanation = run(attention_backend="nothing", answers=NVCC)
    assert "no attention backend is called NOTHING" in finding(explanation, "explain.attention").got


@pytest.mark.parametrize(
    ("supplies", "state"),
    [
        (Supplies(flashinfer=frozenset({"fused_moe_120", "fp4_quantization_120f"})), State.DELIVERED),
        (Supplies(flashinfer=frozenset({"fused_moe_120", "fp4_quantization_121"}), nvcc=True), State.MACHINE),
        (Supplies(flashinfer=frozenset({"fused_moe_120"}), nvcc=False), State.MISSING),
        (Supplies(), State.UNKNOWN),
    ],
)
def test_flashinfer_modules_compiled_ahead_or_not(supplies: Supplies, state: State) -> None:
    assert judge_delivery("FlashInferExperts", supplies).state is state


def test_who_answers_import_b12x() -> None:
    for owner in ("flashinfer-python", "b12x"):
        delivery = judge_delivery("B12xExperts", Supplies(packages={"b12x": owner}))
        assert owner in delivery.detail
        assert delivery.state is State.MACHINE
    assert judge_delivery("B12xExperts", Supplies(complete=True)).state is State.MISSING


def test_the_file_decides_who_answers_the_import() -> None:
    redirect = 'raise ImportError("The b12x compatibility package requires flashinfer-python.")'
    assert fake_tree({"b12x": redirect}).answers_import("b12x") == "flashinfer-python"
    assert fake_tree({"b12x": '"""kernels"""'}).answers_import("b12x") == "b12x"
    assert fake_tree().answers_import("b12x") == ""


def test_a_class_without_a_rule_is_unknown() -> None:
    assert judge_delivery("SomethingNew", FULL).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("check", "situation"),
    [
        ("advice.flashinfer-b12x", Situation(moe_backend="flashinfer_b12x")),
        ("advice.flashinfer-b12x", Situation(linear_backend="flashinfer_b12x")),
        ("advice.mtp-under-load", Situation(read("modelopt-w4a16"), "0.33.0", speculative="mtp")),
        ("advice.mtp-scheduler", Situation(read(), "0.26.0", speculative="mtp")),
        ("advice.speculative-control", Situation(read(), "0.33.0", speculative="eagle")),
        ("advice.head-4-bit", Situation(read("dense-nvfp4-head"))),
        ("advice.head-4-bit", Situation(read("gptq-head"))),
        ("advice.b12x-not-automatic", Situation(read(), "0.33.0")),
        ("advice.b12x-not-automatic", Situation(read(), "0.33.0", automatic=("VLLM_CUTLASS", "MARLIN"))),
        ("advice.b12x-behind", Situation(read(), "0.33.0", automatic=("VLLM_CUTLASS", "B12X", "MARLIN"))),
        (
            "advice.weight-only-preferred",
            Situation(read(), selected=("FlashInferCuteDslNvFp4W4A16LinearKernel",)),
        ),
        ("advice.hybrid-async-race", Situation(read("hybrid-modelopt-nvfp4"))),
    ],
)
def test_each_rule_meets_its_case(check: str, situation: Situation) -> None:
    assert check in {item.check for item in advise(situation)}


@pytest.mark.parametrize(
    ("check", "situation"),
    [
        ("advice.mtp-under-load", Situation(read(), "0.33.0", speculative="mtp")),
        ("advice.mtp-under-load", Situation(read("modelopt-w4a16"), "0.33.0")),
        ("advice.mtp-scheduler", Situation(read(), "0.27.0", speculative="mtp")),
        ("advice.head-4-bit", Situation(read())),
        ("advice.b12x-not-automatic", Situation(read(), "0.28.0")),
        ("advice.b12x-not-automatic", Situation(read(), "0.33.0", moe_backend="b12x")),
        ("advice.b12x-not-automatic", Situation(read(), "0.33.0", automatic=("VLLM_CUTLASS", "B12X", "MARLIN"))),
        ("advice.b12x-behind", Situation(read(), "0.33.0", automatic=("VLLM_CUTLASS", "MARLIN"))),
        (
            "advice.b12x-behind",
            Situation(read(), "0.33.0", selected=("B12X",), automatic=("VLLM_CUTLASS", "B12X")),
        ),
        ("advice.weight-only-checkpoint", Situation(read())),
        (
            "advice.native-fp4-not-used",
            Situation(read("dense-nvfp4-w4a16"), selected=("MarlinNvFp4LinearKernel",)),
        ),
    ],
)
def test_no_rule_meets_what_it_is_not_for(check: str, situation: Situation) -> None:
    assert check not in {item.check for item in advise(situation)}


def test_text_shows_what_is_taken_and_why_not_the_others() -> None:
    out = StringIO()
    explain_text(run(answers=NVCC), Console(file=out, width=200))
    for part in (
        "-> VLLM_CUTLASS (CutlassExpertsFp4)",
        "passed over: BlackwellKernel: requires sm_10x",
        "verdict:",
    ):
        assert part in out.getvalue()


def test_json_is_plain_and_complete() -> None:
    plain = json.loads(json.dumps(explain_json(run())))
    assert plain["version"] == 1
    assert {row["layer"] for row in plain["layers"]} == {"dense", "experts", "attention"}


def test_what_is_taken_under_a_condition_only_is_no_warning_yet() -> None:
    marlin = ("MarlinNvFp4LinearKernel",)
    certain = {item.check: item for item in advise(Situation(read(), "0.33.0", selected=marlin))}
    possible = {item.check: item for item in advise(Situation(read(), "0.33.0", possible=marlin))}
    assert certain["advice.native-fp4-not-used"].verdict is Verdict.WARN
    assert possible["advice.native-fp4-not-used"].verdict is Verdict.INFO
    assert "under the conditions" in possible["advice.native-fp4-not-used"].got


def test_the_remedy_fits_why_nothing_was_looked_into() -> None:
    explanation = run(supplies=Supplies(remedy="Leave --no-inspect out."), answers=NVCC)
    unknown = [item for item in explanation.findings if "no library was looked into" in item.got]
    assert unknown
    assert {item.advice for item in unknown} == {"Leave --no-inspect out."}


def test_headings_say_each_thing_once() -> None:
    out = StringIO()
    explain_text(run(answers=NVCC), Console(file=out, width=200))
    headings = [
        line for line in out.getvalue().splitlines() if line.startswith(("attention", "dense", "experts"))
    ]
    assert any(line.startswith("attention  vllm.") for line in headings)
    assert "attention attention" not in out.getvalue()
