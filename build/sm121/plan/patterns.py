"""Names written with alternatives: `x_{a,b}_{t:f16,bf16}_{t}` stands for four names.

`{a,b}` is one of these, `{t:a,b}` the same with a name, `{t}` what was taken for t, and `$t` among alternatives as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHOICE = re.compile(r"\{(?:(?P<name>[a-z]):)?(?P<words>[^{}]*)\}")


def expand(pattern: str, chosen: Mapping[str, str] | None = None) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every name that `pattern` stands for, in the order of its alternatives, with what was taken for each name.

    `chosen` are names that another pattern has taken. Raises ValueError for a name that nothing was taken for.
    """
    chosen = chosen or {}
    match = _CHOICE.search(pattern)
    if match is None:
        yield pattern, chosen
        return
    before, after = pattern[: match.start()], pattern[match.end() :]
    words = match["words"].split(",")
    if match["name"] is None and len(words) == 1:
        words = [f"${words[0]}"]
    for word in words:
        value = _value(word, chosen, pattern)
        taken = {**chosen, match["name"]: value} if match["name"] else chosen
        for rest, all_taken in expand(after, taken):
            yield before + value + rest, all_taken


def _value(word: str, chosen: Mapping[str, str], pattern: str) -> str:
    if not word.startswith("$"):
        return word
    if word[1:] not in chosen:
        raise ValueError(f"{pattern!r} takes up {word[1:]!r}, which nothing was taken for")
    return chosen[word[1:]]
