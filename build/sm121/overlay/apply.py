"""Puts an overlay on an installed release, and takes it off again, byte for byte.

Everything that changes is kept inside of the dist-info folder first, where RECORD names it, so that an uninstall takes
it along. Files are never written in place: an installer's cache may share them by hard links. While `unfinished` lies
there, something is half done, and `remove` leads back.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import io
import json
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.errors import LockedError, OverlayError, PackError
from sm121.overlay.installed import KEPT, Installed, find_installed
from sm121.overlay.model import DOCUMENT, FILES, Overlay, is_inside, read_overlay
from sm121.overlay.texts import has_ledger, overlaid_texts
from sm121.pack.ledger import LEDGER_NAME
from sm121.pack.platform_tag import elf_machine
from sm121.sources.disk import completed_file, sync_folder, writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_BEFORE, _NEW, _UNFINISHED, _CHANGES = "before", "new", "unfinished", "changes.json"


class State(StrEnum):
    """How an installation stands."""

    RELEASE = "release"
    """No overlay."""
    APPLIED = "applied"
    UNFINISHED = "unfinished"
    """Putting on or taking off was interrupted."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that the overlay changes: path in the site folder as the release has it, digests before and after.

    What is kept of it has a number for a name: a second METADATA would look like a second distribution.
    """

    number: int
    path: str
    before: Sha256
    after: Sha256


@dataclass(frozen=True, slots=True)
class Status:
    """An installation, and the overlay on it."""

    state: State
    version: str
    overlay: Overlay | None = None
    changed: tuple[str, ...] = ()
    """Files of the overlay that are no longer what was put on."""


def status(environment: Path, project: str) -> Status:
    """What lies over `project` in the environment."""
    kept = _kept(environment, project)
    if kept is None:
        return Status(State.RELEASE, find_installed(environment, project).version)
    overlay = _overlay(kept)
    if (kept / _UNFINISHED).exists() or overlay is None:
        return Status(State.UNFINISHED, overlay.version if overlay else "", overlay)
    info = kept.parent
    record = f"{_old(kept)}/RECORD"
    changed = tuple(
        change.path
        for change in _changes(kept)
        if change.path != record and _digest(_now(info, change.path, kept)) != change.after
    )
    return Status(State.APPLIED, overlay.stamped, overlay, changed)


def apply(folder: Path, environment: Path) -> tuple[Overlay, Installed]:
    """Put the overlay in `folder` on the environment; one that lies there is taken off first.

    OverlayError with every reason why it does not fit; then nothing is changed.
    """
    overlay = read_overlay(folder)
    if _kept(environment, overlay.project) is not None:
        _require_same_release(environment, overlay)
        remove(environment, overlay.project)
    installed = find_installed(environment, overlay.project)
    with _locked(installed.folder), writing(installed.site):
        new = _fitting(overlay, installed)
        _prepare(installed, overlay, folder, new)
        _put_on(installed, overlay)
    return overlay, find_installed(environment, overlay.project)


def remove(environment: Path, project: str, *, force: bool = False) -> Installed:
    """Take the overlay off: every file is what it was, with its times and links.

    OverlayError if there is none, if files of it were changed since (unless `force`), or if what was kept is gone.
    """
    kept = _kept(environment, project)
    if kept is None:
        found = find_installed(environment, project)
        raise OverlayError(f"there is no overlay on {project} {found.version} in {environment}.")
    now = status(environment, project)
    if now.changed and not force:
        raise OverlayError(
            [f"{path} was changed after the overlay was put on." for path in now.changed],
            do="look at it, and give --force to lose those changes.",
        )
    with _locked(kept.parent), writing(kept.parent.parent):
        (kept / _UNFINISHED).touch()
        if now.overlay is not None:
            _restore(kept)
            kept = _rename(kept, _old(kept))
        last = [_CHANGES, DOCUMENT, _UNFINISHED]
        for place in sorted(
            kept.iterdir(), key=lambda place: last.index(place.name) if place.name in last else -1
        ):
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink()
        kept.rmdir()
    return find_installed(environment, project)


def _fitting(overlay: Overlay, installed: Installed) -> dict[str, bytes]:
    """The texts of the installation with the overlay on it, by their present paths; OverlayError if it does not fit."""
    problems = []
    if installed.version != overlay.version:
        problems.append(f"{overlay.project} {overlay.version} was wanted, found {installed.version}.")
    if installed.commit != overlay.commit:
        problems.append(f"commit {overlay.commit} was wanted, found {installed.commit or 'none'}.")
    info = installed.info
    texts = [installed.module, f"{info}/METADATA", *([f"{info}/{LEDGER_NAME}"] if has_ledger(installed) else [])]
    for path in [*(piece.path for piece in overlay.pieces), *texts]:
        file = installed.site / path
        if path not in installed.rows:
            problems.append(f"RECORD of {installed.info} does not list {path}.")
        elif file.is_symlink() or not file.is_file():
            problems.append(f"{file} should be a file.")
        elif not installed.matches(path):
            problems.append(f"{file} is not what RECORD says; it was changed after it was installed.")
        elif path not in texts and (machine := _machine(file)) != overlay.cpu:
            problems.append(f"{file} is for {machine}, the overlay for {overlay.cpu}.")
    if problems:
        raise OverlayError(
            problems, do=f"make the overlay for what is installed: `sm121 overlay make --onto {installed.site}`."
        )
    try:
        return overlaid_texts(overlay, installed)
    except PackError as error:
        raise OverlayError(error.problems, do=error.do) from error


def _prepare(installed: Installed, overlay: Overlay, folder: Path, texts: Mapping[str, bytes]) -> None:
    """Keep what is there and lay out what comes; nothing of the installation has changed afterwards."""
    site, info, kept = installed.site, installed.info, installed.kept
    kept.mkdir()
    (kept / _UNFINISHED).touch()
    sync_folder(kept)
    pieces = [piece.path for piece in overlay.pieces]
    paths = [*pieces, *texts, f"{info}/RECORD"]
    for number, path in enumerate(paths):
        _link(site / path, kept / _BEFORE / str(number))
        if path != paths[-1]:
            data = (folder / FILES / path).read_bytes() if path in pieces else texts[path]
            _stage(kept / _NEW / str(number), data, site / path)
    with completed_file(kept / DOCUMENT) as file:
        file.write(overlay.to_json())
    # RECORD lists the record of changes, which therefore does not know RECORD's own new digest.
    changes = [
        [path, _digest(site / path).hex, _digest(kept / _NEW / str(number)).hex]
        for number, path in enumerate(paths)
    ]
    with completed_file(kept / _CHANGES) as file:
        file.write((json.dumps({"info": info, "changes": changes}, indent=1) + "\n").encode())
    record = _record(installed, overlay, paths)
    _stage(kept / _NEW / str(len(pieces) + len(texts)), record, site / info / "RECORD")


def _record(installed: Installed, overlay: Overlay, paths: list[str]) -> bytes:
    """RECORD as it is with the overlay: the dist-info under its new name, what changed, and what is kept."""
    info, becomes, kept = installed.info, _info(installed, overlay), installed.kept
    text = (installed.folder / "RECORD").read_text(encoding="utf-8")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for path, digest, size in (row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 3):
        if path == f"{info}/RECORD":
            continue
        new = _row(kept / _NEW / str(paths.index(path))) if path in paths else (digest, size)
        writer.writerow((_moved(path, info, becomes), *new))
    for path in [DOCUMENT, _CHANGES, *(f"{_BEFORE}/{number}" for number in range(len(paths)))]:
        writer.writerow((f"{becomes}/{KEPT}/{path}", *_row(kept / path)))
    writer.writerow((f"{becomes}/RECORD", "", ""))
    return out.getvalue().encode()


def _put_on(installed: Installed, overlay: Overlay) -> None:
    kept = installed.kept
    for change in _changes(kept):
        (kept / _NEW / str(change.number)).replace(installed.site / change.path)
    kept = _rename(kept, _info(installed, overlay))
    shutil.rmtree(kept / _NEW)
    (kept / _UNFINISHED).unlink()
    sync_folder(kept)


def _restore(kept: Path) -> None:
    """Bring back every file that was kept; one that is no longer kept must be there already."""
    problems = []
    for change in _changes(kept):
        place, saved = _now(kept.parent, change.path, kept), kept / _BEFORE / str(change.number)
        if saved.exists():
            if _digest(saved) != change.before:
                problems.append(f"{saved} should be {change.before}: what was kept of the release is damaged.")
        elif not place.exists() or _digest(place) != change.before:
            problems.append(f"{place} cannot be brought back: {saved} is gone.")
    if problems:
        raise OverlayError(problems, do="install the release's wheel anew; nothing was changed.")
    for change in _changes(kept):
        saved = kept / _BEFORE / str(change.number)
        if saved.exists():
            saved.replace(_now(kept.parent, change.path, kept))


def _rename(kept: Path, info: str) -> Path:
    """Give the dist-info its name; the folder of what is kept moves with it."""
    becomes = kept.parent.with_name(info)
    if becomes != kept.parent:
        if becomes.exists():
            raise OverlayError(f"{becomes} exists already.", do="remove that folder if no installer knows it.")
        kept.parent.rename(becomes)
        sync_folder(becomes.parent)
    return becomes / KEPT


def _require_same_release(environment: Path, overlay: Overlay) -> None:
    """What lies below the overlay that is there must be the release that the new one is for."""
    there = status(environment, overlay.project).overlay
    if there is not None and (there.version, there.commit) != (overlay.version, overlay.commit):
        raise OverlayError(
            f"{overlay.project} {overlay.version}, commit {overlay.commit}, was wanted; below the overlay that lies "
            f"there is {there.version}, commit {there.commit}.",
            do="make the overlay for what is installed.",
        )


def _kept(environment: Path, project: str) -> Path | None:
    if not environment.is_dir():
        raise OverlayError(
            f"{environment} is no folder.", do="name a virtual environment or a site-packages folder."
        )
    installed = find_installed(environment, project)
    return installed.kept if installed.kept.is_dir() else None


def _overlay(kept: Path) -> Overlay | None:
    """The overlay whose putting on got so far that something may have changed; None before that."""
    if not (kept / _CHANGES).exists():
        return None
    try:
        data = (kept / DOCUMENT).read_bytes()
    except OSError as error:
        raise _unusable(kept / DOCUMENT, error.strerror or str(error)) from error
    return Overlay.from_json(data, str(kept / DOCUMENT))


def _changes(kept: Path) -> list[Change]:
    return _told(kept)[1]


def _old(kept: Path) -> str:
    return _told(kept)[0]


def _told(kept: Path) -> tuple[str, list[Change]]:
    """The release's dist-info, and what was changed. Files are written by it: none outside of the site folder."""
    try:
        told = json.loads((kept / _CHANGES).read_bytes())
        info = str(told["info"])
        rows = enumerate(told["changes"])
        changes = [Change(number, str(path), Sha256(old), Sha256(new)) for number, (path, old, new) in rows]
    except OSError as error:
        raise _unusable(kept / _CHANGES, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unusable(kept / _CHANGES, f"{type(error).__name__}: {error}") from error
    outside = [each for each in (info, *(change.path for change in changes)) if not is_inside(each)]
    if outside or "/" in info:
        raise _unusable(kept / _CHANGES, f"it names {', '.join(outside) or info}")
    return info, changes


def _unusable(file: Path, reason: str) -> OverlayError:
    return OverlayError(
        f"{file} cannot be used: {reason}.", do="install the release's wheel anew; nothing was changed."
    )


def _now(info: Path, path: str, kept: Path) -> Path:
    """Where a file of the release is at present: its dist-info may have another name."""
    return info.parent / _moved(path, _old(kept), info.name)


def _moved(path: str, info: str, becomes: str) -> str:
    return becomes + path.removeprefix(info) if path.startswith(f"{info}/") else path


def _info(installed: Installed, overlay: Overlay) -> str:
    name = installed.info.removesuffix(".dist-info").rpartition("-")[0]
    return f"{name}-{overlay.stamped}.dist-info"


def _machine(file: Path) -> str:
    with file.open("rb") as opened:
        return elf_machine(opened.read(20))


def _link(origin: Path, into: Path) -> None:
    """Keep a file: the same inode where that is possible."""
    into.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(origin, into)
    except OSError:
        shutil.copy2(origin, into)


def _stage(file: Path, data: bytes, like: Path) -> None:
    status = like.stat()
    with completed_file(file, mode=status.st_mode & 0o777) as opened:
        opened.write(data)
    with suppress(PermissionError):
        os.chown(file, status.st_uid, status.st_gid)


def _row(file: Path) -> tuple[str, int]:
    digest = base64.urlsafe_b64encode(bytes.fromhex(_digest(file).hex)).rstrip(b"=").decode()
    return f"sha256={digest}", file.stat().st_size


def _digest(file: Path) -> Sha256:
    return Sha256.of_file(file) if file.exists() else Sha256("0" * 64)


@contextmanager
def _locked(info: Path) -> Iterator[None]:
    """Keep others from changing the same installation. The lock is on the folder itself, which leaves no file."""
    descriptor = os.open(info, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockedError(f"another sm121 changes {info}.", do="wait for it.") from error
        yield
    finally:
        os.close(descriptor)
