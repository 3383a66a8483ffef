"""The search for the first bad one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.loop.culprit import Look, Seen, differences, search

MACHINE = frozenset({"native", "family", "same-major"})


def look(code: str, state: str = "family", **others: Seen) -> Look:
    return Look({"k": Seen(state, code, "sm_120f"), **others})


def changed(a: Look, b: Look) -> tuple[object, ...]:
    return differences(a, b, lost=False, machine=MACHINE)


@given(st.integers(2, 200), st.data())
def test_the_first_change_is_found_with_few_looks(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    looked: list[int] = []

    def at(index: int) -> Look:
        looked.append(index)
        return look("new" if index >= first else "old")

    found = search(count, at, lambda a, b: differences(a, b, lost=False, machine=MACHINE))
    assert found is not None
    assert found.index == first
    assert len(looked) == len({*looked}) <= 3 + (count - 1).bit_length()
    assert dict(found.tested) == {index: index < first for index in looked}
    assert found.differences[0].after == Seen("family", "new", "sm_120f")


def test_ends_that_are_alike() -> None:
    assert search(5, lambda _: look("same"), lambda a, b: differences(a, b, lost=False, machine=MACHINE)) is None


def test_what_does_not_compile_is_bad_and_says_why() -> None:
    looks = [look("a"), look("a"), Look({}, "a.cu:3: no"), Look({}, "a.cu:3: no")]
    found = search(4, looks.__getitem__, lambda a, b: differences(a, b, lost=False, machine=MACHINE))
    assert found is not None
    assert (found.index, found.fault) == (2, "a.cu:3: no")


def test_the_first_must_be_there_to_compare_with() -> None:
    with pytest.raises(ValueError, match="no such"):
        search(2, lambda _: Look({}, "no such"), lambda a, b: ())


def test_lost_is_what_ran_and_no_longer_does() -> None:
    ran = look("a")
    for other, bad in ((look("b"), False), (look("a", "jit"), True), (look("a", "stub"), True), (Look({}), True)):
        assert bool(differences(ran, other, lost=True, machine=MACHINE)) is bad
    assert not differences(look("a", "jit"), Look({}), lost=True, machine=MACHINE), "it never ran as machine code"
    assert changed(ran, look("b"))
    assert changed(ran, look("a", l=Seen("family", "x", "sm_120f"))), "a new kernel is a change"
