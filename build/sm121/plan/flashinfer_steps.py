"""The steps of FlashInfer's wheels, each with a key over all it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.pins import FilePin, Line, Release
    from sm121.plan.flashinfer_modules import Selection
    from sm121.plan.model import Host, Request, Step
    from sm121.values import ArchSpec

CALLED = ("libcublas.so", "libcublasLt.so")
"""Libraries that modules call and that are not laid out: their stand-ins must define the functions."""

PROVIDERS_SINCE = Version("0.7")
"""From here on the cache is a wheel per architecture, which a small one finds (flashinfer/jit/env.py)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is built, from what, where: all that a step's key may depend on."""

    request: Request
    line: Line
    release: Release
    host: Host
    arch: ArchSpec
    selection: Selection

    @property
    def version(self) -> str:
        return self.release.flashinfer.version

    @property
    def stamped(self) -> str:
        """The wheels' version. Another set than the default one is not to be taken for it."""
        return f"{self.version}+{self.line.local}" + (f".{self.part}" if self.part else "")

    @property
    def part(self) -> str:
        """What the version says about the set."""
        return {"serving": "", "own": "partial"}.get(self.selection.name, self.selection.name)

    @property
    def provider(self) -> str:
        """`sm121a`, as FlashInfer names the architecture of a provider; "" where the cache is one wheel."""
        return f"sm{self.arch.number}{self.arch.suffix}" if Version(self.version) >= PROVIDERS_SINCE else ""

    @property
    def distributions(self) -> tuple[str, ...]:
        """The wheel with the libraries, and the one that finds it."""
        return (f"flashinfer-jit-cache-{self.provider}",) if self.provider else ()

    @property
    def source(self) -> FilePin:
        """The flashinfer-python wheel: it holds every kernel's source, and the scripts that compile them."""
        return self.release.flashinfer.file(self.request.cpu)

    @property
    def ffi(self) -> FilePin:
        """The apache-tvm-ffi that vLLM demands, for the target: modules are compiled with it and call its library."""
        package = next(each for each in self.release.companions if each.name == "apache-tvm-ffi")
        return package.file(self.request.cpu)

    @property
    def tools(self) -> list[FilePin]:
        return used_tools(self.request, self.line, self.host, "flashinfer")

    @property
    def toolkit_parts(self) -> list[FilePin]:
        return toolkit_parts(self.request, self.line, self.host, "flashinfer")


def flashinfer_steps(choice: Choice, patches: Sequence[tuple[str, str]]) -> tuple[Step, ...]:
    """All steps in order; `patches` are (name, sha256)."""
    request, line, host, selection = choice.request, choice.line, choice.host, choice.selection
    source = step(
        "source",
        f"unpack flashinfer-python {choice.version} and apply {plural(len(patches), 'patch', 'patches')}",
        {"wheel": digests(choice.source), "patches": [list(patch) for patch in patches]},
    )  # fmt: skip
    toolkit = toolkit_step(request, line, host, choice.toolkit_parts, called=list(CALLED))
    tools = step("tools", "unpack the build tools", {"files": digests(*choice.tools)})
    ffi = step("tvm-ffi", f"unpack apache-tvm-ffi {choice.ffi.version}", {"wheel": digests(choice.ffi)})
    libraries = step(
        "libraries", f"compile {plural(len(selection.modules), 'module')}",
        {
            "modules": {module.name: list(module.sources) for module in selection.modules},
            "extra": sorted({module.extra for module in selection.modules if module.extra}),
            "arch list": str(choice.arch), "torch": choice.release.torch, "cuda": str(line.compiler.release),
            "python": ".".join(host.python.split(".")[:2]), "host compiler": host.compiler,
            "compiler": COMPILERS[host.cpu, request.cpu], **compiled_through(request, choice.tools),
            "split compile": request.split_compile,
        },
        needs=(source, toolkit, ffi), env={"PATH": "{tree}/cuda/bin:{tree}/tools/bin:{system}"}, recipe="modules",
    )  # fmt: skip
    names = choice.distributions or ("flashinfer-jit-cache",)
    wheel = step(
        "wheel", f"assemble {' and '.join(names)} {choice.stamped}",
        {
            "version": choice.stamped, "provider": choice.provider,
            "claims": [[claim.what, *claim.modules] for claim in selection.claims],
        },
        needs=(libraries,), recipe="cache-wheel",
    )  # fmt: skip
    inspect = inspect_step(choice.line, choice.request.cpu, wheel)
    publish = step("publish", "give the wheels their names, digests and manifest", {}, needs=(inspect,))
    return (source, toolkit, tools, ffi, libraries, wheel, inspect, publish)
