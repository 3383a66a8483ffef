"""Before and after, and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm121.errors import UsageError
from sm121.loop.code import ImageCode, KernelCode, UnitCode
from sm121.loop.compare import Change, Limit, UnitChange
from sm121.target import LoadsAs

KERNEL = KernelCode("k", size=384, registers=40, shared=1024, fp4=8, fp8=0, mma=8, code="a")


def code(*kernels: KernelCode, target: str = "sm_120f", loads: LoadsAs = LoadsAs.FAMILY) -> UnitCode:
    return UnitCode((ImageCode(target, loads, 1000, kernels),), None if loads is LoadsAs.NO else 0)


def change(**fields: object) -> UnitChange:
    after = replace(KERNEL, code="b", **fields)  # type: ignore[arg-type]
    return UnitChange.of(code(KERNEL), code(after))


def test_kernels_that_stay_change_come_and_go() -> None:
    other = UnitChange.of(
        code(KERNEL, replace(KERNEL, name="l"), replace(KERNEL, name="m")),
        code(KERNEL, replace(KERNEL, name="l", code="b"), replace(KERNEL, name="n")),
    )
    assert {kernel.name: kernel.change for kernel in other.kernels} == {
        "k": Change.SAME, "l": Change.CHANGED, "m": Change.GONE, "n": Change.NEW,
    }  # fmt: skip
    assert not other.same
    assert UnitChange.of(code(KERNEL), code(KERNEL)).same
    assert UnitChange.of(None, code(KERNEL)).kernels[0].change is Change.ALONE
    assert not UnitChange.of(None, code(KERNEL)).same, "nothing was compared"


def test_another_target_is_no_sameness() -> None:
    assert not UnitChange.of(code(KERNEL), code(KERNEL, target="sm_121a", loads=LoadsAs.NATIVE)).same


def test_code_that_is_not_known_is_not_the_same() -> None:
    bare = replace(KERNEL, code="")
    assert UnitChange.of(code(bare), code(bare)).kernels[0].change is Change.CHANGED


@pytest.mark.parametrize(
    ("limit", "fields", "fails"),
    [
        ("spills", {"spill_stores": 4}, True),
        ("spills", {}, False),
        ("spills=4", {"spill_stores": 4}, False),
        ("registers", {"registers": 41}, True),
        ("registers", {"registers": 39}, False),
        ("registers=+8", {"registers": 48}, False),
        ("registers=+8", {"registers": 49}, True),
        ("registers", {"registers": None}, True),
        ("size=5%", {"size": 400}, False),
        ("size=5%", {"size": 416}, True),
        ("fp4", {"fp4": 4}, True),
        ("fp4", {"fp4": 12}, False),
        ("fp4=50%", {"fp4": 4}, False),
        ("shared", {"shared": 2048}, True),
        ("stack", {"stack": 8}, True),
        ("changed", {}, True),
        ("loads", {}, False),
    ],
)
def test_limits(limit: str, fields: dict[str, object], fails: bool) -> None:
    assert bool([*Limit.parse(limit).faults(change(**fields))]) is fails


def test_loading_gets_worse() -> None:
    limit = Limit.parse("loads")
    worse = UnitChange.of(code(KERNEL), code(KERNEL, target="sm_120a", loads=LoadsAs.NO))
    assert [*limit.faults(worse)] == ["loads as no, before as family"]
    gone = UnitChange.of(code(KERNEL, replace(KERNEL, name="l")), code(KERNEL))
    assert [*limit.faults(gone)] == ["l is gone"]
    assert [
        *limit.faults(UnitChange.of(code(KERNEL), code(KERNEL, target="sm_121a", loads=LoadsAs.NATIVE)))
    ] == []


def test_what_cannot_be_compared_passes_no_limit_and_breaks_none() -> None:
    assert [*Limit.parse("spills").faults(UnitChange.of(None, code(KERNEL)))] == []


@pytest.mark.parametrize(
    "text", ["", "speed", "registers=", "registers=x", "registers=-1", "loads=3", "changed=1%", "size=5%%"]
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(UsageError, match="is no limit"):
        Limit.parse(text)
