"""Whether a text reads like language: the silent failure of a broken kernel is garbage without an error."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm121.audit.smoke.client import Reply

_COMMON = frozenset({
    "the", "of", "and", "to", "a", "in", "is", "it", "that", "for", "as", "with", "on", "be", "are", "was",
    "by", "at", "from", "this", "or", "an", "not", "have", "has", "which", "will", "can", "its", "their",
    "his", "her", "they", "he", "she", "we", "you", "i", "but", "if", "so", "one", "all", "more", "when",
    "there", "were", "been", "would", "what", "who", "into", "than", "then",
})  # fmt: skip
_ENOUGH_WORDS = 25
_SPOKEN = 0.08
"""Least share of common words in English prose; real prose has 0.3 to 0.5."""


class Fault(StrEnum):
    """What is wrong with a text."""

    NONE = ""
    BUDGET = "the token budget was spent on thinking"
    """No fault of a kernel: raise max_tokens."""
    EMPTY = "empty, although tokens were made"
    MARKS = "one character over and over"
    LOOP = "the same words over and over"
    SALAD = "words without sense"
    BROKEN = "broken characters"


@dataclass(frozen=True, slots=True)
class Reading:
    """The judgement of one text, with a piece of it as evidence."""

    fault: Fault
    evidence: str = ""

    @property
    def coherent(self) -> bool:
        return self.fault in {Fault.NONE, Fault.BUDGET}


def read_reply(reply: Reply, *, prose: bool = True) -> Reading:
    """Judge a completion; `prose` says that English sentences are expected, so that their absence counts."""
    text = reply.text.strip()
    if not text:
        if reply.finish == "length" and (reply.reasoning.strip() or reply.tokens is None):
            return Reading(Fault.BUDGET, _piece(reply.reasoning))
        return Reading(Fault.EMPTY if reply.tokens else Fault.NONE)
    if "<think>" in text and "</think>" not in text and reply.finish == "length":
        inner = read_text(text.partition("<think>")[2], prose=prose)
        return inner if not inner.coherent else Reading(Fault.BUDGET, _piece(text))
    return read_text(text, prose=prose)


def read_text(text: str, *, prose: bool = True) -> Reading:
    """Judge a text by itself."""
    plain = text.strip()
    for fault, found in (
        (Fault.BROKEN, _broken(plain)),
        (Fault.MARKS, _marks(plain)),
        (Fault.LOOP, _loops(plain)),
        (Fault.SALAD, _salad(plain, prose=prose)),
    ):
        if found:
            return Reading(fault, _piece(plain))
    return Reading(Fault.NONE)


def _broken(text: str) -> bool:
    bad = sum(
        character == "\ufffd" or unicodedata.category(character) in {"Cn", "Co", "Cc"} - {"\n"}
        for character in text
    )
    newlines = text.count("\n") + text.count("\t") + text.count("\r")
    return bad - newlines > max(2, len(text) // 20)


def _marks(text: str) -> bool:
    if re.search(r"([^\s\w.\-=_*#])\1{11,}|(\w)\2{19,}", text):
        return True
    dense = [character for character in text if not character.isspace()]
    if len(dense) < 20:
        return False
    most, count = Counter(dense).most_common(1)[0]
    return count > len(dense) * 0.5 and most not in "-=_*#"


def _loops(text: str) -> bool:
    words = text.split()
    for size in range(1, 13):
        rounds = 12 if size == 1 else 8 if size < 4 else 5
        if _repeats(words, size, rounds):
            return True
    return len(text) > 400 and len(zlib.compress(text.encode(), 9)) < len(text.encode()) * 0.12


def _repeats(words: list[str], size: int, rounds: int) -> bool:
    """Whether some run of `size` words stands `rounds` times in a row; counting numbers up is no repetition."""
    need = size * (rounds - 1)
    alike = 0
    for place in range(len(words) - size):
        alike = alike + 1 if words[place] == words[place + size] else 0
        if alike >= need:
            return True
    return False


def _salad(text: str, *, prose: bool) -> bool:
    scripts = Counter(_script(character) for character in text if character.isalpha())
    letters = sum(scripts.values())
    mixed = [name for name, count in scripts.items() if count >= max(2, letters // 50)]
    if letters >= 30 and len(mixed) >= 4:
        return True
    words = re.findall(r"[^\W\d_]+", text.lower())
    if not prose or len(words) < _ENOUGH_WORDS:
        return False
    spoken = sum(word in _COMMON for word in words) / len(words)
    return spoken < _SPOKEN


def _script(character: str) -> str:
    name = unicodedata.name(character, "NONE").split()[0]
    # A Japanese or Korean text mixes these rightly.
    return "CJK" if name in {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC"} else name


def _piece(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 120 else f"{plain[:117]}..."
