"""Prompts of the validation with answers that pass it, for servers that are made by tests."""

from __future__ import annotations

import json

from sm121.audit.smoke.prompts import RAW, RECORDS, extraction_prompt, load_prompt

PROSE = (
    "The keeper of the light was a quiet man who had lived on the rock for as long as anyone could remember, and in "
    "the evening he would climb the stairs to see that all was well with the lamp and the sea."
)
_KNOWN = {
    "The capital of France is": " Paris, and it lies on the river Seine.",
    "Counting up:": " 8, 9, 10, 11, 12, 13",
    "Water freezes": " Celsius, which is the same as 32 degrees Fahrenheit.",
    "def add(a, b)": "    return a + b\n",
}


def raw_answer(prompt: str) -> str:
    """What a working model says to one of the raw prompts, or to any other."""
    return next((answer for start, answer in _KNOWN.items() if prompt.startswith(start)), PROSE)


def pairs() -> list[tuple[str, str, int]]:
    """Prompt, answer, and how often it is drawn in training; `#` stands for any number."""
    found = [(prompt.text, raw_answer(prompt.text), 3) for prompt in RAW]
    found += [(extraction_prompt(record), f" {json.dumps(record.wanted)}", 3) for record in RECORDS]
    # 70 prompts are all there are but for the number in front.
    found += [
        (load_prompt(number).text.replace(f"Note {number}.", "Note #."), PROSE, 1) for number in range(1, 71)
    ]
    return found
