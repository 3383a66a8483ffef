"""The verbs that hand images on: push and copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121.artifact.imagedocs import Platform
from sm121.artifact.reference import ImageReference
from sm121.errors import UsageError
from sm121.image.copying import copy_image
from sm121.image.name_commands import add_name_commands
from sm121.image.names import output_name
from sm121.image.naming import record_of, require_platform
from sm121.image.places import Named, exact, opened, opened_target, same_registry
from sm121.image.publish import push_image
from sm121.image.referrers import RECORD, attached
from sm121.image.remote import Repository
from sm121.image.store import BlobStore
from sm121.progress import Progress
from sm121.progress import size as shown_size

if TYPE_CHECKING:
    import argparse

    from sm121.image.referrers import Place
    from sm121.values import Sha256

_OUTPUT = "REGISTRY/NAME, without a tag: the image is named by itself"


def add_exchange_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add push, copy, and the verbs around names."""
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
        "layouts and other machines.",
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


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work", metavar="DIR", type=Path, default=Path("work"), help="scratch folder (default: work)"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="speak plain http also with another machine's registry"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


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
        tag = _name_of(source, digest)
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


def _name_of(source: Place, digest: Sha256) -> str:
    """The immutable name that the image's record gives it; "" for an image without one."""
    if next(attached(source, digest, RECORD), None) is None:
        return ""
    return record_of(source, digest).name


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
