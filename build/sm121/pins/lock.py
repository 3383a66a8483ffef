"""The complete runtime environment as a requirements file: one wheel per package, each by hash."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from sm121 import index
from sm121.errors import PinsError
from sm121.findings import Verdict
from sm121.pins.audit import file_owners, judge
from sm121.pins.choose import LIBC, PYTHON, best_wheel, tags
from sm121.pins.environment import Environment
from sm121.pins.facts import constraints, record
from sm121.pins.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.tags import Tag

    from sm121.index import IndexFile
    from sm121.pins.model import Cpu, Line, Release
    from sm121.pins.resolve import Resolution

_WORKERS = 12


def lock(
    line: Line, release: Release, cpu: Cpu, *, beside: Sequence[str] = (), python: tuple[int, int] = PYTHON
) -> str:
    """Resolve, judge and hash the runtime environment of a line; every file of every wheel must have one owner.

    `python` is that of the machine or image that will hold it. vLLM itself is left out, because the wheel that was
    built takes its place. Raises PinsError if no set exists, if it does not pass, or if the line's torch is not on
    the index.
    """
    if not line.torches:
        line.torch(release, cpu)
    resolution = resolve([f"vllm=={release.version}", *beside], constraints(line, release), cpu, python=python)
    names = sorted(set(resolution.versions) - {"vllm"})
    ranks = tags(cpu, python=python)
    with ThreadPoolExecutor(_WORKERS) as pool:
        files = dict(zip(names, pool.map(partial(_wheel, resolution, cpu, ranks), names), strict=True))
        records = dict(zip(names, pool.map(record, files.values()), strict=True))
    findings = [*judge(Environment(resolution.versions, cpu, line.cuda, from_index=True)), *file_owners(records)]
    faults = [finding.message for finding in findings if finding.verdict is Verdict.FAIL]
    if faults:
        raise PinsError(faults, do="change the pins; a set that fails is not locked.")
    return locked(line, release, cpu, resolution, files, python=python)


def locked(
    line: Line, release: Release, cpu: Cpu, resolution: Resolution, files: Mapping[str, IndexFile],
    *, python: tuple[int, int] = PYTHON,
) -> str:  # fmt: skip
    """The text of the lock. Pure. Raises PinsError for a file whose hash the index does not give."""
    bare = [file.filename for file in files.values() if file.sha256 is None]
    if bare:
        raise PinsError(f"the index gives no sha256 for {', '.join(bare)}.", do="use an index that does.")
    total = sum(file.size or 0 for file in files.values())
    text = [
        f"# Runtime environment of line {line.name} for vLLM {release.version}: {len(files)} wheels, {total} bytes.",
        f"# Linux {cpu}, glibc {LIBC[0]}.{LIBC[1]} or newer, Python {python[0]}.{python[1]}. vLLM itself is left out:",
        "# install the wheel that was built, with --no-deps.",
    ]
    for name, file in files.items():
        assert file.sha256 is not None
        via = ", ".join(resolution.via.get(name, ())) or "asked for"
        text.append(f"{name}=={resolution.versions[name]} \\\n    --hash=sha256:{file.sha256.hex}  # via {via}")
    return "\n".join(text) + "\n"


def _wheel(resolution: Resolution, cpu: Cpu, ranks: dict[Tag, int], name: str) -> IndexFile:
    return best_wheel(index.project_files(name), resolution.versions[name], cpu, ranks=ranks)
