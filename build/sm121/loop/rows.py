"""The ordered rows that are searched: artifacts, and states of the sources with one unit compiled at each."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sm121.artifact import open_artifact
from sm121.errors import ArtifactError, CompileError, DamagedError
from sm121.expressions import typed
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.inspector.reading import may_hold_code
from sm121.loop.choose import demangled
from sm121.loop.code import code_digests
from sm121.loop.culprit import Look, Seen
from sm121.loop.output import read_failure
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sm121.compile.edges import Edge
    from sm121.loop.session import Session
    from sm121.loop.trees import State
    from sm121.progress import Progress


def look_at_artifact(reference: str, pattern: str, library: str, progress: Progress, *, code: bool) -> Look:
    """The kernels of an artifact that match; with `code`, their machine code is read as well as their state.

    Raises ArtifactError if it cannot be opened, or has no library of that name.
    """
    progress.say(f"  reading {reference}")
    artifact = open_artifact(reference)
    report = inspect_artifact(artifact, Options(progress=progress))
    libraries = {index: one for index, one in enumerate(report.libraries) if fnmatchcase(one.path, library)}
    if not libraries:
        raise ArtifactError(f"{reference} has no library {library}.")
    kernels = [kernel for kernel in report.kernels if kernel.library in libraries]
    wanted = _matching((kernel.name for kernel in kernels), pattern)
    digests: dict[tuple[str, str], tuple[str, str]] = {}
    if code:
        for member in artifact.members():
            if fnmatchcase(member.path, library) and may_hold_code(member.path, executable=member.executable):
                with member.buffer() as buffer:
                    try:
                        found = code_digests(bytes(buffer), wanted, GB10)
                    except DamagedError:
                        continue  # the inspection has named it; what cannot be read has no code
                digests |= {(member.path, name): one for name, one in found.items()}
    seen = {}
    for kernel in kernels:
        if kernel.name in wanted:
            target, digest = digests.get((libraries[kernel.library].path, kernel.name), ("", ""))
            seen[kernel.name] = Seen(kernel.state, digest, target)
    return Look(seen)


def look_at_units(session: Session, state: State, units: Sequence[Edge], pattern: str) -> Look:
    """The matching kernels of units at a state of the sources; the fault is the first compile error."""
    try:
        kept, failed = session.at(state, units)
    except CompileError as error:
        return Look({}, " ".join(error.problems))
    if failed:
        name, lines = next(iter(failed.items()))
        errors = read_failure(lines).errors
        told = (
            f"{errors[0].path}:{errors[0].line}: {errors[0].text}"
            if errors
            else lines[-1]
            if lines
            else "no reason given"
        )
        return Look({}, f"{name} does not compile: {told}")
    seen: dict[str, Seen] = {}
    for one in kept.values():
        image = one.code.image or next(iter(one.code.images), None)
        for kernel in one.code.kernels.values():
            seen[kernel.name] = Seen(str(one.code.loads_as), kernel.code, image.target if image else "")
    wanted = _matching(seen, pattern)
    return Look({name: one for name, one in seen.items() if name in wanted})


def _matching(names: Iterable[str], pattern: str) -> frozenset[str]:
    """The names that match, mangled or not."""
    listed = [*dict.fromkeys(names)]
    if not pattern:
        return frozenset(listed)
    search = typed(pattern).search
    return frozenset(
        name for name, plain in zip(listed, demangled(listed), strict=True) if search(name) or search(plain)
    )
