"""Which units an edit reaches."""

from __future__ import annotations

from loop_made import unit

from sm121.loop.affected import Edits, affected
from sm121.loop.scan import ANYTHING

A, B, C = unit("_C/csrc/a.cu"), unit("_C/csrc/b.cu"), unit("_C/csrc/c.cu")
READS = {A.name: frozenset({"csrc/a.cu", "csrc/x.cuh"}), B.name: frozenset({"csrc/b.cu"})}


def closure(path: str) -> frozenset[str]:
    """What the text says: more than was recorded for a.cu, and anything for c.cu."""
    return {
        A.path: frozenset({A.path, "csrc/x.cuh", "csrc/unused.cuh", "csrc/new.cuh"}),
        B.path: frozenset({B.path}),
        C.path: frozenset({C.path, ANYTHING}),
    }[path]


def test_records_decide_where_there_are_some() -> None:
    found = affected([A, B], Edits(frozenset({"csrc/x.cuh", "csrc/unused.cuh"})), READS, closure)
    assert found == {A.name: ("csrc/x.cuh",)}


def test_the_text_decides_for_units_that_were_never_compiled() -> None:
    assert affected([A, B], Edits(frozenset({"csrc/unused.cuh"})), {}, closure) == {A.name: ("csrc/unused.cuh",)}


def test_an_include_that_cannot_be_read_may_be_any_file() -> None:
    assert [*affected([C], Edits(frozenset({"csrc/x.cuh"})), {}, closure)] == [C.name]
    assert affected([C], Edits(frozenset()), {}, closure) == {}


def test_a_file_that_comes_or_goes_can_be_found_by_an_include_that_found_another() -> None:
    came = Edits.between({"csrc/x.cuh": "1"}, {"csrc/x.cuh": "1", "csrc/new.cuh": "2"})
    assert came == Edits(frozenset({"csrc/new.cuh"}), came=frozenset({"csrc/new.cuh"}))
    assert affected([A, B], came, READS, closure) == {A.name: ("csrc/new.cuh",)}
    gone = Edits.between({"csrc/new.cuh": "2"}, {})
    assert affected([A, B], gone, READS, closure) == {A.name: ("csrc/new.cuh",)}


def test_another_command_reaches_a_unit_too() -> None:
    commands = {A.name: A.command.hex, B.name: "0" * 64}
    found = affected([A, B, C], Edits(frozenset()), {**READS, C.name: frozenset()}, closure, commands)
    assert found == {B.name: ("compile command",), C.name: ("new in the build",)}
