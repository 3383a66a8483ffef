"""How a finding reads."""

from __future__ import annotations

import pytest

from sm121.findings import Finding, Verdict


@pytest.mark.parametrize(
    ("got", "wanted", "message"),
    [
        ("is there", "", "x: is there."),
        ("nothing listens there.", "", "x: nothing listens there."),
        ("it is cut off.", "a whole one.", "x: it is cut off; wanted a whole one."),
        ("ends in ...", "", "x: ends in ...."),
    ],
)
def test_a_message_has_one_full_stop(got: str, wanted: str, message: str) -> None:
    assert Finding("a.b", "x", Verdict.FAIL, got, wanted).message == message
    assert Finding("a.b", "x", Verdict.FAIL, got, wanted, "Try again.").message == f"{message} Try again."
