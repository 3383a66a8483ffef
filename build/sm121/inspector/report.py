"""The report: everything that text, JSON, HTML and CI formats show, as one record.

It is stable: the same artifact, options and rules give the same report. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- the codec reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121 import __version__
from sm121.artifact import printable
from sm121.errors import UsageError
from sm121.findings import Finding, Verdict, overall
from sm121.inspector.codec import decode, encode
from sm121.inspector.policy import policy
from sm121.target import LoadsAs  # noqa: TC001 -- the codec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sm121.artifact import Distribution as Installed
    from sm121.inspector.coverage import FamilyCoverage, KernelCoverage, LibraryCoverage, UnitCoverage
    from sm121.inspector.facts import ArtifactFacts, ImageFacts
    from sm121.inspector.inspection import Options
    from sm121.inspector.judge.jit import JitCost
    from sm121.inspector.judge.promised import Trace

VERSION = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """What was inspected. `sha256` is hexadecimal, "" if it was not computed."""

    kind: str
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Question:
    """What it was judged for; "" is unknown or not asked."""

    capability: str
    driver_cuda: str
    version: str
    kernels: bool


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution by its own words."""

    name: str
    version: str
    commit: str
    tags: tuple[str, ...]
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """A device image; `kernels` is None where it was not looked into."""

    target: str
    stored: int
    size: int
    compression: str
    kernels: int | None
    toolkit: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A translation unit; `target` is the image that the driver takes."""

    index: int
    member: str
    loads_as: LoadsAs
    target: str
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True)
class Library:
    """A library. `images` counts its images per target, `units` its units and `kernels` its kernels per state."""

    path: str
    size: int
    files: int
    sha256: str
    format: str
    machine: str
    loads_as: LoadsAs
    images: Mapping[str, int]
    units: Mapping[str, int]
    kernels: Mapping[str, int]
    jit_text: int
    toolkits: tuple[str, ...]
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    glibc: str
    glibcxx: str
    build_id: str
    compilers: tuple[str, ...]
    details: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel family: number of kernels and bytes of machine code per state."""

    name: str
    kernels: Mapping[str, int]
    bytes: Mapping[str, int]
    libraries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel. `library` is the index of its library in the report; `body` is real, small, stub or foreign.

    `fp4` and `fp8` count tensor instructions, `traps` traps; None where the chip's encoding is not known.
    """

    name: str
    library: int
    family: str
    state: str
    body: str
    size: int
    registers: int | None
    fp4: int | None
    fp8: int | None
    traps: int | None


@dataclass(frozen=True, slots=True)
class Jit:
    """What is left to the driver's compiler: PTX text in bytes, least and most seconds, oldest CUDA that reads it."""

    units: int
    text: int
    seconds: tuple[float, float]
    needs_cuda: str
    isa: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One library from the compiler's targets to the bytes."""

    library: str
    gencodes: Mapping[str, int]
    promised: Mapping[str, int]
    delivered: Mapping[str, int]
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """From the request to the bytes, where the maker said what was requested."""

    requested: tuple[str, ...]
    configured: Mapping[str, tuple[str, ...]]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole result of an inspection."""

    version: int
    made_by: str
    rules: Mapping[str, str]
    artifact: Subject
    question: Question
    verdict: Verdict
    distributions: tuple[Distribution, ...]
    libraries: tuple[Library, ...]
    families: tuple[Family, ...]
    kernels: tuple[Kernel, ...]
    jit: Jit
    delivery: Delivery
    findings: tuple[Finding, ...]

    @property
    def states(self) -> dict[str, int]:
        """How many kernels are in which state, over all libraries."""
        return dict(Counter(kernel.state for kernel in self.kernels))

    def at_least(self, verdict: Verdict) -> tuple[Finding, ...]:
        """Findings as grave as `verdict` or graver."""
        return tuple(finding for finding in self.findings if finding.verdict.rank >= verdict.rank)


def build_report(
    facts: ArtifactFacts,
    options: Options,
    libraries: Sequence[LibraryCoverage],
    families: Sequence[FamilyCoverage],
    cost: JitCost,
    findings: Iterable[Finding],
    traces: Sequence[Trace],
) -> Report:
    """Put the parts together, sorted."""
    unique = sorted(
        set(findings), key=lambda item: (-item.verdict.rank, item.check, item.subject, item.got, item.wanted)
    )
    return Report(
        version=VERSION,
        made_by=f"sm121 {__version__}",
        rules=dict(policy().dates),
        artifact=Subject(facts.kind, printable(facts.name), facts.size, facts.sha256),
        question=Question(str(options.capability), str(options.driver or ""), options.version, options.kernels),
        verdict=overall(unique),
        distributions=tuple(
            Distribution(
                printable(item.name),
                printable(item.version),
                _commit(item),
                item.wheel.tags if item.wheel else (),
                tuple(sorted(item.metadata.requires)),
            )
            for item in facts.distributions
            if not item.vendored
        ),
        libraries=tuple(_library(library) for library in libraries),
        families=tuple(
            Family(
                item.name, dict(sorted(item.kernels.items())), dict(sorted(item.bytes.items())), item.libraries
            )
            for item in families
        ),
        kernels=tuple(
            _kernel(kernel, index) for index, library in enumerate(libraries) for kernel in library.kernels
        ),
        jit=Jit(
            cost.units,
            cost.text,
            (round(cost.seconds[0], 1), round(cost.seconds[1], 1)),
            str(cost.needs or ""),
            cost.isa,
        ),
        delivery=_delivery(options, traces),
        findings=tuple(unique),
    )


def report_json(report: Report) -> dict[str, Any]:
    """The report as JSON data; `report.schema.json` beside this file describes it."""
    data: dict[str, Any] = encode(report)
    return data


def dump_report(report: Report) -> str:
    """The report as JSON text: equal reports, equal bytes."""
    return json.dumps(report_json(report), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load_report(text: str, name: str = "report") -> Report:
    """Read a report that `dump_report` wrote; UsageError says what is wrong with it."""
    try:
        data = json.loads(text)
        found = data.get("version") if isinstance(data, dict) else None
        if found != VERSION:
            raise ValueError(f"wanted version {VERSION}, found {found!r}")  # noqa: TRY301
        return decode(Report, data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{name} is no report of sm121: {error}.", do="write one with inspect --json."
        ) from error


def _commit(distribution: Installed) -> str:
    return next((stamp.commit for stamp in distribution.stamps if stamp.commit), "")


def _library(library: LibraryCoverage) -> Library:
    facts, host = library.facts, library.facts.host
    versions = [version for names in host.version_needs.values() for version in names] if host else []
    images = [image for unit in facts.units for image in unit.images]
    return Library(
        path=printable(facts.path),
        size=facts.size,
        files=facts.files,
        sha256=facts.sha256,
        format=facts.format,
        machine=facts.machine,
        loads_as=library.loads_as,
        images=dict(sorted(facts.targets().items())),
        units={str(how): count for how, count in sorted(library.loading.items())},
        kernels=dict(sorted(library.states.items())),
        jit_text=sum(image.size for image in library.jit),
        toolkits=_toolkits(images),
        needed=host.needed if host else (),
        runpath=(*host.rpath, *host.runpath) if host else (),
        glibc=_highest("GLIBC", versions),
        glibcxx=_highest("GLIBCXX", versions),
        build_id=host.build_id if host else "",
        compilers=host.comment if host else (),
        details=tuple(_unit(unit) for unit in library.units),
    )


def _unit(unit: UnitCoverage) -> Unit:
    return Unit(
        unit.facts.index, printable(unit.facts.member), unit.loads_as, unit.target,
        tuple(
            Image(image.target, image.stored, image.size, image.compression, image.kernels, _toolkit(image))
            for image in unit.facts.images
        ),
    )  # fmt: skip


def _toolkit(image: ImageFacts) -> str:
    """What made the image, as exactly as it says: `13.0.88`, or `13.0` by its PTX ISA."""
    if image.toolkit is not None:
        return image.toolkit.version
    needs = policy().drivers.needs(image.isa) if image.kind == "ptx" else None
    return str(needs.release) if needs else ""


def _toolkits(images: Iterable[ImageFacts]) -> tuple[str, ...]:
    """What made the images; a release is left out where an exact version of it stands beside it."""
    found = sorted({toolkit for image in images if (toolkit := _toolkit(image))})
    return tuple(item for item in found if not any(other.startswith(f"{item}.") for other in found))


def _highest(group: str, versions: Iterable[str]) -> str:
    found = [
        tuple(map(int, match[1].split(".")))
        for name in versions
        if (match := re.fullmatch(rf"{group}_([\d.]*\d)", name))
    ]
    return ".".join(map(str, max(found))) if found else ""


def _kernel(kernel: KernelCoverage, library: int) -> Kernel:
    return Kernel(
        printable(kernel.name), library, kernel.family, kernel.state, str(kernel.body), kernel.size, kernel.registers,
        kernel.fp4, kernel.fp8, kernel.traps,
    )  # fmt: skip


def _delivery(options: Options, traces: Sequence[Trace]) -> Delivery:
    promise = options.promise
    steps = tuple(
        Step(
            item.library, dict(sorted(item.gencodes.items())), dict(sorted(item.promised.items())),
            dict(sorted(item.delivered.items())), item.lost,
        )
        for item in traces
    )  # fmt: skip
    if promise is None:
        return Delivery((), {}, steps)
    return Delivery(promise.requested, dict(sorted(promise.configured.items())), steps)
