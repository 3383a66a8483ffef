"""Reads JSON of unknown origin: every value is checked for its type, all faults are named at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sm121.artifact.member import printable
from sm121.artifact.reference import parse_digest
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from sm121.values import Sha256

Table: TypeAlias = dict[str, Any]
T = TypeVar("T")


class JsonReader:
    """Takes values out of one document and remembers what was wrong; `finish` raises if anything was."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.faults: list[str] = []

    def top(self, data: bytes) -> Table:
        """The document's table."""
        value = self.document(data)
        if not isinstance(value, dict):
            raise ArtifactError(f"{self.what} is no JSON object.")
        return value

    def document(self, data: bytes) -> Any:
        """The document, whatever it is."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{self.what} is no valid JSON ({error}).") from error

    def table(self, table: Table, key: str) -> Table:
        """An object; empty if absent or null."""
        value = table.get(key)
        return value if isinstance(value, dict) else self._wrong(key, "an object", value, {})

    def tables(self, table: Table, key: str) -> list[Table]:
        """A list of objects."""
        value = table.get(key)
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return value
        return self._wrong(key, "a list of objects", value, [])

    def text(self, table: Table, key: str) -> str:
        """A string; "" if absent or null."""
        value = table.get(key)
        return value if isinstance(value, str) else self._wrong(key, "a string", value, "")

    def texts(self, table: Table, key: str) -> tuple[str, ...]:
        """A list of strings, or one string that stands for such a list."""
        value = table.get(key)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return self._wrong(key, "a list of strings", value, ())

    def strings(self, table: Table, key: str) -> dict[str, str]:
        """An object whose values are strings."""
        value = table.get(key)
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            return value
        return self._wrong(key, "an object of strings", value, {})

    def number(self, table: Table, key: str) -> int:
        """A size: a whole number, not negative."""
        value = table.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.faults.append(f"{self.what}: {key} is {_shown(value)}, not a size.")
        return 0

    def digest(self, text: str, key: str) -> Sha256 | None:
        """A sha256 digest."""
        try:
            return parse_digest(text)
        except ValueError as error:
            self.faults.append(f"{self.what}: {key}: {printable(str(error))}.")
            return None

    def finish(self) -> None:
        """Raise ArtifactError with all faults, if there were any."""
        if self.faults:
            raise ArtifactError(self.faults)

    def _wrong(self, key: str, wanted: str, value: object, default: T) -> T:
        if value is not None:
            self.faults.append(f"{self.what}: {key} is {_shown(value)}, not {wanted}.")
        return default


def _shown(value: object) -> str:
    text = printable(repr(value))
    return text if len(text) < 60 else text[:57] + "..."
