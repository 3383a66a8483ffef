"""Who wrote a line: upstream, a patch by name, or the developer just now. git answers, over the files in question."""

from __future__ import annotations

import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.sources import git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sm121.sources.series import Patch

_BASE = "sm121-base"
"""The branch of a work tree of `sm121 patches` that holds upstream's sources."""
_HEADER = re.compile(r"[0-9a-f]{40,64} \d+ (\d+)(?: \d+)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """Upstream's sources as they are, `place` fills a folder with the named files of them; the patches that lie on top."""

    title: str
    place: Callable[[Path, frozenset[str]], None]
    patches: Sequence[Patch]


def owners(edited: Path, lines: Sequence[tuple[str, int]], origin: Origin) -> dict[tuple[str, int], str]:
    """(path, line) -> `the patch 0001-x.patch`, `your edit` or upstream's name. Lines that are not there are left out."""
    found = {}
    with _repository(edited, frozenset(path for path, _ in lines), origin) as (repository, names):
        for path in dict.fromkeys(path for path, _ in lines):
            written = _blamed(repository, path)
            for line in dict.fromkeys(line for other, line in lines if other == path):
                if commit := written.get(line):
                    found[path, line] = names.get(commit, "your edit" if not commit.strip("0") else origin.title)
    return found


@contextmanager
def _repository(edited: Path, paths: frozenset[str], origin: Origin) -> Iterator[tuple[Path, dict[str, str]]]:
    """A repository with a commit per patch, and what each commit is. A work tree of patches is one already."""
    if (edited / ".git").is_dir() and not git.run(
        edited, "rev-parse", "-q", "--verify", _BASE, check=False
    ).returncode:
        log = git.run(edited, "log", "--format=%H %s", f"{_BASE}..HEAD").stdout.splitlines()
        yield edited, {line.split()[0]: f"the commit {line.partition(' ')[2]!r}" for line in log}
        return
    with tempfile.TemporaryDirectory(prefix="sm121-owners-") as folder:
        tree = Path(folder) / "tree"
        origin.place(tree, paths)
        tree.mkdir(exist_ok=True)
        git.run(tree, "init", "-q")
        _commit(tree, "upstream")
        names = {}
        for patch in origin.patches:
            file = Path(folder) / "patch"
            file.write_bytes(patch.data)
            included = [f"--include={path}" for path in sorted(paths)]
            git.run(tree, "apply", "--whitespace=nowarn", *included, file, check=False)
            names[_commit(tree, patch.name)] = f"the patch {patch.name}"
        for path in paths:
            if (edited / path).is_file():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(edited / path, tree / path)
        git.run(tree, "add", "-A", "-N", "-f")
        yield tree, names


def _commit(tree: Path, message: str) -> str:
    git.run(tree, "add", "-A", "-f")
    git.run(tree, "commit", "-q", "--allow-empty", "--no-verify", "-m", message)
    return git.run(tree, "rev-parse", "HEAD").stdout.strip()


def _blamed(repository: Path, path: str) -> dict[int, str]:
    """Line -> commit; zeros for what is not committed."""
    done = git.run(repository, "blame", "--porcelain", "--", path, check=False)
    found = {}
    for line in done.stdout.splitlines():
        if match := _HEADER.fullmatch(line):
            found[int(match[1])] = line.split()[0]
    return found
