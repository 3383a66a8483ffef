"""A plan as data: steps with content keys, promises about device code, needs of the machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sm121.target import GB10, LoadsAs, loads_as
from sm121.values import ArchSpec, Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.findings import Finding
    from sm121.pins import FilePin
    from sm121.resources import Machine
    from sm121.target import Kind

Origin = Literal["source", "official", "left out"]
Cpu = Literal["aarch64", "x86_64"]

PLAN_VERSION = 1
"""Version of the plan's JSON form."""


@dataclass(frozen=True, slots=True)
class Local:
    """A folder of the user's that takes the place of a pinned file: its path, and what identifies its content."""

    path: str
    version: str
    digest: str
    cuda: str = ""
    """torch: the CUDA release that it was built for, "" if it does not tell."""
    cpu: str = ""
    """torch: the processor of its libraries, "" if that could not be read."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree that only a git host has: name, repository, upstream's ref, and the variable that names its folder."""

    name: str
    repository: str
    ref: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks for."""

    line: str
    vllm: str | None = None
    cpu: Cpu = "aarch64"
    extensions: tuple[str, ...] = ()
    """Extensions to compile; empty means all that carry SM12x code and whose sources can be had."""
    sources: Literal["", "pinned", "all"] = ""
    """"" takes `pinned`, and `all` where the official wheel's libraries are of another CUDA major than the line."""
    cache: str = "ccache"
    """`ccache`, `sccache` or `none`."""
    arch_list: str | None = None
    cuda_home: str | None = None
    cuda_image: str | None = None
    """A container image that holds the toolkit, by digest or as a path."""
    jobs: int | None = None
    split_compile: int = 1
    """Threads nvcc gives the optimiser of one file (`--split-compile`)."""
    finish: bool = True
    patches: tuple[str, ...] = ()
    """Optional patches to switch on, by name."""
    torch_home: Local | None = None
    """An unpacked or installed torch for the target, instead of the pinned wheel."""
    cutlass_home: Local | None = None
    """A CUTLASS source folder instead of the copy in the official wheel."""
    folder: str = ""
    """Where the build tree is, if the bytes depend on it: sccache names files by absolute paths, and keeps them so."""
    modules: tuple[str, ...] = ()
    """FlashInfer: the name of a set, or names and regular expressions of modules; empty means the default set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Facts about the machine that a plan rests on."""

    cpu: Cpu
    machine: Machine
    python: str
    """Version of the Python whose headers are compiled against, e.g. 3.11."""
    compiler: str
    """The C++ compiler for the target with its version, e.g. `aarch64-linux-gnu-g++ 12.2.0`; "" if missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. Its key covers all it reads, the keys of the steps it needs among them."""

    name: str
    title: str
    inputs: Mapping[str, Any]
    """JSON-able. What the step's result depends on, apart from other steps."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Step name to key."""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """16 hexadecimal digits."""
        content = {
            "name": self.name, "inputs": self.inputs, "needs": dict(self.needs), "argv": self.argv,
            "env": dict(self.env),
        }  # fmt: skip
        return Sha256.of_bytes(json.dumps(content, sort_keys=True).encode()).hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One compiled library of the package: where it comes from and what it must hold."""

    name: str
    path: str
    """Member of the wheel."""
    origin: Origin
    reason: str
    images: Mapping[str, int]
    """Promise: device images per target, e.g. {"sm_120f": 74, "compute_80": 4}. Empty: host code only, or not
    promised (official parts are judged, not promised)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Libraries of one kind, or a set of them: what they cost to compile, CPU seconds and peak bytes of one compiler."""

    name: str
    libraries: int
    units: int
    """CUDA translation units."""
    seconds: float
    peak: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One pinned file, what it is for, and the steps that read it."""

    pin: FilePin
    role: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What no index has and the user brings: `path` is "" until it is named."""

    what: str
    """`the CUDA 12.9 toolkit`, `torch 2.14.0+cu129`."""
    option: str
    path: str
    how: str
    """How to come by it."""
    instead: str = ""
    """Another way, with another option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a build will do, before it does anything."""

    project: str
    version: str
    stamped: str
    """Version of the wheel: `0.33.0+cu130.sm121`."""
    line: str
    cuda: str
    compiler: str
    """CUDA release of the nvcc that compiles."""
    toolchain: str
    target_cpu: Cpu
    host: Host
    arch_list: str
    archs: Mapping[str, tuple[str, ...]]
    """Configured targets: `generic` and `gated`."""
    cutlass: str
    """Which CUTLASS compiles, and how it differs from upstream's pin."""
    extensions: tuple[Extension, ...]
    downloads: tuple[Download, ...]
    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]
    jobs: int
    heavy_jobs: int
    disk: int
    """Bytes that the scratch folder and the result will take, as far as is known of whole builds."""
    result: int
    """Of these, the bytes of the result."""
    memory: int
    """Bytes that the compilers may take at one time."""
    seconds: float
    """Expected wall time of compiling without a cache, from measured costs."""
    finishing: float = 0.0
    """Expected wall time of finishing without what ptxas made before, from measured costs."""
    cache: str = "ccache"
    part: str = ""
    """What the wheel's version says about a part: `partial`, or the name of a set of modules; "" for the whole."""
    brought: tuple[Brought, ...] = ()
    requirements: Mapping[str, str] = field(default_factory=dict)
    """Requirements of the official wheel that this one words otherwise."""
    patches: tuple[str, ...] = ()
    """Optional patches that were switched on."""
    torch_home: Local | None = None
    cutlass_home: Local | None = None
    trees: tuple[Tree, ...] = ()
    """Source trees from git hosts (`--sources all`)."""
    distributions: tuple[str, ...] = ("vllm",)
    """The wheels that come out; the first holds the libraries."""
    groups: tuple[Group, ...] = ()
    """FlashInfer: the modules of the build by family."""
    sets: tuple[Group, ...] = ()
    """FlashInfer: the sets that a build can be asked for."""
    chosen: str = ""
    """FlashInfer: the set of this build, or `own`."""

    def step(self, name: str) -> Step:
        """The step `name`; KeyError if the plan has none."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    @property
    def finishes(self) -> bool:
        """Whether PTX is compiled ahead of time."""
        return any(step.name == "finish" for step in self.steps)

    @property
    def digest(self) -> Sha256:
        """Digest over the steps' keys and the promises: equal digests, equal wheels."""
        content = {
            "steps": {step.name: step.key for step in self.steps},
            "extensions": [[e.name, e.origin, dict(e.images)] for e in self.extensions],
        }
        return Sha256.of_bytes(json.dumps(content, sort_keys=True).encode())


FINISH_ARCHS: Mapping[Cpu, ArchSpec] = {"aarch64": ArchSpec(12, 1), "x86_64": ArchSpec(12, 0)}
"""What PTX is compiled for: GB10 itself; on x86_64, where no GB10 is, code that RTX 50 (12.0) loads as well."""


def after_finishing(targets: Iterable[str], cpu: Cpu) -> list[str]:
    """What finishing leaves of one unit's device images: machine code that loads on 12.1, else its PTX compiled.

    Targets are written `sm_120f`, `compute_80`.
    """
    kinds: list[tuple[str, Kind]] = [
        (target, "ptx" if target.startswith("compute") else "cubin") for target in targets
    ]
    loads = {target: loads_as(kind, ArchSpec.from_sm(target), GB10) for target, kind in kinds}
    machine = [target for target, _ in kinds if loads[target].machine_code]
    return machine or [FINISH_ARCHS[cpu].sm for target, _ in kinds if loads[target] is LoadsAs.JIT][:1]
