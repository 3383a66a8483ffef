"""The whole inspection: read, apply the rules, put the report together."""

from __future__ import annotations

import gc
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from sm121.artifact import Kind
from sm121.artifact.record import record_findings
from sm121.findings import Finding, Verdict
from sm121.inspector.coverage import cover, families
from sm121.inspector.crosscheck import cross_check
from sm121.inspector.gather import gather
from sm121.inspector.judge.cache import judge_cache_path
from sm121.inspector.judge.container import judge_container, judge_contents, watched
from sm121.inspector.judge.device_code import judge_library
from sm121.inspector.judge.families import judge_families, judge_presence
from sm121.inspector.judge.installed_wheel import judge_installed_wheel
from sm121.inspector.judge.jit import jit_cost, judge_jit
from sm121.inspector.judge.ledger import judge_ledger
from sm121.inspector.judge.line import cuda_of, judge_grafts, judge_line, judge_providers
from sm121.inspector.judge.naming import judge_base
from sm121.inspector.judge.ownership import judge_ownership
from sm121.inspector.judge.promised import judge_promise, trace
from sm121.inspector.judge.runtime import judge_runtime, runtime_of
from sm121.inspector.judge.stamp import Stamp, judge_build_record, judge_stamp
from sm121.inspector.judge.symbols import Needs, judge_symbols
from sm121.inspector.judge.tags import judge_one_version, judge_tags
from sm121.inspector.judge.wheel import judge_name, judge_platform, judge_size
from sm121.inspector.policy import policy
from sm121.inspector.reading import Depth, may_hold_code
from sm121.inspector.report import build_report
from sm121.progress import plural
from sm121.target import GB10
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sm121.artifact import Artifact, Distribution
    from sm121.inspector.coverage import FamilyCoverage, LibraryCoverage
    from sm121.inspector.facts import ArtifactFacts, LibraryFacts
    from sm121.inspector.judge.tags import Interpreter
    from sm121.inspector.promise import Promise
    from sm121.inspector.report import Report
    from sm121.inspector.rules import Expectation, LibraryRule, Policy, Runtime
    from sm121.progress import Progress
    from sm121.target import Capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to judge for. Empty parts are not judged, or by what the artifact itself says."""

    capability: Capability = GB10
    driver: CudaVersion | None = None
    """The CUDA version of the driver, as nvidia-smi shows it."""
    version: str = ""
    """The version that the artifact must carry."""
    promise: Promise | None = None
    line: CudaVersion | None = None
    """The CUDA line whose runtime the libraries will meet."""
    runtime: Runtime | None = None
    """The CUDA runtime that the libraries will meet, where it is in hand."""
    torch: str = ""
    """torch's full version where the artifact is to be used."""
    interpreter: Interpreter | None = None
    channel: str = ""
    kernels: bool = True
    """Whether to look into images, or at their headers only."""
    cross_check: bool = False
    """Whether cuobjdump reads everything too."""
    cuobjdump: str = ""
    """Which cuobjdump; "" takes the one on PATH."""
    jobs: int | None = None
    progress: Progress | None = field(default=None, compare=False)
    wheels: tuple[ExpectedWheel, ...] = ()
    """Wheels that must be installed in an image or environment, file by file."""
    base: BaseImage | None = None
    """The image that an image must begin with."""


@dataclass(frozen=True, slots=True)
class ExpectedWheel:
    """A wheel file: its own list of files, and its sha256 (hexadecimal)."""

    distribution: Distribution
    sha256: str


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A base by its name with digest, and the digests of its plain layers, first one first."""

    name: str
    diff_ids: tuple[str, ...]


def inspect_artifact(artifact: Artifact, options: Options | None = None) -> Report:
    """Read `artifact` to its end and judge it. Faults of the artifact become findings, never exceptions."""
    options = options or Options()
    policy()
    depth = Depth(options.capability, kernels=options.kernels, digest=options.kernels or bool(options.wheels))
    with _no_collection():
        facts = gather(artifact, depth, jobs=options.jobs, progress=options.progress)
        opinions = cross_check(artifact, facts.libraries, options.cuobjdump) if options.cross_check else []
        return judge(facts, options, opinions)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No search for cycles meanwhile: tens of thousands of records come up, and none holds itself."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def judge(facts: ArtifactFacts, options: Options, opinions: Sequence[Finding] = ()) -> Report:
    """Apply all rules to what was read; `opinions` are findings of other readers. Pure."""
    rules = policy()
    libraries = tuple(cover(library, rules, options.capability, options.driver) for library in facts.libraries)
    by_family = families(libraries)
    cost = jit_cost(libraries, rules.drivers)
    view = _View(facts, options, rules, libraries, by_family, _here(facts, rules))
    findings = [
        *facts.problems,
        *opinions,
        *_device(view),
        *judge_jit(cost, libraries, rules.drivers, options.driver),
        *_expected(view),
        *_hosts(view),
        *_identity(view),
        *_container(view),
        *_promised(view),
    ]
    lines = trace(options.promise, libraries) if options.promise else ()
    return build_report(facts, options, libraries, by_family, cost, findings, lines)


@dataclass(frozen=True, slots=True)
class _Here:
    """A distribution that is here: its rules, if it has any, and its files."""

    facts: Distribution
    paths: tuple[str, ...]
    expectation: Expectation | None

    @property
    def subject(self) -> str:
        return f"{self.facts.name} {self.facts.version}".strip()


@dataclass(frozen=True, slots=True)
class _View:
    """Everything that the rules look at."""

    facts: ArtifactFacts
    options: Options
    rules: Policy
    libraries: Sequence[LibraryCoverage]
    families: Sequence[FamilyCoverage]
    here: Sequence[_Here]

    @property
    def alone(self) -> bool:
        """The artifact is one thing to be judged, not a place where many things lie."""
        return self.facts.kind in {Kind.WHEEL, Kind.FILE}

    @property
    def judged(self) -> bool:
        """The rules for projects speak of this capability."""
        return self.options.capability.major in self.rules.project_majors

    @property
    def expected_version(self) -> str:
        return self.options.version or (self.options.promise.version if self.options.promise else "")

    def rule(self, path: str) -> LibraryRule | None:
        """The rule for a library: a library is known by its path, with or without metadata beside it."""
        if not self.judged:
            return None
        mine = [item.expectation for item in self.here if item.expectation]
        others = {project.name: project.expects("") for project in self.rules.projects}
        others.update({expectation.project: expectation for expectation in mine})
        return next((rule for item in others.values() if (rule := item.library(path)) is not None), None)


def _here(facts: ArtifactFacts, rules: Policy) -> tuple[_Here, ...]:
    found = []
    there = set(facts.paths)
    for item in facts.distributions:
        if item.vendored:
            continue
        listed = (item.where(row.path) for row in item.rows)
        paths = facts.paths if facts.kind == Kind.WHEEL else [path for path in listed if path in there and path]
        project = rules.project(item.name)
        found.append(_Here(item, tuple(paths), project.expects(item.version) if project else None))
    return tuple(found)


def _device(view: _View) -> Iterator[Finding]:
    if not view.libraries:
        # A wheel of Python alone is a known thing; anything else without a library was not what was meant.
        known = view.facts.kind is Kind.WHEEL and any(item.facts.name for item in view.here)
        yield Finding(
            "device.loads", view.facts.name, Verdict.PASS if known else Verdict.UNKNOWN,
            "holds no library, object, cubin or fatbin", "" if known else "something with device code to judge",
            "" if known else "Check the path: nothing was inspected.",
        )  # fmt: skip
    elif not view.alone and all(library.facts.host_only for library in view.libraries):
        # One library of host code is a known thing, as some of vLLM's are, and so is a place of Python packages. A
        # place that holds neither packages nor device code is not what was meant: /proc, a folder beside the right one.
        known = bool(view.here)
        yield Finding(
            "device.loads", view.facts.name, Verdict.INFO if known else Verdict.UNKNOWN,
            f"holds no device code; {plural(len(view.libraries), 'file')} of host code alone",
            "" if known else "something with device code to judge",
            "" if known else "Check the path: nothing was found that could run on a GPU.",
        )  # fmt: skip
    for library in view.libraries:
        facts = library.facts
        if facts.unread:
            yield Finding("read.failed", facts.path, Verdict.UNKNOWN, facts.unread, "a file that can be read")
            continue
        rule = view.rule(facts.path)
        yield from judge_library(library, rule, view.options.capability, ours=view.alone or rule is not None)
        yield from judge_cache_path(facts.path, view.options.capability)


def _expected(view: _View) -> Iterator[Finding]:
    for item in view.here if view.judged else ():
        if item.expectation is None:
            continue
        code = [path for path in item.paths if may_hold_code(path, executable=False)]
        yield from judge_presence(item.expectation, code)
        if view.options.kernels and item.expectation.families:
            own = set(item.paths)
            mine = families([library for library in view.libraries if library.facts.path in own])
            yield from judge_families(item.expectation.families, mine, item.subject, view.options.capability)


def _hosts(view: _View) -> Iterator[Finding]:
    """CUDA line, symbols and grafts, for each distribution by itself; what belongs to none is one more group."""
    owner = {path: item for item in view.here for path in item.paths}
    groups: dict[str, list[LibraryFacts]] = defaultdict(list)
    for library in view.facts.libraries:
        groups[owner[library.path].subject if library.path in owner else ""].append(library)
    items = {item.subject: item for item in view.here}
    torch = view.options.torch or next(
        (item.facts.version for item in view.here if item.facts.key == "torch"), ""
    )
    for subject, libraries in sorted(groups.items()):
        item = items.get(subject)
        if not view.alone and not (item and item.expectation) and not _cached(libraries):
            continue
        needed = {library.path: library.host.needed for library in libraries if library.host is not None}
        version = item.facts.version if item else ""
        yield from judge_line(needed, view.rules.libraries, version=version, torch=torch)
        yield from judge_providers(
            needed, view.rules.libraries, requires=item.facts.metadata.requires if item else None,
            files=view.facts.paths, own=view.alone,
        )  # fmt: skip
        yield from _symbols(view, libraries, version)
        if item is not None:
            yield from judge_grafts(item.paths, view.rules.libraries, item.facts.name)


def _cached(libraries: Sequence[LibraryFacts]) -> bool:
    return any("cached_ops/" in library.path for library in libraries)


def _symbols(view: _View, libraries: Sequence[LibraryFacts], version: str) -> Iterator[Finding]:
    hosts = [
        (library.path, library.host) for library in libraries if library.host and library.host.type == "shared"
    ]
    defined = frozenset(symbol for _, host in hosts for symbol in host.defined)
    # The runtime is the one that torch brings; a wheel may be named after a newer compiler (line cu135).
    stamped = cuda_of(view.options.torch) or cuda_of(version)
    line = view.options.line or (CudaVersion(*stamped) if stamped else None)
    runtime = view.options.runtime or _own_runtime(view)
    for path, host in hosts:
        if not host.undefined:
            continue
        needs = Needs(path, host.undefined, host.needed, host.bound, host.lazy)
        yield from judge_symbols(needs, defined, view.rules.libraries)
        yield from judge_runtime(needs, view.rules.runtimes, line, runtime)


def _own_runtime(view: _View) -> Runtime | None:
    """The runtime that an environment or image brings itself; None if it brings none, or some that differ."""
    found = {
        library.path: runtime
        for library in view.facts.libraries
        if library.host is not None and (runtime := runtime_of(library.host, library.path))
    }
    kinds = {(item.major, frozenset(item.symbols)) for item in found.values()}
    return next(iter(found.values())) if len(kinds) == 1 else None


def _identity(view: _View) -> Iterator[Finding]:
    facts = view.facts
    wheel = facts.kind == Kind.WHEEL
    if wheel:
        yield from _wheel(view)
    judged = [item for item in view.here if wheel or item.expectation is not None]
    for item in judged:
        yield from item.facts.problems
        yield from judge_ledger(item.facts)
        yield from judge_stamp(_stamp(view, item.facts), view.expected_version)
        if item.facts.check is not None and view.options.kernels:
            yield from record_findings(item.facts.check, item.subject)
        elif wheel and item.facts.check is None:
            yield Finding("wheel.record", item.subject, Verdict.FAIL, "has no RECORD", "a list of its files")
    if view.expected_version and not judged:
        got = "no distribution is here whose version could be compared"
        yield Finding("stamp.expected", facts.name, Verdict.UNKNOWN, got, view.expected_version)
    if not view.alone:
        yield from judge_ownership([item.facts for item in view.here])
        yield from _sites(view)
        for wheels in _staged(facts.paths).values():
            yield from judge_one_version(wheels)


def _sites(view: _View) -> Iterator[Finding]:
    """One version of each project in each environment, and what must be installed."""
    sites: dict[str, list[str]] = defaultdict(list)
    for item in view.here:
        sites[item.facts.site].append(f"{item.facts.name}=={item.facts.version}")
    for names in sites.values():
        yield from judge_one_version(names)
    for wheel in view.options.wheels:
        yield from judge_installed_wheel(wheel.distribution, wheel.sha256, view.facts.distributions)


def _container(view: _View) -> Iterator[Finding]:
    """What an image is besides its files."""
    facts, options = view.facts, view.options
    container = facts.container
    if container is None:
        return
    mine = [item.facts for item in view.here if watched(item.facts.key)]
    python = next((item.python for item in mine if item.key in {"torch", "triton"} and item.python), "")
    yield from judge_container(
        container, {item.key: item.version for item in mine}, capability=options.capability, python=python,
        driver=options.driver, torch=options.torch, paths=facts.paths,
    )  # fmt: skip
    machines = {library.path: library.machine for library in facts.libraries if library.format == "elf"}
    yield from judge_contents(container, facts.distributions, machines, facts.paths)
    if options.base is not None:
        yield from judge_base(
            container.diff_ids, container.labels, base=options.base.name, layers=options.base.diff_ids
        )


def _staged(paths: Iterable[str]) -> dict[str, list[str]]:
    """Wheels that lie ready to be installed, by folder; those inside of packages belong to them."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name.endswith(".whl") and "-packages" not in folder:
            folders[folder].append(name)
    return folders


def _stamp(view: _View, distribution: Distribution) -> Stamp:
    name = view.facts.name.rpartition("/")[2].split("-")
    return Stamp(
        distribution.name,
        file_name=name[1] if view.facts.kind == Kind.WHEEL and len(name) > 1 else "",
        folder=distribution.stem.partition("-")[2],
        metadata=distribution.metadata.version,
        module=next((stamp.version for stamp in distribution.stamps if stamp.version), ""),
    )


def _wheel(view: _View) -> Iterator[Finding]:
    facts, options = view.facts, view.options
    name = facts.name.rpartition("/")[2]
    inside = [item for item in facts.distributions if item.site == "" and item.folder.endswith(".dist-info")]
    if len(inside) != 1:
        got = f"holds {len(inside)} .dist-info folders"
        yield Finding("wheel.metadata", name, Verdict.FAIL, got, "one")
    yield from judge_name(name, [tag for item in inside if item.wheel for tag in item.wheel.tags], name)
    try:
        *_, parsed = parse_wheel_filename(name)
    except InvalidWheelFilename:
        parsed = frozenset()
    platforms = sorted({tag.platform for tag in parsed})
    machines = {library.path: library.machine for library in facts.libraries}
    needs = {library.path: library.host.version_needs for library in facts.libraries if library.host is not None}
    yield from judge_platform(platforms, machines, needs, name)
    if options.interpreter is not None:
        yield from judge_tags(name, options.interpreter)
    if options.channel:
        yield from judge_size(facts.size, view.rules.channels.get(options.channel), name, options.channel)


def _promised(view: _View) -> Iterator[Finding]:
    promise = view.options.promise
    if promise is not None:
        yield from judge_promise(promise, view.facts, view.libraries, view.families)
        yield from judge_build_record(promise.record)
