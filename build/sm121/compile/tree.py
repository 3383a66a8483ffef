"""Lays out a build tree from finished steps, touching only what changed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """One folder of the build tree: a finished step's folder and that step's key."""

    name: str
    folder: Path
    key: str
    writable: bool = False
    """Upstream's scripts write into the source: it is copied, everything else is hard-linked."""


def lay_out(tree: Path, parts: list[Part]) -> bool:
    """Bring `tree` to hold exactly `parts`; say whether anything changed.

    A part that is replaced is removed first and recorded last, so that an interruption leaves it unrecorded and
    it is laid out again.
    """
    tree.mkdir(parents=True, exist_ok=True)
    record = tree / "parts.json"
    have: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    changed = False
    for part in parts:
        if have.get(part.name) == part.key and (tree / part.name).is_dir():
            continue
        changed = True
        have.pop(part.name, None)
        _write(record, have)
        shutil.rmtree(tree / part.name, ignore_errors=True)
        copy = shutil.copy2 if part.writable else _link
        shutil.copytree(part.folder, tree / part.name, symlinks=True, copy_function=copy)
        have[part.name] = part.key
        _write(record, have)
    return changed


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _write(record: Path, have: dict[str, str]) -> None:
    scratch = record.with_suffix(".new")
    scratch.write_text(json.dumps(have, indent=1, sort_keys=True) + "\n")
    scratch.replace(record)
