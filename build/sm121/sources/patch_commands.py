"""`sm121 patches`: judge them against versions, edit them in a git work tree, carry them to a new version."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sm121 import pins
from sm121.errors import PatchError, UsageError
from sm121.progress import Progress
from sm121.sources.patches import State, apply, judge, named_paths
from sm121.sources.series import Series, load_series, read_list, versions_of
from sm121.sources.upstream import PROJECTS, Upstream
from sm121.sources.worktree import WorkTree, write_series
from sm121.tables import print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from sm121.sources.patches import Judged

ROOT = Path(__file__).resolve().parents[3]
"""The repository, when sm121 runs from it: where `pins` and `patches` are looked for first."""
_SCRATCH = ("files", "steps", "patches")
"""Folders by which a scratch folder of builds and patches is known."""


def add_patch_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `patches` with its own verbs."""
    top = verbs.add_parser("patches", help="judge and edit the patches", description=__doc__)
    own = top.add_subparsers(metavar="VERB", required=True)

    check = _verb(own, "check", _check, "judge every patch against the versions that it is for", looks=True)
    check.add_argument(
        "--against", metavar="VERSION", nargs="+", default=[], help="instead of the pinned versions"
    )
    check.add_argument("--json", action="store_true", help="print JSON")

    status = _verb(own, "status", _status, "which patches are upstream, in which version", looks=True)
    status.add_argument("--against", metavar="VERSION", nargs="+", default=[], help="besides the pinned versions")
    status.add_argument("--json", action="store_true", help="print JSON")

    new = _verb(own, "new", _new, "make a git work tree to edit the patches of a series in")
    _series(new)
    new.add_argument(
        "--version", help="version to work on (default: the newest pinned one that the series covers)"
    )

    refresh = _verb(own, "refresh", _refresh, "write the commits of the work tree back as patches")
    _series(refresh)
    refresh.add_argument("--to", metavar="SERIES", help="write another series, e.g. 0.29.0..0.34.0")

    rebase = _verb(own, "rebase", _rebase, "carry the patches of a series to another version")
    _series(rebase)
    rebase.add_argument("--onto", metavar="VERSION", required=True)

    drop = _verb(own, "drop", _drop, "remove a patch from its series")
    drop.add_argument("name", help="the patch, with or without .patch")
    drop.add_argument("--series", help="where several series have a patch of that name")


def _verb(
    own: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[Request], int],
    text: str,
    *,
    looks: bool = False,
) -> argparse.ArgumentParser:
    """A verb with what all of them take; one that only `looks` leaves nothing where its user happens to stand."""
    verb = own.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    verb.add_argument("--project", choices=PROJECTS, default="vllm", help="default: vllm")
    verb.add_argument(
        "--patches", metavar="DIR", type=Path, default=ROOT / "patches", help="folder of the patches"
    )
    verb.add_argument("--pins", metavar="DIR", type=Path, default=ROOT / "pins", help="folder of the pins")
    elsewhere = ", or the repository's where the current folder has none" if looks else ""
    verb.add_argument(
        "--work", metavar="DIR", type=Path, default=None if looks else Path("work"),
        help=f"scratch folder (default: work{elsewhere})",
    )  # fmt: skip
    verb.add_argument("--mirror", metavar="DIR", type=Path, help="folder that holds the pinned files")
    verb.set_defaults(run=lambda arguments: run(Request(arguments)))
    return verb


def _series(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--series", metavar="NAME", required=True, help="folder, e.g. 0.33.0 or 0.29.0..0.33.0")


@dataclass(frozen=True, slots=True)
class Request:
    """What every verb needs, from the command line."""

    given: argparse.Namespace
    progress: Progress = field(default_factory=Progress)

    @property
    def project(self) -> str:
        return str(self.given.project)

    @property
    def patches(self) -> Path:
        return Path(self.given.patches)

    @property
    def work(self) -> Path:
        """The scratch folder; for verbs that only look one that is there, or the repository's."""
        if self.given.work is not None:
            return Path(self.given.work).absolute()
        here = Path("work").absolute()
        return here if any((here / name).is_dir() for name in _SCRATCH) else ROOT / "work"

    def upstream(self) -> Upstream:
        files = self.work / "files"
        self.progress.say(f"sources are kept in {files}", style="dim")
        return Upstream(pins.load(self.given.pins), files, self.given.mirror, self.progress)

    def against(self) -> list[str]:
        """The versions of --against. Raises UsageError."""
        return [_version(text) for text in self.given.against]

    def all_series(self) -> list[Series]:
        return load_series(self.patches, self.project)

    def folder(self, series: str) -> Path:
        return self.patches / canonicalize_name(self.project) / series

    def work_tree(self) -> WorkTree:
        name: str = self.given.series
        try:
            versions_of(name)
        except ValueError as error:
            raise UsageError(f"--series {error}.") from error
        return WorkTree(self.work / "patches" / self.project / name)

    def place(self, version: str) -> Callable[[Path], None]:
        """How to lay out the sources that this series' patches lie on: upstream's and the series before it."""
        name: str = self.given.series
        before = [one for one in load_series(self.patches, self.project, version) if one.folder.name < name]
        upstream = self.upstream()

        def place(into: Path) -> None:
            with self.progress.step(f"lay out {self.project} {version}"):
                upstream.place(self.project, version, into)
                apply([patch for one in before for patch in one.patches if not patch.off], into)

        return place


@dataclass(frozen=True, slots=True)
class Row:
    """One patch against one version."""

    version: str
    series: str
    judged: Judged
    covered: bool

    @property
    def title(self) -> str:
        """The patch as a path below its project, with its marks."""
        patch = self.judged.patch
        marks = "".join(f" ({mark})" for mark, on in (("optional", patch.optional), ("off", patch.off)) if on)
        return f"{self.series}/{patch.name}{marks}"

    @property
    def data(self) -> dict[str, object]:
        patch = self.judged.patch
        return {
            "version": self.version, "series": self.series, "patch": patch.name, "sha256": patch.sha256.hex,
            "state": str(self.judged.state), "message": self.judged.message, "files": list(self.judged.files),
            "covered": self.covered, "optional": patch.optional, "off": patch.off,
            "upstream": [str(one) for one in patch.upstream], "drop_when": patch.value("Drop-when"),
        }  # fmt: skip


def rows(
    upstream: Upstream, project: str, series: Sequence[Series], versions: Iterable[str], progress: Progress, *,
    outside: bool,
) -> list[Row]:  # fmt: skip
    """Judge patches against versions: the series that cover one in their order, on top of each other.

    With `outside` the other series are judged too, each on its own; so are all against a version that none covers.
    """
    found = list[Row]()
    if not series:
        return found
    wanted = named_paths(patch for one in series for patch in one.patches)
    for version in versions:
        covering = [one for one in series if one.covers(version)]
        others = [one for one in series if one not in covering and (outside or not covering)]
        with (
            progress.step(f"judge the patches of {project} {version}"),
            tempfile.TemporaryDirectory(prefix="sm121-check-") as folder,
        ):
            tree = Path(folder) / "tree"
            upstream.place(project, version, tree, only=partial(_needed, wanted))
            for group in [covering, *([one] for one in others)]:
                judged = judge([patch for one in group for patch in one.patches], tree)
                names = [one.folder.name for one in group for _ in one.patches]
                found += [
                    Row(version, name, one, group is covering) for name, one in zip(names, judged, strict=True)
                ]
    return found


def _needed(wanted: frozenset[str], path: str) -> bool:
    """The files that patches name, and the project's own description, so that a tree is never empty."""
    return path in wanted or path.endswith(("PKG-INFO", "METADATA"))


def _check(request: Request) -> int:
    upstream, series = request.upstream(), request.all_series()
    found = rows(
        upstream, request.project, series,
        request.against() or [v for v in upstream.versions(request.project) if any(o.covers(v) for o in series)],
        request.progress, outside=False,
    )  # fmt: skip
    if request.given.json:
        _print_json(row.data for row in found)
    elif found:
        table = Table("patch", "version", "state", box=None, pad_edge=False)
        for row in found:
            table.add_row(escape(row.title), row.version, escape(row.judged.message))
        print_table(table, Console(highlight=False, width=None if sys.stdout.isatty() else 400))
    else:
        print(f"no patches of {request.project}")
    faults = [f"{row.version}: {row.title} {row.judged.message}." for row in found if row.judged.stops]
    if faults:
        raise PatchError(
            faults, do="sm121 patches rebase --series NAME --onto VERSION, or end the series' range."
        )
    return 0


def _status(request: Request) -> int:
    upstream, series = request.upstream(), request.all_series()
    versions = dict.fromkeys([*upstream.versions(request.project), *request.against()])
    found = rows(upstream, request.project, series, versions, request.progress, outside=True)
    if request.given.json:
        _print_json(row.data for row in found)
        return 0
    for patch in dict.fromkeys(row.title for row in found):
        mine = [row for row in found if row.title == patch]
        print(f"{patch}\n  {mine[0].judged.patch.subject}")
        for row in mine:
            told = row.judged.message if row.covered or row.judged.state is State.ALREADY else "not meant for it"
            print(f"  {row.version:<12} {told}")
        for up in mine[0].judged.patch.upstream:
            print(f"  upstream     {up.link} {up.state}, seen {up.on} ({(date.today() - up.on).days} days ago)")
        print(f"  drop when    {mine[0].judged.patch.value('Drop-when')}")
    if not found:
        print(f"no patches of {request.project}")
    return 0


def _new(request: Request) -> int:
    tree, name = request.work_tree(), str(request.given.series)
    version = _version(request.given.version) if request.given.version else _newest(request, name)
    if not versions_of(name).contains(version, prereleases=True):
        raise UsageError(f"the series {name} does not cover {version}.")
    tree.create(version, request.place(version))
    own = [one for one in load_series(request.patches, request.project, version) if one.folder.name == name]
    tree.add(patch for one in own for patch in one.patches)
    print(tree.path)
    request.progress.say(
        f"Each patch is one commit on {request.project} {version}. Edit, commit (the template asks for the "
        f"fields), then: sm121 patches refresh --project {request.project} --series {name}"
    )
    return 0


def _refresh(request: Request) -> int:
    tree = _existing(request)
    target = str(request.given.to or request.given.series)
    try:
        versions_of(target)
    except ValueError as error:
        raise UsageError(f"--to {error}.") from error
    source, folder = request.folder(str(request.given.series)), request.folder(target)
    known = dict(read_list(source)) if source.is_dir() else {}
    changes = write_series(folder, tree.export(target, known))
    load_series(request.patches, request.project)
    print("\n".join(changes) or f"{folder} is as it was")
    return 0


def _rebase(request: Request) -> int:
    tree, onto = request.work_tree(), _version(request.given.onto)
    if not tree.exists:
        name = str(request.given.series)
        version = _newest(request, name)
        tree.create(version, request.place(version))
        own = [one for one in load_series(request.patches, request.project, version) if one.folder.name == name]
        tree.add(patch for one in own for patch in one.patches)
    before, left = tree.rebase(onto, request.place(onto))
    print(tree.path)
    fell = f"; {before - left} fell away, being in {onto} already" if left < before else ""
    request.progress.say(
        f"{left} of {before} patches lie on {onto}{fell}. Now: sm121 patches refresh --project {request.project} "
        f"--series {request.given.series} --to RANGE"
    )
    return 0


def _drop(request: Request) -> int:
    name = str(request.given.name).removesuffix(".patch")
    places = [
        (one, patch)
        for one in request.all_series()
        for patch in one.patches
        if patch.name.removesuffix(".patch") == name and request.given.series in {None, one.folder.name}
    ]
    if len(places) != 1:
        have = [f"{one.folder.name}/{patch.name}" for one in request.all_series() for patch in one.patches]
        raise UsageError(
            f"{len(places)} patches of {request.project} are called {name!r}, wanted one.",
            do=f"name one of {', '.join(have) or 'none'}" + (" and its --series." if places else "."),
        )
    one, patch = places[0]
    listed = (one.folder / "series").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in listed if line.split()[:1] != [patch.name]]
    (one.folder / "series").write_text("".join(kept), encoding="utf-8")
    (one.folder / patch.name).unlink()
    print(f"dropped {one.folder.name}/{patch.name}")
    return 0


def _existing(request: Request) -> WorkTree:
    tree = request.work_tree()
    if not tree.exists:
        raise UsageError(
            f"there is no work tree {tree.path}.", do=f"sm121 patches new --series {request.given.series}"
        )
    return tree


def _newest(request: Request, series: str) -> str:
    versions = request.upstream().versions(request.project)
    covered = [version for version in versions if versions_of(series).contains(version, prereleases=True)]
    if not covered:
        raise UsageError(
            f"the series {series} covers none of the pinned versions {', '.join(versions)}.",
            do="name a version with --version.",
        )
    return covered[0]


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except ValueError as error:
        raise UsageError(f"a version looks like 0.33.0, found {text!r}.") from error


def _print_json(found: Iterable[dict[str, object]]) -> None:
    json.dump({"version": 1, "patches": list(found)}, sys.stdout, indent=2, sort_keys=True)
    print()
