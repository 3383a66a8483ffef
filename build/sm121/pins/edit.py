"""Editing the files in `pins/`: comments and order stay, each file is replaced whole or not at all."""

from __future__ import annotations

import datetime
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tomlkit

from sm121.errors import PinsError, StorageError
from sm121.pins.choose import best_wheel
from sm121.pins.loading import FILES
from sm121.pins.model import Cpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.index import IndexFile


@dataclass
class Edits:
    """The files of `pins/` while they are being changed."""

    folder: Path
    documents: dict[str, tomlkit.TOMLDocument] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Edits:
        """Read all files; `load` has already said that they are right."""
        before = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
        return cls(folder, {name: tomlkit.parse(text) for name, text in before.items()}, before)

    def after(self) -> dict[str, str]:
        """The new texts."""
        return {name: tomlkit.dumps(document) for name, document in self.documents.items()}

    def difference(self) -> str:
        """What would change, as a unified diff; "" if nothing."""
        after = self.after()
        return "".join(
            line
            for name in FILES
            for line in difflib.unified_diff(
                self.before[name].splitlines(keepends=True), after[name].splitlines(keepends=True),
                f"a/pins/{name}", f"b/pins/{name}",
            )
        )  # fmt: skip

    def table(self, name: str, *keys: str) -> Any:
        """The table at a key path, made if absent. tomlkit's containers are typed by their content only."""
        at: Any = self.documents[name]
        for depth, key in enumerate(keys):
            if key not in at:
                at[key] = tomlkit.table(is_super_table=depth < len(keys) - 1)
            at = at[key]
        return at

    def put(self, table: Any, key: str, value: object) -> None:
        """Set a key unless it is already so; a table of a file keeps the spacing of the others."""
        if isinstance(value, dict):
            value = tomlkit.parse(f"{key} = {{ {_words(value)} }}\n")[key]
        if isinstance(value, list):
            words = [tomlkit.string(text, literal='"' in text).as_string() for text in value]
            lines = "".join(f"  {word},\n" for word in words)
            value = tomlkit.parse(f"{key} = [\n{lines}]\n")[key]
        if key not in table or table[key] != value:
            table[key] = value

    def put_tables(self, table: Any, key: str, values: Sequence[Mapping[str, str]]) -> None:
        """Set an array of inline tables unless it is already so."""
        if [dict(value) for value in table.get(key, [])] == [dict(value) for value in values]:
            return
        lines = "".join(f"  {{ {_words(value)} }},\n" for value in values)
        table[key] = tomlkit.parse(f"{key} = [\n{lines}]\n")[key]

    def put_wheels(self, table: Any, listing: Sequence[IndexFile], version: str) -> None:
        """Write the wheels of a version for both CPUs, under `any` if one serves both, and the day of reading."""
        wheels = {str(cpu): best_wheel(listing, version, cpu) for cpu in Cpu}
        if len({wheel.filename for wheel in wheels.values()}) == 1:
            wheels = {"any": next(iter(wheels.values()))}
        for key in ("any", *Cpu):
            if key in table and key not in wheels:
                del table[key]
        self.put_files(table, wheels)

    def put_files(self, table: Any, files: Mapping[str, IndexFile]) -> None:
        """Write name, size and hash of files, and the day of reading if anything is new."""
        entries = {key: entry(file) for key, file in files.items()}
        if all(key in table and table[key] == wanted for key, wanted in entries.items()):
            return
        for key, wanted in entries.items():
            self.put(table, key, wanted)
        self.put(table, "read", f"package index, {today()}")

    def write(self) -> None:
        """Put the new files in place, each whole or not at all. Raises StorageError."""
        for name, text in self.after().items():
            if text == self.before[name]:
                continue
            part = self.folder / f".{name}.part"
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(self.folder / name)
            except OSError as error:
                raise StorageError(f"{self.folder / name} cannot be written: {error.strerror}.") from error


def today() -> str:
    """The day, ISO, in UTC."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def entry(file: IndexFile) -> dict[str, object]:
    """Name, size and hash as the files write them. Raises PinsError if the index does not give them."""
    if file.size is None or file.sha256 is None:
        raise PinsError(f"the index gives no size or sha256 for {file.filename}.", do="use an index that does.")
    return {"file": file.filename, "size": file.size, "sha256": file.sha256.hex}


def _words(value: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {tomlkit.item(item).as_string()}" for name, item in value.items())
