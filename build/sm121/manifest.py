"""The manifest: what went into a result and what came out of it, all by digest.

Its JSON form is stable (sorted, no time of day), has a version and a schema (`manifest.schema.json`), and loads
back strictly: a manifest that says less than it should is refused, not completed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Self

from sm121 import __version__
from sm121.compile.caching import CacheUse
from sm121.errors import PackError
from sm121.findings import Verdict
from sm121.pack.ledger import Library, Origin, Patch
from sm121.pins.reading import Table
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.pins import FilePin

VERSION = 1
_NO_DIGEST = Sha256("0" * 64)


@dataclass(frozen=True, slots=True)
class Subject:
    """What was made: `version` with its local part, `base` upstream's, capability such as 12.1, CPU."""

    project: str
    version: str
    base: str
    line: str
    capability: str
    cpu: str
    platform_tag: str


@dataclass(frozen=True, slots=True)
class Input:
    """A pinned file that was used, size in bytes, and what it was used for."""

    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256
    role: str

    @classmethod
    def of(cls, pin: FilePin, role: str) -> Self:
        return cls(pin.name, pin.version, pin.filename, pin.size, pin.sha256, role)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program or library that took part: version as it says itself, digest of its file where that is known."""

    name: str
    version: str
    sha256: Sha256 | None = None

    def to_data(self) -> dict[str, str]:
        """As the manifest holds it; a digest that is not known is left away."""
        known = {"sha256": self.sha256.hex} if self.sha256 else {}
        return {"name": self.name, "version": self.version, **known}


@dataclass(frozen=True, slots=True)
class Host:
    """The machine, as far as it can matter: operating system, CPU, cores, memory in bytes, Python."""

    system: str
    cpu: str
    cores: int
    memory: int
    python: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a step ran, with the environment the plan gave it."""

    step: str
    argv: tuple[str, ...]
    env: tuple[str, ...] = ()
    """`NAME=value`, as env(1) takes it."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file of the result, size in bytes."""

    name: str
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The verdict over the result, and the digest of the report it stands in."""

    verdict: Verdict
    report: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole record of one result. `plan` is the plan's digest; `notes` are sentences about the sources."""

    subject: Subject
    plan: Sha256
    inputs: tuple[Input, ...]
    patches: tuple[Patch, ...]
    tools: tuple[Tool, ...]
    host: Host
    commands: tuple[Command, ...]
    libraries: tuple[Library, ...]
    outputs: tuple[Output, ...]
    inspection: Inspection
    notes: tuple[str, ...] = ()
    compiler_cache: CacheUse | None = None
    """What a compiler cache did when the libraries were compiled; None without one."""
    made_by: str = f"sm121 {__version__}"

    @property
    def verdict(self) -> Verdict:
        return self.inspection.verdict

    def output(self, name: str) -> Output | None:
        """The output of that name."""
        return next((output for output in self.outputs if output.name == name), None)

    def to_json(self) -> bytes:
        """The manifest as a file: equal manifests, equal bytes."""
        return (json.dumps(self._data(), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def _data(self) -> dict[str, object]:
        return {
            "version": VERSION,
            "made_by": self.made_by,
            "subject": asdict(self.subject),
            "plan": self.plan.hex,
            "inputs": [
                {
                    "name": each.name, "version": each.version, "filename": each.filename, "size": each.size,
                    "sha256": each.sha256.hex, "role": each.role,
                }
                for each in sorted(self.inputs, key=lambda each: (each.filename, each.role))
            ],
            "patches": [
                {"name": each.name, "sha256": each.sha256.hex, "state": each.state} for each in self.patches
            ],
            "tools": [
                each.to_data() for each in sorted(self.tools, key=lambda each: each.name)
            ],
            "host": asdict(self.host),
            "commands": [
                {"step": each.step, "argv": list(each.argv), "env": sorted(each.env)} for each in self.commands
            ],
            "libraries": [
                {"path": each.path, "origin": str(each.origin), "sha256": each.sha256.hex, "size": each.size}
                for each in sorted(self.libraries, key=lambda each: each.path)
            ],
            "outputs": [
                {"name": each.name, "sha256": each.sha256.hex, "size": each.size}
                for each in sorted(self.outputs, key=lambda each: each.name)
            ],
            "inspection": {"verdict": str(self.inspection.verdict), "report": self.inspection.report.hex},
            "notes": list(self.notes),
            **({"compiler_cache": self.compiler_cache.to_data()} if self.compiler_cache else {}),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Self:
        """Read a manifest back; `name` is used in messages. Raises PackError that names every fault."""
        problems: list[str] = []
        table = Table(_object(data, name), f"{name}:", problems)
        if (version := table.whole("version")) != VERSION and not problems:
            raise PackError(
                f"{name} is a manifest of version {version}, wanted {VERSION}.", do="use a newer sm121."
            )
        manifest = cls(
            made_by=table.text("made_by"),
            subject=_subject(table.table("subject")),
            plan=_sha256(table, "plan"),
            inputs=tuple(
                Input(
                    each.text("name"), each.text("version"), each.text("filename"), _size(each), _sha256(each),
                    each.text("role"),
                )
                for each in _rows(table, "inputs")
            ),
            patches=tuple(
                Patch(each.text("name"), _sha256(each), each.text("state")) for each in _rows(table, "patches")
            ),
            tools=tuple(
                Tool(each.text("name"), each.text("version"), _sha256(each) if "sha256" in each else None)
                for each in _rows(table, "tools")
            ),
            host=_host(table.table("host")),
            commands=tuple(
                Command(each.text("step"), each.texts("argv"), each.texts("env"))
                for each in _rows(table, "commands")
            ),
            libraries=tuple(
                Library(
                    each.text("path"), each.parsed("origin", Origin, Origin.OFFICIAL), _sha256(each), _size(each),
                )
                for each in _rows(table, "libraries")
            ),
            outputs=tuple(
                Output(each.text("name"), _sha256(each), _size(each)) for each in _rows(table, "outputs")
            ),
            inspection=_inspection(table.table("inspection")),
            notes=table.texts("notes"),
            compiler_cache=_cache(table.table("compiler_cache")) if "compiler_cache" in table else None,
        )  # fmt: skip
        table.done()
        if not manifest.outputs:
            table.problem("outputs", "is empty; a manifest describes at least one file")
        if problems:
            raise PackError(problems, do="take the manifest that was published with the result.")
        return manifest


def _object(data: bytes, name: str) -> dict[str, object]:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice in one object")
        return found

    try:
        content = json.loads(data, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise PackError(f"{name} is no JSON that can be read: {error}.") from error
    if not isinstance(content, dict):
        raise PackError(f"{name} should hold a JSON object, found {type(content).__name__}.")
    return content


def _rows(table: Table, key: str) -> Iterator[Table]:
    for row in table.each(key):
        yield row
        row.done()


def _sha256(table: Table, key: str = "sha256") -> Sha256:
    return table.parsed(key, Sha256, _NO_DIGEST)


def _size(table: Table, key: str = "size") -> int:
    value = table.whole(key)
    if value < 0:
        table.problem(key, f"= {value} is no size")
    return value


def _subject(table: Table) -> Subject:
    subject = Subject(*(table.text(field.name) for field in fields(Subject)))
    table.done()
    return subject


def _host(table: Table) -> Host:
    host = Host(
        table.text("system"),
        table.text("cpu"),
        _size(table, "cores"),
        _size(table, "memory"),
        table.text("python"),
    )
    table.done()
    return host


def _cache(table: Table) -> CacheUse:
    use = CacheUse(
        table.text("program"), table.text("where"), table.text("mode") == "read only",
        hits=_size(table, "hits"), misses=_size(table, "misses"), shared_hits=_size(table, "shared_hits"),
        failures=_size(table, "failures"),
    )  # fmt: skip
    table.done()
    return use


def _inspection(table: Table) -> Inspection:
    inspection = Inspection(table.parsed("verdict", Verdict, Verdict.UNKNOWN), _sha256(table, "report"))
    table.done()
    return inspection
