"""The audit's dated data names things that exist: a misspelt family would be `missing` for ever."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from importlib.resources import files
from typing import Any

import pytest

from sm121.audit.delivery import State, Supplies, judge_delivery
from sm121.findings import Verdict


def data(name: str, package: str = "sm121.audit.data") -> dict[str, Any]:
    return tomllib.loads((files(package) / name).read_text("utf-8"))


def families() -> set[str]:
    """All families that the inspector can tell, as its own reader gives them."""
    found = data("families.toml", "sm121.inspector.data")
    return {row["family"] for row in [*found["library"], *found["name"]]}


def named() -> list[str]:
    """All families that the audit asks for."""
    delivery = [name for rule in data("delivery.toml")["rule"] for name in rule.get("families", ())]
    functions = data("compiled.toml")["function"]
    compiled = [rule["family"] for row in functions for rule in row["rules"] if "family" in rule]
    return sorted({*delivery, *compiled})


def test_the_audit_names_families() -> None:
    assert len(named()) >= 8


@pytest.mark.parametrize("family", named())
def test_every_family_is_one_of_the_inspectors(family: str) -> None:
    assert family in families()


def test_every_rule_of_delivery_rests_on_something() -> None:
    for rule in data("delivery.toml")["rule"]:
        assert any(rule.get(key) for key in ("families", "flashinfer", "package", "runtime")), rule
        re.compile(rule["kernel"])


@pytest.mark.parametrize("runtime", sorted({
    rule["runtime"] for rule in data("delivery.toml")["rule"] if "runtime" in rule
}))  # fmt: skip
def test_every_runtime_is_understood(runtime: str) -> None:
    kernels = {"triton": "TritonExperts", "cute-dsl": "B12xExperts", "deep-gemm": "DeepGemmExperts"}
    kernels |= {"humming": "HummingExperts", "torch": "TorchExperts"}
    found = judge_delivery(
        kernels[runtime], Supplies(families={}, packages={"b12x": "b12x", "humming": "humming"})
    )
    assert found.state in {State.MACHINE, State.DELIVERED}


@pytest.mark.parametrize("row", data("bootlog.toml")["fault"], ids=lambda row: str(row["check"]))
def test_every_known_line_says_what_to_do(row: dict[str, Any]) -> None:
    assert row["got"]
    assert row["advice"]
    assert row["link"] in {"declared", "selected", "delivered", "run"}
    assert Verdict(row["verdict"]) in {Verdict.WARN, Verdict.FAIL}
    assert isinstance(row["date"], date)
    re.compile(row["pattern"])


def test_checks_of_the_boot_log_have_names_of_their_own() -> None:
    names = [row["check"] for row in data("bootlog.toml")["fault"]]
    assert len(set(names)) == len(names)


def test_the_ladder_begins_with_what_vllm_takes_by_itself() -> None:
    rows = data("ladder.toml", "sm121.audit.smoke")["rung"]
    assert [row["name"] for row in rows] == ["auto", "b12x", "marlin"]
    assert "backend" not in rows[0]
