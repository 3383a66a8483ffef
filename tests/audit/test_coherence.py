"""Texts that are language, and texts that a broken kernel makes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm121.audit.smoke.client import Reply
from sm121.audit.smoke.coherence import Fault, read_reply, read_text

GOOD = [
    "Paris, which has been the capital since the tenth century and is the largest city of the country by far.",
    "8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35",
    "    return a + b\n\n\ndef sub(a, b):\n    return a - b\n",
    "# Title\n\n---------------------------\n\n- one\n- two\n- three\n\n**bold** and __more__\n======================",
    ("Dear neighbour,\nwe are glad that you have come to live beside us, and we hope that the house is warm and dry. "
    "If there is anything that you need in the first days, knock at our door at any time.\nYours, the family next door"),
    "東京は日本の首都であり、世界でも最大級の都市の一つです。カタカナとひらがなと漢字が混ざっています。",
    "Das Haus steht am Ende der Straße, und der Garten reicht bis an den Fluss.",
    "",
]  # fmt: skip
BAD = [
    ("!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", Fault.MARKS),
    ("The answer is!!!!!!!!!!!!!!!!!!!!", Fault.MARKS),
    ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", Fault.MARKS),
    ("? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ?", Fault.MARKS),
    ("the the the the the the the the the the the the the the the the", Fault.LOOP),
    ("and so it goes on " * 12, Fault.LOOP),
    ("I am a model. I can help you with that question today. " * 7, Fault.LOOP),
    ("\ufffd\ufffd\ufffd\ufffd\ufffd text \ufffd\ufffd\ufffd", Fault.BROKEN),
    (
        "опять word 的是 கொடு random שלום tokens Ελλάδα mixed عربي pieces ไทย further नमस्ते things კარგი ещё слова 漢字 שוב",
        Fault.SALAD,
    ),
    (
        ("Bernier lucid vost gratuites ircle Perth ynamics Quel ostal Vernon krij gling shaft ordin Bosch quil tang plex "
        "riot glam Sven turb nest aloft brisk mango drift plume crate vexed hinge"),
        Fault.SALAD,
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_language_and_code_are_coherent(text: str) -> None:
    assert read_text(text, prose=False).fault is Fault.NONE


@pytest.mark.parametrize("text", [GOOD[0], GOOD[4]])
def test_english_prose_is_prose(text: str) -> None:
    assert read_text(text).fault is Fault.NONE


@pytest.mark.parametrize(("text", "fault"), BAD)
def test_garbage_is_told_by_its_kind(text: str, fault: Fault) -> None:
    reading = read_text(text)
    assert reading.fault is fault
    assert reading.evidence
    assert not reading.coherent


def test_an_empty_answer_with_tokens_is_a_fault() -> None:
    assert read_reply(Reply("", finish="length", tokens=64)).fault is Fault.EMPTY
    assert read_reply(Reply("", finish="stop", tokens=0)).fault is Fault.NONE


def test_a_spent_thinking_budget_is_no_fault_of_a_kernel() -> None:
    spent = read_reply(Reply("", reasoning="Let me think about that.", finish="length", tokens=64))
    assert spent.fault is Fault.BUDGET
    assert spent.coherent
    begun = "<think>\nThe user asks for the capital of France, and that is a question that I can answer at once."
    assert read_reply(Reply(begun, finish="length", tokens=64)).fault is Fault.BUDGET


def test_garbage_inside_of_thinking_stays_garbage() -> None:
    assert read_reply(Reply("<think>" + "!" * 80, finish="length", tokens=64)).fault is Fault.MARKS


@settings(deadline=None)
@given(st.text(max_size=2000))
def test_any_text_is_judged(text: str) -> None:
    read_text(text)
    read_reply(Reply(text, finish="length", tokens=3))
