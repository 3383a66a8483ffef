"""The small text files in which a distribution describes itself, read as data and never executed.

Formats: https://packaging.python.org/en/latest/specifications/.
"""

from __future__ import annotations

import ast
import configparser
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING, Self

from packaging.metadata import parse_email

from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.member import printable
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_SOURCE = 1 << 18
_LITERALS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Metadata:
    """METADATA or PKG-INFO. A field that does not stand there is empty; `faults` are sentences."""

    name: str = ""
    version: str = ""
    requires_python: str = ""
    requires: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    license: str = ""
    metadata_version: str = ""
    faults: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the file; what cannot be understood becomes a fault."""
        try:
            raw, unread = parse_email(data)
        except (ValueError, RecursionError, LookupError) as error:
            return cls(faults=(f"METADATA cannot be read ({error})",))
        faults = [f"METADATA has no {key.capitalize()}" for key in ("name", "version") if not raw.get(key)]
        faults += [f"METADATA has an unreadable or repeated field {printable(key)}" for key in unread]
        return cls(
            name=raw.get("name", ""),
            version=raw.get("version", ""),
            requires_python=raw.get("requires_python", ""),
            requires=tuple(raw.get("requires_dist", ())),
            extras=tuple(raw.get("provides_extra", ())),
            license=raw.get("license_expression", "") or raw.get("license", ""),
            metadata_version=raw.get("metadata_version", ""),
            faults=tuple(faults),
        )


@dataclass(frozen=True, slots=True)
class WheelFile:
    """The file WHEEL: what built the wheel, and the tags it claims."""

    version: str = ""
    generator: str = ""
    purelib: bool = False
    tags: tuple[str, ...] = ()
    build: str = ""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the file; absent fields stay empty."""
        head = BytesHeaderParser().parsebytes(data)

        def first(name: str) -> str:
            return str(head.get(name, "")).strip()

        return cls(
            version=first("Wheel-Version"),
            generator=first("Generator"),
            purelib=first("Root-Is-Purelib").lower() == "true",
            tags=tuple(str(tag).strip() for tag in head.get_all("Tag", [])),
            build=first("Build"),
        )


@dataclass(frozen=True, slots=True)
class DirectUrl:
    """direct_url.json: where an installer took a distribution from, if not from an index."""

    url: str
    hashes: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    editable: bool = False

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the file; raises ArtifactError if it is damaged."""
        reader = JsonReader("direct_url.json")
        top = reader.top(data)
        archive, vcs = reader.table(top, "archive_info"), reader.table(top, "vcs_info")
        hashes = dict(reader.strings(archive, "hashes"))
        algorithm, sign, value = reader.text(archive, "hash").partition("=")
        if sign:
            hashes.setdefault(algorithm, value)
        made = cls(
            reader.text(top, "url"), hashes, reader.text(vcs, "commit_id"),
            reader.table(top, "dir_info").get("editable") is True,
        )  # fmt: skip
        reader.finish()
        return made


@dataclass(frozen=True, slots=True)
class PatchNote:
    """A patch as a wheel's maker names it: sha256 in hexadecimal, and what became of it (`APPLIES`, `ALREADY`, ...)."""

    name: str
    sha256: str
    state: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """sm121.json: what made a wheel, the digest of the patched source tree ("" if unsaid), the patches in order."""

    tool: str
    source_tree: str
    patches: tuple[PatchNote, ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the file; raises ArtifactError if it is damaged."""
        reader = JsonReader("sm121.json")
        top = reader.top(data)
        made = cls(
            reader.text(top, "tool"), reader.text(top, "source_tree"),
            tuple(
                PatchNote(reader.text(row, "name"), reader.text(row, "sha256"), reader.text(row, "state"))
                for row in reader.tables(top, "patches")
            ),
        )  # fmt: skip
        reader.finish()
        return made


def read_entry_points(data: bytes) -> dict[str, dict[str, str]]:
    """entry_points.txt: group -> name -> `module:object`. Raises ArtifactError if it is damaged."""
    parser = configparser.RawConfigParser(delimiters=("=",), strict=True, default_section="\0")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(data.decode())
    except (configparser.Error, ValueError) as error:
        raise ArtifactError(f"entry_points.txt cannot be read: {error}.") from error
    return {group: dict(parser.items(group)) for group in parser.sections()}


@dataclass(frozen=True, slots=True)
class Stamp:
    """A module that says which version a package is: `_version.py` and its like.

    `values` are the literals it assigns at its top level, for example `__version__` and `__commit_id__`.
    """

    path: str
    values: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    fault: str = ""

    @property
    def version(self) -> str:
        """The version it states, "" if none."""
        return self._first("__version__", "version")

    @property
    def commit(self) -> str:
        """The commit it states, "" if none."""
        return self._first("__commit_id__", "commit_id", "__git_version__", "git_version")

    @classmethod
    def parse(cls, path: str, data: bytes) -> Self:
        """Read assignments of literals out of the source; nothing of it is run."""
        if len(data) > _LONGEST_SOURCE:
            return cls(path, fault=f"has {len(data)} bytes; at most {_LONGEST_SOURCE} are read")
        try:
            module = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return cls(path, fault=f"is no valid Python ({type(error).__name__})")
        values: dict[str, str | int | float | bool | None] = {}
        for statement in module.body:
            targets: list[ast.expr] = []
            if isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            elif isinstance(statement, ast.Assign):
                targets = statement.targets
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, _LITERALS):
                values.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
        return cls(path, values)

    def _first(self, *names: str) -> str:
        return next((str(self.values[name]) for name in names if self.values.get(name) is not None), "")
