"""What upstream itself says about the pinned versions: read from the indexes, nothing installed, little fetched."""

from __future__ import annotations

import csv
import re
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sm121 import index
from sm121.errors import FetchError, PinsError, PreflightError
from sm121.pins.choose import best_wheel
from sm121.pins.environment import Environment
from sm121.pins.knowledge import toolkit_releases
from sm121.pins.resolve import Resolution, resolve
from sm121.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from packaging.specifiers import SpecifierSet

    from sm121.index import IndexFile
    from sm121.pins.model import Cpu, FilePin, Line, Release
    from sm121.progress import Counter

T = TypeVar("T")

CUDA_TXT = "requirements/cuda.txt"

_WORKERS = 8
_FLOATING = frozenset({"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"})
"""Toolkit parts that nothing in the environment pins."""
_BINDINGS = ("cuda-python", "cuda-bindings")


@dataclass(frozen=True, slots=True)
class Facts:
    """Upstream's own words. What could not be read is in `missing`, with the reason: unknown, not absent."""

    metadata: Mapping[str, tuple[Requirement, ...]] = field(default_factory=dict)
    """Distribution -> its Requires-Dist."""
    records: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Distribution -> path -> hash, as its RECORD says."""
    listed: Mapping[str, IndexFile] = field(default_factory=dict)
    """Pinned file name -> what the index says about it."""
    cuda_txt: tuple[Requirement, ...] | None = None
    """requirements/cuda.txt of the pinned source distribution."""
    toolkits: Mapping[str, Mapping[str, SpecifierSet]] = field(default_factory=dict)
    """Toolkit release -> part -> version, as the index's cuda-toolkit says today."""
    resolution: Resolution | None = None
    conflict: str = ""
    """Why no complete set exists."""
    missing: Mapping[str, str] = field(default_factory=dict)


def pinned_wheels(line: Line, release: Release, cpu: Cpu) -> list[FilePin]:
    """The wheels of the runtime environment that are pinned one by one."""
    torches = [torch.file(cpu) for torch in line.torches if torch.version == release.torch]
    packages = [release.flashinfer, *release.companions]
    return [release.official(cpu), *torches, *(package.file(cpu) for package in packages)]


def constraints(line: Line, release: Release) -> list[str]:
    """Limits for a resolver: the pinned versions, and the compiler's parts at the runtime's release.

    The second matters: some packages ask for nvidia-cuda-nvcc without a version, and a newer nvcc refuses the
    older headers that torch pins (https://github.com/flashinfer-ai/flashinfer/issues/3493).
    """
    limits = [f"{package.name}=={package.version}" for package in (release.flashinfer, *release.companions)]
    return [*limits, f"torch=={release.torch}", *floating_limits(line)]


def floating_limits(line: Line) -> list[str]:
    """What nothing else in an environment limits: the compiler's parts, and the bindings' CUDA major.

    Without the second a resolver may fall back to a cuda-python that overwrites cuda-bindings.
    """
    parts = toolkit_releases()[line.runtime_toolkit.release]
    major = line.cuda.major
    return [
        *(f"{name}{wanted}" for name, wanted in parts.items() if name in _FLOATING),
        *(f"{name}>={major},<{major + 1}" for name in _BINDINGS),
    ]


def gather(
    line: Line, release: Release, cpu: Cpu, *, beside: Sequence[str] = (), progress: Progress | None = None
) -> Facts:
    """Ask the indexes about everything that is pinned for a line and a release.

    `beside` are further requirements of the same environment, such as `b12x==1.5.1`.
    """
    wheels = pinned_wheels(line, release, cpu)
    further = Environment.of_lines(exact(beside)).installed.items()
    pins = [*wheels, release.sdist, *line.toolkit(cpu, cpu), *line.tools(cpu)]
    names = {line.compiler_toolkit.release, line.runtime_toolkit.release}
    # Of each wheel its place, METADATA and RECORD; the source distribution's text, and the complete set, are two more.
    total = len(pins) + 2 * len(wheels) + 3 * len(further) + len(names) + 2
    with (
        (progress or Progress(quiet=True)).counter("ask the package index", total, "questions") as counter,
        ThreadPoolExecutor(_WORKERS) as pool,
    ):
        asking = _Asking(pool, counter)
        listed = asking.each({pin.filename: partial(index.find, pin.name, pin.filename) for pin in pins})
        found = {pin.name: listed[pin.filename] for pin in wheels if pin.filename in listed}
        found |= asking.each({name: partial(_wheel_of, name, version, cpu) for name, version in further})
        metadata = asking.each({f"METADATA of {name}": partial(_metadata, found[name]) for name in found})
        records = asking.each({f"RECORD of {name}": partial(record, found[name]) for name in found})
        kits = asking.each({f"parts of cuda-toolkit {name}": partial(_toolkit, name) for name in names})
        sources = (
            {CUDA_TXT: partial(_cuda_txt, listed[release.sdist.filename])}
            if (release.sdist.filename in listed)
            else {}
        )
        cuda_txt = asking.each(sources).get(CUDA_TXT)
        counter.update(total - 1, "the complete set")
        resolution, conflict = _resolved(line, release, cpu, beside, asking.missing)
    return Facts(
        {key.removeprefix("METADATA of "): value for key, value in metadata.items()},
        {key.removeprefix("RECORD of "): value for key, value in records.items()},
        listed, cuda_txt, {key.rpartition(" ")[2]: value for key, value in kits.items()}, resolution, conflict,
        asking.missing,
    )  # fmt: skip


def _resolved(
    line: Line, release: Release, cpu: Cpu, beside: Sequence[str], missing: dict[str, str]
) -> tuple[Resolution | None, str]:
    """The complete set, or why there is none; what could not be asked goes to `missing`."""
    if line.torches:
        try:
            return resolve([f"vllm=={release.version}", *beside], constraints(line, release), cpu), ""
        except PinsError as error:
            return None, " ".join(error.problems)
        except (FetchError, PreflightError) as error:
            missing["the complete set"] = " ".join(error.problems)
    return None, ""


def exact(requirements: Iterable[str]) -> list[str]:
    """Those that name one version and no extra: what can be looked at wheel by wheel."""
    return [text for text in requirements if re.fullmatch(r"[\w.-]+==[^*,;\s]+", text.strip())]


def requirements_of(text: str) -> tuple[Requirement, ...]:
    """The Requires-Dist of a METADATA file."""
    message = HeaderParser().parsestr(text)
    return tuple(Requirement(line) for line in message.get_all("Requires-Dist", []))


def requirements_txt(text: str) -> tuple[Requirement, ...]:
    """The requirements of a requirements.txt; options and includes are passed over."""
    found = []
    for line in text.splitlines():
        bare = re.split(r"(?:^|\s)#", line)[0].strip()
        if bare and not bare.startswith("-"):
            try:
                found.append(Requirement(bare))
            except InvalidRequirement as error:
                raise FetchError(
                    f"requirements/cuda.txt holds a line that is no requirement: {bare!r}."
                ) from error
    return tuple(found)


@dataclass
class _Asking:
    """Questions side by side, counted as they are answered."""

    pool: ThreadPoolExecutor
    counter: Counter
    missing: dict[str, str] = field(default_factory=dict)
    """What failed, by its key, with the reason."""
    done: int = 0

    def each(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Run the calls; the answers of those that did not fail, in the order of the calls."""
        running = {self.pool.submit(call): key for key, call in calls.items()}
        for future in as_completed(running):
            self.done += 1
            self.counter.update(self.done, running[future])
        answers = {}
        for future, key in running.items():
            try:
                answers[key] = future.result()
            except FetchError as error:
                self.missing[key] = " ".join(error.problems)
        return answers


def _metadata(file: IndexFile) -> tuple[Requirement, ...]:
    return requirements_of(index.metadata(file))


def _wheel_of(name: str, version: str, cpu: Cpu) -> IndexFile:
    return best_wheel(index.project_files(name), version, cpu)


def record(file: IndexFile) -> dict[str, str]:
    """A wheel's files, path -> hash, as its RECORD says."""
    rows = csv.reader(index.member(file, ".dist-info/RECORD").decode("utf-8", "replace").splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 1 and row[1]}


def _toolkit(release: str) -> dict[str, SpecifierSet]:
    wheel = next((file for file in index.project_files("cuda-toolkit") if file.version == release), None)
    if wheel is None:
        raise FetchError(f"the index has no cuda-toolkit {release}.")
    return toolkit_parts_of(requirements_of(index.metadata(wheel)))


def toolkit_parts_of(requirements: Sequence[Requirement]) -> dict[str, SpecifierSet]:
    """The parts that a cuda-toolkit's METADATA names under its extra `all`."""
    return {
        canonicalize_name(wanted.name): wanted.specifier
        for wanted in requirements
        if wanted.marker is None or "extra == 'all'" in str(wanted.marker).replace('"', "'")
    }


def _cuda_txt(file: IndexFile) -> tuple[Requirement, ...]:
    texts = index.sdist_texts(file, lambda path: path == CUDA_TXT)
    if CUDA_TXT not in texts:
        raise FetchError(f"{file.filename} holds no {CUDA_TXT}.")
    return requirements_txt(texts[CUDA_TXT])
