"""The steps of a vLLM wheel, each with a key over all it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.plan.brought import has_torch
from sm121.plan.components import requirement_changes
from sm121.plan.model import FINISH_ARCHS
from sm121.plan.steps import (
    COMPILERS,
    compiled_through,
    digests,
    inspect_step,
    step,
    toolkit_parts,
    toolkit_step,
    used_tools,
)  # fmt: skip
from sm121.progress import plural
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sm121.pins import FilePin, Line, Release
    from sm121.plan.model import Host, Local, Request, Step, Tree

CUTLASS_FOLDER = "vllm/third_party/fmha_sm100/cutlass"
"""Where the official wheel carries a copy of CUTLASS's headers (since 0.26.0)."""


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
        return f"{self.release.version}+{self.line.local}" + (f".{self.part}" if self.part else "")

    @property
    def part(self) -> str:
        """What the version says about it."""
        return "partial" if self.request.extensions else ""

    @property
    def requirements(self) -> dict[str, str]:
        """What the official wheel's METADATA asks for in other words."""
        return requirement_changes(self.release.version, self.line.cuda.major)

    @property
    def tools(self) -> list[FilePin]:
        """The build programs that are used."""
        return used_tools(self.request, self.line, self.host, "vllm")

    @property
    def toolkit_parts(self) -> list[FilePin]:
        """The wheels that the toolkit folder is made of."""
        return toolkit_parts(self.request, self.line, self.host, "vllm")


def vllm_steps(choice: Choice, patches: Sequence[tuple[str, str]], left_out: Iterable[str]) -> tuple[Step, ...]:
    """All steps in order; `patches` are (name, sha256), `left_out` members of the official wheel."""
    request, line, release, host = choice.request, choice.line, choice.release, choice.host
    official = release.official(request.cpu)
    stamped = choice.stamped
    source = step(
        "source", f"unpack vLLM {release.version} and apply {plural(len(patches), 'patch', 'patches')}",
        {"sdist": digests(release.sdist), "patches": [list(patch) for patch in patches]},
    )  # fmt: skip
    toolkit = toolkit_step(request, line, host, choice.toolkit_parts)
    torch = step(
        "torch", f"{'link' if request.torch_home else 'unpack'} torch {release.torch} for {request.cpu}",
        {
            "torch": _local(request.torch_home) if request.torch_home
            else digests(line.torch(release, request.cpu)) if has_torch(line, release)
            else f"{release.torch}+{line.cuda.local}",
        },
    )  # fmt: skip
    cutlass = step(
        "cutlass", "unpack CUTLASS",
        {
            "cutlass": _local(request.cutlass_home) if request.cutlass_home
            else [*digests(official), CUTLASS_FOLDER],
        },
    )  # fmt: skip
    trees = step(
        "trees", f"fetch {', '.join(tree.name for tree in choice.trees)} from their git hosts",
        {"trees": [[tree.name, tree.repository, tree.ref] for tree in choice.trees]},
    )  # fmt: skip
    tools = step("tools", "unpack the build tools", {"files": digests(*choice.tools)})
    libraries = step(
        "libraries", f"compile {', '.join(choice.compiled)}",
        {
            "targets": list(choice.compiled), "python": ".".join(host.python.split(".")[:2]),
            "host compiler": host.compiler, **compiled_through(request, choice.tools),
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
    finish = step(
        "finish", "compile what is PTX only ahead of time, drop what cannot load",
        {"official": digests(official), "target": str(GB10), "arch": FINISH_ARCHS[request.cpu].sm},
        needs=(libraries, toolkit),
    )  # fmt: skip
    wheel = step(
        "wheel", f"assemble vllm {stamped}",
        {
            "official": digests(official), "left out": sorted(left_out), "version": stamped,
            **({"requirements": choice.requirements} if choice.requirements else {}),
        },
        needs=(libraries, source, *([finish] if request.finish else [])),
    )  # fmt: skip
    inspect = inspect_step(line, request.cpu, wheel)
    publish = step("publish", "give the wheel its name, digest and manifest", {}, needs=(inspect,))
    first = (source, toolkit, torch, cutlass, *([trees] if choice.trees else []), tools, libraries)
    return (*first, *([finish] if request.finish else []), wheel, inspect, publish)


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
