"""The verb `image`: plan, build, inspect, push, name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121 import pins
from sm121.documents import read_document
from sm121.engine.flow import ImageBuild, Place
from sm121.engine.plan import ImagePlan, Request, judge_image, plan_image, plan_json, project_of, show_plan
from sm121.errors import Faults, PackError, UsageError
from sm121.image import without_engine
from sm121.image.daemonless import ImageRequest, read_wheels
from sm121.image.runtime_set import RuntimeSet
from sm121.manifest import Manifest
from sm121.pins.images import load_images
from sm121.pins.model import Cpu
from sm121.progress import Progress
from sm121.sources.fetch import require_mirror
from sm121.workspace import Workspace

if TYPE_CHECKING:
    import argparse

    from sm121.engine.flow import Made

ROOT = Path(__file__).resolve().parents[3]
"""The repository, when sm121 runs from it: where `pins` and `dockerfiles` are looked for first."""
_PROJECTS = ("vllm", "flashinfer")


def add_image_command(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `image`."""
    image = verbs.add_parser(
        "image", help="build an inspected image, named by its digest",
        description="Plan, build, inspect, push, name. Nothing that fails its inspection is pushed or named.",
        epilog="examples:\n  sm121 image --line cu130 --base docker.io/library/ubuntu@sha256:DIGEST --dry-run\n"
        "  sm121 image --line cu130 --repository registry.example/team/vllm\n"
        "  sm121 image --line cu130 --builder oci --repository registry.example/team/vllm",
    )  # fmt: skip
    what = image.add_argument_group("what to build")
    what.add_argument(
        "--line", default="", help="CUDA line: cu128, cu129, cu130, ... (default: the pins' default)"
    )
    what.add_argument(
        "--vllm", metavar="VERSION", default="", help="pinned vLLM version (default: the pins' default)"
    )
    what.add_argument("--cpu", choices=[str(cpu) for cpu in Cpu], default="aarch64", help="default: aarch64")
    what.add_argument(
        "--wheel", metavar="FILE", type=Path, action="append", default=[],
        help="a wheel that sm121 built, its manifest beside it; may be repeated (default: the line's in --dist)",
    )  # fmt: skip
    what.add_argument(
        "--base", metavar="IMAGE@DIGEST", default="", help="the base, by digest (default: the pinned one)"
    )
    what.add_argument(
        "--packages",
        metavar="NAMES",
        help='Debian or Ubuntu packages that the base lacks; "" for none (default: the pins\')',
    )
    what.add_argument(
        "--snapshot", metavar="TIME", default="", help="day of the package archive, such as 20261130T000000Z"
    )
    what.add_argument(
        "--flashinfer", choices=("prebuilt", "nvcc"), default="",
        help="prebuilt: its modules are among the wheels (default); nvcc: it compiles them at every first start",
    )  # fmt: skip
    what.add_argument(
        "--lock", metavar="FILE", type=Path, help="the locked runtime set (default: pins/runtime/LINE-CPU.txt)"
    )
    how = image.add_argument_group("how")
    how.add_argument(
        "--builder", choices=("docker", "oci"), default="docker", help="docker: BuildKit; oci: no engine"
    )
    how.add_argument(
        "--docker", metavar="PROGRAM", default="", help="which docker (default: the first that can build)"
    )
    how.add_argument("--network", choices=("none", "default", "host"), default="", help="of the build's steps")
    how.add_argument("--no-cache", action="store_true", help="build every step anew")
    how.add_argument(
        "--mirror", metavar="DIR", type=Path, help="folder that holds the wheels, instead of an index"
    )
    where = image.add_argument_group("where")
    where.add_argument(
        "--repository",
        metavar="REGISTRY/NAME",
        default="",
        help="where to push to (default: the image stays in the engine)",
    )
    where.add_argument(
        "--dist", metavar="DIR", type=Path, default=Path("dist"), help="wheels, and results (default: dist)"
    )
    where.add_argument(
        "--work", metavar="DIR", type=Path, default=Path("work"), help="scratch folder (default: work)"
    )
    where.add_argument("--pins", metavar="DIR", type=Path, default=ROOT / "pins", help="folder of the pins")
    where.add_argument(
        "--dockerfile",
        metavar="FILE",
        type=Path,
        default=ROOT / "dockerfiles" / "runtime",
        help="another Dockerfile",
    )
    output = image.add_argument_group("output")
    output.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    output.add_argument("--json", action="store_true", help="print plan and result as JSON")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress")
    image.set_defaults(run=run_image)


def run_image(arguments: argparse.Namespace) -> int:
    """`sm121 image`."""
    plan, wheels = _planned(arguments)
    if arguments.dry_run:
        if arguments.json:
            print(json.dumps({**plan_json(plan), "digest": str(plan.digest)}, indent=2))
        else:
            show_plan(plan, Console(highlight=False))
        return 0
    progress = Progress(quiet=arguments.quiet)
    if not arguments.quiet:
        show_plan(plan, progress.console)
    if plan.builder == "oci":
        return without_engine.run(_order(plan, wheels, arguments), progress, as_json=arguments.json)
    place = Place(
        work=Workspace(arguments.work.absolute()), dist=arguments.dist.absolute(), dockerfile=arguments.dockerfile,
        wheels=wheels, progress=progress, docker=arguments.docker, mirror=arguments.mirror, no_cache=arguments.no_cache,
    )  # fmt: skip
    _report(ImageBuild(plan, place).run(), plan, as_json=arguments.json)
    return 0


def _order(plan: ImagePlan, wheels: tuple[Path, ...], arguments: argparse.Namespace) -> without_engine.Order:
    """The plan as the builder without an engine takes it."""
    request = ImageRequest(
        base=plan.base, wheels=wheels, lock=_lock(arguments, plan.line), epoch=without_engine.source_date_epoch(),
        labels=plan.labels, env=plan.environment, mirror=arguments.mirror,
    )  # fmt: skip
    return without_engine.Order(
        request=request,
        repository=plan.repository,
        work=arguments.work.absolute(),
        dist=arguments.dist.absolute(),
    )


def _lock(arguments: argparse.Namespace, line: str) -> Path:
    """The file of the locked set, named or the pins' own."""
    lock: Path = arguments.lock or arguments.pins / "runtime" / f"{line}-{arguments.cpu}.txt"
    return lock


def _planned(arguments: argparse.Namespace) -> tuple[ImagePlan, tuple[Path, ...]]:
    """The plan, and the files of its wheels in its order. All that is wrong is told at once."""
    faults, request = Faults(), _request(arguments)
    loaded = faults.of(lambda: pins.load(arguments.pins))
    images = faults.of(lambda: load_images(arguments.pins))
    line = faults.of(lambda: loaded.line(arguments.line)) if loaded else None
    release = faults.of(lambda: loaded.vllm(arguments.vllm)) if loaded else None
    found = Found(arguments.wheel) if arguments.wheel else None
    if line and release and not found:
        found = faults.of(lambda: _find(arguments.dist, line.name, request.cpu, release.version))
    wheels = faults.of(lambda: read_wheels(found.wheels)) if found else None
    missing = found.missing if found else ""
    if missing and line:
        faults.of(partial(_refuse, missing, line.name))
    named = line.name if line else arguments.line or "LINE"
    lock = _lock(arguments, named)
    runtime = faults.of(lambda: _runtime(lock, named, request.cpu)) if line or arguments.lock else None
    dockerfile = faults.of(lambda: _dockerfile(arguments.dockerfile))
    faults.of(lambda: require_mirror(arguments.mirror))
    plan = None
    if line and release and images:
        if wheels and runtime and dockerfile is not None and not missing:
            plan = faults.of(
                lambda: plan_image(request, line, release, images, wheels, runtime, lock.name, dockerfile)
            )
        else:
            faults.of(
                lambda: judge_image(
                    request, line, release, images, wheels=wheels, runtime=runtime, lock=lock.name,
                    no_vllm=bool(missing),
                )
            )  # fmt: skip
    faults.end()
    assert plan is not None
    assert found is not None
    by_name = {path.name: path for path in found.wheels}
    return plan, tuple(by_name[wheel.filename] for wheel in plan.wheels)


def _request(arguments: argparse.Namespace) -> Request:
    packages = None if arguments.packages is None else tuple(arguments.packages.replace(",", " ").split())
    return Request(
        cpu=Cpu(arguments.cpu), builder=arguments.builder, base=arguments.base, repository=arguments.repository,
        flashinfer=arguments.flashinfer, packages=packages, snapshot=arguments.snapshot, network=arguments.network,
    )  # fmt: skip


def _runtime(lock: Path, line: str, cpu: Cpu) -> RuntimeSet:
    if not lock.is_file():
        raise UsageError(
            f"there is no locked runtime set {lock}.",
            do=f"write one: `sm121 pins lock --line {line} --cpu {cpu} --output {lock}`, or name one with --lock.",
        )
    return RuntimeSet.read(lock)


def _dockerfile(path: Path) -> bytes:
    try:
        return read_document(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", do="name another file with --dockerfile."
        ) from error


def _refuse(missing: str, line: str) -> None:
    raise PackError(missing, do=f"build it: `sm121 build --line {line}`, or name one with --wheel.")


@dataclass(frozen=True, slots=True)
class Found:
    """Wheels for an image; `missing` says that vLLM's is not among them, "" if it is or they were named."""

    wheels: list[Path]
    missing: str = ""


def _find(dist: Path, line: str, cpu: Cpu, version: str) -> Found:
    """The published wheels of a line: of each project the one there is."""
    found: dict[str, list[Path]] = {}
    parts: list[str] = []
    for file in sorted(dist.glob("*.whl.manifest.json")):
        wheel = file.with_name(file.name.removesuffix(".manifest.json"))
        subject = Manifest.from_json(file.read_bytes(), file.name).subject
        project = project_of(wheel.name)
        ours = project.startswith(_PROJECTS) and (subject.line, subject.cpu) == (line, cpu)
        other = project == "vllm" and subject.base != version
        if not ours or other or not wheel.is_file():
            continue
        if subject.version.endswith(".partial"):
            parts += [wheel.name] * (project == "vllm")
        else:
            found.setdefault(project, []).append(wheel)
    doubled = [path.name for paths in found.values() if len(paths) > 1 for path in paths]
    if doubled:
        raise UsageError(
            f"{dist} holds several wheels of one project: {', '.join(doubled)}.",
            do="name those you mean with --wheel.",
        )
    missing = ""
    if "vllm" not in found:
        complete, and_parts = (
            ("complete ", f"; parts are never taken unasked: {', '.join(parts)}") if parts else ("", "")
        )
        missing = f"{dist} holds no {complete}wheel of vLLM {version}, line {line}, for {cpu}{and_parts}."
    return Found([path for paths in found.values() for path in paths], missing)


def _report(made: Made, plan: ImagePlan, *, as_json: bool) -> None:
    shown: dict[str, Any] = {"image": made.image, "verdict": str(made.verdict), "report": str(made.report)}
    if made.reference is not None and made.pushed is not None:
        shown |= {
            "reference": str(made.reference), "name": f"{made.reference.name}:{made.name}", "record": str(made.record),
            "sent": made.pushed.sent, "kept_layers": made.pushed.kept,
        }  # fmt: skip
    if as_json:
        print(json.dumps({"plan": str(plan.digest), **shown}, indent=2))
        return
    console = Console(highlight=False)
    for name, value in shown.items():
        console.print(f"{name:>12}  {value}", markup=False, soft_wrap=True)
