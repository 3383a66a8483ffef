"""Objects kept by the content that they were made from, each with what was read of its machine code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sm121.loop.code import UnitCode, read_unit
from sm121.sources.disk import completed_file
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sm121.compile.edges import Edge
    from sm121.steps import Build

KEPT = 30
"""Objects per unit; the oldest goes first. The largest of vLLM's is 5 MB."""
_FORM = 1
"""Raised when records are read differently."""


@dataclass(frozen=True)
class Kept:
    """An object: `key` is the digest of its command and of all sources that it was made from (path -> sha256)."""

    key: str
    command: str
    reads: Mapping[str, str]
    object: Path

    @cached_property
    def code(self) -> UnitCode:
        """What was read of its machine code."""
        record = self.object.with_suffix(".code.json")
        try:
            return UnitCode.from_data(json.loads(record.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            code = read_unit(self.object.read_bytes())
            with completed_file(record) as file:
                file.write(json.dumps(code.data).encode())
            return code

    def fits(self, unit: Edge, files: Mapping[str, str]) -> bool:
        """Whether the sources `files` make this object of `unit`."""
        return self.command == unit.command.hex and all(
            files.get(path) == sha for path, sha in self.reads.items()
        )


class Store:
    """Objects of one toolkit, torch and host compiler: a folder per unit, with its objects in the order they came."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, build: Build) -> Store:
        """The store of a plan. Sources are no part of the name: they are what the objects in it differ by."""
        step = build.plan.step("libraries")
        same = {
            "needs": {name: key for name, key in step.needs.items() if name != "source"}, "argv": step.argv,
            "env": dict(step.env), "compiler": step.inputs["host compiler"], "python": step.inputs["python"], "form": _FORM,
        }  # fmt: skip
        key = Sha256.of_bytes(json.dumps(same, sort_keys=True).encode()).hex[:16]
        return cls(build.work.root / "kernels" / key)

    def history(self, unit: str) -> list[Kept]:
        """What the developer's own passes made of a unit, the newest last."""
        folder = self._of(unit)
        return [kept for key in self._order(folder) if (kept := self._load(folder, key))]

    def find(self, unit: Edge, files: Mapping[str, str]) -> Kept | None:
        """The object that the sources `files` make of `unit`, if it is here."""
        folder = self._of(unit.name)
        keys = [path.stem for path in folder.glob("*.o")]
        return next((kept for key in keys if (kept := self._load(folder, key)) and kept.fits(unit, files)), None)

    def keep(
        self, unit: Edge, made: Path, reads: Iterable[str], files: Mapping[str, str], *, newest: bool = True
    ) -> Kept:
        """Keep the object `made` of the sources `files`; with `newest`, as the last step of the unit's history."""
        digests = {path: files.get(path, "") for path in sorted(reads)}
        key = Sha256.of_bytes(json.dumps([unit.command.hex, digests]).encode()).hex[:16]
        folder = self._of(unit.name)
        kept = Kept(key, unit.command.hex, digests, folder / f"{key}.o")
        data = made.read_bytes()
        if not kept.object.is_file() or kept.object.read_bytes() != data:
            kept.object.with_suffix(".code.json").unlink(missing_ok=True)
            with completed_file(folder / f"{key}.json") as file:
                file.write(json.dumps({"command": kept.command, "reads": digests}).encode())
            with completed_file(kept.object) as file:
                file.write(data)
        if newest:
            self._newest(folder, key)
        self._prune(folder, key)
        return kept

    def _newest(self, folder: Path, key: str) -> None:
        order = self._order(folder)
        if order[-1:] != [key]:
            with completed_file(folder / "order.json") as file:
                file.write(json.dumps([*(other for other in order if other != key), key]).encode())

    @staticmethod
    def _prune(folder: Path, key: str) -> None:
        """Remove the oldest objects above KEPT, never `key`."""
        by_age = sorted(folder.glob("*.o"), key=lambda path: path.stat().st_mtime_ns)
        for old in [path for path in by_age if path.stem != key][: max(0, len(by_age) - KEPT)]:
            for path in (old, old.with_suffix(".json"), old.with_suffix(".code.json")):
                path.unlink(missing_ok=True)

    @staticmethod
    def _order(folder: Path) -> list[str]:
        try:
            return [str(key) for key in json.loads((folder / "order.json").read_text())]
        except (OSError, ValueError):
            return []

    @staticmethod
    def _load(folder: Path, key: str) -> Kept | None:
        try:
            data = json.loads((folder / f"{key}.json").read_text())
            kept = Kept(key, data["command"], data["reads"], folder / f"{key}.o")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return kept if kept.object.is_file() else None

    def _of(self, unit: str) -> Path:
        return self.folder / unit.replace("/", "+")
