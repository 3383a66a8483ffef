"""`sm121 kernels`: compile what an edit reaches, and say what became of the machine code."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sm121.build_commands import add_plan_options, planned
from sm121.cache_options import compiler_cache
from sm121.errors import RegressionError, Sm121Error, UsageError
from sm121.loop import show
from sm121.loop.choose import word_problems
from sm121.loop.compare import Change, Limit
from sm121.loop.disassembly import differences, nvdisasm
from sm121.loop.explain import applied_patches, compile_error, failures
from sm121.loop.preview import preview
from sm121.loop.session import Comparing, Session
from sm121.loop.source import differing, digests
from sm121.loop.states import around_patch, at_revision, edited_state
from sm121.loop.trees import State, pinned
from sm121.progress import Progress, duration, plural
from sm121.steps import Build, Context
from sm121.values import ArchSpec
from sm121.workspace import Workspace

if TYPE_CHECKING:
    import argparse

    from sm121.loop.session import Chosen, Pass

POLL = 0.4
"""Seconds between two looks at the edited folder; a look reads 350 files."""
_SHOWN = 10
_OTHER_VERSION = 100
"""More differing files than this are no edit: from 0.26.0 to 0.33.0 it is 519 paths."""
_WIDE = 160
"""Characters of a line where nobody watches a terminal."""

_EPILOG = """\
where to edit:
  in the git work tree that `sm121 patches new --series NAME` makes (WORK/patches/vllm/NAME): it is found by itself.
  Commit there, and `sm121 patches refresh` turns the commits into patches. Or in any vLLM source folder of the same
  version: --source DIR. The folder is only read. Never edit below WORK/trees: that is where compilers work.

what is compiled:
  FILE     every unit that reads the file, by ninja's own record (a header: all that include it)
  NAME     every unit with a kernel of that name, a match of that regular expression, or of that family
  --patch  every unit that the patch reaches, with the patches before it; compared with those alone
  nothing  the same as --changed: every unit that differs from the pinned sources with their patches

what it is compared with (--before):
  last     what the unit was before it became what it is; the pinned state where there is nothing older, and nothing
           where it is that state itself (default)
  pinned   the pinned sources with their patches
  REV      a commit of the folder's git repository
  none     nothing

exit status: 0 done, 2 usage, 17 does not compile, 18 out of memory, 33 a --fail-on limit is passed

examples:
  sm121 kernels csrc/topk.cu
  sm121 kernels --changed --watch
  sm121 kernels rms_norm --arch 12.1a --fail-on spills --fail-on registers=+8
  sm121 kernels --patch 0001-Support-12.1-as-a-CUDA-architecture-from-CUDA-13-on --dry-run
"""
PLAN_DEFAULTS = {
    "ext": [], "patch": [], "finish": True, "sources": "pinned", "until": "libraries", "dist": Path("dist"),
}  # fmt: skip
"""What `build` is asked for and verbs that only compile are not."""


def add_kernel_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernels`."""
    verb = verbs.add_parser(
        "kernels", help="compile what an edit reaches and compare its machine code", epilog=_EPILOG,
        description="Compiles exactly the translation units that an edit or a patch reaches, in a folder that is kept, and "
        "shows what became of each kernel.",
    )  # fmt: skip
    units = verb.add_argument_group("which units")
    units.add_argument(
        "words", metavar="FILE|NAME", nargs="*", help="a source, a header, a kernel, a pattern, a family"
    )
    units.add_argument(
        "--changed", action="store_true", help="what differs from the pinned sources (the default)"
    )
    units.add_argument(
        "--patch", dest="around", metavar="P", help="a patch of a series, by name, or a patch file"
    )
    units.add_argument(
        "--source", metavar="DIR", type=Path, help="the folder that is edited (default: the work tree of patches)"
    )
    show_ = verb.add_argument_group("what is shown")
    show_.add_argument(
        "--before", metavar="STATE", default="last", help="last, pinned, none or a git revision (default: last)"
    )
    show_.add_argument(
        "--arch", metavar="ARCH", action="append", default=[], help="compile for this target beside it: 12.1a"
    )
    show_.add_argument(
        "--sass", action="store_true", help="how the machine code differs (nvdisasm, pinned by hash)"
    )
    show_.add_argument("--all", dest="every", action="store_true", help="unchanged kernels too")
    show_.add_argument("--json", action="store_true", help="JSON; with --watch, one line a pass")
    show_.add_argument("-q", "--quiet", action="store_true", help="no progress")
    verb.add_argument(
        "--fail-on", metavar="LIMIT", action="append", default=[],
        help="registers, spills, stack, shared, size, fp4, fp8 (=+N or =N%%), loads, changed; may be repeated",
    )  # fmt: skip
    verb.add_argument("--watch", action="store_true", help="do it again whenever a file is saved")
    verb.add_argument("--dry-run", action="store_true", help="say what would be compiled, and stop")
    add_plan_options(verb)
    verb.set_defaults(run=_kernels, **PLAN_DEFAULTS)


@dataclass(frozen=True)
class Task:
    """One question: the state to compile, what to compare with, and how its units are chosen."""

    arguments: argparse.Namespace
    build: Build
    state: State
    comparing: Comparing
    against: State
    """What an edit is measured by: the pinned state, or the state without the patch."""
    base: State
    """What a release is built from."""
    limits: tuple[Limit, ...]
    archs: tuple[ArchSpec, ...]

    def choose(self, session: Session) -> list[Chosen]:
        return session.by_words(self.arguments.words) if self.arguments.words else session.by_edits(self.against)


def ready(arguments: argparse.Namespace, *, dry: bool) -> Build:
    """The build of the arguments' plan, with all that compiling needs in place; with `dry`, as far as it is."""
    progress = Progress(quiet=arguments.quiet)
    plan = planned(arguments, None if dry else progress)
    context = Context(
        work=Workspace(arguments.work.absolute()), dist=arguments.dist.absolute(), progress=progress,
        patches=arguments.patches, mirror=arguments.mirror, cuda_home=arguments.cuda_home,
        cache=compiler_cache(arguments),
    )  # fmt: skip
    build = Build(plan, context)
    names = [step.name for step in plan.steps]
    needed = [plan.step(name) for name in names[: names.index("tools") + 1]]
    if dry and not build.work.done(plan.step("source")):
        raise UsageError(
            f"{build.work.root} does not hold the sources of {plan.project} {plan.version} yet.",
            do=f"run `sm121 build --line {plan.line} --until tools` first, or leave out --dry-run.",
        )
    if not dry and not all(build.work.done(step) for step in needed):
        build.run(until="tools")
    return build


def _kernels(arguments: argparse.Namespace) -> int:
    task = _task(arguments)
    if arguments.dry_run:
        return _dry_run(task)
    return _watch(task) if arguments.watch else _once(task)


def _once(task: Task) -> int:
    started = time.monotonic()
    arguments, progress = task.arguments, task.build.progress
    with task.build.work.locked():
        session = Session(task.build, task.state, task.base, records=not arguments.around)
        chosen = task.choose(session)
        if chosen:
            progress.say(f"{plural(len(chosen), 'unit')}, from {task.state.title}:")
            if (count := len(differing(task.base.files, task.state.files))) > _OTHER_VERSION:
                version = f"{task.build.plan.project} {task.build.plan.version}"
                progress.say(f"  {count} files differ from {version}: is it that version?", style="yellow")
            for line in show.chosen_lines(chosen[:_SHOWN]):
                progress.say(line)
            if len(chosen) > _SHOWN:
                progress.say(f"  and {len(chosen) - _SHOWN} more")
        done = session.run(chosen, task.comparing, task.archs)
        found = failures(done)
        faults = _faults(done, task.limits)
        seconds = time.monotonic() - started
        if arguments.json:
            data = show.pass_data(done, found, faults, seconds)
            print(json.dumps(data, indent=None if arguments.watch else 2), flush=True)
        elif not chosen:
            print(_nothing(task))
        else:
            console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
            show.show_pass(done, console, every=arguments.every)
            if arguments.sass:
                _sass(done, task, console)
        made = sum(result.cost is not None for result in done.results)
        progress.say(f"{made} of {plural(len(chosen), 'unit')} compiled in {duration(seconds)}", style="dim")
        if found:
            raise compile_error(found, chosen, session, applied_patches(session, arguments.patches))
    if faults:
        raise RegressionError(faults, do="look at the kernels named, or raise the limits of --fail-on.")
    return 0


def _watch(task: Task) -> int:
    """Passes until interrupted; a pass that fails is shown, and the next save is waited for."""
    seen: dict[str, str] | None = None
    while True:
        files = digests(task.state.root)
        if files != seen:
            seen = files
            try:
                _once(replace(task, state=replace(task.state, files=files)))
            except Sm121Error as error:
                for problem in error.problems:
                    task.build.progress.console.print(problem, style="red", markup=False, soft_wrap=True)
            task.build.progress.say(f"watching {task.state.root}; Ctrl-C ends it", style="dim")
        time.sleep(POLL)


def _dry_run(task: Task) -> int:
    shown = preview(task.build, task.state, task.arguments.words, task.against, task.base)
    if task.arguments.json:
        print(json.dumps(shown.data, indent=2))
        return 0
    print(f"{plural(len(shown.units), 'unit')} would be compiled, from {task.state.title}:")
    for path, why in shown.units.items():
        print(f"  {path}  ({', '.join(why[:4])})")
    for note in shown.notes:
        print(f"note: {note}")
    return 0


def _task(arguments: argparse.Namespace) -> Task:
    limits, archs = _judging(arguments)
    build = ready(arguments, dry=arguments.dry_run)
    base = pinned(build)
    if arguments.around:
        before, state = around_patch(build, arguments.patches, arguments.around, arguments.mirror)
        return Task(arguments, build, state, Comparing(last=False, state=before), before, base, limits, archs)
    state = edited_state(build, arguments.source, base)
    match arguments.before:
        case "last":
            comparing = Comparing(last=True, state=base)
        case "pinned":
            comparing = Comparing(last=False, state=base)
        case "none":
            comparing = Comparing(last=False, state=None)
        case revision:
            comparing = Comparing(last=False, state=at_revision(build, state.root, revision))
    return Task(arguments, build, state, comparing, base, base, limits, archs)


def _judging(arguments: argparse.Namespace) -> tuple[tuple[Limit, ...], tuple[ArchSpec, ...]]:
    """Limits and targets; all that is wrong with the arguments is told at once."""
    problems, limits, archs = [], [], []
    for text in arguments.fail_on:
        try:
            limits.append(Limit.parse(text))
        except UsageError as error:
            problems += error.problems
    for text in arguments.arch:
        try:
            archs.append(ArchSpec.parse(text))
        except ValueError as error:
            problems.append(f"--arch {text}: {error}.")
    if arguments.around and (arguments.words or arguments.changed or arguments.source or arguments.watch):
        problems.append(
            "--patch compares the pinned sources with and without it: no FILE, --changed, --source or --watch."
        )
    if arguments.around and arguments.before != "last":
        problems.append("--patch compares with the state without the patch: no --before.")
    if arguments.words and arguments.changed:
        problems.append("FILE or NAME and --changed ask for different things.")
    problems += word_problems(arguments.words)
    if problems:
        raise UsageError(problems, do="`sm121 kernels --help` has the options and examples.")
    return tuple(limits), tuple(archs)


def _nothing(task: Task) -> str:
    if task.arguments.around:
        return f"{task.arguments.around} reaches no unit that this build compiles."
    text = f"nothing that is compiled differs between {task.state.title} and {task.against.title}."
    if unread := differing(task.against.files, task.state.files):
        text += f"\nNo unit reads {', '.join(unread[:5])}; a new source must be named in CMakeLists.txt."
    if task.state.root == task.against.root:
        work = task.arguments.work
        text += (
            f"\nTo edit: sm121 patches new --work {work} --series {task.build.plan.version}, then change files in "
            f"{work}/patches/{task.build.plan.project}/{task.build.plan.version} and run this again."
        )
    return text


def _faults(done: Pass, limits: tuple[Limit, ...]) -> list[str]:
    return [
        f"{result.chosen.unit.path}: {fault} (--fail-on {limit.metric})."
        for result in done.results
        for limit in limits
        for fault in limit.faults(result.change)
    ]


def _sass(done: Pass, task: Task, console: Console) -> None:
    program = nvdisasm(task.build, task.arguments.mirror)
    for result in done.results:
        names = [kernel.name for kernel in result.change.kernels if kernel.change is Change.CHANGED]
        for name, text in differences(program, result, names):
            console.print(f"--- SASS of {name}", style="bold", markup=False, soft_wrap=True)
            console.print(
                text or "  the same instructions; registers, controls or padding differ",
                markup=False,
                soft_wrap=True,
            )
