"""Every CUDA line beside the others: what compiles, for what, what that delivers on 12.1, what it needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.arch_lists import effective, judge_arch_list
from sm121.arch_lists.data import vllm_release
from sm121.errors import PlanError
from sm121.findings import Verdict
from sm121.pins import Role
from sm121.plan.brought import has_torch
from sm121.plan.components import components
from sm121.plan.flashinfer import plan_flashinfer
from sm121.plan.model import Host, Request, after_finishing
from sm121.plan.vllm import plan_vllm
from sm121.resources import Machine
from sm121.resources.toolkit import driver_for
from sm121.target import GB10, LoadsAs, loads_as
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sm121.arch_lists import GroupTargets
    from sm121.pins import Line, Pins, Release
    from sm121.plan.components import Component
    from sm121.plan.model import Cpu, Extension, Plan
    from sm121.values import CudaVersion


_ANY = Machine(cpus=1, memory_total=None, memory_available=None)
"""The machine of a plan of which nothing but the wheels' content is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """One way to a line's compiler, on the machine that was asked about; `note` says what is there, or what to do."""

    kind: str
    possible: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """Sources of one extension that share their targets.

    `built` are the targets of the compile (`sm_120f`, `compute_80`), `shipped` those that finishing leaves, `loads_as` how
    they serve 12.1. `expected`: some toolkit builds code for 12.x of it, so without any it is a loss.
    """

    extension: str
    name: str
    units: int
    built: tuple[str, ...]
    shipped: tuple[str, ...]
    loads_as: LoadsAs
    expected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionLine:
    """One library of vLLM in a line's wheel, if nothing but the line is chosen; `git`: its sources come from a git host.

    `units` counts translation units by shipped target, `loads_as` is the worst of them (None: host code, or not
    compiled here), `missing` names groups of it that this line's compiler does not build.
    """

    name: str
    origin: str
    git: bool
    why: str
    units: Mapping[str, int]
    loads_as: LoadsAs | None
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineView:
    """One line, ready to be shown."""

    name: str
    summary: str
    default: bool
    toolkit: str
    """Version of the package cuda-toolkit that names the compiler's parts."""
    nvcc: str
    torch: str
    torch_from: str
    runtime: Mapping[str, str]
    """Library to what brings it."""
    lists: Mapping[str, str]
    """Project to its architecture list."""
    targets: Mapping[str, tuple[str, ...]]
    """`generic` and `gated` of vLLM, `flashinfer`: what the lists become."""
    modules: Mapping[str, int]
    """FlashInfer: set of modules to how many it has; empty for a release whose modules are not known."""
    extensions: tuple[ExtensionLine, ...]
    groups: tuple[GroupLine, ...]
    toolchains: tuple[Toolchain, ...]
    driver: str
    """Oldest driver branch for the wheel's machine code on 12.1."""
    ptx_driver: str
    """CUDA version of the driver that could compile PTX of this compiler; with finishing none is left."""
    problems: tuple[str, ...]
    """Why the line's own lists could not be built, if they cannot."""

    @property
    def loads_as(self) -> LoadsAs:
        """The worst of what is compiled."""
        return _worst(extension.loads_as for extension in self.extensions if extension.loads_as)

    @property
    def unaided(self) -> bool:
        """Whether it builds with nothing brought: compiler and torch come by hash."""
        return any(each.kind == "wheels" and each.possible for each in self.toolchains)


def line_views(
    pins: Pins, *, vllm: str = "", cpu: Cpu = "aarch64", host: Cpu, installed: Mapping[str, CudaVersion | None]
) -> list[LineView]:
    """All lines for one vLLM release, wheels for `cpu` made on `host`.

    `installed` are the toolkits of the machine, folder to nvcc's release (None: it does not tell). Raises UsageError for a
    release that is not pinned.
    """
    release = pins.vllm(vllm)
    return [_view(pins, line, release, cpu, host, installed) for line in pins.lines]


def _view(
    pins: Pins, line: Line, release: Release, cpu: Cpu, host: Cpu, installed: Mapping[str, CudaVersion | None]
) -> LineView:
    vllm = effective("vllm", release.version, line.compiler, line.vllm_arch_list)
    flashinfer = effective("flashinfer", release.flashinfer.version, line.compiler, line.flashinfer_arch_list)
    parts = {part.name: part for part in components(release.version, cpu)}
    groups = tuple(_group(row, release.version, cpu) for row in vllm.groups)
    request = Request(line=line.name, vllm=release.version, cpu=cpu)
    somewhere = Host(cpu=host, machine=_ANY, python="3.12", compiler="")
    plan, problems = _planned(plan_vllm, request, pins, somewhere)
    modules, _ = _planned(plan_flashinfer, request, pins, somewhere)
    built = modules.archs.get("all modules", ()) if modules else ()
    judged = judge_arch_list(
        "flashinfer", release.flashinfer.version, line.compiler, line.flashinfer_arch_list, GB10
    )
    problems += [finding.message for finding in judged if finding.verdict is Verdict.FAIL]
    return LineView(
        name=line.name,
        summary=line.summary,
        default=line.name == pins.default_line,
        toolkit=line.compiler_toolkit.release,
        nvcc=_nvcc(line),
        torch=f"{release.torch}+{line.cuda.local}",
        torch_from="wheel by hash" if has_torch(line, release) else "yours, --torch-home DIR",
        runtime=_runtime(line),
        lists={"vllm": line.vllm_arch_list, "flashinfer": line.flashinfer_arch_list},
        targets={
            "generic": tuple(arch.sm for arch in vllm.generic),
            "gated": tuple(arch.sm for arch in vllm.gated),
            "flashinfer": tuple(ArchSpec.parse(arch).sm for arch in built)
            or tuple(arch.sm for arch in flashinfer.generic),
        },
        modules={each.name: each.libraries for each in modules.sets} if modules else {},
        extensions=tuple(
            _extension(each, parts[each.name], groups) for each in (plan.extensions if plan else ())
        ),
        groups=groups,
        toolchains=_toolchains(line, host, installed),
        driver=driver_for(line.compiler, str(GB10)),
        ptx_driver=str(line.compiler.release),
        problems=tuple(problems),
    )


def _planned(
    planner: Callable[[Request, Pins, Host], Plan], request: Request, pins: Pins, host: Host
) -> tuple[Plan | None, list[str]]:
    """The plan of a build that asks for nothing but its line, or why there is none."""
    try:
        return planner(request, pins, host), []
    except PlanError as error:
        return None, error.problems


def _group(row: GroupTargets, version: str, cpu: Cpu) -> GroupLine:
    built: list[str] = []
    for target in row.targets:
        bare = ArchSpec(target.major, target.minor, target.suffix)
        built += [bare.sm, *([bare.compute] if target.ptx else [])]
    shipped = after_finishing(built, cpu)
    release, _ = vllm_release(version)
    offers = [arch for name in row.group.gates for _, archs in release.gates[name].bands for arch in archs]
    return GroupLine(
        extension=row.group.extension, name=row.group.name, units=row.group.units, built=tuple(built),
        shipped=tuple(shipped), loads_as=_best(shipped),
        expected=not row.group.gates or bool(built) or any(arch.major == GB10.major for arch in offers),
    )  # fmt: skip


def _extension(extension: Extension, part: Component, groups: Iterable[GroupLine]) -> ExtensionLine:
    compiled = extension.origin == "source"
    mine = [group for group in groups if group.extension == part.name and compiled]
    return ExtensionLine(
        name=part.name, origin=extension.origin, git=compiled and not part.from_sdist, why=extension.reason,
        units=dict(extension.images),
        loads_as=_worst(group.loads_as for group in mine if group.shipped) if extension.images else None,
        missing=tuple(group.name for group in mine if group.expected and not group.shipped),
    )  # fmt: skip


def _best(targets: Iterable[str]) -> LoadsAs:
    ways = [
        loads_as("ptx" if target.startswith("compute") else "cubin", ArchSpec.from_sm(target), GB10)
        for target in targets
    ]
    return min(ways, key=lambda way: way.rank, default=LoadsAs.NO)


def _worst(ways: Iterable[LoadsAs]) -> LoadsAs:
    return max(ways, key=lambda way: way.rank, default=LoadsAs.NO)


def _nvcc(line: Line) -> str:
    """The pinned build number, or the release where the index has no nvcc of it."""
    for part in line.compiler_toolkit.parts:
        if part.name == "nvidia-cuda-nvcc":
            return part.version
    return f"{line.compiler.release}.x"


def _runtime(line: Line) -> dict[str, str]:
    major = line.cuda.major
    own = next((part for part in line.runtime_toolkit.parts if part.name.startswith("nvidia-cuda-runtime")), None)
    return {
        f"libcudart.so.{major}": f"{own.name} {own.version}" if own else f"CUDA {line.cuda}",
        f"libnvrtc.so.{major}": f"CUDA {line.cuda}, with torch",
        "libcuda.so.1": "the driver",
    }


def _toolchains(line: Line, host: Cpu, installed: Mapping[str, CudaVersion | None]) -> tuple[Toolchain, ...]:
    parts = [part for part in line.compiler_toolkit.parts if Role.HOST in part.roles]
    wheels = bool(parts) and all(any(file.cpu in {host, None} for file in part.files) for part in parts)
    right = [home for home, found in installed.items() if found and found.release == line.compiler.release]
    wanted = f"CUDA {line.compiler.release}"
    return (
        Toolchain(
            kind="wheels", possible=wheels,
            note="by hash" if wheels else f"none holds nvcc of {wanted}",
        ),
        Toolchain(
            kind="installed", possible=bool(right),
            note=f"--cuda-home {right[0]}" if right else f"no toolkit of {wanted} was found",
        ),
        Toolchain(kind="image", possible=True, note="--cuda-image IMAGE, by digest"),
    )  # fmt: skip
