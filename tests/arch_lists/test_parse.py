from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.arch_lists import parse_arch_list
from sm121.findings import Verdict


def failures(project: str, text: str) -> list[str]:
    return [f.message for f in parse_arch_list(project, text).findings if f.verdict is Verdict.FAIL]


@pytest.mark.parametrize(
    ("project", "text", "archs"),
    [
        ("vllm", "12.1a", "12.1a"),
        ("vllm", "9.0;12.1a", "9.0 12.1a"),
        ("vllm", "9.0 12.1a", "9.0 12.1a"),
        ("vllm", " 9.0 ;\t12.1a; ", "9.0 12.1a"),
        ("vllm", "12.0+PTX", "12.0+PTX"),
        ("vllm", "12.1a;12.1a", "12.1a"),
        ("flashinfer", "12.0f 12.1a", "12.0f 12.1a"),
        ("torch", "9.0;12.1a", "9.0 12.1a"),
        ("torch", "12.0a+PTX", "12.0a+PTX"),
    ],
)
def test_accepted(project: str, text: str, archs: str) -> None:
    parsed = parse_arch_list(project, text)
    assert parsed.ok
    assert " ".join(map(str, parsed.archs)) == archs


@pytest.mark.parametrize("text", ["12.1a;", " 12.1a", "12.1a;12.1a"])
def test_what_is_tolerated_is_said(text: str) -> None:
    findings = parse_arch_list("vllm", text).findings
    assert [finding.verdict for finding in findings] == [Verdict.INFO]


@pytest.mark.parametrize(
    ("text", "bad", "advice"),
    [
        ("121", "'121'", "Write 12.1."),
        ("121a", "'121a'", "Write 12.1a."),
        ("sm_121a", "'sm_121a'", "Write 12.1a."),
        ("compute_90", "'compute_90'", "Write 9.0."),
        ("120-real", "'120-real'", "Write 12.0."),
        ("12.1A", "'12.1A'", "write 12.1a"),
        ("12.1af", "'12.1af'", "one suffix"),
        ("12.1(2.0)", "'12.1(2.0)'", "write 12.1"),
        ("12.1 a", "'a'", "write 12.1a"),
        ("12.0 f", "'f'", "write 12.0f"),
        ("9.0,12.1a", "'9.0,12.1a'", "comma"),
        ("12.1+ptx", "'12.1+ptx'", "12.1+PTX"),
        ("Hopper", "'Hopper'", "numbers"),
        ("native", "'native'", "numbers"),
        ("Blackwell+PTX", "'Blackwell+PTX'", "numbers"),
        ("12.1+PTX+PTX", "'12.1+PTX+PTX'", "looks like"),
        ("\u0661\u0662.\u0661", "'\u0661\u0662.\u0661'", "looks like"),
        ("12.1a\n", r"'12.1a\n'", "separator"),
        ("12", "'12'", "looks like"),
        ("12.10", "'12.10'", "looks like"),
    ],
)
def test_refused_with_the_right_form(text: str, bad: str, advice: str) -> None:
    (message,) = failures("vllm", text)
    assert bad in message
    assert advice in message


@pytest.mark.parametrize("text", ["", " ", ";", " ; ,", "\n"])
@pytest.mark.parametrize("project", ["vllm", "flashinfer", "torch"])
def test_an_empty_list_is_refused(project: str, text: str) -> None:
    (message,) = failures(project, text)
    assert "empty" in message


def test_every_bad_item_is_named() -> None:
    messages = failures("vllm", "sm_90;12.1A;12.0f;121,122")
    assert len(messages) == 3
    assert [str(arch) for arch in parse_arch_list("vllm", "sm_90;12.0f").archs] == ["12.0f"]


@pytest.mark.parametrize(
    "text", ["12.0f;12.1a", "12.0f  12.1a", "12.1a ", " 12.1a", "12.0f,12.1a", "12.0f\t12.1a"]
)
def test_flashinfer_splits_at_one_space_only(text: str) -> None:
    (message,) = failures("flashinfer", text)
    assert "one space" in message


def test_flashinfer_makes_no_ptx() -> None:
    (message,) = failures("flashinfer", "12.0+PTX")
    assert "Write 12.0." in message


@pytest.mark.parametrize(("text", "advice"), [("12.0f", "12.0a"), ("12.1f", "12.1a"), ("12.1a;", "exactly")])
def test_torchs_python_reader_refuses_what_its_cmake_module_takes(text: str, advice: str) -> None:
    assert failures("vllm", text) == []
    (message,) = failures("torch", text)
    assert advice in message


@given(st.text(max_size=40), st.sampled_from(["vllm", "flashinfer", "torch"]))
def test_any_text_is_taken_apart_or_refused(text: str, project: str) -> None:
    parsed = parse_arch_list(project, text)
    assert parsed.ok == (not failures(project, text))
    if parsed.ok:
        assert parsed.archs
    if not parsed.ok:
        assert all("\n" not in finding.got for finding in parsed.findings)
