"""Reads JSON that others wrote: nothing in it is trusted, every fault is noted, none is fatal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 64 << 20
"""Bytes of JSON that are read; an index of a checkpoint with a million tensors stays below."""
_LARGEST_COUNT = 1 << 48


_POINTER = b"version https://git-lfs.github.com/"


def load_json(path: Path, *, limit: int = LARGEST, do: str = "") -> object:
    """Parse a file. Raises ArtifactError if it cannot be read, is too large or is not JSON; `do` is how to get one."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.", do=do) from error
    if len(data) > limit:
        raise ArtifactError(f"{path} is larger than {limit >> 20} MiB, too large for a file of this kind.", do=do)
    return parse_json(data, str(path), do=do)


def parse_json(data: bytes, name: str, *, do: str = "") -> object:
    """Parse bytes of JSON. Raises ArtifactError with the place of the fault, also where nesting is too deep."""
    if data.startswith(_POINTER):
        raise ArtifactError(
            f"{name} is a pointer of git-lfs, the file itself was not fetched.", do="git lfs pull in its folder."
        )
    try:
        text = data.decode("utf-8-sig")
        if not text.strip():
            raise ArtifactError(f"{name} is empty; wanted JSON.", do=do)
        return json.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ArtifactError(
            f"{name} is not JSON: byte {error.start}, in line {line}, is not UTF-8 text.", do=do
        ) from error
    except json.JSONDecodeError as error:
        raise ArtifactError(f"{name} is not JSON: {_place(error)}.", do=do) from error
    except (RecursionError, ValueError) as error:
        why = "its brackets are nested too deep" if isinstance(error, RecursionError) else error
        raise ArtifactError(f"{name} is not usable JSON: {why}.", do=do) from error


def _place(error: json.JSONDecodeError) -> str:
    """Where and what, with the text that stands there."""
    end = error.pos >= len(error.doc.rstrip())
    there = "where the file ends" if end else f"at {error.doc[error.pos : error.pos + 20]!r}"
    return f"{error.msg.removesuffix(' at')}, line {error.lineno}, column {error.colno}, {there}"


@dataclass(frozen=True)
class Loose:
    """A JSON object whose members are asked for by the type they should have.

    A member of another type counts as absent and leaves a sentence in `problems`, which all objects of one file
    share. A member that is null counts as absent without one.
    """

    members: dict[str, object]
    where: str
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, value: object, where: str, problems: list[str] | None = None) -> Loose:
        """Wrap a parsed value; anything but an object becomes an empty one, with a problem."""
        found: list[str] = [] if problems is None else problems
        if isinstance(value, dict):
            return cls({str(key): member for key, member in value.items()}, where, found)
        found.append(f"{where} is {_kind(value)}, wanted an object")
        return cls({}, where, found)

    def has(self, key: str) -> bool:
        """Whether the member is there and not null."""
        return self.members.get(key) is not None

    def first(self, *keys: str) -> str | None:
        """The first of several spellings that is there."""
        return next((key for key in keys if self.has(key)), None)

    def text(self, *keys: str) -> str | None:
        key = self.first(*keys)
        if key is None:
            return None
        value = self.members[key]
        if isinstance(value, str):
            return value
        self._wrong(key, "text")
        return None

    def count(self, *keys: str, most: int = _LARGEST_COUNT) -> int | None:
        """A whole number from 0 to `most`; `128.0` counts, `true` does not."""
        key = self.first(*keys)
        if key is None:
            return None
        value = self.members[key]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        limit = f"from 0 to {most}" if most < _LARGEST_COUNT else "of at least 0"
        self._wrong(key, f"a whole number {limit}")
        return None

    def flag(self, *keys: str) -> bool | None:
        key = self.first(*keys)
        if key is None:
            return None
        value = self.members[key]
        if isinstance(value, bool):
            return value
        self._wrong(key, "true or false")
        return None

    def names(self, *keys: str) -> tuple[str, ...]:
        """A list of texts; single members of another type are left out, with a problem."""
        key = self.first(*keys)
        if key is None:
            return ()
        value = self.members[key]
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            self._wrong(key, "a list of texts")
            return ()
        wrong = [item for item in value if not isinstance(item, str)]
        if wrong:
            self.problems.append(f"{self.where}: {key} holds {_kind(wrong[0])}, wanted texts only")
        return tuple(item for item in value if isinstance(item, str))

    def counts(self, *keys: str) -> tuple[int, ...]:
        key = self.first(*keys)
        if key is None:
            return ()
        value = self.members[key]
        if not isinstance(value, list):
            self._wrong(key, "a list of whole numbers")
            return ()
        for item in value:
            if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= _LARGEST_COUNT:
                self.problems.append(
                    f"{self.where}: {key} holds {_kind(item)}, wanted whole numbers of at least 0"
                )
                return ()
        return tuple(value)

    def table(self, *keys: str) -> Loose | None:
        key = self.first(*keys)
        if key is None:
            return None
        value = self.members[key]
        if not isinstance(value, dict):
            self._wrong(key, "an object")
            return None
        return Loose.of(value, f"{self.where}.{key}", self.problems)

    def tables(self) -> Iterator[tuple[str, Loose]]:
        """Each member that is an object; others are problems."""
        for key, value in self.members.items():
            if isinstance(value, dict):
                yield key, Loose.of(value, f"{self.where}.{key}", self.problems)
            elif value is not None:
                self._wrong(key, "an object")

    def _wrong(self, key: str, wanted: str) -> None:
        self.problems.append(f"{self.where}: {key} is {_kind(self.members[key])}, wanted {wanted}")


def _kind(value: object) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return {"dict": "an object", "list": "a list", "NoneType": "null"}.get(type(value).__name__, shown)
