"""What pins are, once loaded: files by hash, packages, toolkits, lines, releases of vLLM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.errors import PinsError, UsageError
from sm121.pins.reading import closest

if TYPE_CHECKING:
    from sm121.values import ArchSpec, CudaVersion, Sha256


class Cpu(StrEnum):
    """A processor that code runs on."""

    AARCH64 = "aarch64"
    X86_64 = "x86_64"


class Role(StrEnum):
    """What a toolkit part is needed for, and hence whose wheel it is."""

    HOST = "host"
    """Programs and headers for the machine that compiles."""
    TARGET = "target"
    """Libraries for the machine that will run the result."""
    HEADERS = "headers"
    """Headers only, the same for every CPU: any wheel serves."""
    INSPECT = "inspect"
    """Programs that look at the result; no build needs them."""
    PROOF = "proof"
    """Programs and libraries that prove what a release accepts; not a whole compiler."""


class ToolchainKind(StrEnum):
    """Where nvcc comes from."""

    WHEELS = "wheels"
    """Hermetic: hashed wheels, nothing to install."""
    INSTALLED = "installed"
    """A CUDA toolkit on the machine or in a container: no wheel holds this release's nvcc."""


@dataclass(frozen=True, slots=True)
class FilePin:
    """One file, known by its bytes. `size` in bytes; `cpu` is None where every machine is served."""

    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256
    read: str
    """Where and when size and hash were read."""
    cpu: Cpu | None = None
    roles: tuple[Role, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a distribution with its pinned files."""

    name: str
    version: str
    files: tuple[FilePin, ...]
    roles: tuple[Role, ...] = ()
    needed_by: tuple[str, ...] = ()
    """Projects whose compilation needs it; empty for all."""
    cuda: CudaVersion | None = None
    """The CUDA release it was built for, where that is known."""
    commit: str = ""
    """Upstream's commit, where the files name it."""
    note: str = ""

    def file(self, cpu: Cpu | str) -> FilePin:
        """The file for a CPU. Raises PinsError if none is pinned for it."""
        for file in self.files:
            if file.cpu in {Cpu(cpu), None}:
                return file
        have = ", ".join(str(file.cpu) for file in self.files) or "none"
        raise PinsError(f"{self.name} {self.version} is pinned for {have}, wanted {Cpu(cpu)}.")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The parts of one CUDA toolkit, all of one release."""

    release: str
    """Version of the package cuda-toolkit whose METADATA names the parts' versions."""
    cuda: CudaVersion
    parts: tuple[Package, ...]

    def files(self, host: Cpu | str, target: Cpu | str, project: str = "") -> list[FilePin]:
        """The wheels for compiling on `host` for `target`, each with the roles it plays there."""
        chosen: dict[str, FilePin] = {}
        for part in self.parts:
            if project and part.needed_by and project not in part.needed_by:
                continue
            for role in part.roles:
                if role is Role.HEADERS:
                    file = min(part.files, key=lambda file: file.size)
                else:
                    file = part.file(target if role is Role.TARGET else host)
                known = chosen.get(file.filename, replace(file, roles=()))
                chosen[file.filename] = replace(known, roles=(*known.roles, role))
        return list(chosen.values())


@dataclass(frozen=True, slots=True)
class Line:
    """One CUDA line."""

    name: str
    compiler_toolkit: Toolkit
    """What compiles; with an installed toolchain only the parts that the index has of it."""
    runtime_toolkit: Toolkit
    """Whose libraries torch and the compiled code meet when they run."""
    toolchain: ToolchainKind
    vllm_archs: tuple[ArchSpec, ...]
    flashinfer_archs: tuple[ArchSpec, ...]
    local: str
    """PEP 440 local version of the wheels: line and target."""
    summary: str
    programs: tuple[Package, ...]
    torches: tuple[Package, ...]
    """The torch builds for the runtime's CUDA release that are pinned; none if they live elsewhere."""

    @property
    def cuda(self) -> CudaVersion:
        """The release of torch and of the runtime libraries."""
        return self.runtime_toolkit.cuda

    @property
    def compiler(self) -> CudaVersion:
        """The release of nvcc. Newer than `cuda`: then every CUDA symbol used must exist in the older runtime."""
        return self.compiler_toolkit.cuda

    @property
    def vllm_arch_list(self) -> str:
        """As TORCH_CUDA_ARCH_LIST wants it."""
        return ";".join(str(arch) for arch in self.vllm_archs)

    @property
    def flashinfer_arch_list(self) -> str:
        """As FLASHINFER_CUDA_ARCH_LIST wants it: one space between entries, nothing else."""
        return " ".join(str(arch) for arch in self.flashinfer_archs)

    def toolkit(self, host: Cpu | str, target: Cpu | str, project: str = "") -> list[FilePin]:
        """Toolkit wheels for compiling `project` on `host` for `target`, each with its roles."""
        return self.compiler_toolkit.files(host, target, project)

    def tools(self, host: Cpu | str, project: str = "") -> list[FilePin]:
        """Build programs for the machine that compiles; with `project`, those that it needs."""
        return [
            tool.file(host)
            for tool in self.programs
            if Role.INSPECT not in tool.roles
            and not (project and tool.needed_by and project not in tool.needed_by)
        ]

    def inspect_tools(self, host: Cpu | str) -> list[FilePin]:
        """Programs that look at a result, as a second opinion."""
        return [tool.file(host) for tool in self.programs if Role.INSPECT in tool.roles]

    def torch(self, release: Release, cpu: Cpu | str) -> FilePin:
        """The torch wheel that `release` demands. Raises PinsError if this line has none of that version."""
        for torch in self.torches:
            if torch.version == release.torch:
                return torch.file(cpu)
        wanted = f"torch {release.torch}+{self.cuda.local}"
        have = ", ".join(torch.version for torch in self.torches)
        raise PinsError(
            f"line {self.name} needs {wanted} for vLLM {release.version}, and "
            + (f"pins torch {have} only." if have else "the package index has no torch of that CUDA release."),
            do=f"install {wanted} from PyTorch's own index and name its folder, or take another line.",
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """One way to have a component's sources without asking its repository."""

    kind: str
    """`wheel`: a pinned wheel carries a copy; `empty`: an empty folder is enough; `placeholder`: configuring is
    satisfied, the component's targets must not be built."""
    package: str = ""
    path: str = ""
    version: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Component:
    """A third-party source tree that vLLM's CMake fetches."""

    name: str
    repository: str
    ref: str
    """What upstream pins: a tag or a commit."""
    commit: str
    """Full commit, "" where only a tag is known."""
    variable: str
    """Environment variable that names a folder to use instead."""
    origins: tuple[Origin, ...]
    extensions: tuple[str, ...] = ()
    """Compiled libraries that need it."""


@dataclass(frozen=True, slots=True)
class Release:
    """One vLLM version: its own files, and what it demands."""

    version: str
    commit: str
    """As `_version.py` of the official wheel gives it."""
    python: str
    torch: str
    flashinfer: Package
    sdist: FilePin
    wheels: tuple[FilePin, ...]
    requires: tuple[str, ...]
    """Requirements from METADATA that concern CUDA."""
    components: tuple[Component, ...]
    companions: tuple[Package, ...]
    """Packages that share the environment and must fit."""

    def official(self, cpu: Cpu | str) -> FilePin:
        """The official wheel. Raises PinsError if none is pinned for that CPU."""
        return Package("vllm", self.version, self.wheels).file(cpu)

    def component(self, name: str) -> Component:
        for component in self.components:
            if component.name == name:
                return component
        raise PinsError(f"vLLM {self.version} has no component {name!r}.")


@dataclass(frozen=True, slots=True)
class Pins:
    """Everything that is pinned."""

    lines: tuple[Line, ...]
    releases: tuple[Release, ...]
    toolkits: tuple[Toolkit, ...]
    torches: tuple[Package, ...]
    default_line: str
    default_release: str

    def line(self, name: str = "") -> Line:
        """A line by name, the default one for "". Raises UsageError."""
        wanted = name or self.default_line
        for line in self.lines:
            if line.name == wanted:
                return line
        names = [line.name for line in self.lines]
        raise UsageError(
            f"there is no line {wanted!r}{closest(wanted, names) or '.'}", do=f"name one of {', '.join(names)}."
        )

    def vllm(self, version: str = "") -> Release:
        """A vLLM release by version, the default one for "". Raises UsageError."""
        wanted = version.removeprefix("v") or self.default_release
        for release in self.releases:
            if release.version == wanted:
                return release
        have = [release.version for release in self.releases]
        raise UsageError(
            f"vLLM {wanted} is not pinned{closest(wanted, have) or '.'}",
            do=f"name one of {', '.join(have)}, or add it with `sm121 pins update --vllm {wanted}`.",
        )
