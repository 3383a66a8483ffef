"""`sm121 bisect`: which version, patch or commit changed a kernel's machine code, or lost it for the chip."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from sm121 import pins
from sm121.build_commands import add_plan_options
from sm121.errors import CompileError, UsageError
from sm121.expressions import typed
from sm121.loop import culprit
from sm121.loop.choose import demangled, word_problems
from sm121.loop.commands import PLAN_DEFAULTS, ready
from sm121.loop.rows import look_at_artifact, look_at_units
from sm121.loop.session import Session
from sm121.loop.states import at_revision, edited_state, with_patches
from sm121.loop.trees import BEFORE, pinned
from sm121.progress import Progress
from sm121.sources import git
from sm121.sources.fetch import fetch
from sm121.sources.series import load_patches
from sm121.target import LoadsAs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from sm121.compile.edges import Edge
    from sm121.loop.culprit import Culprit, Look, Seen
    from sm121.loop.trees import State
    from sm121.steps import Build

_EPILOG = """\
exit status: 0 found, 1 nothing changed between the ends, 2 usage

examples:
  sm121 bisect artifacts old.whl newer.whl newest.whl --library '*_moe_C*' --kernel topk
  sm121 bisect versions --kernel nvfp4 --question lost
  sm121 bisect patches csrc/topk.cu --patch 0001-Support-12.1-as-a-CUDA-architecture-from-CUDA-13-on
  sm121 bisect commits sm121-base..HEAD csrc/topk.cu
"""
_MACHINE = frozenset(str(how) for how in LoadsAs if how.machine_code)
_MOST = 20


@dataclass(frozen=True, slots=True)
class Row:
    """What is searched: titles in order, and how one is looked at."""

    titles: tuple[str, ...]
    look: Callable[[int], Look]
    held: Callable[[], AbstractContextManager[None]] = nullcontext
    """What is held while it is searched: the scratch folder, where something is compiled."""


def add_bisect_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bisect` with the rows that it searches."""
    top = verbs.add_parser(
        "bisect", help="find what changed or lost a kernel's machine code", epilog=_EPILOG,
        description="Searches an ordered row for the first whose kernels are not those of the first of all.",
    )  # fmt: skip
    own = top.add_subparsers(metavar="ROW", required=True)

    one = _row(own, "artifacts", _artifacts, "wheels, libraries, folders or images, oldest first")
    one.add_argument("artifacts", metavar="ARTIFACT", nargs="+", help="anything that `sm121 inspect` reads")
    _of_library(one)

    two = _row(own, "versions", _versions, "the official wheels of pinned versions")
    two.add_argument("versions", metavar="VERSION", nargs="*", help="default: all that are pinned, oldest first")
    _of_library(two)
    add_plan_options(two)

    units = "the units that read it, or have such a kernel, are compiled at each step"
    three = _row(
        own, "patches", _patches, "upstream's sources, then one more of this version's patches each time"
    )
    three.add_argument("words", metavar="FILE|NAME", nargs="+", help=units)
    three.add_argument("--patch", metavar="P", action="append", default=[], help="switch an optional patch on")
    add_plan_options(three)

    four = _row(own, "commits", _commits, "commits of the git folder that is edited")
    four.add_argument("range", metavar="GOOD..BAD", help="as git has it; both ends are looked at")
    four.add_argument("words", metavar="FILE|NAME", nargs="+", help=units)
    four.add_argument("--source", metavar="DIR", type=Path, help="the folder (default: the work tree of patches)")
    add_plan_options(four)


def _row(
    own: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    row: Callable[[argparse.Namespace], Row],
    text: str,
) -> argparse.ArgumentParser:
    verb = own.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    verb.add_argument("--kernel", metavar="PATTERN", default="", help="only kernels that match, mangled or not")
    verb.add_argument(
        "--question", choices=("changed", "lost"), default="changed",
        help="changed: any machine code (default); lost: what ran on 12.1 as machine code and no longer does",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument("-q", "--quiet", action="store_true", help="no progress")
    verb.set_defaults(run=lambda arguments: _bisect(arguments, row), **PLAN_DEFAULTS)
    return verb


def _of_library(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--library", metavar="GLOB", default="*", help="only libraries with such a path: '*_moe_C*'"
    )


def _bisect(arguments: argparse.Namespace, make: Callable[[argparse.Namespace], Row]) -> int:
    problems = word_problems(getattr(arguments, "words", ()))
    try:
        typed(arguments.kernel)
    except ValueError as error:
        problems.insert(0, f"--kernel {arguments.kernel!r} {error}.")
    if problems:
        raise UsageError(problems, do="write a simpler expression, or a part of the kernel's name.")
    row = make(arguments)
    if len(row.titles) < 2:
        raise UsageError(
            f"two or more are needed to search among, there is {len(row.titles)}: {', '.join(row.titles) or 'none'}.",
            do="name more, or another range.",
        )
    lost = arguments.question == "lost"
    differ = partial(culprit.differences, lost=lost, machine=_MACHINE)
    looks: dict[int, Look] = {}

    def look(index: int) -> Look:
        looks[index] = row.look(index)
        return looks[index]

    with row.held():
        try:
            found = culprit.search(len(row.titles), look, differ)
        except ValueError as error:
            raise CompileError(
                f"{row.titles[0]}, with which all others are compared, cannot be looked at: {error}.",
                do="begin with one that compiles.",
            ) from error
    if found is None:
        _require_something(looks, row, arguments.kernel, lost=lost)
    if arguments.json:
        print(json.dumps(_data(found, row), indent=2))
    elif found is None:
        what = arguments.kernel or "the kernels"
        print(f"nothing {arguments.question}: {what} in {row.titles[-1]} as in {row.titles[0]}")
    else:
        _show(found, row)
    return 0 if found else 1


def _require_something(looks: Mapping[int, Look], row: Row, pattern: str, *, lost: bool) -> None:
    """Where nothing was looked at, nothing can have stayed the same."""
    if not any(look.kernels for look in looks.values()):
        what = f"no kernel matches {pattern!r}" if pattern else "there is no kernel"
        raise UsageError(
            f"{what}, neither in {row.titles[0]} nor in {row.titles[-1]}.",
            do="check the pattern, the library or the file; names are matched mangled and as they are written.",
        )
    if lost and not any(seen.state in _MACHINE for seen in looks[0].kernels.values()):
        raise UsageError(
            f"nothing of it runs on 12.1 as machine code in {row.titles[0]}, so nothing could be lost.",
            do="begin with one that has it, or ask for --question changed.",
        )


def _artifacts(arguments: argparse.Namespace) -> Row:
    progress = Progress(quiet=arguments.quiet)
    return Row(
        tuple(arguments.artifacts),
        lambda index: look_at_artifact(
            arguments.artifacts[index], arguments.kernel, arguments.library, progress,
            code=arguments.question == "changed",
        ),
    )  # fmt: skip


def _versions(arguments: argparse.Namespace) -> Row:
    loaded = pins.load(arguments.pins)
    try:
        wanted = sorted(arguments.versions or [one.version for one in loaded.releases], key=Version)
    except ValueError as error:
        raise UsageError(f"a version looks like 0.33.0: {error}.") from error
    releases = [loaded.vllm(version) for version in wanted]
    progress = Progress(quiet=arguments.quiet)

    def look(index: int) -> Look:
        pin = releases[index].official(arguments.cpu)
        file = fetch([pin], arguments.work.absolute() / "files", mirror=arguments.mirror, progress=progress)[
            pin.filename
        ]
        return look_at_artifact(
            str(file), arguments.kernel, arguments.library, progress, code=arguments.question == "changed"
        )

    return Row(tuple(f"vllm {version}" for version in wanted), look)


def _patches(arguments: argparse.Namespace) -> Row:
    extra = arguments.patch
    arguments.patch = []
    build = ready(arguments, dry=False)
    patches = load_patches(arguments.patches, build.plan.project, build.plan.version, extra)
    upstream = f"{build.plan.project} {build.plan.version}"
    titles = (f"{upstream} without patches", *(patch.name for patch in patches))

    def state(index: int) -> State:
        return with_patches(build, patches[:index], titles[index], arguments.mirror)

    return _compiled(arguments, build, titles, state)


def _commits(arguments: argparse.Namespace) -> Row:
    build = ready(arguments, dry=False)
    root = edited_state(build, arguments.source, pinned(build)).root
    good, dots, _ = arguments.range.partition("..")
    if not dots or not good or not (root / ".git").exists():
        raise UsageError(
            f"GOOD..BAD of a git repository was wanted, found {arguments.range!r} and the folder {root}.",
            do="write two commits of the folder that you edit, e.g. sm121-base..HEAD.",
        )
    done = git.run(
        root, "log", "--reverse", "--first-parent", "--format=%H %s", arguments.range, "--", check=False
    )
    if done.returncode:
        raise UsageError(f"git does not know the range {arguments.range!r} in {root}: {done.stderr.strip()}.")
    lines = done.stdout.splitlines()
    commits = [good, *(line.split()[0] for line in lines)]
    titles = (good, *(f"{line[:12]} {line.partition(' ')[2]}" for line in lines))
    return _compiled(arguments, build, titles, lambda index: at_revision(build, root, commits[index]))


def _compiled(
    arguments: argparse.Namespace, build: Build, titles: tuple[str, ...], state: Callable[[int], State]
) -> Row:
    """A row of states; the units are those that the words name at the last of them."""

    @cache
    def session() -> tuple[Session, list[Edge]]:
        one = Session(build, state(len(titles) - 1), tree=BEFORE)
        return one, [chosen.unit for chosen in one.by_words(arguments.words)]

    def look(index: int) -> Look:
        build.progress.say(f"  looking at {titles[index]}")
        one, units = session()
        return look_at_units(one, state(index), units, arguments.kernel)

    return Row(titles, look, build.work.locked)


def _show(found: Culprit, row: Row) -> None:
    for index, good in sorted(found.tested):
        print(f"  {'good' if good else 'bad '}  {row.titles[index]}")
    print(f"first bad: {row.titles[found.index]}")
    if found.fault:
        print(f"  {found.fault}")
    for one in found.differences[:_MOST]:
        (plain,) = demangled([one.name])
        print(f"  {plain}: {_seen(one.before)} -> {_seen(one.after)}")
    if len(found.differences) > _MOST:
        print(f"  ... and {len(found.differences) - _MOST} more: --json has them all")


def _seen(seen: Seen | None) -> str:
    if seen is None:
        return "not there"
    return " ".join(
        word for word in (seen.target, seen.state, f"code {seen.code[:12]}" if seen.code else "") if word
    )


def _data(found: Culprit | None, row: Row) -> dict[str, Any]:
    if found is None:
        return {"version": 1, "row": row.titles, "first_bad": None}
    return {
        "version": 1,
        "row": row.titles,
        "first_bad": row.titles[found.index],
        "fault": found.fault,
        "tested": [{"title": row.titles[index], "good": good} for index, good in found.tested],
        "differences": [asdict(one) for one in found.differences],
    }
