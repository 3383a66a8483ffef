"""What is asked: raw prompts with facts to hit, records to extract, prompts for load and for speed."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A raw prompt. `wanted` are words of which one should come, if there are any; `prose` asks for sentences."""

    text: str
    wanted: tuple[str, ...] = ()
    tokens: int = 48
    prose: bool = True


RAW = (
    Prompt("The capital of France is", ("paris",), 24),
    Prompt("Counting up: 1, 2, 3, 4, 5, 6, 7,", ("8",), 24, prose=False),
    Prompt("Water freezes at a temperature of zero degrees", ("celsius",), 24),
    Prompt("def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n", ("return",), 32, prose=False),
    Prompt("The following is a short and friendly letter to a new neighbour.\n\nDear neighbour,\n", (), 160),
    Prompt("The history of the printing press, told in plain words for young readers:\n\n", (), 200),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """A line of text and the object that it says."""

    text: str
    wanted: dict[str, object]


_PEOPLE = (
    ("Ada", "Lisbon", 1972), ("Boris", "Oslo", 1985), ("Chen", "Toronto", 1991), ("Dana", "Vienna", 1964),
    ("Emil", "Dublin", 2001), ("Fatima", "Cairo", 1978), ("Goran", "Zagreb", 1969), ("Hana", "Prague", 1995),
    ("Ivan", "Sofia", 1988), ("Jun", "Osaka", 1999), ("Kofi", "Accra", 1974), ("Lena", "Berlin", 1982),
    ("Marco", "Turin", 1967), ("Nora", "Bergen", 1993), ("Omar", "Tunis", 1980), ("Petra", "Graz", 1971),
    ("Quinn", "Perth", 2003), ("Rosa", "Lima", 1976), ("Sven", "Malmo", 1990), ("Tara", "Pune", 1986),
)  # fmt: skip
_SHAPES = (
    "{name} lives in {city} and was born in {year}.",
    "Born in {year}, {name} now calls {city} home.",
    "In {city} we met {name}, whose year of birth is {year}.",
    "{name} (born {year}) moved to {city} for work.",
)

RECORDS = tuple(
    Record(
        _SHAPES[place % len(_SHAPES)].format(name=name, city=city, year=year),
        {"name": name, "city": city, "year": year},
    )
    for place, (name, city, year) in enumerate(_PEOPLE)
)

_EXAMPLES = (
    ("Ruth, born in 1959, has a house in Bern.", {"name": "Ruth", "city": "Bern", "year": 1959}),
    ("There is a man in Quito, Pablo, who was born in 1983.", {"name": "Pablo", "city": "Quito", "year": 1983}),
)


def extraction_prompt(record: Record) -> str:
    """A few-shot prompt that asks for one JSON object on one line."""
    shots = "".join(f"Text: {text}\nJSON: {json.dumps(wanted)}\n\n" for text, wanted in _EXAMPLES)
    return (
        f"Each text is turned into a JSON object with name, city and year.\n\n{shots}Text: {record.text}\nJSON:"
    )


def extracted(text: str) -> object:
    """The first JSON object of an answer, None if there is none."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start : start + 2000])
    except (json.JSONDecodeError, RecursionError):
        return None
    return found


_SUBJECTS = (
    "a lighthouse keeper", "the water cycle", "how bread is baked", "an old railway", "the tides", "a mountain village",
    "the making of paper", "a winter market", "how bees find flowers", "a broken clock",
)  # fmt: skip


def load_prompt(number: int) -> Prompt:
    """Prompts for load differ in length and subject, so that no cache answers for the model."""
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    padding = "It was written down carefully, line by line, for those who come later. " * (number % 7)
    return Prompt(f"Note {number}. {padding}A short text about {subject}, in plain and complete sentences:\n\n")


def long_prompt(words: int, number: int) -> str:
    """A prompt of about `words` words for the prefill rate; `number` makes it new to the prefix cache."""
    sentence = "The harbour was quiet in the early morning and the boats lay still upon the water. "
    body = sentence * max(words // 16, 1)
    return f"Report {number}.\n{body}\nIn short, the report says that"
