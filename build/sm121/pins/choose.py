"""Which of a version's files a machine would install."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from sm121.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.index import IndexFile
    from sm121.pins.model import Cpu

PYTHON = (3, 12)
"""The Python of the runtime environment, unless another is asked for."""
LIBC = (2, 34)
"""The oldest glibc that is served. Some companions (tilelang 0.1.12) have no aarch64 wheel for an older one."""


def tags(cpu: Cpu, *, python: tuple[int, int] = PYTHON, libc: tuple[int, int] = LIBC) -> dict[Tag, int]:
    """Wheel tags that a Linux machine takes, each with its rank; 0 is best."""
    major, newest = libc
    platforms = [f"manylinux_{major}_{minor}_{cpu}" for minor in range(newest, 4, -1)]
    platforms += [f"{name}_{cpu}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    interpreter = f"cp{python[0]}{python[1]}"
    ordered = [
        *cpython_tags(python, [interpreter], platforms),
        *compatible_tags(python, interpreter, platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}


def best_wheel(
    files: Iterable[IndexFile], version: str, cpu: Cpu, *, ranks: dict[Tag, int] | None = None
) -> IndexFile:
    """The wheel of `version` that pip would take on a Linux machine. Raises FetchError if there is none."""
    ranks = ranks or tags(cpu)
    project = ""
    found: list[tuple[int, str, IndexFile]] = []
    for file in files:
        project = file.project
        if file.yanked or not file.filename.endswith(".whl"):
            continue
        try:
            _, number, _, own = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        usable = [ranks[tag] for tag in own if tag in ranks]
        if usable and str(number) == version:
            found.append((min(usable), file.filename, file))
    if not found:
        raise FetchError(
            f"{project or 'the project'} {version} has no wheel for {_shown(ranks)}, {cpu}, "
            f"glibc {LIBC[0]}.{LIBC[1]}.",
            do="take another version, or build that package and pin the result.",
        )
    return min(found)[2]


def _shown(ranks: dict[Tag, int]) -> str:
    """`Python 3.12`: the one whose own tags come first."""
    interpreter = min(ranks, key=lambda tag: ranks[tag]).interpreter
    return f"Python {interpreter[2:3]}.{interpreter[3:]}"


def sdist(files: Iterable[IndexFile], version: str) -> IndexFile:
    """The source distribution of `version`. Raises FetchError if there is none."""
    project = ""
    for file in files:
        project = file.project
        if file.version == version and file.filename.endswith(".tar.gz") and not file.yanked:
            return file
    raise FetchError(f"{project or 'the project'} {version} has no source distribution.")
