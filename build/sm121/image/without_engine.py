"""`sm121 image --builder oci`: the image is made here, and nothing of it is run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121.errors import UsageError
from sm121.image.daemonless import DEFAULT_EPOCH, ImageRequest
from sm121.image.places import same_registry
from sm121.image.publish import make_image, push_image
from sm121.image.remote import Repository
from sm121.image.store import BlobStore
from sm121.progress import size as shown_size
from sm121.values import whole_number

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.artifact import ImageReference
    from sm121.image.copying import Copied
    from sm121.image.publish import PublishedImage
    from sm121.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for, and where it goes. `repository` None leaves the image in `dist`."""

    request: ImageRequest
    repository: ImageReference | None
    work: Path
    dist: Path
    kernels: bool = True


def run(order: Order, progress: Progress, *, as_json: bool) -> int:
    """Build, inspect, name, and push if asked; print what came of it."""
    published = make_image(order.request, order.work, order.dist, progress, kernels=order.kernels)
    copied = None
    if order.repository is not None:
        mounts = same_registry(order.request.base.partition("@")[0], order.repository.name)
        with (
            progress.step(f"push to {order.repository}"),
            Repository(order.repository, write=True, mounts=mounts, insecure=order.request.insecure) as place,
        ):
            copied = push_image(published.layout, place, BlobStore(order.work / "images"), progress)[1]
    _show(_result(published, order.repository, copied), as_json=as_json)
    if not as_json:
        Console(highlight=False).print(_next(published, order.repository), markup=False, soft_wrap=True)
    return 0


def source_date_epoch() -> int:
    """SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/), or 1980."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return DEFAULT_EPOCH
    seconds = whole_number(text, (1 << 33) - 1)
    if seconds is None:
        raise UsageError(f"SOURCE_DATE_EPOCH is {text!r}; seconds since 1970 were expected.")
    return seconds


def _result(
    published: PublishedImage, repository: ImageReference | None, copied: Copied | None
) -> dict[str, Any]:
    record = published.record
    told: dict[str, Any] = {
        "name": record.name, "digest": str(record.digest), "verdict": str(record.verdict),
        "size": sum(layer.size for layer in record.layers), "layout": str(published.layout),
        "files": {name: str(path) for name, path in sorted(published.files.items())},
    }  # fmt: skip
    if repository is not None and copied is not None:
        told |= {"reference": f"{repository.name}@{record.digest}", "sent": copied.sent}
    return told


def _next(published: PublishedImage, repository: ImageReference | None) -> str:
    record = published.record
    if repository is None:
        return f"next: sm121 push {published.layout} REGISTRY/NAME"
    return f"next: sm121 promote {repository.name}:{record.line} {record.name}"


def _show(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(told, indent=2))
        return
    console = Console(highlight=False)
    for key, value in told.items():
        if key == "files":
            continue
        shown = shown_size(value) if key in {"size", "sent"} else value
        console.print(f"{key:>11}  {shown}", markup=False, soft_wrap=True)
