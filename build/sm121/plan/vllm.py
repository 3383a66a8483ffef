"""Plans a vLLM wheel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from sm121.arch_lists import effective, expected_images, judge_arch_list
from sm121.errors import PlanError
from sm121.findings import Finding, Verdict
from sm121.pins.reading import closest
from sm121.plan.brought import brought, has_torch, judge_torch, toolchain_of
from sm121.plan.components import components, costs, heavy_share, known_versions, peak_memory
from sm121.plan.disk import room
from sm121.plan.model import Download, Extension, Plan, Tree, after_finishing
from sm121.plan.steps import COMPILERS, cache_findings, cache_problems, cuda_downloads
from sm121.plan.vllm_steps import Choice, vllm_steps
from sm121.resources import HEAVIEST, LIGHT, compile_jobs
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.arch_lists import Targets
    from sm121.pins import Line, Pins, Release
    from sm121.plan.components import Component, Costs
    from sm121.plan.model import Cpu, Host, Origin, Request

_PYTHONS = {"0.33.0": ("3.11", "3.14"), "0.26.0": ("3.10", "3.14")}
"""First and last minor version that each release's CMakeLists.txt accepts."""


def plan_vllm(request: Request, pins: Pins, host: Host, patches: tuple[tuple[str, str], ...] = ()) -> Plan:
    """Plan the wheel that `request` asks for; `patches` are (name, sha256) in the order of application.

    Raises UsageError for an unknown line, version or extension, PlanError with all reasons if the build cannot
    deliver code for 12.1.
    """
    line = pins.line(request.line)
    release = pins.vllm(request.vllm or "")
    arch_list = line.vllm_arch_list if request.arch_list is None else request.arch_list
    parts = components(release.version, request.cpu)
    request = _with_sources(request, parts, line)
    compiled = _compiled(request, parts)
    applied = tuple(name for name, _ in patches)
    findings = judge_arch_list(
        "vllm", release.version, line.compiler, arch_list, GB10, extensions=compiled, finished=request.finish,
        patches=applied,
    )  # fmt: skip
    if request.torch_home:
        findings += judge_torch(request.torch_home, line, release, request.cpu)
    problems = [f.message for f in findings if f.verdict is Verdict.FAIL]
    problems += _request_problems(request, line, release, host, parts)
    if problems:
        raise PlanError(
            problems, do="change the request as the messages say (`sm121 build --help` has the options)."
        )

    targets = effective("vllm", release.version, line.compiler, arch_list, applied)
    measured = costs(release.version)
    seconds = {name: value for name, value in measured.seconds.items() if _extension_of(name) in compiled}
    peaks = {name: value for name, value in measured.peak.items() if _extension_of(name) in compiled}
    jobs = compile_jobs(
        cores=host.machine.cpus, memory=host.machine.memory_for_builds(), heaviest=max(peaks.values(), default=HEAVIEST),
        heavy_share=heavy_share((value, peaks[name]) for name, value in seconds.items()), wanted=request.jobs,
    )  # fmt: skip
    promised = expected_images("vllm", release.version, line.compiler, arch_list, applied)
    compiled = tuple(name for name in compiled if _has_targets(name, parts, promised))
    if request.finish:
        promised = {name: _finished(images, request.cpu) for name, images in promised.items()}
    extensions = tuple(_extension(part, compiled, promised, line) for part in parts)
    findings += _lost(parts, extensions, request)
    trees = _trees(request, release, parts, compiled)
    choice = Choice(request, line, release, host, arch_list, compiled, trees)
    findings += cache_findings(request, line, choice.tools)
    downloads = _downloads(choice)
    left_out = [e.path for e in extensions if e.origin == "left out"]
    finishing = _finishing(measured, extensions) if request.finish else 0.0
    needed = room(
        request, downloads, seconds=sum(seconds.values()), units=sum(sum(e.images.values()) for e in extensions),
        finishing=finishing, trees=len(trees),
    )  # fmt: skip
    return Plan(
        project="vllm",
        version=release.version,
        stamped=choice.stamped,
        line=line.name,
        cuda=str(line.cuda),
        compiler=str(line.compiler),
        toolchain=toolchain_of(request, line),
        target_cpu=request.cpu,
        host=host,
        arch_list=arch_list,
        archs=_archs(targets),
        cutlass=_cutlass(request, release),
        extensions=extensions,
        downloads=downloads,
        steps=vllm_steps(choice, patches, left_out),
        findings=(*findings, *jobs.findings),
        jobs=jobs.total,
        heavy_jobs=jobs.heavy,
        disk=needed.total,
        result=needed.result,
        memory=_memory(peaks, jobs.total, jobs.heavy, measured=bool(measured.peak)),
        seconds=max(sum(seconds.values()) / jobs.total, max(seconds.values(), default=0.0)),
        finishing=finishing / jobs.total,
        cache=request.cache,
        part=choice.part,
        brought=brought(request, line, release, host.cpu),
        requirements=choice.requirements,
        patches=request.patches,
        torch_home=request.torch_home,
        cutlass_home=request.cutlass_home,
        trees=trees,
    )


def _finishing(measured: Costs, extensions: tuple[Extension, ...]) -> float:
    """CPU seconds of finishing what the wheel will hold."""
    there = {extension.name for extension in extensions if extension.origin != "left out"}
    return sum(seconds for name, seconds in measured.finishing.items() if name in there)


def _request_problems(
    request: Request, line: Line, release: Release, host: Host, parts: list[Component]
) -> list[str]:
    problems = []
    if not parts:
        problems.append(
            f"the extensions of vLLM {release.version} are not known; known are {', '.join(known_versions())}."
        )
    names = [part.name for part in parts if _compilable(part, request)]
    problems += [
        f"there is no extension {name!r} to compile{closest(name, names)}; there are {', '.join(names)}."
        for name in request.extensions
        if name not in names
    ]
    if request.sources == "pinned" and not request.extensions:
        problems += [
            f"line {line.name} cannot take {part.name} from the official wheel, whose libraries need CUDA {part.cuda}, and "
            "vLLM does not import without it: leave --sources pinned out, so that it is compiled from its git host."
            for part in parts
            if part.required and not part.from_sdist and not part.serves(line.cuda.major)
        ]
    if (host.cpu, request.cpu) not in COMPILERS:
        problems.append(f"a build for {request.cpu} on {host.cpu} is not supported.")
    problems += cache_problems(request)
    first, last = _PYTHONS.get(release.version, ("3.11", "3.14"))
    if not _minor(first) <= _minor(host.python) <= _minor(last):
        problems.append(
            f"vLLM {release.version} builds with Python {first} to {last}, this is {host.python}; "
            "run nox with one of those."
        )
    return problems


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def _with_sources(request: Request, parts: list[Component], line: Line) -> Request:
    """Where nothing was said: from git hosts, too, if the official wheel's libraries are of another CUDA major."""
    if request.sources:
        return request
    foreign = any(part.required and not part.serves(line.cuda.major) for part in parts)
    return replace(request, sources="all" if foreign else "pinned")


def _has_targets(name: str, parts: list[Component], promised: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether upstream makes a target of this extension at all: one from a git host only if it has code for the list."""
    part = next(part for part in parts if part.name == name)
    return part.from_sdist or not promised or name in promised


def _lost(parts: list[Component], extensions: tuple[Extension, ...], request: Request) -> list[Finding]:
    """Libraries without which the wheel will not pass: they are of another CUDA major, and are not compiled."""
    needed = {part.name for part in parts if part.required}
    lost = [e.name for e in extensions if e.origin == "left out" and e.name in needed]
    if not lost:
        return []
    got = f"the wheel will lack {', '.join(lost)}, without which vLLM does not import, and fail its inspection"
    advice = "Stop before it with --until libraries" + (", or leave --ext out." if request.extensions else ".")
    return [Finding("plan.lost", "extensions", Verdict.WARN, got, advice=advice)]


def _trees(
    request: Request, release: Release, parts: list[Component], compiled: tuple[str, ...]
) -> tuple[Tree, ...]:
    """What --sources all fetches: the sources of the extensions outside the sdist, and upstream's own CUTLASS."""
    if request.sources != "all":
        return ()
    names = {part.sources for part in parts if part.name in compiled and not part.from_sdist}
    found = [release.component(name) for name in sorted(names)]
    return tuple(Tree(each.name, each.repository, each.commit or each.ref, each.variable) for each in found)


def _compiled(request: Request, parts: list[Component]) -> tuple[str, ...]:
    wanted = [part.name for part in parts if _compilable(part, request)]
    return tuple(name for name in wanted if not request.extensions or name in request.extensions)


def _compilable(part: Component, request: Request) -> bool:
    """Whether its sources can be had and hold SM12x code (FA3, FlashMLA and DeepSelect have none in any build)."""
    return part.from_sdist or (request.sources == "all" and part.sm12x)


def _extension_of(object_name: str) -> str:
    return object_name.split("/", 1)[0]


def _extension(
    part: Component, compiled: tuple[str, ...], promised: Mapping[str, Mapping[str, int]], line: Line
) -> Extension:
    if part.name in compiled:
        return Extension(
            name=part.name, path=part.path, origin="source", reason=part.why, images=promised.get(part.name, {})
        )
    foreign = not part.serves(line.cuda.major)
    origin: Origin = "left out" if part.official == "leave out" or foreign else "official"
    reason = part.why if part.from_sdist or origin == "left out" else f"{part.why}; sources: {part.sources}"
    if foreign and part.official != "leave out":
        reason = f"the official library needs CUDA {part.cuda}, and it is not compiled here: {part.why}"
    return Extension(name=part.name, path=part.path, origin=origin, reason=reason, images={})


def _finished(images: Mapping[str, int], cpu: Cpu) -> dict[str, int]:
    """The promise after finishing: upstream builds PTX only where nothing else of the unit loads on 12.x."""
    counts: Counter[str] = Counter()
    for target, count in images.items():
        for left in after_finishing([target], cpu):
            counts[left] += count
    return dict(sorted(counts.items()))


def _archs(targets: Targets) -> dict[str, tuple[str, ...]]:
    return {
        "generic": tuple(str(arch) for arch in targets.generic),
        "gated": tuple(str(arch) for arch in targets.gated),
    }


def _cutlass(request: Request, release: Release) -> str:
    component = release.component("cutlass")
    if request.cutlass_home:
        return f"{request.cutlass_home.version} at {request.cutlass_home.path}; upstream pins {component.ref}"
    copy = next(
        (origin for origin in component.origins if origin.kind == "wheel" and origin.package == "vllm"), None
    )
    version = copy.version if copy else "unknown version"
    return f"{version}, the copy in the official vLLM {release.version} wheel; upstream pins {component.ref}"


def _downloads(choice: Choice) -> tuple[Download, ...]:
    request, line, release, host = choice.request, choice.line, choice.release, choice.host
    official_for = ("finish", "wheel") if request.cutlass_home else ("cutlass", "finish", "wheel")
    found = [
        Download(pin=release.sdist, role="sources", steps=("source",)),
        Download(pin=release.official(request.cpu), role="official wheel", steps=official_for),
        *(Download(pin=tool, role="tool", steps=("tools",)) for tool in choice.tools),
        *(Download(pin=tool, role="inspection", steps=("inspect",)) for tool in line.inspect_tools(host.cpu)),
    ]
    if not request.torch_home and has_torch(line, release):
        found.append(Download(pin=line.torch(release, request.cpu), role="torch", steps=("torch",)))
    return (*found, *cuda_downloads(request, line, choice.toolkit_parts))


def _memory(peaks: Mapping[str, int], jobs: int, heavy_jobs: int, *, measured: bool) -> int:
    if not measured:
        return heavy_jobs * HEAVIEST + (jobs - heavy_jobs) * LIGHT
    if not peaks:
        return jobs * LIGHT  # host code: not measured, and light
    return peak_memory(peaks.values(), jobs, heavy_jobs)
