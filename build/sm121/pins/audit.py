"""Do the pinned versions fit together? Asked before anything is compiled, answered with both owners of a conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sm121.findings import Finding, Verdict
from sm121.pins.choose import PYTHON
from sm121.pins.cuda_parts import toolkit_parts
from sm121.pins.environment import Environment, known_bad, known_collisions
from sm121.pins.facts import exact, pinned_wheels
from sm121.pins.flashinfer_set import flashinfer_set
from sm121.pins.knowledge import known, toolkit_releases
from sm121.pins.torch_family import torch_build, torch_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sm121.pins.facts import Facts
    from sm121.pins.model import Cpu, Line, Release

_WHEEL_ONLY = frozenset({"flashinfer-cubin"})
"""Named in requirements/cuda.txt, left out of METADATA by upstream's setup.py because no index has it."""


def judge(environment: Environment) -> list[Finding]:
    """Everything that versions alone tell about an environment. Pure."""
    return [
        finding
        for check in (torch_build, torch_family, flashinfer_set, toolkit_parts, known_bad, known_collisions)
        for finding in check(environment)
    ]


def check(
    line: Line, release: Release, cpu: Cpu, facts: Facts | None = None, *, beside: Sequence[str] = ()
) -> list[Finding]:
    """Judge the pins of a line and a release. Pure; `facts` is what the indexes said, None if they were not asked.

    `beside` are further exact requirements of the same environment. Without facts only versions are judged, and
    one finding says that the rest is unknown.
    """
    environment = pinned_environment(line, release, cpu, beside)
    findings = [*_compiler(line), *_torch_pinned(line, release), *judge(environment)]
    if facts is None:
        unasked = Finding("pins.upstream", "indexes", Verdict.UNKNOWN, "were not asked what the packages require")
        return [*findings, unasked]
    findings += [
        *(Finding("pins.upstream", key, Verdict.UNKNOWN, why) for key, why in facts.missing.items()),
        *_listed(line, release, cpu, facts),
        *_recorded(release, facts),
        *_cuda_txt(release, facts),
        *_edges(environment, facts, cpu),
        *_toolkits(facts),
        *file_owners(facts.records),
        *_resolved(line, cpu, facts),
    ]
    return list(dict.fromkeys(findings))


def pinned_environment(line: Line, release: Release, cpu: Cpu, beside: Sequence[str] = ()) -> Environment:
    """The versions that are pinned one by one, each with the suffix of the CUDA release it was built for."""
    packages = [*(torch for torch in line.torches if torch.version == release.torch), release.flashinfer]
    installed = {"vllm": release.version}
    for package in (*packages, *release.companions):
        installed[package.name] = package.version + (f"+{package.cuda.local}" if package.cuda else "")
    installed.update(Environment.of_lines(exact(beside)).installed)
    return Environment(installed, cpu, line.cuda, from_index=True)


def _compiler(line: Line) -> list[Finding]:
    """Whether the compiler is of the runtime's release, or newer with a proof still to be given."""
    subject = f"line {line.name}"
    got = f"compiles with CUDA {line.compiler}, runs with libraries of {line.cuda}"
    if line.compiler == line.cuda:
        return [Finding("pins.compiler", subject, Verdict.PASS, got)]
    older = line.compiler < line.cuda
    return [
        Finding(
            "pins.compiler", subject, Verdict.WARN if older else Verdict.INFO, got,
            advice=""
            if older
            else f"Every CUDA symbol of the result must exist in the libraries of {line.cuda}; the inspection proves it.",
        )
    ]  # fmt: skip


def _torch_pinned(line: Line, release: Release) -> list[Finding]:
    if any(torch.version == release.torch for torch in line.torches):
        return []
    return [
        Finding(
            "pins.torch-build", f"torch {release.torch}+{line.cuda.local}", Verdict.UNKNOWN,
            f"no torch of CUDA {line.cuda.release} is pinned; the package index has none",
            advice="Install it from PyTorch's own index and check the installed set with --freeze.",
        )
    ]  # fmt: skip


def _listed(line: Line, release: Release, cpu: Cpu, facts: Facts) -> Iterator[Finding]:
    """Whether the index still has every pinned file, with the pinned bytes."""
    pins = {
        pin.filename: pin
        for pin in (*pinned_wheels(line, release, cpu), release.sdist, *line.toolkit(cpu, cpu), *line.tools(cpu))
    }
    good = 0
    for name, file in facts.listed.items():
        pin = pins[name]
        if file.sha256 not in {None, pin.sha256} or file.size not in {None, pin.size}:
            yield Finding(
                "pins.index", name, Verdict.FAIL, f"{file.size} bytes {file.sha256} on the index",
                f"{pin.size} bytes {pin.sha256}", "Find out which of the two is genuine before you build.",
            )  # fmt: skip
        elif file.yanked:
            yield Finding("pins.index", name, Verdict.WARN, "was withdrawn (yanked) by its publisher")
        else:
            good += 1
    if good:
        yield Finding("pins.index", "files", Verdict.PASS, f"{good} of {len(pins)} are on the index as pinned")


def _recorded(release: Release, facts: Facts) -> Iterator[Finding]:
    """Whether the requirements written into the pins are those of the official wheel."""
    own = facts.metadata.get("vllm")
    if own is None:
        return
    upstream = {_normal(requirement) for requirement in own}
    stale = [text for text in release.requires if _normal(Requirement(text)) not in upstream]
    for text in stale:
        yield Finding(
            "pins.requires", text, Verdict.FAIL, f"is not in the METADATA of vLLM {release.version}",
            advice=f"Read the pins anew: sm121 pins update --vllm {release.version}",
        )  # fmt: skip
    if not stale:
        yield Finding(
            "pins.requires", f"vLLM {release.version}", Verdict.PASS,
            f"{len(release.requires)} recorded requirements are those of its METADATA",
        )  # fmt: skip


def _cuda_txt(release: Release, facts: Facts) -> Iterator[Finding]:
    """Whether requirements/cuda.txt of the source and METADATA of the official wheel say the same."""
    own = facts.metadata.get("vllm")
    if own is None or facts.cuda_txt is None:
        return
    wheel = {canonicalize_name(requirement.name): requirement for requirement in own}
    agreed = 0
    for wanted in facts.cuda_txt:
        name = canonicalize_name(wanted.name)
        there = wheel.get(name)
        if there is not None and there.specifier == wanted.specifier and there.extras == wanted.extras:
            agreed += 1
            continue
        expected = there is None and name in _WHEEL_ONLY
        yield Finding(
            "pins.cuda-txt", str(wanted), Verdict.INFO if expected else Verdict.FAIL,
            "stands in requirements/cuda.txt only" if there is None else f"is {there} in METADATA",
            "" if expected else "the same in source and wheel",
        )  # fmt: skip
    yield Finding(
        "pins.cuda-txt", f"vLLM {release.version}", Verdict.PASS,
        f"{agreed} of {len(facts.cuda_txt)} lines of requirements/cuda.txt equal METADATA",
    )  # fmt: skip


def marker_environment(cpu: Cpu, extra: str = "") -> dict[str, str]:
    """What environment markers see on the machine that will run the result."""
    version = f"{PYTHON[0]}.{PYTHON[1]}"
    return {
        "python_version": version, "python_full_version": f"{version}.0", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "sys_platform": "linux", "platform_system": "Linux",
        "platform_machine": str(cpu), "os_name": "posix", "extra": extra,
    }  # fmt: skip


def demands(facts: Facts, cpu: Cpu) -> list[tuple[str, Requirement]]:
    """(who, what) for every requirement that applies, extras followed from vLLM on."""
    found: list[tuple[str, Requirement]] = []
    waiting = [(name, "") for name in facts.metadata]
    seen = set(waiting)
    while waiting:
        owner, extra = waiting.pop()
        for requirement in facts.metadata.get(owner, ()):
            marker = requirement.marker
            if extra and (marker is None or marker.evaluate(marker_environment(cpu))):
                continue
            if marker is not None and not marker.evaluate(marker_environment(cpu, extra)):
                continue
            found.append((f"{owner}[{extra}]" if extra else owner, requirement))
            for wanted in requirement.extras:
                step = (canonicalize_name(requirement.name), wanted)
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
    return found


def _edges(environment: Environment, facts: Facts, cpu: Cpu) -> Iterator[Finding]:
    """Whether each pinned package gets the versions of the others that it asks for."""
    satisfied = 0
    for owner, requirement in demands(facts, cpu):
        name = canonicalize_name(requirement.name)
        version = environment.version(name)
        if version is None:
            continue
        if requirement.specifier.contains(version.public, prereleases=True):
            satisfied += 1
            continue
        own = environment.installed.get(owner.partition("[")[0], "")
        others = [
            f"{who} wants {wish.name}{wish.specifier}"
            for who, wish in demands(facts, cpu)
            if canonicalize_name(wish.name) == name and who != owner and wish.specifier.contains(version.public)
        ]
        yield Finding(
            "pins.demand", f"{name} {version}", Verdict.FAIL,
            f"{owner} {own} wants {requirement.name}{requirement.specifier}"
            + (f", while {'; '.join(others)}" if others else ""),
            advice=f"Change {name} or {owner}.",
        )  # fmt: skip
    if satisfied:
        yield Finding(
            "pins.demand", "pinned packages", Verdict.PASS,
            f"{satisfied} requirements of {len(facts.metadata)} packages on each other hold",
        )  # fmt: skip


def _toolkits(facts: Facts) -> Iterator[Finding]:
    """Whether the stored table of toolkit parts is what the index's cuda-toolkit says."""
    for release, parts in facts.toolkits.items():
        stored = toolkit_releases().get(release, {})
        wrong = [f"{name}{parts[name]}" for name in parts if name in stored and parts[name] != stored[name]]
        absent = [name for name in stored if name not in parts]
        good = not wrong and not absent
        yield Finding(
            "pins.toolkit-table", f"cuda-toolkit {release}", Verdict.PASS if good else Verdict.FAIL,
            f"{len(stored)} parts as its METADATA says" if good else f"differs: {', '.join(wrong + absent)}",
        )  # fmt: skip


def file_owners(records: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Files that two distributions own with different content; those in the table of known ones are passed over."""
    told = {collision.path for collision in known().collisions}
    first: dict[str, tuple[str, str]] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for name, record in records.items():
        for path, digest in record.items():
            owner, known_digest = first.setdefault(path, (name, digest))
            if owner != name and known_digest != digest and path not in told:
                shared.setdefault((owner, name), []).append(path)
    for (one, other), paths in shared.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Finding(
            "pins.file-owners", paths[0] + more, Verdict.FAIL, f"owned by {one} and by {other} with different content",
            "one owner", "Whichever is installed last wins; keep one of the two out of the environment.",
        )  # fmt: skip
    if records and not shared:
        count = sum(len(record) for record in records.values())
        got = f"{count} files of {len(records)} wheels have one owner each"
        yield Finding("pins.file-owners", "files", Verdict.PASS, got)


def _resolved(line: Line, cpu: Cpu, facts: Facts) -> Iterator[Finding]:
    """Whether a complete set exists, and what its versions tell."""
    if facts.conflict:
        yield Finding("pins.resolution", "complete set", Verdict.FAIL, facts.conflict.rstrip("."))
    if facts.resolution is None:
        return
    versions = facts.resolution.versions
    yield Finding("pins.resolution", "complete set", Verdict.PASS, f"{len(versions)} packages for {cpu}")
    environment = Environment(versions, cpu, line.cuda, from_index=True)
    for finding in judge(environment):
        if finding.verdict not in {Verdict.PASS, Verdict.INFO}:
            yield finding


def _normal(requirement: Requirement) -> tuple[str, str, frozenset[str], str]:
    return (
        canonicalize_name(requirement.name), str(requirement.specifier), frozenset(requirement.extras),
        str(requirement.marker),
    )  # fmt: skip


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Gravest first, otherwise in the order of the checks."""
    return sorted(findings, key=lambda finding: -finding.verdict.rank)
