"""Regular expressions out of configuration files and command lines: used only where matching cannot take for ever."""

from __future__ import annotations

import re
from functools import lru_cache

_LONGEST = 400
_LONGEST_TYPED = 4000
"""Alternatives of whole names are long, and what a person types runs on this person's own machine."""
_MOST_REPEATS = 5
_INVALID = (re.error, RecursionError, OverflowError)


@lru_cache(maxsize=4096)
def compiled(expression: str) -> re.Pattern[str] | None:
    """The compiled expression, or None if it is invalid or could run for ever."""
    if len(expression) > _LONGEST or _endless(expression):
        return None
    try:
        return re.compile(expression)
    except _INVALID:
        return None


def typed(expression: str) -> re.Pattern[str]:
    """The compiled expression of a user's. Raises ValueError that says, as the end of a sentence, why it is not used."""
    try:
        pattern = re.compile(expression)
    except _INVALID as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if re.fullmatch(r"[\w$]*", expression):
        return pattern  # a name, and mangled ones have thousands of characters
    if len(expression) > _LONGEST_TYPED:
        raise ValueError(
            f"is too long for a regular expression: {len(expression)} characters, {_LONGEST_TYPED} may be"
        )
    if why := _endless(expression):
        raise ValueError(f"is not searched for, because that could take for ever: {why}")
    return pattern


def _endless(expression: str) -> str:
    """What in the expression could take for ever: a group that repeats and can be split in many ways, many repeats."""
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "x", re.sub(r"\\.", "x", expression))
    open_groups = [False]
    repeats = 0
    for position, sign in enumerate(bare):
        before, following = bare[max(0, position - 1) : position], bare[position + 1 : position + 2]
        if sign == "(":
            open_groups.append(False)
        elif sign == ")" and len(open_groups) > 1:
            inside = open_groups.pop()
            if inside and following and following in "*+{":
                return "a group that is repeated repeats, branches or has optional parts inside"
            open_groups[-1] = open_groups[-1] or inside
        elif sign in "*+{":
            repeats += 1
            open_groups[-1] = True
        elif sign == "|" or (sign == "?" and before != "("):
            open_groups[-1] = True
    return f"it has {repeats} repeats, {_MOST_REPEATS} may be" if repeats > _MOST_REPEATS else ""
