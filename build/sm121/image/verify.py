"""Is an image in a registry or layout what its attachments say, and what do they say? Every claim is recomputed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from sm121 import process
from sm121.artifact.imagedocs import ImageConfig, Manifest, read_index_or_manifest
from sm121.artifact.installed import Survey
from sm121.errors import ArtifactError, ImageError, ProgramError, Sm121Error
from sm121.findings import Finding, Verdict
from sm121.image.contents import contents_digest
from sm121.image.daemonless import WHEEL_LAYER
from sm121.image.labels import label_key
from sm121.image.names import ImmutableName
from sm121.image.naming import record_of
from sm121.image.provenance import PREDICATE, STATEMENT
from sm121.image.referrers import PROVENANCE, REPORT, SBOM, attached
from sm121.image.sbom import Part
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sm121.artifact import Distribution, Image
    from sm121.image.record import BuiltWheel, ImageRecord
    from sm121.image.referrers import Attached, Place

_SIGNATURES = (
    "application/vnd.dev.cosign.artifact.sig.v1+json", "application/vnd.dev.sigstore.bundle.v0.3+json",
)  # fmt: skip
_COSIGN_TIME = 120.0
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a document of unknown origin can raise that is not what it should be."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose signature is wanted: a key file, or a certificate's identity and issuer."""

    key: str = ""
    identity: str = ""
    issuer: str = ""

    @property
    def wanted(self) -> bool:
        return bool(self.key or self.identity)


def verify(
    place: Place, name: Sha256 | str, opened: Callable[[Sha256], Image], *, contents: bool = True,
    signer: Identity | None = None,
) -> list[Finding]:  # fmt: skip
    """Check an image by name or digest; faults become findings.

    `opened` opens the image for reading its layers; without `contents` they are not read, which is said. Raises
    ImageError if the image does not exist or the registry does not answer.
    """
    document = place.document(name)
    digest = document.digest
    subject = f"{place.name}@{digest}"
    findings = [Finding("verify.digest", subject, Verdict.PASS, "the manifest's bytes have this digest")]
    findings += _name(name, digest)
    try:
        manifest = read_index_or_manifest(document.data)
        record = record_of(place, digest)
    except Sm121Error as error:
        findings += [Finding("verify.record", subject, Verdict.FAIL, text.rstrip(".")) for text in error.problems]
        return [*findings, *_signatures(place, digest, signer)]
    findings.append(Finding("verify.record", subject, Verdict.PASS, f"is described as {record.name}"))
    if not isinstance(manifest, Manifest):
        return [
            *findings,
            Finding("verify.image", subject, Verdict.UNKNOWN, "is an index", "an image of one platform"),
        ]
    config = ImageConfig.parse(place.small_blob(manifest.config))
    findings += _documents(record, manifest, config)
    findings += _labels(record, config)
    findings += _report(place, record)
    bills = list(_attached(place, digest, SBOM, findings))
    findings += _provenance(list(_attached(place, digest, PROVENANCE, findings)), record)
    if contents:
        with opened(digest) as image:
            findings += _contents(image, record, bills)
    else:
        findings.append(Finding("verify.wheel", subject, Verdict.INFO, "layers were not read"))
        findings += _bill(bills, record, None)
    return [*findings, *_signatures(place, digest, signer)]


def _attached(place: Place, digest: Sha256, kind: str, findings: list[Finding]) -> Iterator[Attached]:
    """Attachments of a kind; one that cannot be read is a finding."""
    try:
        yield from attached(place, digest, kind)
    except (ImageError, ArtifactError) as error:
        findings += [Finding("verify.attached", kind, Verdict.FAIL, text.rstrip(".")) for text in error.problems]


def _name(name: Sha256 | str, digest: Sha256) -> Iterator[Finding]:
    if isinstance(name, Sha256):
        return
    known = ImmutableName.parse(name)
    if known is None:
        yield Finding(
            "verify.name", name, Verdict.WARN, f"is a name that may move; now it is {digest}", "a digest",
            f"Write down {digest}.",
        )  # fmt: skip
    elif known.means(digest):
        yield Finding("verify.name", name, Verdict.PASS, "is the immutable name of this digest")
    else:
        yield Finding(
            "verify.name", name, Verdict.FAIL, f"names {digest}", f"a digest that begins {known.digest}"
        )


def _documents(record: ImageRecord, manifest: Manifest, config: ImageConfig) -> Iterator[Finding]:
    """Layers, configuration, base and platform against the record."""
    same = record.platform.accepts(config.platform)  # bases of arm64 may name its only variant, v8
    got = record.platform if same else config.platform
    yield _same("verify.platform", "platform", str(got), str(record.platform))
    yield _same("verify.config", "configuration", str(manifest.config.digest), str(record.config))
    stored = [str(layer.digest) for layer in manifest.layers]
    yield _same("verify.layers", f"{len(stored)} layers", stored, [str(layer.digest) for layer in record.layers])
    plain = [str(diff_id) for diff_id in config.diff_ids]
    yield _same("verify.layers", f"{len(plain)} diff_ids", plain, [str(layer.diff_id) for layer in record.layers])
    stated = config.labels.get("org.opencontainers.image.base.digest", "")
    yield _same("verify.base", "base", stated, str(record.base_digest))


def _labels(record: ImageRecord, config: ImageConfig) -> Iterator[Finding]:
    """The stamp chain: what the labels say against the record, and the record against the wheels' manifests."""
    wrong = [
        f"{key} is {config.labels.get(key, 'missing')!r}, wanted {value!r}"
        for key, value in record.labels
        if config.labels.get(key) != value
    ]
    for wheel in record.wheels:
        subject, key = wheel.manifest.subject, label_key(wheel)
        chain = {
            f"{key}.version": subject.version, f"{key}.wheel": wheel.filename, f"{key}.wheel.sha256": wheel.sha256.hex,
            f"{key}.plan.sha256": wheel.manifest.plan.hex, f"{key}.manifest.sha256": wheel.manifest_sha256.hex,
            f"{key}.manifest.sha256 (recomputed)": Sha256.of_bytes(wheel.manifest.to_json()).hex,
        }  # fmt: skip
        said = {**config.labels, f"{key}.manifest.sha256 (recomputed)": wheel.manifest_sha256.hex}
        wrong += [
            f"{word} is {said.get(word, 'missing')!r}, its manifest says {value!r}"
            for word, value in chain.items()
            if said.get(word) != value
        ]
        output = wheel.manifest.output(wheel.filename)
        if output is None or output.sha256 != wheel.sha256:
            wrong.append(f"the manifest of {wheel.filename} describes another file")
    for text in wrong:
        yield Finding("verify.label", "labels", Verdict.FAIL, text)
    if not wrong:
        yield Finding(
            "verify.label", "labels", Verdict.PASS, f"{len(record.labels)} labels as record and manifests say"
        )


def _report(place: Place, record: ImageRecord) -> Iterator[Finding]:
    faults: list[Finding] = []
    reports = list(_attached(place, record.digest, REPORT, faults))
    yield from faults
    mine = [each for each in reports if Sha256.of_bytes(each.data) == record.inspection.report]
    if not mine:
        got = "is not attached" if not reports else "is another one than the record names"
        yield Finding("verify.report", "inspection report", Verdict.FAIL, got, str(record.inspection.report))
        return
    try:
        verdict = Verdict(json.loads(mine[0].data)["verdict"])
    except _UNREADABLE:
        yield Finding("verify.report", "inspection report", Verdict.FAIL, "cannot be read")
        return
    if verdict is not record.verdict:
        got = f"says {verdict}, the record {record.verdict}"
        yield Finding("verify.report", "inspection report", Verdict.FAIL, got, "one verdict")
    else:
        kind = Verdict.PASS if verdict.publishable else verdict
        yield Finding("verify.report", "inspection report", kind, f"is attached and says {verdict}")


def _provenance(found: Sequence[Attached], record: ImageRecord) -> Iterator[Finding]:
    """The statement names this image and everything that the record says went into it."""
    if not found:
        yield Finding("verify.provenance", "provenance", Verdict.FAIL, "is not attached")
    for each in found:
        try:
            statement = json.loads(each.data)
            predicate = statement["predicate"]["buildDefinition"]
            subjects = {str(entry["digest"]["sha256"]) for entry in statement["subject"]}
            materials = {str(entry["digest"]["sha256"]) for entry in predicate["resolvedDependencies"]}
            kinds = statement["_type"], statement["predicateType"]
        except _UNREADABLE as error:
            yield Finding("verify.provenance", "provenance", Verdict.FAIL, f"cannot be read ({error!r})")
            continue
        wanted = {record.base_digest.hex, record.lock.hex, *(package.sha256.hex for package in record.packages)}
        for wheel in record.wheels:
            wanted |= {wheel.sha256.hex, wheel.manifest_sha256.hex}
            wanted |= {entry.sha256.hex for entry in wheel.manifest.inputs}
        missing = wanted - materials
        if kinds != (STATEMENT, PREDICATE) or subjects != {record.digest.hex}:
            got = f"is a {kinds[1]} about {', '.join(sorted(subjects))}"
            yield Finding(
                "verify.provenance", "provenance", Verdict.FAIL, got, f"{PREDICATE} about {record.digest}"
            )
        elif missing:
            got = f"lacks {len(missing)} of {len(wanted)} materials"
            yield Finding("verify.provenance", "provenance", Verdict.FAIL, got, "all that the record names")
        else:
            got = f"names this image and all {len(wanted)} materials"
            yield Finding("verify.provenance", "provenance", Verdict.PASS, got)


def _contents(image: Image, record: ImageRecord, bills: Sequence[Attached]) -> Iterator[Finding]:
    """The files of our wheels, and the bill against what is installed. Streams the layers once."""
    seen = Survey(image)
    own = record.our_layers
    alone = [layer for layer in own if layer.holds.startswith(WHEEL_LAYER)]
    ours = {str(layer.digest) for layer in alone or own}
    for member in image.members(seen.wants):
        # Only where our wheels lie is hashed file by file; every layer is hashed as a whole.
        if member.layer in ours or "-info" in member.path:
            seen.see(member)
    for finding in image.problems:
        if finding.verdict.rank >= Verdict.WARN.rank:
            yield finding
    installed = [dist for dist in seen.distributions() if not dist.vendored and dist.name and dist.version]
    for wheel in record.wheels:
        yield from _wheel(wheel, installed)
    parts = {Part("pypi", dist.key, dist.version) for dist in installed}
    wanted = {(canonicalize_name(package.name), package.version) for package in record.packages}
    missing = sorted(
        f"{name} {version}" for name, version in wanted - {(each.name, each.version) for each in parts}
    )
    if missing:
        yield Finding(
            "verify.packages", "runtime set", Verdict.FAIL, f"lacks {', '.join(missing[:5])}", "the locked set"
        )
    else:
        yield Finding(
            "verify.packages", "runtime set", Verdict.PASS, f"all {len(wanted)} locked packages are installed"
        )
    yield from _bill(bills, record, parts)


def _wheel(wheel: BuiltWheel, installed: Sequence[Distribution]) -> Iterator[Finding]:
    project = wheel.manifest.subject.project
    mine = [dist for dist in installed if dist.key == canonicalize_name(project)]
    if len(mine) != 1:
        yield Finding("verify.wheel", project, Verdict.FAIL, f"is installed {len(mine)} times", "once")
        return
    dist = mine[0]
    check = dist.check
    if dist.version != wheel.manifest.subject.version:
        got, wanted = f"METADATA says {dist.version}", wheel.manifest.subject.version
        yield Finding("verify.wheel", project, Verdict.FAIL, got, wanted)
    if check is None or not check.true:
        flaws = check and (check.wrong or check.missing or check.unverified or check.unhashed or check.duplicate)
        got = f"its files are not those of its RECORD: {', '.join((flaws or ('no RECORD',))[:3])}"
        yield Finding("verify.wheel", project, Verdict.FAIL, got)
    elif contents_digest(dist) != wheel.contents:
        yield Finding(
            "verify.wheel",
            project,
            Verdict.FAIL,
            f"its files are not those of {wheel.filename}",
            str(wheel.sha256),
        )
    else:
        got = f"{check.rows} files, those of {wheel.filename} ({wheel.sha256.short})"
        yield Finding("verify.wheel", project, Verdict.PASS, got)


def _bill(bills: Sequence[Attached], record: ImageRecord, parts: set[Part] | None) -> Iterator[Finding]:
    if not bills:
        yield Finding("verify.sbom", "bill of materials", Verdict.FAIL, "is not attached")
    for bill in bills:
        try:
            data = json.loads(bill.data)
            listed = {
                (str(each["name"]), str(each["version"]))
                for each in data["components"]
                if each["purl"].startswith("pkg:pypi/")
            }
            about = data["metadata"]["component"]["version"]
        except _UNREADABLE as error:
            yield Finding("verify.sbom", "bill of materials", Verdict.FAIL, f"cannot be read ({error!r})")
            continue
        there = {(each.name, each.version) for each in parts} if parts is not None else None
        if about != str(record.digest):
            yield Finding(
                "verify.sbom", "bill of materials", Verdict.FAIL, f"is about {about}", str(record.digest)
            )
        elif there is not None and there != listed:
            odd = sorted(f"{name} {version}" for name, version in there ^ listed)
            got = f"differs from what is installed in {len(odd)} packages: {', '.join(odd[:3])}"
            yield Finding("verify.sbom", "bill of materials", Verdict.FAIL, got)
        else:
            how = (
                "is about this image" if there is None else f"lists the {len(listed)} packages that are installed"
            )
            yield Finding("verify.sbom", "bill of materials", Verdict.PASS, how)


def _signatures(place: Place, digest: Sha256, signer: Identity | None) -> Iterator[Finding]:
    """Signatures are cosign's business: without it, what is there is said and nothing is claimed."""
    count = sum(each.artifact_type in _SIGNATURES for each in place.referrers(digest))
    count += place.find(f"sha256-{digest.hex}.sig") is not None
    wanted = signer is not None and signer.wanted
    if not count:
        verdict = Verdict.FAIL if wanted else Verdict.INFO
        yield Finding("verify.signature", "signature", verdict, "there is none", "one" if wanted else "")
        return
    program = process.find("cosign")
    if program is None or signer is None or not wanted:
        why = "cosign is not installed" if program is None else "no key or identity was named"
        verdict = Verdict.UNKNOWN if wanted else Verdict.INFO
        yield Finding(
            "verify.signature", "signature", verdict, f"{count} there, not verified: {why}",
            advice="Name --key, or --identity with --issuer, with cosign on PATH.",
        )  # fmt: skip
        return
    yield _cosign(program, f"{place.name}@{digest}", signer)


def _cosign(program: str, image: str, signer: Identity) -> Finding:
    who = ["--key", signer.key] if signer.key else [
        "--certificate-identity", signer.identity, "--certificate-oidc-issuer", signer.issuer,
    ]  # fmt: skip
    try:
        done = process.run([program, "verify", *who, image], timeout=_COSIGN_TIME, check=False)
    except ProgramError as error:
        return Finding("verify.signature", "signature", Verdict.UNKNOWN, f"cosign failed: {error.problems[0]}")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Finding("verify.signature", "signature", Verdict.FAIL, f"cosign refuses it: {said[:200]}")
    return Finding("verify.signature", "signature", Verdict.PASS, f"cosign {who[1]} verified it")


def _same(check: str, subject: str, got: Any, wanted: Any) -> Finding:
    if got == wanted:
        return Finding(check, subject, Verdict.PASS, "as the record says")
    if isinstance(got, list):
        return Finding(check, subject, Verdict.FAIL, "are not those of the record")
    return Finding(check, subject, Verdict.FAIL, f"is {got or 'missing'}", str(wanted))
