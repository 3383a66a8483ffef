"""Strict reading of TOML: every fault is collected, with file and key path, before anything fails."""

from __future__ import annotations

import re
import tomllib
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, TypeVar

from sm121.documents import read_text_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")

_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    dict: "a table",
    list: "a list",
    bool: "true or false",
}


def closest(word: str, known: Iterable[str]) -> str:
    """A suggestion for a misspelt word: ", did you mean x?", or "". Of equally near ones the first is named."""
    best, nearest = "", 0.55
    for name in known:
        ratio = SequenceMatcher(None, word.lower(), name.lower()).ratio()
        if ratio > nearest:
            best, nearest = name, ratio
    return f", did you mean {best}?" if best else ""


class Table:
    """One TOML table being read. What is wrong is added to `problems`; what was not asked for is wrong, too."""

    def __init__(self, data: Mapping[str, object], where: str, problems: list[str]) -> None:
        self.where = where
        self._data = data
        self._problems = problems
        self._asked: set[str] = set()

    @classmethod
    def of_file(cls, path: Path, problems: list[str]) -> Table:
        """Read a whole file; an unreadable one is an empty table and a problem."""
        data: dict[str, object] = {}
        try:
            data = tomllib.loads(read_text_document(path))
        except FileNotFoundError:
            problems.append(f"{path.name}: the file is missing in {path.parent}")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path.name}: cannot be read: {error}")
        except (ValueError, RecursionError) as error:  # beside its own error: numbers too long, tables too deep
            problems.append(f"{path.name}: is not TOML: {error}")
        return cls(data, f"{path.name}:", problems)

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def at(self, key: str) -> str:
        """File and key path, as messages show it."""
        quoted = key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'
        return f"{self.where} {quoted}" if self.where.endswith(":") else f"{self.where}.{quoted}"

    def problem(self, key: str, sentence: str) -> None:
        """Note what is wrong with `key`."""
        self._problems.append(f"{self.at(key)} {sentence}")

    def fault(self, sentence: str) -> None:
        """Note what is wrong with the table as a whole."""
        self._problems.append(f"{self.where} {sentence}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string that is not empty; `default` makes it optional."""
        value = self._value(key, str, default)
        if key in self._data and isinstance(self._data[key], str) and not value.strip():
            self.problem(key, "is empty")
        return value

    def whole(self, key: str) -> int:
        """A whole number."""
        return self._value(key, int, None)

    def texts(self, key: str, *, optional: bool = False) -> tuple[str, ...]:
        """A list of strings."""
        values = self._value(key, list, [] if optional else None)
        if any(not isinstance(value, str) for value in values):
            self.problem(key, f"must be a list of text, found {values!r}")
            return ()
        return tuple(values)

    def parsed(self, key: str, parse: Callable[[str], T], default: T, *, optional: bool = False) -> T:
        """A string turned into a value by `parse`, which raises ValueError; `default` stands in for a bad one."""
        text = self.text(key, "" if optional else None)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.problem(key, f"= {text!r}: {error}")
            return default

    def table(self, key: str) -> Table:
        """A table inside this one."""
        return Table(self._value(key, dict, None), self.at(key), self._problems)

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Every entry as a table, with its name."""
        for name in self._data:
            yield name, self.table(name)

    def named(self, key: str) -> Iterator[tuple[str, Table]]:
        """The tables inside the table `key`, with their names: `[line.cu130]`, `[line.cu129]`."""
        return self.table(key).tables()

    def each(self, key: str, *, optional: bool = False) -> Iterator[Table]:
        """The tables of an array: `[[part]]`."""
        for number, item in enumerate(self._value(key, list, [] if optional else None)):
            where = f"{self.at(key)}[{number}]"
            if isinstance(item, dict):
                yield Table(item, where, self._problems)
            else:
                self._problems.append(f"{where} must be a table, found {item!r}")

    def done(self) -> None:
        """Complain about keys that were never asked for."""
        for key in self._data:
            if key not in self._asked:
                self.problem(key, f"is not a known key{closest(key, self._asked - set(self._data))}")

    def _value(self, key: str, kind: type[T], default: T | None) -> T:
        self._asked.add(key)
        value = self._data.get(key)
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        if key in self._data:
            self.problem(key, f"must be {_NAMES[kind]}, found {value!r}")
        elif default is None:
            self.problem(key, "is missing")
        return kind() if default is None else default
