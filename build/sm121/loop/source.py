"""The folder that a developer edits: what of it decides about compiled code, and a copy to compile from.

Only `csrc`, `cmake` and `CMakeLists.txt` are taken from it; the rest of the source tree is upstream's. The folder itself
is never written to: the compilers and upstream's generators work on a copy in the build tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import UsageError
from sm121.sources import git
from sm121.sources.disk import completed_file, writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READ = ("csrc", "cmake", "CMakeLists.txt")
"""What of a vLLM source tree decides about compiled code: 350 files, 6 MB, so they are simply read."""
_SKIPPED = {"__pycache__", "node_modules"}
_CONFIGURES = (".txt", ".cmake", ".py", ".jinja", ".j2", ".in")
"""Endings of files that CMake and the generators that it runs read."""


def require_sources(root: Path) -> None:
    """Raise UsageError unless `root` looks like a vLLM source tree."""
    missing = [name for name in READ if not (root / name).exists()]
    if missing:
        raise UsageError(
            f"{root} is no source tree of vLLM: it has no {', '.join(missing)}.",
            do="name the folder that CMakeLists.txt is in, or make one: sm121 patches new --series VERSION.",
        )


def digests(root: Path) -> dict[str, str]:
    """Path -> sha256, in hexadecimal, of all files that matter below `root`."""
    found = {}
    for name in names(root):
        try:
            found[name] = hashlib.sha256((root / name).read_bytes()).hexdigest()
        except FileNotFoundError:  # an editor is just replacing it
            continue
    return found


def names(root: Path) -> Iterator[str]:
    """Paths of the files that matter. In a git repository, what it ignores does not count: it is generated."""
    if (root / ".git").exists():
        listed = git.run(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *READ).stdout
        found = [name for name in sorted({*listed.split("\0")}) if name and (root / name).is_file()]
    else:
        found = [*_below(root)]
    for name in found:
        if not any(part in _SKIPPED or part.startswith(".") for part in name.split("/")):
            yield name


def _below(root: Path) -> Iterator[str]:
    for top in READ:
        if (root / top).is_file():
            yield top
        for folder, folders, files in os.walk(root / top):
            folders.sort()
            where = Path(folder).relative_to(root)
            yield from (str(where / name) for name in sorted(files))


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Paths whose content differs, with those that only one of them has."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def configure_digest(files: Mapping[str, str]) -> str:
    """Digest of all that CMake reads: its files, the generators, and which sources there are for its patterns."""
    told = [f"{name} {digest if name.endswith(_CONFIGURES) else ''}" for name, digest in sorted(files.items())]
    return Sha256.of_bytes("\n".join(told).encode()).hex[:16]


def bring(root: Path, files: Mapping[str, str], rest: Path, into: Path) -> list[str]:
    """Make `into` hold `files` (path -> sha256) of `root`, all else of the tree `rest`; return what was changed.

    A file whose content is right keeps its time; a changed one gets the present time, so that ninja makes what
    depends on it. What upstream's generators wrote beside them stays.
    """
    record = into.with_name(f"{into.name}.edited.json")
    with writing(into):
        ours = _ours(record, rest, into)
        # Recorded before the first copy: whatever an interruption leaves is looked at again.
        _record(record, rest, ours | {*files})
        changed = []
        now = time.time()
        for name in sorted(ours | {*files}):
            target = into / name
            have = hashlib.sha256(target.read_bytes()).hexdigest() if target.is_file() else None
            if have == files.get(name):
                continue
            changed.append(name)
            target.unlink(missing_ok=True)
            if name in files:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target)
                os.utime(target, (now, now))
        _record(record, rest, {*files})
    return changed


def _ours(record: Path, rest: Path, into: Path) -> set[str]:
    """The edited files in `into`; where there is no record of them, a new copy of `rest`."""
    try:
        data = json.loads(record.read_text())
        if data["rest"] == str(rest) and into.is_dir():
            return {*data["files"]}
    except (OSError, ValueError, KeyError):
        pass
    record.unlink(missing_ok=True)
    shutil.rmtree(into, ignore_errors=True)
    scratch = into.with_name(f".{into.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(
        rest, scratch, symlinks=True, copy_function=_link, ignore=lambda folder, _: {*READ} & _top(rest, folder)
    )
    for top in READ:
        copy = shutil.copytree if (rest / top).is_dir() else shutil.copy2
        copy(rest / top, scratch / top)
    scratch.rename(into)
    return {*names(into)}


def _top(rest: Path, folder: str) -> set[str]:
    return {*READ} if Path(folder) == rest else set()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target, follow_symlinks=False)


def _record(record: Path, rest: Path, files: set[str]) -> None:
    with completed_file(record) as file:
        file.write(json.dumps({"rest": str(rest), "files": sorted(files)}).encode())
