"""The record of an image: what it was made of and what it became, all by digest; the manifests of our wheels in it.

Its JSON form is stable, has a version, and loads back strictly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sm121 import __version__
from sm121.artifact.imagedocs import Platform
from sm121.artifact.reference import parse_digest
from sm121.errors import ImageError, PackError
from sm121.findings import Verdict
from sm121.manifest import Inspection, Manifest, Tool
from sm121.pins.reading import Table
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
_NONE = Sha256("0" * 64)


@dataclass(frozen=True, slots=True)
class BuiltWheel:
    """A wheel of ours with its manifest. `contents` is the digest of its list of files (see `contents.py`)."""

    filename: str
    sha256: Sha256
    size: int
    contents: Sha256
    commit: str
    manifest: Manifest
    manifest_sha256: Sha256


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel of the locked runtime set."""

    name: str
    version: str
    filename: str
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    """A layer: digest and size (bytes) as stored, `diff_id` plain, and what it holds in words."""

    digest: Sha256
    size: int
    diff_id: Sha256
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """The whole record. `name` is the immutable name, `epoch` the time of every path, `builder` how it was made."""

    name: str
    digest: Sha256
    config: Sha256
    platform: Platform
    builder: str
    base_name: str
    base_digest: Sha256
    python: str
    epoch: int
    lock: Sha256
    line: str
    packages: tuple[Package, ...]
    wheels: tuple[BuiltWheel, ...]
    layers: tuple[RecordedLayer, ...]
    labels: tuple[tuple[str, str], ...]
    tools: tuple[Tool, ...]
    inspection: Inspection
    made_by: str = f"sm121 {__version__}"

    @property
    def verdict(self) -> Verdict:
        return self.inspection.verdict

    @property
    def our_layers(self) -> tuple[RecordedLayer, ...]:
        """The layers that were put over the base."""
        return tuple(layer for layer in self.layers if layer.holds != "base")

    def to_json(self) -> bytes:
        """The record as a file: equal records, equal bytes."""
        return (json.dumps(self._data(), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def _data(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "made_by": self.made_by,
            "name": self.name,
            "digest": str(self.digest),
            "config": str(self.config),
            "platform": str(self.platform),
            "builder": self.builder,
            "base": {"name": self.base_name, "digest": str(self.base_digest)},
            "python": self.python,
            "epoch": self.epoch,
            "runtime": {
                "line": self.line, "lock": self.lock.hex,
                "packages": [
                    {"name": e.name, "version": e.version, "filename": e.filename, "sha256": e.sha256.hex}
                    for e in sorted(self.packages, key=lambda e: e.name)
                ],
            },
            "wheels": [
                {
                    "filename": e.filename, "sha256": e.sha256.hex, "size": e.size, "contents": e.contents.hex,
                    **({"commit": e.commit} if e.commit else {}), "manifest_sha256": e.manifest_sha256.hex,
                    "manifest": json.loads(e.manifest.to_json()),
                }
                for e in self.wheels
            ],
            "layers": [
                {"digest": str(e.digest), "size": e.size, "diff_id": str(e.diff_id), "holds": e.holds}
                for e in self.layers
            ],
            "labels": dict(self.labels),
            "tools": [e.to_data() for e in sorted(self.tools, key=lambda e: e.name)],
            "inspection": {"verdict": str(self.inspection.verdict), "report": self.inspection.report.hex},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Self:
        """Read a record back; `name` is used in messages. Raises ImageError that names every fault."""
        problems: list[str] = []
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ImageError(f"{name} is no JSON that can be read: {error}.") from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            found = content.get("version") if isinstance(content, dict) else type(content).__name__
            raise ImageError(
                f"{name} should be a record of version {VERSION}, found {found!r}.", do="use a newer sm121."
            )
        table = Table(content, f"{name}:", problems)
        base, runtime, inspection = table.table("base"), table.table("runtime"), table.table("inspection")
        labels = table.table("labels")
        named = content.get("labels")
        table.whole("version")
        record = cls(
            made_by=table.text("made_by"), name=table.text("name"), digest=_digest(table, "digest"),
            config=_digest(table, "config"), platform=_platform(table), builder=table.text("builder"),
            base_name=base.text("name"), base_digest=_digest(base, "digest"), python=table.text("python"),
            epoch=table.whole("epoch"), lock=_hex(runtime, "lock"), line=runtime.text("line"),
            packages=tuple(
                Package(e.text("name"), e.text("version"), e.text("filename"), _hex(e)) for e in _rows(runtime, "packages")
            ),
            wheels=tuple(_wheel(e, content, number, problems) for number, e in enumerate(_rows(table, "wheels"))),
            layers=tuple(
                RecordedLayer(_digest(e, "digest"), e.whole("size"), _digest(e, "diff_id"), e.text("holds"))
                for e in _rows(table, "layers")
            ),
            labels=tuple((key, labels.text(key)) for key in sorted(named if isinstance(named, dict) else ())),
            tools=tuple(
                Tool(e.text("name"), e.text("version"), _hex(e) if "sha256" in e else None)
                for e in _rows(table, "tools")
            ),
            inspection=Inspection(inspection.parsed("verdict", Verdict, Verdict.UNKNOWN), _hex(inspection, "report")),
        )  # fmt: skip
        for each in (base, runtime, inspection, table):
            each.done()
        if not record.wheels or not record.layers:
            problems.append(f"{name}: it has no wheel or no layer.")
        if problems:
            raise ImageError(problems, do="take the record that was attached when the image was pushed.")
        return record


def _rows(table: Table, key: str) -> Iterator[Table]:
    for row in table.each(key):
        yield row
        row.done()


def _wheel(table: Table, content: dict[str, Any], number: int, problems: list[str]) -> BuiltWheel:
    table.table("manifest")
    held = content["wheels"][number].get("manifest")
    try:
        manifest = Manifest.from_json(json.dumps(held).encode(), table.at("manifest"))
    except PackError as error:
        problems += error.problems
        raise ImageError(problems) from error
    return BuiltWheel(
        table.text("filename"), _hex(table), table.whole("size"), _hex(table, "contents"), table.text("commit", ""),
        manifest, _hex(table, "manifest_sha256"),
    )  # fmt: skip


def _hex(table: Table, key: str = "sha256") -> Sha256:
    return table.parsed(key, Sha256, _NONE)


def _digest(table: Table, key: str) -> Sha256:
    return table.parsed(key, parse_digest, _NONE)


def _platform(table: Table) -> Platform:
    parts = table.text("platform").split("/")
    if len(parts) not in {2, 3}:
        table.problem("platform", "is no OS/ARCHITECTURE")
        return Platform("", "")
    return Platform(*parts)
