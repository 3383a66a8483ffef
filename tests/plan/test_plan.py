from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from sm121 import pins
from sm121.errors import PlanError, Sm121Error, UsageError
from sm121.plan.components import components, costs, known_versions
from sm121.plan.model import Host, Local, Plan, Request, after_finishing
from sm121.plan.show import plan_json, show_plan
from sm121.plan.vllm import plan_vllm
from sm121.resources import GIB, Machine

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

TORCH = Local("/venv/lib/python3.12/site-packages/torch", "2.14.0+cu129", "0" * 64)
REQUESTS = {
    "cu130": (Request(line="cu130"), SMALL),
    "cu130-spark": (Request(line="cu130"), SPARK),
    "cu130-x86_64": (Request(line="cu130", cpu="x86_64"), SMALL),
    "cu130-vllm-0.26.0": (Request(line="cu130", vllm="0.26.0"), SMALL),
    "cu135": (Request(line="cu135"), SMALL),
    "cu129": (Request(line="cu129", cuda_home="/usr/local/cuda-12.9", torch_home=TORCH), SPARK),
    "cu128": (Request(line="cu128", cuda_home="/usr/local/cuda-12.9", torch_home=TORCH), SPARK),
    "cu129-without-torch": (Request(line="cu129", cuda_home="/usr/local/cuda-12.9"), SPARK),
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
        (Request(line="cu129"), ["--cuda-home", "12.9"]),
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
    assert part.stamped == "0.33.0+cu130.sm121.partial"
