"""The verbs around names: promote, resolve, list, verify."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sm121.artifact.imagedocs import LINUX_ARM64, Platform
from sm121.artifact.reference import ImageReference
from sm121.errors import UsageError, VerdictFail, VerdictUnknown, VerdictWarning
from sm121.findings import Verdict, overall
from sm121.image.names import moving_name
from sm121.image.naming import find_image, list_names, promote, resolve
from sm121.image.places import Named, open_image, opened
from sm121.image.remote import Repository
from sm121.image.verify import Identity, verify

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from sm121.artifact import Image
    from sm121.findings import Finding
    from sm121.values import Sha256

_CODES = {Verdict.FAIL: VerdictFail.exit_code, Verdict.UNKNOWN: VerdictUnknown.exit_code}


def add_name_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add promote, resolve, list and verify."""
    moving = verbs.add_parser(
        "promote", help="let a moving name stand for an image that passed",
        description="Sets a moving name such as cu130 to an image whose record and inspection report are attached and "
        "passed. What it stood for before is written down first.",
        epilog="example: sm121 promote registry.example/vllm:cu130 0.33.0-cu130-sm121-0123456789ab",
    )  # fmt: skip
    moving.add_argument("name", metavar="NAME", help="REGISTRY/NAME:TAG, the name to be moved")
    moving.add_argument(
        "image", metavar="IMAGE", help="sha256:DIGEST or an immutable name, in the same repository"
    )
    moving.add_argument(
        "--journal", metavar="FILE", type=Path, default=Path("dist/promotions.jsonl"),
        help="local list of promotions (default: dist/promotions.jsonl)",
    )  # fmt: skip
    _common(moving)
    moving.set_defaults(run=_promote)
    one = verbs.add_parser(
        "resolve",
        help="what a name stands for now",
        description="Digest, platforms, immutable names and promotions of a name.",
    )
    one.add_argument("image", metavar="NAME", help="REGISTRY/NAME:TAG or @DIGEST, or oci:PATH:NAME")
    _common(one)
    one.set_defaults(run=_resolve)
    many = verbs.add_parser(
        "list", help="the names of a repository",
        description="Every name of a repository: immutable ones, and moving ones with the act that set them.",
    )  # fmt: skip
    many.add_argument("repository", metavar="REPOSITORY", help="REGISTRY/NAME")
    _common(many)
    many.set_defaults(run=_list)
    check = verbs.add_parser(
        "verify", help="is an image what its attachments say?",
        description="Recomputes what is claimed of an image: digest, labels, layers, the files of our wheels, bill of "
        "materials, provenance, inspection report; signatures by cosign where it is installed.",
        epilog=f"Exit status: 0 passed, {VerdictWarning.exit_code} warnings with --strict, {VerdictFail.exit_code} failed, "
        f"{VerdictUnknown.exit_code} could not tell.",
    )  # fmt: skip
    check.add_argument("image", metavar="IMAGE", help="REGISTRY/NAME@DIGEST or :TAG, or oci:PATH")
    check.add_argument("--platform", metavar="OS/CPU", default=str(LINUX_ARM64), help=f"default: {LINUX_ARM64}")
    check.add_argument("--no-contents", action="store_true", help="documents only, layers are not read")
    check.add_argument(
        "--key", metavar="FILE", default="", help="cosign: key of the signature that must be there"
    )
    check.add_argument("--identity", metavar="NAME", default="", help="cosign: whose signature must be there")
    check.add_argument("--issuer", metavar="URL", default="", help="cosign: who vouches for that identity")
    check.add_argument("--strict", action="store_true", help="warnings count as well")
    _common(check)
    check.set_defaults(run=_verify)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--insecure", action="store_true", help="speak plain http also with another machine's registry"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _promote(arguments: argparse.Namespace) -> int:
    reference = ImageReference.parse_familiar(arguments.name)
    name = moving_name(reference)
    wanted = arguments.image
    if "/" in wanted:
        other = ImageReference.parse_familiar(wanted)
        if other.name != reference.name:
            raise UsageError(
                f"{other.name} is another repository than {reference.name}.",
                do=f"`sm121 copy {wanted} {reference.name}` first.",
            )
        wanted = str(other.digest or other.tag)
    with Repository(reference, write=True, insecure=arguments.insecure) as place:
        digest = find_image(place, wanted)
        done = promote(place, name, digest, arguments.journal.absolute())
    if arguments.json:
        print(
            json.dumps(
                {"changed": done is not None, **(asdict(done) if done else {"name": name, "digest": str(digest)})}
            )
        )
    elif done is None:
        Console(highlight=False).print(f"{reference} is {digest} already", markup=False, soft_wrap=True)
    else:
        before = f", before {done.before}" if done.before else ", a new name"
        Console(highlight=False).print(
            f"{reference} is {digest} ({done.immutable}){before}", markup=False, soft_wrap=True
        )
    return 0


def _resolve(arguments: argparse.Namespace) -> int:
    named = Named.parse(arguments.image)
    with opened(named.place, insecure=arguments.insecure) as place:
        found = resolve(place, named.within(place))
    if arguments.json:
        print(json.dumps(found.to_data(), indent=2))
        return 0
    console = Console(highlight=False)
    console.print(f"{named.place}@{found.digest}", markup=False, soft_wrap=True)
    for key, values in (("platform", found.platforms), ("name", found.names)):
        for value in values:
            console.print(f"{key:>10}  {value}", markup=False, soft_wrap=True)
    for act in found.promotions:
        before = f", before {act.before}" if act.before else ""
        console.print(f"{'promoted':>10}  {act.name} at {act.at}{before}", markup=False, soft_wrap=True)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    reference = ImageReference.parse_familiar(arguments.repository)
    if reference.tag or reference.digest:
        raise UsageError(f"{reference} names an image.", do=f"write {reference.name}.")
    with Repository(reference, insecure=arguments.insecure) as place:
        listed = list_names(place)
    if arguments.json:
        print(json.dumps([each.to_data() for each in listed], indent=2))
        return 0
    console = Console(highlight=False)
    if not listed:
        console.print(f"{reference.name} has no names, or does not exist", markup=False, soft_wrap=True)
    width = max((len(each.tag) for each in listed), default=0)
    for each in listed:
        act = f"  since {each.promotion.at}, before {each.promotion.before or 'new'}" if each.promotion else ""
        fault = f"  ({each.fault})" if each.fault else ""
        console.print(
            f"{each.tag:{width}}  {each.kind:9}  {each.digest}{act}{fault}", markup=False, soft_wrap=True
        )
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    if arguments.identity and not arguments.issuer:
        raise UsageError(
            "--identity was given without --issuer.", do="name who vouches for it, e.g. the CI's OIDC address."
        )
    named, platform = Named.parse(arguments.image), Platform.parse(arguments.platform)
    signer = Identity(arguments.key, arguments.identity, arguments.issuer)
    with opened(named.place, insecure=arguments.insecure) as place:

        def look(digest: Sha256) -> Image:
            return open_image(place, digest, platform)

        findings = verify(place, named.within(place), look, contents=not arguments.no_contents, signer=signer)
    verdict = overall(findings)
    _show(findings, verdict, as_json=arguments.json)
    if verdict is Verdict.WARN and arguments.strict:
        return VerdictWarning.exit_code
    return _CODES.get(verdict, 0)


def _show(findings: Sequence[Finding], verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        rows = [asdict(each) | {"verdict": str(each.verdict)} for each in findings]
        print(json.dumps({"version": 1, "verdict": str(verdict), "findings": rows}, indent=2))
        return
    console = Console(highlight=False)
    for each in findings:
        console.print(f"{each.verdict.upper():7} {each.check:18} {each.message}", markup=False, soft_wrap=True)
    console.print(f"{verdict.upper()}: {len(findings)} findings", markup=False)
