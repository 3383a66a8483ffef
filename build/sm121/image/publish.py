"""From an assembled image to a named one: inspected first, then described, then named; then pushed, if asked.

dist/images/<name>/                  OCI layout with the image and what is attached to it
dist/images/<name>.record.json, .sbom.cdx.json, .provenance.json, .report.json, .report.html
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact import Wheel
from sm121.artifact.layout import open_layout
from sm121.errors import VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.image.copying import copy_image
from sm121.image.daemonless import assemble, tool_versions
from sm121.image.folder import LayoutFolder
from sm121.image.names import ImmutableName
from sm121.image.naming import give_immutable_name, record_of
from sm121.image.places import exact
from sm121.image.placing import described
from sm121.image.provenance import PREDICATE, provenance
from sm121.image.record import ImageRecord, RecordedLayer
from sm121.image.referrers import PROVENANCE, RECORD, REPORT, SBOM, Attachment, attach
from sm121.image.sbom import contents_of, sbom
from sm121.image.store import BlobStore, fill_layout
from sm121.inspector.inspection import BaseImage, ExpectedWheel, Options, inspect_artifact
from sm121.inspector.page import report_html
from sm121.inspector.report import dump_report
from sm121.manifest import Inspection, Tool
from sm121.sources.disk import completed_file, sync_folder, writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.image.copying import Copied
    from sm121.image.daemonless import Assembled, ImageRequest
    from sm121.image.remote import Repository
    from sm121.image.sbom import Contents
    from sm121.inspector.report import Report
    from sm121.progress import Progress


@dataclass(frozen=True, slots=True)
class Inspected:
    """What reading an assembled image said, and what it holds."""

    report: Report
    contents: Contents


@dataclass(frozen=True, slots=True)
class PublishedImage:
    """Where an image is."""

    layout: Path
    record: ImageRecord
    files: Mapping[str, Path]


def make_image(
    request: ImageRequest, work: Path, dist: Path, progress: Progress, *, kernels: bool = True
) -> PublishedImage:
    """Build, inspect and publish an image into `dist`; `work` is the scratch folder. Raises what its parts raise."""
    store = BlobStore(work / "images")
    assembled = assemble(request, store, work / "files", progress)
    with progress.step(f"inspect {assembled.manifest.digest}"):
        inspected = inspect_assembled(assembled, request.wheels, store, progress, kernels=kernels)
    return publish_image(assembled, inspected, store, dist, epoch=request.epoch, logs=work / "logs")


def inspect_assembled(
    assembled: Assembled, wheels: Sequence[Path], store: BlobStore, progress: Progress, *, kernels: bool = True
) -> Inspected:
    """Read the image as anybody would, from a layout without a name."""
    with tempfile.TemporaryDirectory(dir=store.root, prefix=".inspect-") as name:
        layout = Path(name) / "layout"
        fill_layout(layout, store, [assembled.manifest], [assembled.config.descriptor, *assembled.layers])
        options = Options(
            wheels=tuple(_expected(path, wheel.sha256) for path, wheel in zip(wheels, assembled.wheels, strict=True)),
            base=BaseImage(f"{assembled.base.public}@{assembled.base.digest}", _base_diff_ids(assembled)),
            kernels=kernels, progress=progress,
        )  # fmt: skip
        with open_layout(layout, assembled.platform) as image:
            image.name = str(assembled.manifest.digest)  # where it lies now is no part of the report
            report = inspect_artifact(image, options)
        with open_layout(layout, assembled.platform) as image:
            contents = contents_of(image)
    return Inspected(report, contents)


def _expected(path: Path, digest: Sha256) -> ExpectedWheel:
    with Wheel(path) as wheel:
        return ExpectedWheel(described(wheel), digest.hex)


def _base_diff_ids(assembled: Assembled) -> tuple[str, ...]:
    return tuple((assembled.base.config.get("rootfs") or {}).get("diff_ids") or ())


def refuse_failed(report: Report, where: str) -> None:
    """Raise VerdictFail or VerdictUnknown for what must not get a name; `where` the report can be read."""
    if not report.verdict.publishable:
        kind = VerdictUnknown if report.verdict is Verdict.UNKNOWN else VerdictFail
        bad = [each.message for each in report.findings if each.verdict in {Verdict.FAIL, Verdict.UNKNOWN}]
        raise kind(bad, do=f"read {where}; the image got no name and was not pushed.")


def make_record(assembled: Assembled, report: bytes, verdict: Verdict, *, epoch: int) -> ImageRecord:
    """The record of an inspected image."""
    subject = assembled.wheels[0].manifest.subject
    partial = ".partial" if subject.version.endswith(".partial") else ""
    holds = {layer.digest: layer.created_by for layer in assembled.ours}
    diff_ids = [*_base_diff_ids(assembled), *(str(layer.diff_id) for layer in assembled.ours)]
    layers = tuple(
        RecordedLayer(
            layer.digest, layer.size, Sha256(diff_id.removeprefix("sha256:")), holds.get(layer.digest, "base")
        )
        for layer, diff_id in zip(assembled.layers, diff_ids, strict=True)
    )
    return ImageRecord(
        name=str(ImmutableName.of(f"{subject.base}{partial}", subject.line, assembled.manifest.digest)),
        digest=assembled.manifest.digest, config=assembled.config.digest, platform=assembled.platform, builder="oci",
        base_name=assembled.base.public, base_digest=assembled.base.digest, python=assembled.runtime.python_name,
        epoch=epoch, lock=assembled.runtime.digest, line=assembled.runtime.line, packages=assembled.packages,
        wheels=assembled.wheels, layers=layers, labels=tuple(sorted(assembled.labels.items())),
        tools=tuple(Tool(name, version) for name, version in tool_versions().items()),
        inspection=Inspection(verdict, Sha256.of_bytes(report)),
    )  # fmt: skip


def attachments(record: ImageRecord, report: bytes, contents: Contents) -> tuple[Attachment, ...]:
    """What is attached to an image. Pure; whoever built the image, these four say what it is."""
    hashes = {(package.name.lower(), package.version): package.sha256.hex for package in record.packages}
    bill = sbom(
        record.name,
        record.digest,
        contents,
        architecture=record.platform.architecture,
        epoch=record.epoch,
        hashes=hashes,
    )
    text = record.to_json()
    told = provenance(
        record,
        {
            f"{record.name}.report.json": Sha256.of_bytes(report),
            f"{record.name}.sbom.cdx.json": Sha256.of_bytes(bill),
            f"{record.name}.record.json": Sha256.of_bytes(text),
        },
    )
    return (
        Attachment(RECORD, f"{record.name}.record.json", text, {}),
        Attachment(REPORT, f"{record.name}.report.json", report, {"sm121.verdict": str(record.verdict)}),
        Attachment(SBOM, f"{record.name}.sbom.cdx.json", bill, {}),
        Attachment(PROVENANCE, f"{record.name}.provenance.json", told, {"in-toto.io/predicate-type": PREDICATE}),
    )


def publish_image(
    assembled: Assembled, inspected: Inspected, store: BlobStore, dist: Path, *, epoch: int, logs: Path
) -> PublishedImage:
    """Put an inspected image under its immutable name into `dist`; the layout appears whole or not at all.

    Raises VerdictFail or VerdictUnknown if the inspection did not pass: then nothing has a name, and the report is
    in `logs`.
    """
    report = dump_report(inspected.report).encode()
    page = report_html(inspected.report).encode()
    if not inspected.report.verdict.publishable:
        folder = logs / f"image-{assembled.manifest.digest.short}"
        for name, data in (("report.json", report), ("report.html", page)):
            with completed_file(folder / name) as file:
                file.write(data)
        refuse_failed(inspected.report, str(folder / "report.html"))
    record = make_record(assembled, report, inspected.report.verdict, epoch=epoch)
    papers = attachments(record, report, inspected.contents)
    images = dist / "images"
    folder = images / record.name
    files = {paper.title.removeprefix(f"{record.name}."): images / paper.title for paper in papers}
    for paper in papers:
        with completed_file(images / paper.title) as file:
            file.write(paper.data)
    files["report.html"] = images / f"{record.name}.report.html"
    with completed_file(files["report.html"]) as file:
        file.write(page)
    with writing(images), tempfile.TemporaryDirectory(dir=images, prefix=".", suffix=".partial") as name:
        new = Path(name) / record.name
        fill_layout(new, store, [assembled.manifest], [assembled.config.descriptor, *assembled.layers])
        place = LayoutFolder(new)
        place.name_document(assembled.manifest, record.name)
        for paper in papers:
            attach(place, assembled.manifest.descriptor, paper)
        if folder.exists():
            folder.rename(Path(name) / "old")
        new.rename(folder)
        sync_folder(images)
    return PublishedImage(folder, record, files)


def push_image(
    layout: Path, repository: Repository, store: BlobStore, progress: Progress
) -> tuple[ImageRecord, Copied]:
    """Push a published layout by digest with what is attached, then give it its immutable name.

    Raises ImageError if that name means another image there.
    """
    place = LayoutFolder(layout)
    record = record_of(place, exact(place, ""))
    copied = copy_image(place, repository, record.digest, store, progress)
    give_immutable_name(repository, record.name, record.digest)
    return record, copied
