"""What a pass looks like."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from loop_made import unit
from rich.console import Console

from sm121.compile.build import Cost
from sm121.errors import RegressionError, UsageError
from sm121.loop import show
from sm121.loop.code import ImageCode, KernelCode, UnitCode, read_unit
from sm121.loop.compare import UnitChange
from sm121.loop.output import read_failure
from sm121.loop.session import Chosen, Pass, Result
from sm121.loop.store import Kept
from sm121.target import LoadsAs

FIXTURES = Path(__file__).parent.parent / "device" / "fixtures"
KERNEL = KernelCode("_Z1kPf", size=384, registers=8, shared=0, fp4=0, fp8=0, mma=0, code="a")


def code(*kernels: KernelCode) -> UnitCode:
    return UnitCode((ImageCode("sm_120f", LoadsAs.FAMILY, 1000, kernels),), 0)


def passed(before: UnitCode | None, after: UnitCode, *, first: bool = False) -> Pass:
    kept = Kept("key", "command", {}, FIXTURES / "k_120f.o")
    chosen = Chosen(unit(), ("csrc/a.cu",))
    return Pass(
        (
            Result(
                chosen,
                kept,
                kept if before else None,
                UnitChange.of(before, after),
                Cost("_C/csrc/a.cu", 1.5, 1.25, 1 << 30),
                against="what was built before" if before else "",
                first=first,
            ),
        ),
        {},
        "what was built before",
    )


def text(done: Pass, *, every: bool = False) -> str:
    out = io.StringIO()
    show.show_pass(done, Console(file=out, width=160), every=every)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _no_demangler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "demangled", list)


def test_changed_numbers_stand_side_by_side() -> None:
    worse = replace(KERNEL, registers=24, spill_stores=180, spill_loads=212, stack=160, code="b")
    said = text(passed(code(KERNEL), code(worse)))
    assert "compiled in 1.5 s" in said
    assert "sm_120f loads as family" in said
    assert "8 -> 24" in said
    assert "0 -> 392 B" in said
    assert "1 changed" in said
    known = text(passed(code(KERNEL), code(replace(worse, spills_known=False))))
    assert "<= 0 -> 392 B" in known


def test_units_with_the_same_code_take_one_line() -> None:
    assert text(passed(code(KERNEL), code(KERNEL))).count("\n") == 1
    assert "_Z1kPf" in text(passed(code(KERNEL), code(KERNEL)), every=True)
    assert "nothing to compare with" in text(passed(None, code(KERNEL)))


def test_a_first_build_is_not_said_to_be_the_same() -> None:
    said = text(passed(None, code(KERNEL), first=True))
    assert "nothing was built before it" in said
    assert "same" not in said
    assert "_Z1kPf" not in said
    every = text(passed(None, code(KERNEL), first=True), every=True)
    assert "nothing was built before it" in every
    assert "_Z1kPf" in every
    (unit_,) = show.pass_data(passed(None, code(KERNEL), first=True), {}, [], 1.0)["units"]
    assert (unit_["compared_with"], unit_["same"]) == (None, False)


def test_json_holds_the_same() -> None:
    failure = {"x.o": read_failure(["../source/csrc/a.cu(3): error: bad"])}
    data = json.loads(json.dumps(show.pass_data(passed(code(KERNEL), code(KERNEL)), failure, ["too many"], 2.0)))
    assert data["version"] == 1
    assert data["units"][0]["same"]
    assert [data["units"][0][key] for key in ("seconds", "cpu_seconds", "peak_bytes")] == [1.5, 1.25, 1 << 30]
    assert data["units"][0]["kernels"][0]["registers"] == [8, 8]
    assert "cost_note" not in data["units"][0]
    done = passed(code(KERNEL), code(KERNEL))
    unmeasured = replace(done.results[0], cost=Cost("x", 1.5, None, None, "not measured under sccache"))
    (unit_,) = show.pass_data(replace(done, results=(unmeasured,)), {}, [], 1.0)["units"]
    assert (unit_["cpu_seconds"], unit_["peak_bytes"]) == (None, None)
    assert unit_["cost_note"] == "not measured under sccache"
    assert data["failed"][0]["errors"] == [{"path": "csrc/a.cu", "line": 3, "text": "bad"}]
    assert data["regressions"] == ["too many"]


@pytest.mark.parametrize(
    ("name", "target", "loads"),
    [
        ("k_120f.o", "sm_120f", LoadsAs.FAMILY),
        ("k_121a.o", "sm_121a", LoadsAs.NATIVE),
        ("k_120a.o", "sm_120a", LoadsAs.NO),
        ("ptx_120.o", "compute_120", LoadsAs.JIT),
        ("multi.o", "sm_80", LoadsAs.FAMILY),
    ],
)
def test_objects_are_read_from_their_bytes(name: str, target: str, loads: LoadsAs) -> None:
    read = read_unit((FIXTURES / name).read_bytes())
    assert read.images[0].target == target
    assert read.loads_as is loads
    assert [*read.kernels] == ["_Z1kPf"]
    assert not read.damage
    assert UnitCode.from_data(json.loads(json.dumps(read.data))) == read
    assert bool(read.kernels["_Z1kPf"].registers) is (loads is not LoadsAs.JIT)


def test_host_code_has_no_images() -> None:
    read = read_unit((FIXTURES / "hostonly.so").read_bytes())
    assert (read.images, read.chosen, dict(read.kernels)) == ((), None, {})


def test_all_that_is_wrong_with_the_arguments_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from sm121.cli import run  # noqa: PLC0415

    wrong = [
        "kernels",
        "a.cu",
        "--changed",
        "--patch",
        "p",
        "--fail-on",
        "speed",
        "--arch",
        "twelve",
        "--before",
        "pinned",
    ]
    assert run(wrong) == UsageError.exit_code
    said = capsys.readouterr().err
    assert said.count("error: ") == 5
    assert RegressionError.exit_code == 33
