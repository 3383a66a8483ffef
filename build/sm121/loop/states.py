"""Where the states of the sources come from: a work tree, a folder, patches on upstream's sources, a git revision."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import PatchError, UsageError
from sm121.loop.source import READ, require_sources
from sm121.loop.trees import State
from sm121.sources import git
from sm121.sources.fetch import fetch
from sm121.sources.patches import apply, named_paths
from sm121.sources.series import Patch, load_patches, load_series
from sm121.sources.unpack import unpack
from sm121.sources.worktree import WorkTree
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm121.steps import Build


def edited_state(build: Build, source: Path | None, base: State) -> State:
    """The state that a developer edits: the folder `source`, else the only work tree of patches, else `base`.

    Raises UsageError if the folder is no source tree, or if several work trees could be meant.
    """
    if source is not None:
        require_sources(source)
        return State.of(str(source), source.resolve())
    trees = work_trees(build)
    if len(trees) > 1:
        raise UsageError(
            f"several work trees hold {build.plan.project} {build.plan.version}: {', '.join(map(str, trees))}.",
            do="name the one you edit with --source.",
        )
    return State.of(str(trees[0]), trees[0]) if trees else base


def work_trees(build: Build) -> list[Path]:
    """The work trees of `sm121 patches` that lie on the plan's version."""
    home = build.work.root / "patches" / build.plan.project
    found = [WorkTree(folder) for folder in sorted(home.glob("*")) if not folder.name.startswith(".")]
    return [tree.path for tree in found if tree.exists and tree.version == build.plan.version]


def with_patches(build: Build, patches: Sequence[Patch], title: str, mirror: Path | None) -> State:
    """Upstream's sources with `patches`, in a folder that is kept. Raises PatchError as applying does."""
    pin = next(each.pin for each in build.plan.downloads if each.role == "sources")
    key = Sha256.of_bytes("\n".join([pin.sha256.hex, *(patch.sha256.hex for patch in patches)]).encode()).hex[:16]
    named = named_paths(patches)

    def fill(into: Path) -> None:
        file = fetch([pin], build.work.files, mirror=mirror, progress=build.progress)[pin.filename]
        unpack(file, into, strip=1, members=lambda name: _wanted(name.partition("/")[2], named))
        apply(patches, into)

    return State.of(title, _kept(build, key, fill))


def at_revision(build: Build, root: Path, revision: str) -> State:
    """The sources of a commit of the git repository `root`. Raises UsageError if there is no such commit."""
    found = git.run(
        root, "rev-parse", "-q", "--verify", "--end-of-options", f"{revision}^{{commit}}", check=False
    )
    commit = found.stdout.strip()
    if found.returncode or not commit:
        raise UsageError(
            f"--before {revision}: {root} has no such git revision.",
            do="write last, pinned, none, or a commit of it.",
        )

    def fill(into: Path) -> None:
        archive = into.with_suffix(".tar")
        try:
            git.run(root, "archive", "-o", archive, commit, "--", *READ)
            with tarfile.open(archive) as tar:
                tar.extractall(into, filter="data")
        finally:
            archive.unlink(missing_ok=True)

    return State.of(f"{revision} of {root}", _kept(build, commit[:16], fill))


def around_patch(build: Build, folder: Path, name: str, mirror: Path | None) -> tuple[State, State]:
    """The sources without and with one patch: `name` is one of a series of this version, or a patch file.

    A patch of a series lies on those before it, a file on all of them: later ones may need it, so they are left out.
    Raises PatchError if there is no such patch, or if it does not apply.
    """
    plan = build.plan
    title = f"{plan.project} {plan.version}"
    if Path(name).is_file():
        patch = Patch.parse(Path(name).name, Path(name).read_bytes())
        before = load_patches(folder, plan.project, plan.version, plan.patches)
    else:
        series = load_series(folder, plan.project, plan.version)
        known = {one.name.removesuffix(".patch"): one for each in series for one in each.patches}
        wanted = name.removesuffix(".patch")
        if wanted not in known:
            raise PatchError(
                f"there is no patch {name!r} for {title}, and no such file.",
                do=f"choose among: {', '.join(sorted(known)) or 'none are there'}.",
            )
        patch = known[wanted]
        everything = load_patches(folder, plan.project, plan.version, {*plan.patches, wanted})
        before = everything[: [one.name for one in everything].index(patch.name)]
    return (
        with_patches(build, before, f"{title} without {patch.name}", mirror),
        with_patches(build, [*before, patch], f"{title} with {patch.name}", mirror),
    )


def _wanted(path: str, named: frozenset[str]) -> bool:
    return path in named or path.split("/", maxsplit=1)[0] in READ or path == "PKG-INFO"


def _kept(build: Build, key: str, fill: Callable[[Path], None]) -> Path:
    """A folder by key, filled once and complete; `fill` makes the folder that it is given."""
    folder = build.work.root / "kernels" / "states" / key
    if not folder.is_dir():
        scratch = folder.with_name(f".{key}.new")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        fill(scratch / "tree")
        (scratch / "tree").rename(folder)
        scratch.rmdir()
    return folder
