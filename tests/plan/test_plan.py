from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from sm121 import pins
from sm121.errors import PlanError, Sm121Error, UsageError
from sm121.findings import Verdict
from sm121.plan.components import components, costs, known_versions
from sm121.plan.model import Host, Local, Plan, Request, after_finishing
from sm121.plan.show import plan_json, show_plan
from sm121.plan.vllm import plan_vllm
from sm121.resources import GIB, HEAVIEST, LIGHT, Machine

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
PINS = pins.load(ROOT / "pins")

SMALL = Host(
    cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=23 * GIB), python="3.11.7",
    compiler="aarch64-linux-gnu-g++ 12.2.0",
)  # fmt: skip
SPARK = Host(
    cpu="aarch64", machine=Machine(cpus=20, memory_total=119 * GIB, memory_available=110 * GIB), python="3.12.3",
    compiler="g++ 13.3.0",
)  # fmt: skip

PLACE = "/venv/lib/python3.12/site-packages/torch"
TORCH_129 = Local(PLACE, "2.14.0+cu129", "0" * 64, "12.9", "aarch64")
TORCH_128 = Local(PLACE, "2.14.0+cu128", "1" * 64, "12.8", "aarch64")
TORCH_130 = Local(PLACE, "2.14.0+cu130", "2" * 64, "13.0", "aarch64")
REQUESTS = {
    "cu130": (Request(line="cu130"), SMALL),
    "cu130-spark": (Request(line="cu130"), SPARK),
    "cu130-x86_64": (Request(line="cu130", cpu="x86_64"), SMALL),
    "cu130-vllm-0.26.0": (Request(line="cu130", vllm="0.26.0"), SMALL),
    "cu135": (Request(line="cu135"), SMALL),
    "cu129": (Request(line="cu129", cuda_home="/usr/local/cuda-12.9", torch_home=TORCH_129), SPARK),
    "cu128": (Request(line="cu128", cuda_home="/usr/local/cuda-12.9", torch_home=TORCH_128), SPARK),
    "cu129-nothing-brought": (Request(line="cu129"), SMALL),
    "cu128-nothing-brought": (Request(line="cu128"), SMALL),
    "cu129-official-libraries": (Request(line="cu129", sources="pinned"), SPARK),
    "cu129-torch-of-13": (Request(line="cu129", torch_home=TORCH_130), SPARK),
    "cu130-host-code": (Request(line="cu130", extensions=("spinloop", "cumem_allocator")), SMALL),
}


def make(name: str) -> Plan:
    request, host = REQUESTS[name]
    return plan_vllm(request, PINS, host)


@pytest.mark.parametrize("name", REQUESTS)
def test_golden(name: str) -> None:
    """A plan is data: any change of it shows here. SM121_GOLDEN=write makes the files anew."""
    try:
        made: object = plan_json(make(name))
    except Sm121Error as error:
        made = {"refused": error.problems, "do": error.do}
    text = json.dumps(made, indent=1) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("SM121_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_equal_requests_have_equal_keys_and_other_ones_do_not() -> None:
    def keys(request: Request, host: Host = SMALL) -> dict[str, str]:
        return {step.name: step.key for step in plan_vllm(request, PINS, host).steps}

    base = keys(Request(line="cu130"))
    assert base == keys(Request(line="cu130", jobs=1, cache="none")) | {"tools": base["tools"]}
    other = keys(Request(line="cu130", arch_list="12.1a"))
    changed = {name for name in base if base[name] != other[name]}
    assert changed == {"libraries", "finish", "wheel", "inspect", "publish"}


def test_promises_are_complete_and_only_for_compiled_extensions() -> None:
    plan = make("cu130")
    promised = {e.name: sum(e.images.values()) for e in plan.extensions if e.images}
    assert set(promised) == {"_C_stable_libtorch", "_moe_C_stable_libtorch"}
    assert {e.origin for e in plan.extensions if e.images} == {"source"}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(line="cu130", arch_list="12.0a"), ["12.0a"]),
        (Request(line="cu130", arch_list="9.0,12.1a"), ["9.0,12.1a"]),
        (Request(line="cu130", arch_list=""), ["empty"]),
        (Request(line="cu130", extensions=("_C_stable", "nothing")), ["_C_stable", "nothing", "_moe_C_stable_libtorch"]),
        (Request(line="cu130", extensions=("_moe_C_stable_libtorhc",)), ["did you mean _moe_C_stable_libtorch?"]),
        (Request(line="cu129", sources="pinned"), ["_vllm_fa2_C", "CUDA 13", "--sources"]),
        (Request(line="cu129", torch_home=TORCH_130), ["2.14.0+cu130", "CUDA 13.0", "2.14.0+cu129"]),
        (Request(line="cu130", torch_home=TORCH_129), ["2.14.0+cu129", "CUDA 12.9", "2.14.0+cu130"]),
        (Request(line="cu130", cpu="x86_64", torch_home=TORCH_130), ["for aarch64", "x86_64"]),
        (Request(line="cu130", cache="magic"), ["magic", "ccache"]),
    ],
)  # fmt: skip
def test_refused_with_every_reason(request_: Request, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        plan_vllm(request_, PINS, SMALL)
    for word in words:
        assert word in str(caught.value)


def test_a_python_that_upstream_does_not_take_is_refused() -> None:
    old = Host(cpu="x86_64", machine=SMALL.machine, python="3.10.1", compiler="g++ 12")
    with pytest.raises(PlanError, match=r"3\.11 to 3\.14"):
        plan_vllm(Request(line="cu130"), PINS, old)


def test_unknown_names_come_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="cu130"):
        plan_vllm(Request(line="cu13"), PINS, SMALL)
    with pytest.raises(UsageError, match=r"0\.33\.0"):
        plan_vllm(Request(line="cu130", vllm="0.33"), PINS, SMALL)


@pytest.mark.parametrize("width", [80, 200])
def test_the_printed_plan_names_what_matters(width: int) -> None:
    console = Console(width=width, record=True, highlight=False, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    show_plan(make("cu130"), console)
    text = "".join(console.export_text().split())
    for word in ("0.33.0+cu130.sm121", "_C_stable_libtorch", "leftout", "12.0f", "4.8.0"):
        assert word in text


def printed(plan: Plan, width: int) -> str:
    console = Console(width=width, record=True, highlight=False, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    show_plan(plan, console)
    return console.export_text()


def test_names_stay_whole_on_a_narrow_terminal() -> None:
    for name in ("_moe_C_stable_libtorch", "_flashmla_extension_C", "left out"):
        assert f" {name} " in printed(make("cu130"), 60)


def test_host_code_alone_compiles_in_no_time_worth_a_number() -> None:
    assert "less than a minute of compiling" in printed(make("cu130-host-code"), 200)
    assert "about " in printed(make("cu130"), 200)


@pytest.mark.parametrize(("count", "said"), [(0, "0 patches"), (1, "1 patch"), (2, "2 patches")])
def test_patches_are_counted_in_words(count: int, said: str) -> None:
    patches = tuple((f"{number:04}.patch", "0" * 64) for number in range(count))
    plan = plan_vllm(Request(line="cu130"), PINS, SMALL, patches=patches)
    assert plan.step("source").title == f"unpack vLLM 0.33.0 and apply {said}"


def test_every_pinned_version_has_its_extensions_and_unique_paths() -> None:
    assert {release.version for release in PINS.releases} <= set(known_versions())
    for version in known_versions():
        paths = [part.path for part in components(version, "aarch64")]
        assert len(paths) == len(set(paths))
        assert all("{" not in path for path in paths)


def test_costs_name_only_known_extensions() -> None:
    for version in known_versions():
        names = {part.name for part in components(version, "aarch64") if part.from_sdist}
        assert {name.split("/")[0] for name in costs(version).seconds} <= names


def test_what_finishing_leaves() -> None:
    assert after_finishing(["sm_120f"], "aarch64") == ["sm_120f"]
    assert after_finishing(["sm_80", "compute_80"], "aarch64") == ["sm_121"]
    assert after_finishing(["sm_80", "compute_80"], "x86_64") == ["sm_120"]
    assert after_finishing(["sm_90a", "sm_100f"], "aarch64") == []
    assert after_finishing(["sm_120", "compute_80"], "aarch64") == ["sm_120"]


def test_nothing_is_promised_to_be_left_to_the_driver() -> None:
    plan = make("cu130")
    assert plan.finishes
    assert not [target for e in plan.extensions for target in e.images if target.startswith("compute")]
    unfinished = plan_vllm(Request(line="cu130", finish=False), PINS, SMALL)
    assert "finish" not in {step.name for step in unfinished.steps}
    assert any(target.startswith("compute") for e in unfinished.extensions for target in e.images)


def test_a_partial_build_has_a_name_of_its_own() -> None:
    whole = plan_vllm(Request(line="cu130"), PINS, SMALL)
    part = plan_vllm(Request(line="cu130", extensions=("spinloop",)), PINS, SMALL)
    assert whole.stamped == "0.33.0+cu130.sm121"
    assert (part.stamped, part.part, whole.part) == ("0.33.0+cu130.sm121.partial", "partial", "")


def test_a_line_of_another_major_takes_no_library_of_the_official_wheel() -> None:
    """They need libcudart.so.13; vLLM does not import without FlashAttention 2, so that is compiled from its git host."""
    for name in ("cu129", "cu128", "cu129-nothing-brought"):
        plan = make(name)
        origins = {each.name: each.origin for each in plan.extensions}
        assert "official" not in origins.values()
        assert origins["_vllm_fa2_C"] == "source"
        assert origins["_C_extension"] == "left out"
        assert {tree.name for tree in plan.trees} == {"vllm_flash_attn", "qutlass"}
        assert "plan.lost" not in {finding.check for finding in plan.findings}
    assert "official" in {each.origin for each in make("cu130").extensions}


def test_an_extension_that_the_list_has_no_code_for_is_not_compiled() -> None:
    """With CUDA 12.9, FlashKDA has a target for 12.0f and none for 12.1a."""
    for arch_list, origin in (("12.1a", "left out"), ("12.0f", "source")):
        plan = plan_vllm(Request(line="cu129", arch_list=arch_list), PINS, SPARK)
        assert next(each.origin for each in plan.extensions if each.name == "_flashkda_C") == origin


def test_a_part_of_a_line_of_another_major_says_that_it_will_not_pass() -> None:
    plan = plan_vllm(Request(line="cu129", extensions=("spinloop",)), PINS, SPARK)
    (finding,) = (finding for finding in plan.findings if finding.check == "plan.lost")
    assert "_C_stable_libtorch" in finding.got
    assert "--until libraries" in finding.advice


def test_requirements_read_as_upstreams_own_wheels_of_that_major() -> None:
    assert make("cu130").requirements == {}
    assert make("cu129").requirements == {
        "nvidia-cutlass-dsl[cu13]": "nvidia-cutlass-dsl",
        "humming-kernels[cu13]": "humming-kernels[cu12]",
    }
    wheel = make("cu129").step("wheel")
    assert wheel.inputs["requirements"] == make("cu129").requirements


def test_what_the_user_brings_is_named_with_how_to_come_by_it() -> None:
    assert make("cu130").brought == ()
    missing = make("cu129-nothing-brought").brought
    assert [(each.what, each.option, each.path) for each in missing] == [
        ("the CUDA 12.9 toolkit", "--cuda-home", ""),
        ("torch 2.14.0+cu129", "--torch-home", ""),
    ]
    assert "cuda-cross-sbsa-12-9" in missing[0].how
    assert [each.path for each in make("cu128").brought] == ["/usr/local/cuda-12.9", PLACE]
    assert make("cu128").brought[1].what == "torch 2.14.0+cu128"


@pytest.mark.parametrize("name", ["cu130", "cu135", "cu129", "cu128", "cu130-host-code"])
def test_the_runtime_that_the_wheel_will_meet_is_fetched_for_its_inspection(name: str) -> None:
    """The line's own, not the compiler's: with cu135 and cu128 they differ."""
    plan = make(name)
    (runtime,) = (
        download for download in plan.downloads if "inspect" in download.steps and "runtime" in download.pin.name
    )
    wanted = {"cu129": "12.9.79", "cu128": "12.8.90"}.get(name, "13.0.96")
    assert (runtime.pin.version, runtime.pin.cpu) == (wanted, "aarch64")
    assert plan.step("inspect").inputs["runtime"] == [[runtime.pin.filename, runtime.pin.sha256.hex]]
    assert len({download.pin.filename for download in plan.downloads}) == len(plan.downloads)


def test_host_code_alone_needs_memory_and_has_nothing_to_say_about_cuda() -> None:
    plan = make("cu130-host-code")
    assert plan.memory > 0
    assert {finding.check for finding in plan.findings} == {"resources.jobs"}


def test_a_torch_of_another_version_is_a_warning() -> None:
    other = Local(PLACE, "2.11.0+cu130", "3" * 64, "13.0", "aarch64")
    unknown = Local(PLACE, "2.14.0a0+git1", "4" * 64)
    for torch, word in ((other, "2.11.0"), (unknown, "does not tell")):
        plan = plan_vllm(Request(line="cu130", torch_home=torch), PINS, SMALL)
        found = [finding for finding in plan.findings if finding.check == "plan.torch"]
        assert {finding.verdict for finding in found} == {Verdict.WARN}
        assert any(word in finding.message for finding in found)


def test_finishing_is_named_where_it_takes_the_work_off_the_driver() -> None:
    for finish, word in ((True, "finishing compiles ahead of time"), (False, "has to compile it at start")):
        plan = plan_vllm(Request(line="cu130", finish=finish), PINS, SMALL)
        assert any(word in finding.got for finding in plan.findings if finding.check == "arch-list.jit")


def test_a_patch_of_the_build_files_changes_what_is_promised() -> None:
    """Without it a list of 12.1a is compiled as 12.0."""
    patches = (("0001-Support-12.1-as-a-CUDA-architecture-from-CUDA-13-on.patch", "0" * 64),)
    promised = {
        bool(applied): plan_vllm(Request(line="cu130", arch_list="12.1a"), PINS, SMALL, applied)
        .extensions[0]
        .images
        for applied in ((), patches)
    }
    assert set(promised[False]) == {"sm_120", "sm_120f", "sm_121"}
    assert set(promised[True]) == {"sm_121", "sm_121a"}


def test_of_a_version_that_was_not_measured_every_file_may_be_heavy() -> None:
    assert costs("0.26.0").peak == {}
    plan = plan_vllm(Request(line="cu130", vllm="0.26.0"), PINS, SPARK)
    memory = SPARK.machine.memory_for_builds()
    assert plan.heavy_jobs == memory // HEAVIEST
    assert plan.jobs < 20
    assert plan.memory == plan.heavy_jobs * HEAVIEST + (plan.jobs - plan.heavy_jobs) * LIGHT <= memory
