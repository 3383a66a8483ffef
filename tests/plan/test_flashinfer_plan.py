"""FlashInfer's plans: modules and sets as data, selection, costs, promises."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sm121 import pins
from sm121.errors import PlanError, UsageError
from sm121.findings import Verdict
from sm121.plan import flashinfer_modules
from sm121.plan.flashinfer import plan_flashinfer
from sm121.plan.flashinfer_modules import all_modules, known_versions, select, sets, unit_cost, unserved
from sm121.plan.model import Host, Plan, Request
from sm121.plan.patterns import expand
from sm121.plan.show import plan_json, show_plan
from sm121.resources import GIB, Machine
from sm121.values import ArchSpec

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
PINS = pins.load(ROOT / "pins")
GB10 = ArchSpec.parse("12.1a")
NEWEST, OLD = "0.7.2.post1", "0.6.14"

SMALL = Host(
    cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=23 * GIB), python="3.11.7",
    compiler="aarch64-linux-gnu-g++ 12.2.0",
)  # fmt: skip
FEW = ("page", "norm", "fp4_quantization_120f")


def plan(*modules: str, host: Host = SMALL, request: Request | None = None) -> Plan:
    return plan_flashinfer(replace(request or Request(line="cu130"), modules=modules), PINS, host)


def golden(name: str, made: object) -> None:
    text = json.dumps(made, indent=1) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("SM121_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_alternatives_are_taken_in_order_and_taken_up_by_name() -> None:
    assert [name for name, _ in expand("plain")] == ["plain"]
    assert [name for name, _ in expand("{a,b}-{1,2}")] == ["a-1", "a-2", "b-1", "b-2"]
    assert [name for name, _ in expand("{t:f16,bf16}_kv_{$t,e4m3}_{t}")] == [
        "f16_kv_f16_f16", "f16_kv_e4m3_f16", "bf16_kv_bf16_bf16", "bf16_kv_e4m3_bf16",
    ]  # fmt: skip
    assert [chosen["m"] for _, chosen in expand("{m:norm,page}")] == ["norm", "page"]
    with pytest.raises(ValueError, match="takes up 'q'"):
        list(expand("x_{q}"))


@pytest.mark.parametrize(
    ("version", "modules", "cuda", "host_code"), [(NEWEST, 566, 2341, 28), (OLD, 656, 2722, 28)]
)
def test_the_list_of_modules_is_upstreams_and_what_121_asks_for_besides(
    version: str, modules: int, cuda: int, host_code: int
) -> None:
    """Counted by upstream's own scripts for 12.1a: 564 and 654 modules, and the two in `extra`."""
    found = all_modules(version, GB10)
    assert len(found) == len({module.name for module in found}) == modules
    assert sum(module.units for module in found) == cuda
    assert sum(len(module.sources) for module in found) - cuda == host_code
    assert {module.name for module in found if module.extra} == {
        "fp4_quantization_120f", "mxfp8_quantization_sm100",
    }  # fmt: skip
    assert all(module.sources and tuple(sorted(module.sources)) == module.sources for module in found)


def test_only_the_120f_module_is_of_another_target() -> None:
    for version in known_versions():
        others = {m.name: m.target for m in all_modules(version, GB10) if m.target != GB10}
        assert others == {"fp4_quantization_120f": ArchSpec.parse("12.0f"), "spdlog": None}


def test_modules_for_hopper_and_those_tied_to_one_torch_are_in_no_set() -> None:
    assert {m.name for m in all_modules(NEWEST, GB10) if m.left_out} == {"dcp_lse_reduce"}
    old = {m.name for m in all_modules(OLD, GB10) if m.left_out}
    assert len(old) == 4
    assert all(name.endswith("_sm90") for name in old)
    for version in known_versions():
        for name in sets(version):
            assert not any(module.left_out for module in select(version, GB10, [name]).modules)


@pytest.mark.parametrize("version", [NEWEST, OLD])
def test_serving_keeps_its_claims_with_no_module_beside_them(version: str) -> None:
    selection = select(version, GB10, [])
    names = [module.name for module in selection.modules]
    assert selection.name == "serving"
    assert unserved(selection.claims, names) == []
    assert {*selection.reasons} == {*names}
    for needed in ("fp4_quantization_120f", "fp4_gemm_cutlass_sm120", "fused_moe_120", "mxfp8_gemm_cutlass_sm120",
                   "mxfp8_quantization_sm100", "page", "sampling", "norm", "rope"):  # fmt: skip
        assert needed in names
    for kind in ("prefill", "decode"):
        for query, cache in (("bf16", "bf16"), ("bf16", "e4m3"), ("f16", "f16"), ("f16", "e4m3")):
            for size in (64, 128, 256):
                wanted = f"batch_{kind}_with_kv_cache_dtype_q_{query}_dtype_kv_{cache}_dtype_o_{query}_"
                assert any(n.startswith(wanted) and f"head_dim_vo_{size}_" in n for n in names)


def test_a_module_that_a_claim_lacks_is_named_with_what_it_is_for() -> None:
    claims = select(NEWEST, GB10, ["serving"]).claims
    names = [module.name for module in select(NEWEST, GB10, []).modules if module.name != "fp4_quantization_120f"]
    (problem,) = unserved(claims, names)
    assert problem.startswith("fp4_quantization_120f would be compiled when it is first used")
    assert "NVFP4" in problem


def test_every_claim_has_calls_and_every_pattern_matches() -> None:
    for version in known_versions():
        modules = {module.name for module in all_modules(version, GB10)}
        for claim in sets(version)["serving"].claims:
            assert claim.calls
            assert all(re.fullmatch(r"flashinfer(\.\w+)*:\w+\(.*\)", call) for call in claim.calls)
            assert unserved([claim], modules) == []


def test_all_holds_all() -> None:
    assert len(select(NEWEST, GB10, ["all"]).modules) == 565


def test_modules_by_name_and_by_expression() -> None:
    selection = select(NEWEST, GB10, ["page", r"batch_decode.*_kv_e4m3_.*head_dim_vo_128_.*_cap_False", "norm"])
    assert selection.name == "own"
    assert [module.name for module in selection.modules if not module.name.startswith("batch_")] == [
        "norm",
        "page",
    ]
    assert len(selection.modules) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pages"], r"matches no module of FlashInfer [\d.post]+ for 12.1a, did you mean page\?\n"),
        (["qqqq"], r"matches no module of FlashInfer [\d.post]+ for 12.1a\.\n"),
        (["batch_(decode"], "no regular expression"),
        (["dcp_lse_reduce"], "one build of torch"),
        (["serving", "page"], "beside other modules"),
        (["pag"], "matches no module"),
    ],
)
def test_what_selects_nothing_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        select(NEWEST, GB10, words)
    assert "serving, all" in caught.value.do or "all, serving" in caught.value.do


def test_all_faults_of_a_selection_come_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        select(NEWEST, GB10, ["pages", "norms", "("])
    assert len(caught.value.problems) == 3


def test_the_heavy_files_are_known() -> None:
    heavy = unit_cost("fp4_gemm_cutlass_sm120", "fp4_gemm_cutlass_half_128_32_128.cu")
    assert 6.5 * GIB < heavy.peak < 8 * GIB
    heaviest = unit_cost("fused_moe_120", "cutlass_kernel_file_gemm_grouped_sm120_M128_BS_group6.generated.cu")
    assert heaviest.peak > 10 * GIB
    assert unit_cost("page", "page.cu").peak < GIB
    assert unit_cost("topk", "cub_topk.cu").seconds > 10 * unit_cost("page", "page.cu").seconds
    assert unit_cost("a module of tomorrow", "x.cu").seconds > 0


def test_memory_decides_how_many_heavy_files_are_compiled_at_a_time() -> None:
    small = Host(
        cpu="aarch64", machine=Machine(cpus=20, memory_total=32 * GIB, memory_available=32 * GIB), python="3.12.3",
        compiler="g++ 13.3.0",
    )  # fmt: skip
    made = plan(host=small)
    heaviest = max(group.peak for group in made.groups)
    assert made.heavy_jobs < made.jobs <= 20
    assert made.heavy_jobs * heaviest <= small.machine.memory_for_builds()
    assert made.memory <= small.machine.memory_for_builds()
    light = plan("page", "norm", host=small)
    assert light.jobs > made.jobs or light.jobs == 20


def test_a_plan_promises_the_units_of_each_module() -> None:
    made = plan(*FEW)
    assert {extension.name: dict(extension.images) for extension in made.extensions} == {
        "fp4_quantization_120f": {"sm_120f": 1}, "norm": {"sm_121a": 2}, "page": {"sm_121a": 2},
    }  # fmt: skip
    assert made.extensions[0].path.startswith("flashinfer_jit_cache_sm121a/jit_cache/")
    assert made.distributions == ("flashinfer-jit-cache-sm121a", "flashinfer-jit-cache")
    assert made.stamped == "0.7.2.post1+cu130.sm121.partial"


def test_sets_have_versions_of_their_own() -> None:
    assert plan().stamped == "0.7.2.post1+cu130.sm121"
    assert plan("all").stamped == "0.7.2.post1+cu130.sm121.all"


def test_the_older_kind_is_one_wheel() -> None:
    made = plan("page", request=Request(line="cu130", vllm="0.26.0"))
    assert made.version == OLD
    assert made.distributions == ("flashinfer-jit-cache",)
    assert made.extensions[0].path == "flashinfer_jit_cache/jit_cache/page/page.so"


def test_golden_few() -> None:
    """A plan is data: any change of it shows here. SM121_GOLDEN=write makes the file anew."""
    golden("flashinfer-few", plan_json(plan(*FEW)))


def test_golden_serving() -> None:
    made = plan_json(plan())
    short = {key: made[key] for key in ("project", "arch_list", "needs", "set", "families", "sets", "findings")}
    golden("flashinfer-serving", short)


def test_keys_depend_on_modules_sources_and_toolkit_and_not_on_jobs() -> None:
    def keys(*modules: str, **changes: object) -> dict[str, str]:
        request = replace(Request(line="cu130"), **changes)  # type: ignore[arg-type]
        return {step.name: step.key for step in plan(*modules, request=request).steps}

    base = keys("page")
    assert base == keys("page", jobs=1, cache="none") | {"tools": base["tools"]}
    other = keys("norm")
    assert {name for name in base if base[name] != other[name]} == {"libraries", "wheel", "inspect", "publish"}
    newer = keys("page", line="cu135")
    assert {name for name in base if base[name] == newer[name]} == {"source", "tools", "tvm-ffi"}


def test_no_torch_is_fetched() -> None:
    names = {download.pin.name for download in plan().downloads}
    assert "torch" not in names
    assert {"flashinfer-python", "apache-tvm-ffi", "ninja", "nvidia-curand"} <= names


def test_an_unknown_version_is_refused_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm121.plan.flashinfer.known_versions", lambda: ["0.6.14"])
    with pytest.raises(
        PlanError, match=r"the modules of FlashInfer 0\.7\.2\.post1 are not known; known are 0\.6\.14"
    ):
        plan("page")


def test_own_modules_say_what_serving_would_compile() -> None:
    (finding,) = [f for f in plan("page").findings if f.check == "modules.serving"]
    assert finding.verdict is Verdict.INFO
    assert "compiled when it is first used" in finding.got
    (finding,) = [f for f in plan().findings if f.check == "modules.serving"]
    assert finding.verdict is Verdict.PASS


def test_a_set_that_claims_what_upstream_does_not_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [module for module in all_modules(NEWEST, GB10) if module.name != "fp4_quantization_120f"]
    monkeypatch.setattr(flashinfer_modules, "all_modules", lambda version, arch: tuple(kept))
    with pytest.raises(PlanError, match="fp4_quantization_120f would be compiled"):
        plan()


def test_the_screen_shows_sets_units_time_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(plan(), Console(width=200, highlight=False))
    said = capsys.readouterr().out
    assert re.search(r"serving\s+368\s+1486\s", said)
    assert re.search(r"all\s+565\s+2340\s", said)
    assert "FP4 GEMM" in said
    assert "GB" in said
