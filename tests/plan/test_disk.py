"""The disk of a plan: enough for what was measured, and no multiple of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sm121 import pins, preflight
from sm121.plan.flashinfer import plan_flashinfer
from sm121.plan.model import Host, Request
from sm121.plan.vllm import plan_vllm
from sm121.resources import GIB, Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.plan.model import Plan

PINS = pins.load(Path(__file__).resolve().parents[2] / "pins")
HOST = Host(
    cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=23 * GIB), python="3.12.7",
    compiler="aarch64-linux-gnu-g++ 12.2.0",
)  # fmt: skip


def plan(**asked: object) -> Plan:
    request = Request(line="cu130", **asked)  # type: ignore[arg-type]
    return (plan_flashinfer if request.modules else plan_vllm)(request, PINS, HOST)


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        # Scratch folder and result of a whole build, and 1.1 GB while the wheel's platform tag is sought.
        (plan(), 5.1e9),
        # The same without what the compilers, ptxas and their cache made, but with upstream's whole library in the wheel.
        (plan(extensions=("spinloop",), finish=False), 4.7e9),
        # A whole scratch folder after `page`.
        (plan(modules=("page",)), 1.5e9),
        # What is fetched and unpacked, and objects, libraries, cache and wheel by the measured size of the libraries.
        (plan(modules=("serving",)), 2.7e9),
    ],
)
def test_it_is_what_was_measured_with_room_to_spare(made: Plan, taken: float) -> None:
    assert taken < made.disk < 2 * taken


def test_it_grows_with_what_is_compiled_and_fetched() -> None:
    few, many, every = (plan(modules=(words,)).disk for words in ("page", "serving", "all"))
    assert few < many < every
    host_code = plan(extensions=("spinloop",), finish=False)
    assert host_code.disk < plan(finish=False).disk < plan().disk
    assert plan(extensions=("spinloop",), finish=False, cuda_home="/cuda").disk < host_code.disk


def test_each_folder_is_asked_for_its_own_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[Path, int] = {}

    def judge(needed: Mapping[Path, int]) -> list[object]:
        asked.update(needed)
        return []

    monkeypatch.setattr(preflight, "judge_disk", judge)
    plans = [plan(), plan(modules=("page",))]
    preflight.ensure_disk(plans, tmp_path / "work", tmp_path / "dist")
    assert sum(asked.values()) == sum(each.disk for each in plans)
    assert asked[tmp_path / "dist"] > 333_472_621, "the official wheel, which ours may be as large as"
