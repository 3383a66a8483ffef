"""A git repository to edit patches in: upstream's sources as one commit, each patch of a series as one more.

The developer works in it with plain git; `export` turns its commits back into the series.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import PatchError, UsageError
from sm121.sources import git
from sm121.sources.disk import writing
from sm121.sources.series import FIELDS, SERIES, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_BASE = "sm121-base"
_PLAIN = "* -text -filter -ident\n"
_HELP = {
    "Why": "what goes wrong without it, on which machine",
    "Upstream": "LINK open|merged|closed YYYY-MM-DD, or: none YYYY-MM-DD",
    "Applies-to": "(filled in by refresh)",
    "Drop-when": "what must be true for this patch to go",
    "Kernels": "kernels or extensions whose code changes, or: none",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """A series made from commits: file name -> bytes, and the marks of each name."""

    files: Mapping[str, bytes]
    marks: Mapping[str, frozenset[str]]


class WorkTree:
    """The repository at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / ".git").is_dir()

    @property
    def version(self) -> str:
        """The version that the patches lie on."""
        return git.run(self.path, "config", "sm121.version").stdout.strip()

    def create(self, version: str, place: Callable[[Path], None]) -> None:
        """Make the repository; `place` fills a folder with the sources of `version`, without our patches.

        Raises UsageError if it is there already.
        """
        if self.path.exists():
            raise UsageError(
                f"{self.path} exists already.",
                do="go on in it and run `sm121 patches refresh`, or remove the folder to begin anew.",
            )
        with writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}.new-"))
        try:
            tree = scratch / "tree"
            place(tree)
            git.run(tree, "init", "-q", "-b", "patches")
            # Upstream's own attributes would change line ends; here every byte counts.
            (tree / ".git" / "info").mkdir(exist_ok=True)
            (tree / ".git" / "info" / "attributes").write_text(_PLAIN)
            for key, value in (
                ("core.autocrlf", "false"),
                ("commit.gpgsign", "false"),
                ("sm121.version", version),
            ):
                git.run(tree, "config", key, value)
            self._offer_template(tree)
            git.run(tree, "add", "-A", "-f")
            git.run(tree, "commit", "-q", "--no-verify", "-m", version)
            git.run(tree, "branch", _BASE)
            with writing(self.path):
                tree.rename(self.path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def add(self, patches: Iterable[Patch]) -> None:
        """Make each patch a commit. Raises PatchError at the first that conflicts, and leaves it as git does."""
        for patch in patches:
            file = self.path / ".git" / "sm121.patch"
            file.write_bytes(patch.data)
            done = git.run(self.path, "am", "-q", "-3", "--keep-cr", "--keep-non-patch", file, check=False)
            if done.returncode:
                raise self._conflict(patch.name, "am")

    def rebase(self, version: str, place: Callable[[Path], None]) -> tuple[int, int]:
        """Put the patches onto another version; return how many there were and how many are left.

        Patches that the other version has already fall away. Raises PatchError on a conflict, which is left in
        the ordinary way of `git rebase`.
        """
        self.require_quiet()
        before = self._count(_BASE)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".onto-") as folder:
            tree = Path(folder) / "tree"
            place(tree)
            own = {
                "GIT_DIR": str((self.path / ".git").resolve()), "GIT_WORK_TREE": str(tree.resolve()),
                "GIT_INDEX_FILE": str(Path(folder).resolve() / "index"),
            }  # fmt: skip
            git.run(tree, "add", "-A", "-f", env=own)
            written = git.run(tree, "write-tree", env=own).stdout.strip()
        old = git.run(self.path, "rev-parse", _BASE).stdout.strip()
        new = git.run(self.path, "commit-tree", "-p", old, "-m", version, written).stdout.strip()
        git.run(self.path, "branch", "-f", _BASE, new)
        git.run(self.path, "config", "sm121.version", version)
        done = git.run(self.path, "rebase", "-q", "--empty=drop", "--onto", new, old, check=False)
        if done.returncode:
            raise self._conflict("a patch", "rebase")
        return before, self._count(_BASE)

    def require_quiet(self) -> None:
        """Raise PatchError if an operation of git is unfinished or a change is not committed."""
        for name in ("rebase-merge", "rebase-apply"):
            if (self.path / ".git" / name).exists():
                raise self._conflict(
                    "a patch", "am" if (self.path / ".git" / name / "applying").exists() else "rebase"
                )
        changed = git.run(self.path, "status", "--porcelain").stdout.splitlines()
        if changed:
            raise PatchError(
                [f"{self.path}: {line[3:]} is changed and not committed." for line in changed[:20]],
                do="commit it, each patch as one commit (git commit, or git commit --amend).",
            )

    def export(self, applies_to: str, known: Mapping[str, frozenset[str]]) -> Exported:
        """The commits as patches for the folder `applies_to`; `known` are the marks that the patches had.

        Raises PatchError with every field that a commit message lacks.
        """
        self.require_quiet()
        with tempfile.TemporaryDirectory() as folder:
            git.run(
                self.path, "format-patch", "-q", "--zero-commit", "--no-signature", "-N", "--full-index",
                "--stat=100", "-o", folder, f"{_BASE}..HEAD",
            )  # fmt: skip
            files = {
                path.name: _applies_to(path.read_bytes(), applies_to) for path in sorted(Path(folder).iterdir())
            }
        faults = [fault for name, data in files.items() for fault in Patch.parse(name, data).faults()]
        if faults:
            raise PatchError(faults, do=f"reword the commits in {self.path} (git rebase -i {_BASE}).")
        by_title = {_title(name): marks for name, marks in known.items()}
        return Exported(files, {name: by_title.get(_title(name), frozenset()) for name in files})

    def _count(self, base: str) -> int:
        return int(git.run(self.path, "rev-list", "--count", f"{base}..HEAD").stdout)

    def _conflict(self, what: str, verb: str) -> PatchError:
        listed = git.run(self.path, "diff", "--name-only", "-z", "--diff-filter=U").stdout
        unmerged = [name for name in listed.split("\0") if name]
        where = f" in {', '.join(unmerged)}" if unmerged else ""
        return PatchError(
            f"{what} conflicts{where}; git {verb} is unfinished in {self.path}.",
            do=f"resolve it there (git add, git {verb} --continue or --skip), then run `sm121 patches refresh`.",
        )

    @staticmethod
    def _offer_template(tree: Path) -> None:
        template = tree / ".git" / "sm121-message"
        fields = "".join(f"{name}: {_HELP[name]}\n" for name in FIELDS)
        template.write_text(f"\n\n{fields}")
        git.run(tree, "config", "commit.template", str(Path(".git") / "sm121-message"))


def write_series(folder: Path, exported: Exported) -> list[str]:
    """Make `folder` hold exactly this series; return what changed, in words. Comments above the list stay."""
    old = {path.name: path.read_bytes() for path in folder.glob("*.patch")} if folder.is_dir() else {}
    comments = _comments(folder / SERIES)
    listed = "".join(f"{' '.join([name, *sorted(exported.marks[name])])}\n" for name in exported.files)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new-"))
        try:
            fresh, away = scratch / "new", scratch / "old"
            fresh.mkdir()
            for name, data in exported.files.items():
                (fresh / name).write_bytes(data)
            (fresh / SERIES).write_text(comments + listed)
            if folder.exists():
                folder.rename(away)
            fresh.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return [
        *(f"new: {name}" for name in exported.files if name not in old),
        *(f"changed: {name}" for name, data in exported.files.items() if name in old and old[name] != data),
        *(f"gone: {name}" for name in old if name not in exported.files),
    ]


def _comments(path: Path) -> str:
    if not path.is_file():
        return ""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.startswith("#"):
            break
        kept.append(line)
    return "".join(kept)


def _applies_to(data: bytes, versions: str) -> bytes:
    """State the folder's versions in the message; git does not hash it."""
    head, mark, rest = data.partition(b"\n---\n")
    line = f"Applies-to: {versions}".encode()
    if re.search(rb"^Applies-to:.*(?:\n[ \t].*)*", head, re.MULTILINE):
        head = re.sub(
            rb"^Applies-to:.*(?:\n[ \t].*)*", line.replace(b"\\", rb"\\"), head, count=1, flags=re.MULTILINE
        )
    else:
        head = head.rstrip(b"\n") + b"\n" + line
    return head + mark + rest


def _title(name: str) -> str:
    return re.sub(r"^\d+-", "", name)
