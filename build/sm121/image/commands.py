"""The verbs that make images and hand them on: image, push, copy."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121.artifact.imagedocs import Platform
from sm121.artifact.reference import ImageReference
from sm121.errors import UsageError
from sm121.image.copying import copy_image
from sm121.image.daemonless import DEFAULT_EPOCH, ImageRequest, assemble, judge_request, read_wheels
from sm121.image.layer import Compression
from sm121.image.name_commands import add_name_commands
from sm121.image.names import output_name
from sm121.image.naming import require_platform
from sm121.image.places import Named, exact, opened, opened_target, same_registry
from sm121.image.publish import inspect_assembled, publish_image, push_image
from sm121.image.remote import Repository
from sm121.image.runtime_set import RuntimeSet
from sm121.image.store import BlobStore
from sm121.progress import Progress
from sm121.progress import size as shown_size

if TYPE_CHECKING:
    from sm121.image.copying import Copied
    from sm121.image.publish import PublishedImage

_OUTPUT = "REGISTRY/NAME, without a tag: the image is named by itself"


def add_image_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add image, push, copy, and the verbs around names."""
    _add_image(verbs)
    push = verbs.add_parser(
        "push", help="push an image of dist/images with what is attached to it",
        description="Pushes by digest, attaches record, report, bill of materials and provenance, then gives the "
        "immutable name. What the registry has already is not sent.",
    )  # fmt: skip
    push.add_argument("layout", metavar="LAYOUT", type=Path, help="dist/images/NAME")
    push.add_argument("repository", metavar="REPOSITORY", help=_OUTPUT)
    _common(push)
    push.set_defaults(run=_push)
    copy = verbs.add_parser(
        "copy", help="hand an image on by digest: only missing blobs move",
        description="Copies an image or index by digest, with everything attached to it, between registries, OCI "
        "layouts and other machines.", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  sm121 copy registry.example/vllm@sha256:... mirror.example/vllm\n"
        "  sm121 copy oci:dist/images/NAME ssh://node1/srv/vllm ssh://node2/srv/vllm",
    )  # fmt: skip
    copy.add_argument("source", metavar="SOURCE", help="REGISTRY/NAME@DIGEST or :IMMUTABLE-NAME, or oci:PATH")
    copy.add_argument(
        "targets", metavar="TARGET", nargs="+", help="REGISTRY/NAME, oci:PATH or ssh://[USER@]HOST[:PORT]/PATH"
    )
    copy.add_argument("--platform", metavar="OS/CPU", help="refuse an image that has nothing for it")
    copy.add_argument("--no-referrers", action="store_true", help="leave behind what is attached")
    _common(copy)
    copy.set_defaults(run=_copy)
    add_name_commands(verbs)


def _add_image(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    image = verbs.add_parser(
        "image", help="build a container image from wheels", description="Builds an image without an engine: a base by "
        "digest, the locked runtime set, wheels of ours. It is inspected before it gets a name.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  sm121 pins lock --line cu130 --python 3.12 -o cu130.lock\n"
        "  sm121 image --wheel dist/vllm-*.whl --lock cu130.lock --base ubuntu@sha256:...\n"
        "  sm121 image --wheel dist/vllm-*.whl --lock cu130.lock --base oci:base@sha256:... --push registry.example/vllm",
    )  # fmt: skip
    what = image.add_argument_group("what")
    what.add_argument(
        "--builder", choices=["oci"], default="oci", help="oci: no engine, reproducible bit for bit"
    )
    what.add_argument(
        "--wheel", dest="wheels", metavar="FILE", type=Path, nargs="+", action="extend", default=[],
        help="published wheels with their manifests beside them; the first one names the image",
    )  # fmt: skip
    what.add_argument(
        "--lock", metavar="FILE", type=Path, required=True, help="runtime set, as `pins lock` writes it"
    )
    what.add_argument(
        "--base", metavar="IMAGE", required=True,
        help="REGISTRY/NAME@sha256:..., oci:PATH@sha256:... or docker-archive:PATH@sha256:IMAGE-ID",
    )  # fmt: skip
    what.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="a further label")
    what.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="a further variable")
    what.add_argument(
        "--compression", type=Compression, choices=list(Compression), default=Compression.GZIP,
        help="zstd is smaller and faster, and needs Docker 23, containerd 1.5 or podman 4 (default: gzip)",
    )  # fmt: skip
    what.add_argument(
        "--epoch", metavar="SECONDS", type=int, help="time of every path (default: SOURCE_DATE_EPOCH, else 1980)"
    )
    how = image.add_argument_group("how")
    how.add_argument(
        "--mirror", metavar="DIR", type=Path, help="folder with the runtime set's wheels, instead of an index"
    )
    how.add_argument("--no-kernels", action="store_true", help="inspect headers of device code only: faster")
    how.add_argument("--push", metavar="REPOSITORY", help=f"push at the end: {_OUTPUT}")
    how.add_argument("--dist", metavar="DIR", type=Path, default=Path("dist"), help="results (default: dist)")
    how.add_argument("--dry-run", action="store_true", help="say what would go into the image, and stop")
    _common(image)
    image.set_defaults(run=_image)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work", metavar="DIR", type=Path, default=Path("work"), help="scratch folder (default: work)"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="speak plain http also with another machine's registry"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _image(arguments: argparse.Namespace) -> int:
    repository = output_name(ImageReference.parse_familiar(arguments.push)) if arguments.push else None
    progress = Progress(quiet=arguments.quiet)
    request = ImageRequest(
        base=arguments.base, wheels=tuple(_wheels(arguments.wheels)), lock=arguments.lock, epoch=_epoch(arguments.epoch),
        compression=arguments.compression, labels=_pairs(arguments.label, "--label"), env=_pairs(arguments.env, "--env"),
        mirror=arguments.mirror, insecure=arguments.insecure, threads=os.cpu_count() or 1,
    )  # fmt: skip
    if arguments.dry_run:
        return _dry_run(request, as_json=arguments.json)
    work = arguments.work.absolute()
    store = BlobStore(work / "images")
    assembled = assemble(request, store, work / "files", progress)
    with progress.step(f"inspect {assembled.manifest.digest}"):
        inspected = inspect_assembled(
            assembled, request.wheels, store, progress, kernels=not arguments.no_kernels
        )
    published = publish_image(
        assembled, inspected, store, arguments.dist.absolute(), epoch=request.epoch, logs=work / "logs"
    )
    copied = None
    if repository is not None:
        with progress.step(f"push to {repository}"):
            mounts = same_registry(request.base.partition("@")[0], repository.name)
            with Repository(repository, write=True, mounts=mounts, insecure=arguments.insecure) as place:
                copied = push_image(published.layout, place, store, progress)[1]
    _report(published, repository, copied, as_json=arguments.json)
    return 0


def _wheels(given: list[Path]) -> list[Path]:
    if given:
        return given
    there = sorted(Path("dist").glob("*.whl"))
    if len(there) != 1:
        shown = ", ".join(path.name for path in there) or "none"
        raise UsageError(f"no wheel was named, and dist/ holds {shown}.", do="name wheels with --wheel.")
    return there


def _epoch(given: int | None) -> int:
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given is None and text and not text.isdigit():
        raise UsageError(f"SOURCE_DATE_EPOCH is {text!r}; seconds since 1970 were expected.")
    epoch = given if given is not None else int(text) if text else DEFAULT_EPOCH
    if not 0 <= epoch < 1 << 33:
        raise UsageError(f"the time {epoch} is outside of what archives hold; 0 to {(1 << 33) - 1} was expected.")
    return epoch


def _pairs(given: list[str], option: str) -> dict[str, str]:
    faults = [
        f"{option} {text!r}: NAME=VALUE was expected."
        for text in given
        if not text.partition("=")[0] or "=" not in text
    ]
    if faults:
        raise UsageError(faults)
    return dict(text.split("=", 1) for text in given)


def _dry_run(request: ImageRequest, *, as_json: bool) -> int:
    wheels, runtime = read_wheels(request.wheels), RuntimeSet.read(request.lock)
    judge_request(wheels, runtime, request.lock.name)
    told: dict[str, Any] = {
        "base": request.base, "python": runtime.python_name, "cpu": str(runtime.cpu), "line": runtime.line,
        "lock": runtime.digest.hex, "packages": len(runtime.packages),
        "wheels": {wheel.filename: wheel.sha256.hex for wheel in wheels}, "epoch": request.epoch,
        "compression": str(request.compression),
    }  # fmt: skip
    if as_json:
        print(json.dumps(told, indent=2))
        return 0
    console = Console(highlight=False)
    for key, value in told.items():
        shown = (
            ", ".join(f"{name} ({digest[:12]})" for name, digest in value.items())
            if isinstance(value, dict)
            else value
        )
        console.print(f"{key:>12}  {shown}", markup=False, soft_wrap=True)
    return 0


def _report(
    published: PublishedImage, repository: ImageReference | None, copied: Copied | None, *, as_json: bool
) -> None:
    record = published.record
    told = {
        "image": record.name, "digest": str(record.digest), "layout": str(published.layout),
        "verdict": str(record.verdict), "size": sum(layer.size for layer in record.layers),
        "files": {name: str(path) for name, path in sorted(published.files.items())},
        **({"reference": f"{repository.name}@{record.digest}"} if repository else {}),
        **({"sent": copied.sent} if copied else {}),
    }  # fmt: skip
    if as_json:
        print(json.dumps(told, indent=2))
        return
    console = Console(highlight=False)
    for key in ("image", "digest", "verdict", "layout", "reference"):
        if key in told:
            console.print(f"{key:>10}  {told[key]}", markup=False, soft_wrap=True)
    console.print(f"{'size':>10}  {shown_size(sum(layer.size for layer in record.layers))}", markup=False)
    if repository is None:
        console.print(f"next: sm121 push {published.layout} REGISTRY/NAME", markup=False, soft_wrap=True)
    else:
        console.print(
            f"next: sm121 promote {repository.name}:{record.line} {record.name}", markup=False, soft_wrap=True
        )


def _push(arguments: argparse.Namespace) -> int:
    reference = output_name(ImageReference.parse_familiar(arguments.repository))
    store = BlobStore(arguments.work.absolute() / "images")
    with Repository(reference, write=True, insecure=arguments.insecure) as place:
        record, copied = push_image(arguments.layout, place, store, Progress(quiet=arguments.quiet))
    _told(
        {
            "reference": f"{reference.name}@{record.digest}", "name": f"{reference.name}:{record.name}",
            "blobs": copied.blobs, "blobs_sent": copied.blobs_sent, "size": copied.size, "sent": copied.sent,
            "attached": copied.attached,
        },
        as_json=arguments.json,
    )  # fmt: skip
    return 0


def _copy(arguments: argparse.Namespace) -> int:
    named = Named.parse(arguments.source)
    targets = [_target(text) for text in arguments.targets]
    store = BlobStore(arguments.work.absolute() / "images")
    progress = Progress(quiet=arguments.quiet)
    with opened(named.place, insecure=arguments.insecure) as source:
        digest = exact(source, named.name)
        if arguments.platform:
            require_platform(source, digest, Platform.parse(arguments.platform))
        tag = named.name if isinstance(named.name, str) else ""
        for where in targets:
            mounts = same_registry(named.place, where)
            with opened_target(where, mounts=mounts, insecure=arguments.insecure) as target:
                copied = copy_image(
                    source, target, digest, store, progress, tag=tag, referrers=not arguments.no_referrers
                )
                _told(
                    {
                        "target": target.name, "digest": str(digest), "blobs": copied.blobs,
                        "blobs_sent": copied.blobs_sent, "size": copied.size, "sent": copied.sent,
                        "attached": copied.attached,
                    },
                    as_json=arguments.json,
                )  # fmt: skip
    return 0


def _target(text: str) -> str:
    """Where to copy to: a place without a name, as the image keeps its own."""
    if text.startswith(("ssh://", "oci:")):
        if "@sha256:" in text:
            raise UsageError(f"{text} cannot be copied to: a digest follows from the image.")
        return text
    return output_name(ImageReference.parse_familiar(text)).name


def _told(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(told))
        return
    console = Console(highlight=False)
    shown = {**told, "size": shown_size(told["size"]), "sent": shown_size(told["sent"])}
    for key, value in shown.items():
        console.print(f"{key:>10}  {value}", markup=False, soft_wrap=True)
