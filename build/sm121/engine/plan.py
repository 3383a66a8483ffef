"""Plans an image that an engine builds: what goes in, what it is called, what the Dockerfile is told. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from packaging.utils import canonicalize_name
from rich.table import Table

from sm121.artifact.imagedocs import LINUX_ARM64, Platform
from sm121.artifact.reference import ImageReference, parse_digest
from sm121.errors import Faults, ImageError, PlanError
from sm121.image.daemonless import judge_request
from sm121.image.frame import FOLDER, UID
from sm121.image.labels import stamp_labels
from sm121.image.names import output_name
from sm121.inspector.judge.tools import modules_are_split
from sm121.pins.model import Cpu
from sm121.progress import size
from sm121.target import GB10
from sm121.values import CudaVersion, Sha256, public_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from sm121.image.record import BuiltWheel
    from sm121.image.runtime_set import RuntimeSet
    from sm121.pins import Line, Release
    from sm121.pins.images import ImagePins
    from sm121.pins.model import FilePin

PLAN_VERSION = 1
EPOCH = 315532800
"""1980-01-01, the time of every installed file (seconds since 1970)."""
PLATFORMS = {Cpu.AARCH64: LINUX_ARM64, Cpu.X86_64: Platform("linux", "amd64")}
Mode = Literal["prebuilt", "nvcc"]
_FILES = ("oci:", "oci-archive:", "docker-archive:")
_MODULES = "flashinfer-jit-cache"
_OLDEST_NVCC = CudaVersion(12, 9)
"""The first nvcc that makes code for 12.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for. `base` and `repository` are as written, "" if not given; `packages` None takes the pins'.

    `flashinfer` is `prebuilt`, `nvcc`, or "" to take prebuilt modules where a wheel of them is among the wheels.
    """

    cpu: Cpu = Cpu.AARCH64
    builder: str = "docker"
    base: str = ""
    repository: str = ""
    flashinfer: str = ""
    packages: tuple[str, ...] | None = None
    snapshot: str = ""
    network: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Everything about an image before it is made. `modules` says how FlashInfer gets its modules."""

    line: str
    version: str
    builder: str
    platform: Platform
    base: str
    """By digest: REGISTRY/NAME@sha256:..., for the builder oci also oci:PATH@sha256:..."""
    base_digest: Sha256
    repository: ImageReference | None
    wheels: tuple[BuiltWheel, ...]
    runtime: RuntimeSet
    installer: FilePin
    modules: Mode
    packages: tuple[str, ...]
    snapshot: str
    network: str
    labels: Mapping[str, str]
    dockerfile: Sha256

    @property
    def base_reference(self) -> ImageReference:
        """The base in its registry. Raises ImageError for one that is files."""
        return ImageReference.parse_familiar(self.base)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that depend on the plan."""
        if self.modules == "prebuilt":
            # The second opens vLLM's own gate, which otherwise looks for an nvcc.
            return {"FLASHINFER_DISABLE_JIT": "1", "VLLM_HAS_FLASHINFER_CUBIN": "1"}
        site = f"/{FOLDER}/lib/python{self.runtime.python_name}/site-packages"
        return {"CUDA_HOME": f"{site}/nvidia/cu{self.line[2:4]}"}

    @property
    def arguments(self) -> dict[str, str]:
        """What the Dockerfile is told."""
        told = {
            "BASE": self.base, "PYTHON": self.runtime.python_name, "UID": str(UID), "EPOCH": str(EPOCH),
            "APT_PACKAGES": " ".join(self.packages), "APT_SNAPSHOT": self.snapshot,
        }  # fmt: skip
        if self.modules == "nvcc":
            told |= self.environment
        return told

    @property
    def digest(self) -> Sha256:
        """Of everything that the image depends on."""
        data = plan_json(self)
        for key in ("digest", "repository"):
            data.pop(key)
        return Sha256.of_bytes(json.dumps(data, sort_keys=True).encode())


def plan_image(
    request: Request, line: Line, release: Release, pins: ImagePins, wheels: Sequence[BuiltWheel], runtime: RuntimeSet,
    lock: str, dockerfile: bytes,
) -> ImagePlan:  # fmt: skip
    """Plan an image; `lock` is the name of the locked set's file. Raises PlanError that names every fault."""
    ordered = sorted(wheels, key=lambda wheel: project_of(wheel.filename) != "vllm")
    judge_image(request, line, release, pins, wheels=ordered, runtime=runtime, lock=lock)
    base, repository = _base(request, pins), _repository(request.repository)
    modules, _ = _modules(request, ordered, runtime, lock)
    packages = pins.runtime.packages if request.packages is None else request.packages
    return ImagePlan(
        line=line.name,
        version=ordered[0].manifest.subject.version,
        builder=request.builder,
        platform=PLATFORMS[request.cpu],
        base=base[0],
        base_digest=base[1],
        repository=repository,
        wheels=tuple(ordered),
        runtime=runtime,
        installer=pins.installer.file(request.cpu),
        modules=modules,
        packages=packages,
        snapshot=request.snapshot,
        network=request.network or ("default" if packages else "none"),
        labels=_labels(ordered, base, runtime),
        dockerfile=Sha256.of_bytes(dockerfile),
    )


def judge_image(
    request: Request, line: Line, release: Release, pins: ImagePins, *, wheels: Sequence[BuiltWheel] | None,
    runtime: RuntimeSet | None, lock: str, no_vllm: bool = False,
) -> None:  # fmt: skip
    """Raise PlanError that names every fault of what is there: `wheels` or `runtime` None could not be read.

    With `no_vllm` it was told already that there is no wheel of vLLM.
    """
    faults = Faults()
    faults.of(lambda: _base(request, pins))
    faults.of(lambda: _repository(request.repository))
    if wheels is not None and runtime is not None:
        faults.of(lambda: judge_request(wheels, runtime, lock))
    problems = [*faults.problems]
    if wheels is not None:
        problems += _wheel_faults(request, line, release, wheels, no_vllm=no_vllm)
    if runtime is not None:
        problems += _lock_faults(request, line, release, runtime, lock)
    if wheels is not None and runtime is not None:
        names = {project_of(wheel.filename) for wheel in wheels}
        if replaced := sorted({package.name for package in runtime.packages} & names):
            problems.append(f"{lock} holds {', '.join(replaced)}, of which wheels were given.")
        problems += _modules(request, wheels, runtime, lock)[1]
    if request.builder not in {"docker", "oci"}:
        problems.append(f"there is no builder {request.builder!r}; there are docker and oci.")
    if request.network not in {"", "none", "default", "host"}:
        problems.append(f"there is no network {request.network!r}; there are none, default and host.")
    if problems:
        raise PlanError(problems, do=faults.do or "change the request as the messages say.")


def _base(request: Request, pins: ImagePins) -> tuple[str, Sha256]:
    name, _, digest = request.base.partition("@")
    if request.builder == "oci" and name.startswith(_FILES):
        try:
            return request.base, parse_digest(digest)
        except ValueError as error:
            raise ImageError(f"the base {request.base}: {error}.", do=f"write {name}@sha256:DIGEST.") from error
    if request.base:
        reference = ImageReference.parse_familiar(request.base)
        if reference.digest is None:
            raise ImageError(
                f"the base {request.base} is named without a digest, so it can be another one tomorrow.",
                do=f"resolve it once (`sm121 resolve {request.base}`), then write {reference.name}@sha256:DIGEST.",
            )
        return str(reference), reference.digest
    pin = pins.runtime
    if pin.image is None:
        raise ImageError(
            f"no base is pinned by digest for images; {pin.proposed} is proposed, and a tag can be another one tomorrow.",
            do=f"read its digest (`sm121 resolve {pin.proposed}`), and give --base NAME@sha256:DIGEST, or write it into "
            "pins/images.toml.",
        )
    assert pin.image.digest is not None
    return str(pin.image), pin.image.digest


def _repository(text: str) -> ImageReference | None:
    return output_name(ImageReference.parse(text)) if text else None


def _wheel_faults(
    request: Request, line: Line, release: Release, wheels: Sequence[BuiltWheel], *, no_vllm: bool
) -> list[str]:
    """What of the wheels is not what line and release say."""
    faults = []
    names = [project_of(wheel.filename) for wheel in wheels]
    if names.count("vllm") != 1 and not no_vllm:
        faults.append(f"one vLLM wheel is wanted, found {names.count('vllm')}.")
    doubled = sorted({name for name in names if names.count(name) > 1} - {"vllm"})
    faults += [f"{name} is there {names.count(name)} times." for name in doubled]
    for wheel in wheels:
        subject = wheel.manifest.subject
        if subject.line != line.name or subject.cpu != request.cpu:
            faults.append(
                f"{wheel.filename} is of line {subject.line} for {subject.cpu}, wanted {line.name} for {request.cpu}."
            )
        if project_of(wheel.filename) == "vllm" and subject.base != release.version:
            faults.append(f"{wheel.filename} is vLLM {subject.base}, wanted {release.version}.")
    return faults


def _lock_faults(request: Request, line: Line, release: Release, runtime: RuntimeSet, lock: str) -> list[str]:
    """What of the locked set is not what line and release say."""
    faults = []
    locked = {package.name: package.version for package in runtime.packages}
    if runtime.line != line.name or runtime.cpu != request.cpu:
        faults.append(
            f"{lock} is of line {runtime.line} for {runtime.cpu}, wanted {line.name} for {request.cpu}."
        )
    torch = locked.get("torch", "")
    if torch.partition("+")[0] != release.torch:
        faults.append(f"{lock} holds torch {torch or '(none)'}, vLLM {release.version} wants {release.torch}.")
    return faults


def project_of(filename: str) -> str:
    """The distribution of a wheel; one manifest can describe several wheels."""
    return canonicalize_name(filename.partition("-")[0])


def _modules(
    request: Request, wheels: Sequence[BuiltWheel], runtime: RuntimeSet, lock: str
) -> tuple[Mode, list[str]]:
    """How FlashInfer gets its modules, so that it does not compile at every start."""
    locked = {package.name: package.version for package in runtime.packages}
    flashinfer = locked.get("flashinfer-python", "")
    built = {project_of(wheel.filename): wheel.manifest.subject.version for wheel in wheels}
    caches = {name: version for name, version in {**locked, **built}.items() if name.startswith(_MODULES)}
    fitting = {name for name, version in caches.items() if public_version(version) == public_version(flashinfer)}
    if request.flashinfer not in {"", "prebuilt", "nvcc"}:
        return "prebuilt", [
            f"there is no way {request.flashinfer!r} for FlashInfer; there are prebuilt and nvcc."
        ]
    if request.flashinfer == "nvcc":
        return "nvcc", _nvcc_faults(locked, lock)
    faults = [
        f"{name} {caches[name]} does not belong to flashinfer-python {flashinfer}."
        for name in sorted(caches.keys() - fitting)
    ]
    if fitting and modules_are_split(flashinfer) and (_MODULES not in fitting or fitting == {_MODULES}):
        missing = (
            f"the small wheel {_MODULES} that finds" if _MODULES not in fitting else f"a wheel {_MODULES}-* with"
        )
        faults.append(f"FlashInfer {flashinfer} has its modules in two wheels; {missing} the modules is missing.")
    if not fitting and flashinfer:
        faults.append(
            f"FlashInfer {flashinfer} would compile its modules at every first start: no wheel of them (jit-cache) is "
            "given. Build one with `sm121 build --only flashinfer`, or accept that with --flashinfer nvcc."
        )
    return "prebuilt", faults


def _nvcc_faults(locked: Mapping[str, str], lock: str) -> list[str]:
    if "ninja" not in locked:
        return [f"{lock} holds no ninja, without which vLLM leaves FlashInfer off."]
    nvcc = locked.get("nvidia-cuda-nvcc", "")
    if not nvcc:
        return [f"{lock} holds no nvcc (nvidia-cuda-nvcc), which FlashInfer would need."]
    if CudaVersion.parse(nvcc) < _OLDEST_NVCC:
        return [f"{lock} holds nvcc {nvcc}; {_OLDEST_NVCC} is the first that makes code for {GB10}."]
    return []


def _labels(wheels: Sequence[BuiltWheel], base: tuple[str, Sha256], runtime: RuntimeSet) -> dict[str, str]:
    """The chain of the wheels, and the versions beside them that the inspection compares."""
    locked = {package.name: package.version for package in runtime.packages}
    made = stamp_labels(wheels, base=base, lock=runtime.digest, python=runtime.python_name, epoch=EPOCH)
    others = {
        f"sm121.{name}.version": locked[name]
        for name in ("torch", "triton", "flashinfer-python")
        if name in locked
    }
    return dict(sorted({**made, **others}.items()))


def plan_json(plan: ImagePlan) -> dict[str, Any]:
    """The plan as JSON-able data; equal requests give equal data."""
    return {
        "version": PLAN_VERSION,
        "digest": "",
        "line": plan.line,
        "vllm": plan.version,
        "builder": plan.builder,
        "platform": str(plan.platform),
        "base": plan.base,
        "repository": str(plan.repository) if plan.repository else "",
        "flashinfer": plan.modules,
        "lock": plan.runtime.digest.hex,
        "packages": [[each.name, each.version] for each in plan.runtime.packages],
        "wheels": [{"filename": w.filename, "sha256": w.sha256.hex, "size": w.size} for w in plan.wheels],
        "installer": {"filename": plan.installer.filename, "sha256": plan.installer.sha256.hex},
        "dockerfile": plan.dockerfile.hex,
        "target": plan.modules,
        "arguments": plan.arguments,
        "network": plan.network,
        "labels": dict(plan.labels),
    }


def show_plan(plan: ImagePlan, console: Console) -> None:
    """Print the plan in one screen."""
    console.print(
        f"[bold]image of vLLM {plan.version}[/] for {plan.platform}, line {plan.line}, builder {plan.builder}"
    )
    wheels = [f"{w.filename} ({size(w.size)}, {w.sha256})" for w in plan.wheels]
    facts = {
        "base": plan.base,
        "wheels": "\n".join(wheels),
        "locked set": f"{len(plan.runtime.packages)} wheels for Python {plan.runtime.python_name}, {plan.runtime.digest}",
        "FlashInfer": "modules are prebuilt"
        if plan.modules == "prebuilt"
        else "compiles at first start, with the set's nvcc",
        "packages": " ".join(plan.packages) or "none",
        "network": f"{plan.network} while it is built",
        "then": f"inspect, push to {plan.repository}, name by digest"
        if plan.repository
        else "inspect; not pushed",
        "plan": str(plan.digest),
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(f"[dim]{name}[/]", value)
    console.print(grid)
    for key, value in plan.labels.items():
        console.print(f"  {key}={value}", style="dim", markup=False, soft_wrap=True)
