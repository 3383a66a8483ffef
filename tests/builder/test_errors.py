"""Promises about errors as a whole."""

from __future__ import annotations

import pytest

from sm121 import errors


def kinds() -> list[type[errors.Sm121Error]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.Sm121Error) and kind is not errors.Sm121Error
    ]


def test_every_kind_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in kinds()]
    assert len(codes) == len(set(codes))
    assert not {0, 1} & set(codes)


def test_all_problems_and_the_advice_are_in_the_message() -> None:
    error = errors.PinsError(["first.", "second."], do="mend both.")
    assert str(error) == "first.\nsecond.\nWhat to do: mend both."
    assert errors.PinsError("only one.").problems == ["only one."]


def test_exit_codes_are_listed_in_order_with_what_they_say() -> None:
    listed = errors.exit_codes([errors.PackError, errors.UsageError]).splitlines()
    assert [line.split()[0] for line in listed] == ["2", "19"]
    assert listed[0].endswith("The command line asks for something that does not exist")


def test_faults_of_several_parts_are_one_error() -> None:
    def fail(error: errors.Sm121Error) -> None:
        raise error

    faults = errors.Faults()
    assert faults.of(lambda: 7) == 7
    faults.end()
    for error in (
        errors.UsageError("one.", do="mend it."),
        errors.PlanError(["two.", "one."], do="mend it too."),
    ):
        assert faults.of(lambda error=error: fail(error)) is None  # type: ignore[misc]
    with pytest.raises(errors.UsageError) as raised:
        faults.end()
    assert (raised.value.problems, raised.value.do) == (["one.", "two."], "mend it; mend it too.")
