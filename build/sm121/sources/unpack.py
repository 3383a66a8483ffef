"""Wheels (zip) and sdists (tar.gz) into a new folder, whole or not at all.

Nothing in an archive is believed: every member is judged before the first is written, all bad ones are named in
one error, and the folder gets its name only when all its files are in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import StorageError, UnpackError
from sm121.progress import size as shown_size
from sm121.sources.disk import writing
from sm121.sources.members import Archive, Kind, Member, judge, open_archive, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIMIT = 8 << 30
"""Bytes that an archive may unpack to: four times the largest wheel in use."""
MEMBER_LIMIT = 200_000
MTIME = 315_619_200
"""1980-01-02 00:00 UTC: the first time that a zip file can state in every time zone."""


def unpack(
    archive: Path,
    into: Path,
    *,
    members: Callable[[str], bool] | None = None,
    executable: Callable[[str], bool] | None = None,
    strip: int = 0,
    limit: int = LIMIT,
) -> None:
    """Unpack `archive` into the new folder `into`.

    `members` and `executable` are asked with a member's path in the archive: whether to take it, and whether it
    is a program although the archive does not say so. `strip` leading path components are left out. Every file
    gets the same time, 0644 or 0755.

    Raises UnpackError (with all bad members) and StorageError; then `into` does not exist.
    """
    if os.path.lexists(into):
        raise UnpackError(f"{into} exists already; {archive.name} wants a new folder.", do="remove it.")
    with open_archive(archive, limit=limit, member_limit=MEMBER_LIMIT) as opened:
        found = judge(opened, wanted=members, strip=strip)
        if not found:
            raise UnpackError(f"{archive.name} has none of the members that are wanted from it.")
        _require_space(archive, into, found)
        with writing(into):
            into.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=into.parent, prefix=f".{into.name}.unpacking-"))
        try:
            _write(scratch, opened, found, executable or _never)
            with writing(into):
                scratch.chmod(0o755)
                scratch.rename(into)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def _never(_path: str) -> bool:
    return False


def _require_space(archive: Path, into: Path, found: Iterable[Member]) -> None:
    parent = next(folder for folder in into.absolute().parents if folder.exists())
    needed, free = sum(member.size for member in found), shutil.disk_usage(parent).free
    if needed > free:
        raise StorageError(
            f"{archive.name} unpacks to {shown_size(needed)}, {parent} has {shown_size(free)} left.",
            do="free space or name another folder.",
        )


def _write(root: Path, archive: Archive, found: Iterable[Member], executable: Callable[[str], bool]) -> None:
    links, folders = [], {root}
    for member in found:
        target = root / member.path
        folder = target if member.kind is Kind.FOLDER else target.parent
        with writing(target):
            folder.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in (folder, *folder.parents) if parent.is_relative_to(root))
        if member.kind is Kind.LINK:
            links.append((target, member.target))
        elif member.kind is Kind.FILE:
            _write_file(target, pieces(archive, member), member.size)
            target.chmod(0o755 if member.executable or executable(member.name) else 0o644)
            os.utime(target, (MTIME, MTIME))
    # Links come last: no file can be written through one.
    for link, points_to in links:
        with writing(link):
            link.symlink_to(points_to)
            os.utime(link, (MTIME, MTIME), follow_symlinks=False)
    for folder in folders:
        folder.chmod(0o755)
        os.utime(folder, (MTIME, MTIME))


def _write_file(target: Path, content: Iterable[bytes], size: int) -> None:
    with writing(target, wanted=size):
        file = target.open("xb")
    # The reading side's own OSErrors (a damaged gzip) are no fault of the disk that is written.
    with file:
        for piece in content:
            with writing(target, wanted=size):
                file.write(piece)
        with writing(target, wanted=size):
            file.flush()
