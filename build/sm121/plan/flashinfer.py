"""Plans FlashInfer's modules, compiled ahead of time, as wheels."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from sm121.arch_lists import judge_arch_list
from sm121.errors import PlanError
from sm121.findings import Finding, Verdict
from sm121.plan.brought import brought, toolchain_of
from sm121.plan.components import HEAVY, heavy_share, peak_memory
from sm121.plan.disk import room
from sm121.plan.flashinfer_modules import (
    all_modules,
    costs_measured,
    known_versions,
    select,
    sets,
    unit_cost,
    unserved,
)
from sm121.plan.flashinfer_steps import Choice, flashinfer_steps
from sm121.plan.model import Download, Extension, Group, Plan
from sm121.plan.steps import COMPILERS, cache_problems, cuda_downloads
from sm121.resources import HEAVIEST, LIGHT, compile_jobs
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.pins import Line, Pins, Release
    from sm121.plan.flashinfer_modules import Module, Selection
    from sm121.plan.model import Host, Request
    from sm121.values import ArchSpec

_ANSWERED = "arch-list.fp4"
"""The finding that a list of 12.1a alone lacks fp4_quantization_120f: sets hold it, and own lists are judged by it."""


def plan_flashinfer(request: Request, pins: Pins, host: Host, patches: tuple[tuple[str, str], ...] = ()) -> Plan:
    """Plan the wheels that `request` asks for; `patches` are (name, sha256) in the order of application.

    The version is the one that the pinned vLLM demands. Raises UsageError for an unknown line, version, set or module,
    PlanError with all reasons if the build cannot deliver code for 12.1.
    """
    line = pins.line(request.line)
    release = pins.vllm(request.vllm or "")
    version = release.flashinfer.version
    arch = line.flashinfer_archs[0]
    findings = judge_arch_list("flashinfer", version, line.compiler, line.flashinfer_arch_list, GB10)
    problems = [f.message for f in findings if f.verdict is Verdict.FAIL]
    problems += _request_problems(request, line, release, host)
    if problems:
        raise PlanError(
            problems, do="change the request as the messages say (`sm121 build --help` has the options)."
        )

    selection = select(version, arch, request.modules)
    costs = {
        (module.name, source): unit_cost(module.name, source)
        for module in selection.modules for source in module.sources
    }  # fmt: skip
    peaks = sorted(cost.peak for cost in costs.values())
    seconds = [cost.seconds for cost in costs.values()]
    jobs = compile_jobs(
        cores=host.machine.cpus, memory=host.machine.memory_for_builds(),
        heaviest=max(peaks[-1], LIGHT) if peaks else HEAVIEST,
        light=max([LIGHT, *(peak for peak in peaks if peak <= HEAVY)]),
        heavy_share=heavy_share((cost.seconds, cost.peak) for cost in costs.values()), wanted=request.jobs,
    )  # fmt: skip
    choice = Choice(request, line, release, host, arch, selection)
    downloads = _downloads(choice)
    needed = room(request, downloads, seconds=sum(seconds))
    targets = sorted({module.target for module in selection.modules if module.target})
    archs = tuple(str(target) for target in targets)
    package = f"flashinfer_jit_cache{f'_{choice.provider}' if choice.provider else ''}"
    return Plan(
        project="flashinfer",
        version=version,
        stamped=choice.stamped,
        line=line.name,
        cuda=str(line.cuda),
        compiler=str(line.compiler),
        toolchain=toolchain_of(request, line),
        target_cpu=request.cpu,
        host=host,
        arch_list=line.flashinfer_arch_list,
        archs={"all modules": archs} if archs else {},
        cutlass=f"the copy in the flashinfer-python {version} wheel",
        extensions=tuple(_extension(module, selection, package) for module in selection.modules),
        downloads=downloads,
        steps=flashinfer_steps(choice, patches),
        findings=(
            *(f for f in findings if f.check != _ANSWERED),
            *_gaps(version, selection),
            _measured(),
            *jobs.findings,
        ),
        jobs=jobs.total,
        heavy_jobs=jobs.heavy,
        disk=needed.total,
        result=needed.result,
        memory=peak_memory(peaks, jobs.total, jobs.heavy),
        seconds=max(sum(seconds) / jobs.total, max(seconds, default=0.0)),
        cache=request.cache,
        part=choice.part,
        brought=brought(request, line, release, host.cpu, torch=False),
        patches=request.patches,
        distributions=(*choice.distributions, "flashinfer-jit-cache"),
        groups=tuple(_families(selection)),
        sets=tuple(_sets(version, arch)),
        chosen=selection.name,
    )


def _request_problems(request: Request, line: Line, release: Release, host: Host) -> list[str]:
    problems = []
    version = release.flashinfer.version
    if version not in known_versions():
        problems.append(
            f"the modules of FlashInfer {version} are not known; known are {', '.join(known_versions())}."
        )
    if len(line.flashinfer_archs) != 1:
        problems.append(
            f"line {line.name} asks for {line.flashinfer_arch_list}: modules are known for lists of one target."
        )
    if all(package.name != "apache-tvm-ffi" for package in release.companions):
        problems.append(f"no apache-tvm-ffi is pinned for vLLM {release.version} (pins/companions.toml).")
    if (host.cpu, request.cpu) not in COMPILERS:
        problems.append(f"a build for {request.cpu} on {host.cpu} is not supported.")
    problems += cache_problems(request)
    return problems


def _extension(module: Module, selection: Selection, package: str) -> Extension:
    images = {module.target.sm: module.units} if module.target and module.units else {}
    return Extension(
        name=module.name, path=f"{package}/jit_cache/{module.name}/{module.name}.so", origin="source",
        reason=selection.reasons[module.name], images=images,
    )  # fmt: skip


def _gaps(version: str, selection: Selection) -> list[Finding]:
    """What serving would compile when it is first used, because the modules that were asked for lack it."""
    names = [module.name for module in selection.modules]
    subject = f"modules: {selection.name}"
    if broken := unserved(selection.claims, names):
        raise PlanError(
            broken, do="the set claims modules that this FlashInfer does not make; mend the set's data."
        )
    missing = unserved(sets(version)["serving"].claims, names)
    if not missing:
        return [
            Finding("modules.serving", subject, Verdict.PASS, "hold all that vLLM calls on 12.1 in usual models")
        ]
    got = (
        f"{len(missing)} modules of the set 'serving' are not among them; each is compiled when it is first used"
    )
    return [Finding("modules.serving", subject, Verdict.INFO, got)]


def _measured() -> Finding:
    return Finding(
        "modules.costs", "CPU time and peak memory", Verdict.INFO, f"as measured with {costs_measured()}"
    )


def _families(selection: Selection) -> Iterable[Group]:
    families: dict[str, list[Module]] = defaultdict(list)
    for module in selection.modules:
        families[module.family].append(module)
    for name, modules in families.items():
        reasons = dict.fromkeys(selection.reasons[module.name] for module in modules)
        yield _group(name, modules, "; ".join(reasons) if selection.claims else "")


def _sets(version: str, arch: ArchSpec) -> Iterable[Group]:
    if not all_modules(version, arch):
        return
    for name, named in sets(version).items():
        yield _group(name, select(version, arch, [name]).modules, named.why)


def _group(name: str, modules: Iterable[Module], why: str) -> Group:
    listed = list(modules)
    costs = [unit_cost(module.name, source) for module in listed for source in module.sources]
    return Group(
        name=name, libraries=len(listed), units=sum(module.units for module in listed),
        seconds=sum(cost.seconds for cost in costs), peak=max((cost.peak for cost in costs), default=0), why=why,
    )  # fmt: skip


def _downloads(choice: Choice) -> tuple[Download, ...]:
    line, host = choice.line, choice.host
    found = [
        Download(pin=choice.source, role="sources", steps=("source", "wheel")),
        Download(pin=choice.ffi, role="tvm-ffi", steps=("tvm-ffi",)),
        *(Download(pin=tool, role="tool", steps=("tools",)) for tool in choice.tools),
        *(Download(pin=tool, role="inspection", steps=("inspect",)) for tool in line.inspect_tools(host.cpu)),
    ]
    return (*found, *cuda_downloads(choice.request, line, choice.toolkit_parts))
