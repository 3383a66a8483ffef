"""Lays out a build tree from finished steps, touching only what changed."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import time
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


def lay_out(tree: Path, parts: list[Part]) -> set[str]:
    """Bring `tree` to hold exactly `parts`; return the names of those that changed.

    A writable part is brought up to date file by file, and changed files get the present time, so that ninja makes
    only what depends on them; what a build wrote beside them stays. Any other part is replaced: removed first and
    recorded last, so that an interruption leaves it unrecorded and it is laid out again.
    """
    tree.mkdir(parents=True, exist_ok=True)
    record = tree / "parts.json"
    have: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    changed = set()
    for part in parts:
        if have.get(part.name) == part.key and (tree / part.name).is_dir():
            continue
        changed.add(part.name)
        have.pop(part.name, None)
        _write(record, have)
        if part.writable:
            _update(part.folder, tree / part.name, tree / f"{part.name}.files.json")
        else:
            shutil.rmtree(tree / part.name, ignore_errors=True)
            shutil.copytree(part.folder, tree / part.name, symlinks=True, copy_function=_link)
        have[part.name] = part.key
        _write(record, have)
    return changed


def _update(origin: Path, into: Path, record: Path) -> None:
    """Copy what differs; remove what was copied once and is no longer there."""
    before = set(json.loads(record.read_text())) if record.exists() else set()
    files = {str(path.relative_to(origin)) for path in origin.rglob("*") if not path.is_dir()}
    record.write_text(json.dumps(sorted(before | files)))
    now = time.time()
    for name in sorted(files):
        source, target = origin / name, into / name
        if target.exists() and filecmp.cmp(source, target, shallow=False):
            continue
        known = name in before
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        if known and not target.is_symlink():
            os.utime(target, (now, now))
    for name in before - files:
        (into / name).unlink(missing_ok=True)
    record.write_text(json.dumps(sorted(files)))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _write(record: Path, have: dict[str, str]) -> None:
    scratch = record.with_suffix(".new")
    scratch.write_text(json.dumps(have, indent=1, sort_keys=True) + "\n")
    scratch.replace(record)
