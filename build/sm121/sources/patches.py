"""Patches judged as a set before the tree is touched, applied as a whole or not at all, and remembered.

git does the work. Every patch is judged on top of those before it, on a copy of the files that it names.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from sm121.errors import PatchError
from sm121.findings import Finding, Verdict
from sm121.sources import git
from sm121.sources.disk import writing
from sm121.sources.series import load_patches
from sm121.sources.tree import tree_digest
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sm121.sources.series import Patch


_SUMMARY = re.compile(
    rb"^ (\d+) files? changed(?:, (\d+) insertions?\(\+\))?(?:, (\d+) deletions?\(-\))?$", re.MULTILINE
)
"""The last line of the statistics that git format-patch puts before a diff."""


class State(StrEnum):
    """How a patch stands to a tree."""

    APPLIES = "APPLIES"
    OFFSET = "OFFSET"
    """Applies, at other lines than it says."""
    ALREADY = "ALREADY"
    """The tree has the change; nothing to do."""
    CONFLICT = "CONFLICT"
    TARGET_MISSING = "TARGET-MISSING"
    """Changes a file that the tree does not have."""
    CORRUPT = "CORRUPT"
    """Not a whole patch, or one that wants to leave the tree."""

    @property
    def applies(self) -> bool:
        return self in {State.APPLIES, State.OFFSET}


@dataclass(frozen=True, slots=True)
class Judged:
    """A patch and how it stands to the tree as the patches before it leave it.

    `files` are the paths it names, `missing` those of them that are not there, `conflicts` the hunks without a
    place, `said` git's own words. `forward` and `reverse` are the exit codes of `git apply --check` and of the
    same with `--reverse`.
    """

    patch: Patch
    state: State
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    conflicts: tuple[git.Hunks, ...] = ()
    said: tuple[str, ...] = ()
    forward: int = 128
    reverse: int = 128

    @property
    def stops(self) -> bool:
        """Whether the set must not be applied because of this patch. A damaged patch always stops."""
        if self.state is State.CORRUPT:
            return True
        return not self.state.applies and self.state is not State.ALREADY and not self.patch.optional

    @property
    def message(self) -> str:
        """The state in words, with the files and hunks."""
        told = "; ".join(self.said) or "git gave no reason"
        match self.state:
            case State.APPLIES:
                return "applies"
            case State.OFFSET:
                return "applies with an offset"
            case State.ALREADY:
                return "is already in the tree"
            case State.TARGET_MISSING:
                return f"changes {', '.join(self.missing)}, which the tree does not have"
            case State.CORRUPT:
                return f"is damaged: {told}"
            case State.CONFLICT:
                where = ", ".join(str(hunks) for hunks in self.conflicts) or told
                return f"does not apply (conflict): {where}"

    @property
    def finding(self) -> Finding:
        """The judgement as a finding."""
        skipped = not self.stops and not self.state.applies and self.state is not State.ALREADY
        verdict = {State.APPLIES: Verdict.PASS, State.OFFSET: Verdict.PASS, State.ALREADY: Verdict.INFO}.get(
            self.state, Verdict.WARN if skipped else Verdict.FAIL
        )
        drop = self.patch.value("Drop-when")
        advice = {
            State.ALREADY: f"Drop it{f' (drop when: {drop})' if drop else ''}.",
            State.CONFLICT: "Rebase it onto this version, or end the range that it belongs to.",
            State.TARGET_MISSING: "Rebase it onto this version, or end the range that it belongs to.",
            State.CORRUPT: "Restore the patch file.",
        }.get(self.state, "")
        return Finding(
            "patch.applies", self.patch.name, verdict,
            f"{self.message}{'; it is optional and left out' if skipped else ''}",
            wanted="" if verdict in {Verdict.PASS, Verdict.INFO} else "a patch that applies", advice=advice,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What became of one patch; `applied` is False for one that was already in or, being optional, left out."""

    name: str
    sha256: Sha256
    state: State
    applied: bool
    files: tuple[str, ...]
    optional: bool
    subject: str
    fields: Mapping[str, str]

    @classmethod
    def of(cls, judged: Judged) -> Self:
        patch = judged.patch
        return cls(
            patch.name, patch.sha256, judged.state, judged.state.applies, judged.files, patch.optional,
            patch.subject, {name: patch.value(name) for name in sorted(patch.fields)},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """Which patches made a tree what it is: the tree's digest before and after, and each patch by its hash."""

    before: Sha256
    after: Sha256
    entries: tuple[LedgerEntry, ...]

    @property
    def data(self) -> dict[str, Any]:
        """Plain data for a manifest or a wheel, the same for the same patches and tree."""
        return {
            "tree_before": self.before.hex,
            "tree_after": self.after.hex,
            "patches": [
                {
                    "name": entry.name,
                    "sha256": entry.sha256.hex,
                    "state": str(entry.state),
                    "applied": entry.applied,
                    "optional": entry.optional,
                    "subject": entry.subject,
                    "files": list(entry.files),
                    "fields": dict(entry.fields),
                }
                for entry in self.entries
            ],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Read what `data` gave. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            Sha256(data["tree_before"]),
            Sha256(data["tree_after"]),
            tuple(
                LedgerEntry(
                    str(one["name"]), Sha256(one["sha256"]), State(one["state"]), bool(one["applied"]),
                    tuple(one["files"]), bool(one["optional"]), str(one["subject"]), dict(one["fields"]),
                )
                for one in data["patches"]
            ),
        )  # fmt: skip


def planned_patches(
    root: Path, project: str, version: str, extra: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Name and sha256 of the patches that a build will apply, in their order: what a plan has to know of them."""
    return tuple((patch.name, patch.sha256.hex) for patch in load_patches(root, project, version, extra))


def named_paths(patches: Iterable[Patch]) -> frozenset[str]:
    """All paths that these patches name; a patch that git cannot read names none."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "patch"
        found = set[str]()
        for patch in patches:
            file.write_bytes(patch.data)
            stat = git.stat(Path(folder), file)
            if isinstance(stat, git.Stat):
                found.update(stat.paths)
        return frozenset(found)


def judge(patches: Iterable[Patch], tree: Path) -> list[Judged]:
    """Judge all patches in their order; `tree` is only read."""
    with _bench(tree) as bench:
        return [bench.judge(patch) for patch in patches]


def require(judged: Sequence[Judged]) -> None:
    """Raise one PatchError that names every patch that must not be passed over."""
    faults = [f"{one.patch.name} {one.message}." for one in judged if one.stops]
    if faults:
        raise PatchError(
            faults, do="rebase or drop these patches; the tree was not touched and no other patch was applied."
        )


def apply(patches: Iterable[Patch], tree: Path) -> Ledger:
    """Apply all patches to `tree`, or none, and say what was done.

    The patched tree is made beside the old one and takes its place at the end; untouched files are the same
    files (hard links) with the same times. Raises PatchError (as `require`) and StorageError; the tree is then
    as it was.
    """
    tree = tree.resolve()
    before = tree_digest(tree)
    with _bench(tree) as bench:
        judged = [bench.judge(patch) for patch in patches]
        require(judged)
        entries = tuple(LedgerEntry.of(one) for one in judged)
        changed = sorted({path for one in judged if one.state.applies for path in one.files})
        if not changed:
            return Ledger(before, before, entries)
        with writing(tree.parent):
            beside = Path(tempfile.mkdtemp(dir=tree.parent, prefix=f".{tree.name}.patching-"))
        try:
            after = _exchange(tree, beside, bench.tree, changed)
        finally:
            if tree.is_dir():
                shutil.rmtree(beside, ignore_errors=True)
    return Ledger(before, after, entries)


def _exchange(tree: Path, beside: Path, results: Path, changed: Iterable[str]) -> Sha256:
    """Build the new tree in the folder `beside` and let it take the old one's place; return its digest."""
    fresh, old = beside / "new", beside / "old"
    with writing(fresh):
        shutil.copytree(tree, fresh, symlinks=True, copy_function=_link)
        for path in changed:
            target, result = fresh / path, results / path
            if os.path.lexists(target):
                target.unlink()
            if os.path.lexists(result):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(result, target, follow_symlinks=False)
            else:
                _prune(target.parent, fresh)
        after = tree_digest(fresh)
        tree.rename(old)
        try:
            fresh.rename(tree)
        except BaseException:
            old.rename(tree)
            raise
    return after


def _link(source: str, target: str) -> str:
    """The same file under another name; a copy where the file system has no such thing."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _prune(folder: Path, root: Path) -> None:
    """Remove folders that a patch emptied, as git does."""
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


@contextmanager
def _bench(tree: Path) -> Iterator[_Bench]:
    if not tree.is_dir():
        raise PatchError(f"{tree} is not a folder; patches need an unpacked source tree.")
    with tempfile.TemporaryDirectory(prefix="sm121-patches-") as folder:
        yield _Bench(tree, Path(folder).resolve())


class _Bench:
    """A place with copies of the files that patches name, outside any repository."""

    def __init__(self, original: Path, folder: Path) -> None:
        self._original = original
        self._folder = folder
        self._seen: set[str] = set()
        self.tree = folder / "tree"
        self.tree.mkdir()

    def judge(self, patch: Patch) -> Judged:
        """Judge one patch, and apply it here if it applies, so that the next is judged on top of it."""
        file = self._folder / "patch"
        file.write_bytes(patch.data)
        stat = git.stat(self.tree, file)
        if isinstance(stat, git.Applied):
            return Judged(patch, State.CORRUPT, said=stat.errors, forward=stat.code, reverse=stat.code)
        fault = self._fault(patch, stat)
        if fault:
            return Judged(patch, State.CORRUPT, stat.paths, said=(fault,))
        behind = [path for path in stat.paths if self._bring(path)]
        if behind:
            said = tuple(f"{path} lies behind a link or below a file" for path in behind)
            return Judged(patch, State.CONFLICT, stat.paths, said=said)
        return self._try(patch, file, stat.paths)

    def _try(self, patch: Patch, file: Path, paths: tuple[str, ...]) -> Judged:
        forward = git.apply(self.tree, file, "--check")
        reverse = git.apply(self.tree, file, "--check", "--reverse")
        judged = partial(Judged, patch, files=paths, forward=forward.code, reverse=reverse.code)
        if forward.code and not reverse.code:
            return judged(state=State.ALREADY)
        if not forward.code:
            # A change that is in at its exact place can often be made once more, further down.
            if forward.offset and not reverse.code and not reverse.offset:
                return judged(state=State.ALREADY)
            done = git.apply(self.tree, file)
            if done.code:
                raise PatchError(f"{patch.name}: git could apply it a moment ago: {'; '.join(done.errors)}.")
            return judged(state=State.OFFSET if forward.offset else State.APPLIES)
        if forward.missing:
            return judged(state=State.TARGET_MISSING, missing=forward.missing, said=forward.errors)
        trial = self._folder / "trial"
        shutil.copytree(self.tree, trial, symlinks=True)
        rejected = git.apply(trial, file, "--reject").rejected
        shutil.rmtree(trial)
        return judged(state=State.CONFLICT, conflicts=rejected, said=forward.errors)

    @staticmethod
    def _fault(patch: Patch, stat: git.Stat) -> str:
        for path in stat.paths:
            parts = PurePosixPath(path).parts
            if path.startswith("/") or ".." in parts or ".git" in parts:
                return f"it wants to write {path}, which is not in the tree"
        head, diff, _ = patch.data.partition(b"\ndiff --git ")
        claim = list(_SUMMARY.finditer(head))[-1:] if diff else []
        for match in claim:
            wanted = (int(match[2] or 0), int(match[3] or 0))
            if wanted != (stat.added, stat.removed):
                return (
                    f"its summary says {wanted[0]} lines added and {wanted[1]} removed, "
                    f"its hunks add {stat.added} and remove {stat.removed}"
                )
        return ""

    def _bring(self, path: str) -> bool:
        """Copy a file of the tree here, once. Returns whether the path cannot be reached without a link."""
        if path in self._seen:
            return False
        source, target = self._original / path, self.tree / path
        for parent in [folder for folder in source.parents if folder.is_relative_to(self._original)][:-1]:
            if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
                return True
        self._seen.add(path)
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir() and not source.is_symlink():
                target.mkdir(exist_ok=True)
            else:
                shutil.copy2(source, target, follow_symlinks=False)
        return False
