"""Which units may read a file, from the text of the sources alone: for units that were never compiled.

Never less than the truth: conditions are ignored, an include counts for every file whose path ends with it, and a unit
whose includes cannot be read (a macro in place of a name) counts for every file.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_DIRECTIVE = re.compile(
    r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:include|include_next|import|embed)\b[ \t]*(.*)$", re.MULTILINE
)
_NAMED = re.compile(r'(?:"([^"\n]+)"|<([^>\n]+)>)')
_JOINED = re.compile(r"\\[ \t]*\r?\n")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
ANYTHING = "*"
"""In a closure: it may read any file."""


def includes(text: str) -> frozenset[str]:
    """The names in a source's include directives, and ANYTHING if one of them is a macro."""
    found = set()
    for written in (text, _COMMENT.sub(" ", text)):
        for match in _DIRECTIVE.finditer(_JOINED.sub("", written)):
            rest = _COMMENT.sub(" ", match[1]).strip()
            named = _NAMED.match(rest)
            found.add(posixpath.normpath(named[1] or named[2]) if named else ANYTHING)
    return frozenset(found)


def closures(
    sources: Iterable[str], paths: Iterable[str], read: Callable[[str], str]
) -> dict[str, frozenset[str]]:
    """Source -> all of `paths` that it may read, itself among them; with ANYTHING if that cannot be said."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_name[posixpath.basename(path)].append(path)
    direct: dict[str, frozenset[str]] = {}

    def reads(path: str) -> frozenset[str]:
        if path not in direct:
            direct[path] = _resolved(includes(read(path)), by_name)
        return direct[path]

    return {source: _closure(source, reads) for source in sources}


def _resolved(names: frozenset[str], by_name: Mapping[str, list[str]]) -> frozenset[str]:
    found = set(names & {ANYTHING})
    for name in names - {ANYTHING}:
        # What goes up has an end that is the same from wherever it is read.
        end = re.sub(r"^(?:\.\./)+", "", name)
        found |= {
            path for path in by_name.get(posixpath.basename(name), ()) if path == end or path.endswith(f"/{end}")
        }
    return frozenset(found)


def _closure(source: str, reads: Callable[[str], frozenset[str]]) -> frozenset[str]:
    seen, todo = {source}, [source]
    while todo:
        for path in reads(todo.pop()):
            if path not in seen:
                seen.add(path)
                if path != ANYTHING:
                    todo.append(path)
    return frozenset(seen)
