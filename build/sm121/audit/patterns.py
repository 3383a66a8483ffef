"""Regular expressions out of configuration files: compiled only where matching cannot take for ever."""

from __future__ import annotations

import re
from functools import lru_cache

_LONGEST = 400
_MOST_REPEATS = 5


@lru_cache(maxsize=4096)
def compiled(expression: str) -> re.Pattern[str] | None:
    """The compiled expression, or None if it is invalid or could run for ever."""
    if len(expression) > _LONGEST or _explodes(expression):
        return None
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        return None


def _explodes(expression: str) -> bool:
    """Whether a repeated group repeats or branches inside, or there are too many repeats side by side."""
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "x", re.sub(r"\\.", "x", expression))
    open_groups = [False]
    repeats = 0
    for position, sign in enumerate(bare):
        following = bare[position + 1 : position + 2]
        if sign == "(":
            open_groups.append(False)
        elif sign == ")" and len(open_groups) > 1:
            inside = open_groups.pop()
            if inside and following and following in "*+{":
                return True
            open_groups[-1] = open_groups[-1] or inside
        elif sign in "*+{":
            repeats += 1
            open_groups[-1] = True
        elif sign == "|":
            open_groups[-1] = True
    return repeats > _MOST_REPEATS
