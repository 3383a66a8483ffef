"""A compile error as a developer needs it: file, line, whose line it is, and what is known of such errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import CompileError, OutOfMemoryError
from sm121.loop.output import read_failure
from sm121.loop.owners import Origin, owners
from sm121.sources.fetch import fetch
from sm121.sources.series import load_patches
from sm121.sources.unpack import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.loop.output import CompilerError, Failure
    from sm121.loop.session import Chosen, Pass, Session
    from sm121.sources.series import Patch

_RAW = 12
"""Lines of a compiler that are shown where none of them was understood."""


def failures(done: Pass) -> dict[str, Failure]:
    """Object -> why it did not compile."""
    return {name: read_failure(lines) for name, lines in done.failed.items()}


def compile_error(
    found: Mapping[str, Failure], chosen: Sequence[Chosen], session: Session, patches: Sequence[Patch]
) -> CompileError:
    """All failures as one error."""
    sites = [
        (error.path, error.line)
        for one in found.values()
        for error in one.errors
        if error.path in session.tree.files
    ]
    wrote = owners(session.state.root, sites, _origin(session, patches)) if sites else {}
    why = {one.unit.object: one.why for one in chosen}
    problems = []
    memory = False
    for name, failure in found.items():
        problems.append(f"{_source(name, session)} did not compile.")
        problems += [
            f"  {_where(error, session)}{error.text}{_whose(wrote.get((error.path, error.line)))}"
            for error in failure.errors
        ]
        if not failure.errors:
            problems += [f"  {line[:400]}" for line in failure.lines[-_RAW:]]
        for cause in failure.causes:
            problems.append(
                f"  {cause.check.removeprefix('log.')}: {cause.got.partition('; it says: ')[0]}. {cause.advice}"
            )
            memory |= cause.check.endswith("out-of-memory")
        if name in why and not wrote:
            problems.append(f"  it was compiled because of {', '.join(why[name][:4])}.")
    do = f"edit {session.state.root} and run the same command again; what is compiled is kept."
    if not session.records:
        do = "mend the patch in a work tree (sm121 patches new --series NAME), then refresh it."
    if memory:
        fewer = max(1, session.build.plan.jobs // 2)
        return OutOfMemoryError(
            problems, do=f"run the same command with --jobs {fewer}; what is compiled is kept."
        )
    return CompileError(problems, do=do)


def _source(name: str, session: Session) -> str:
    for unit in session.tree.units.values():
        if unit.object == name:
            return unit.path
        if name.endswith(f"/{unit.object}") and name.startswith("beside/"):
            return f"{unit.path} for {name.split('/')[1]}"
    return name


def _where(error: CompilerError, session: Session) -> str:
    if not error.path:
        return ""
    edited = session.state.root / error.path
    shown = edited if edited.is_file() else Path(error.path)
    return f"{shown}:{error.line}: "


def _whose(owner: str | None) -> str:
    return f"  [{owner}]" if owner else ""


def _origin(session: Session, patches: Sequence[Patch]) -> Origin:
    run = session.build
    pin = next(each.pin for each in run.plan.downloads if each.role == "sources")

    def place(into: Path, paths: frozenset[str]) -> None:
        file = fetch([pin], run.work.files, progress=run.progress)[pin.filename]
        unpack(file, into, strip=1, members=lambda name: name.partition("/")[2] in {*paths, "PKG-INFO"})

    return Origin(f"upstream's {run.plan.project} {run.plan.version}", place, patches)


def applied_patches(session: Session, folder: Path) -> list[Patch]:
    """The patches of the pinned state: those of the plan that were applied, by the ledger of the source step."""
    plan = session.build.plan
    ledger = session.build.work.result(plan.step("source")) / "patches.json"
    applied = {entry["name"] for entry in json.loads(ledger.read_text())["patches"] if entry["applied"]}
    return [
        patch for patch in load_patches(folder, plan.project, plan.version, plan.patches) if patch.name in applied
    ]
