"""Makes a planned image: fetch, build, inspect, push, name by the registry's digest, write down.

The inspection comes before the image has a name. Each part is done once: a plan's build is kept by the plan's digest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.artifact import Wheel
from sm121.artifact.engine import open_engine
from sm121.artifact.imagedocs import Descriptor
from sm121.artifact.pulled import open_registry
from sm121.engine.client import Engine
from sm121.engine.context import fill_context
from sm121.engine.emulation import judge_emulation
from sm121.engine.features import BuildCall, Features, build_command, docker_environment, find_features
from sm121.engine.plan import EPOCH
from sm121.errors import DigestError, ImageError, PreflightError, StorageError
from sm121.findings import Verdict
from sm121.image.names import STAGING, ImmutableName
from sm121.image.placing import described
from sm121.image.publish import Inspected, attachments, refuse_failed
from sm121.image.record import ImageRecord, Package, RecordedLayer
from sm121.image.referrers import RECORD, REPORT, attach
from sm121.image.remote import Repository
from sm121.image.runtime_set import wheels_of
from sm121.image.sbom import contents_of
from sm121.inspector.inspection import BaseImage, ExpectedWheel, Options, inspect_artifact
from sm121.inspector.page import report_html
from sm121.inspector.promise import Promise
from sm121.inspector.report import dump_report
from sm121.inspector.text import report_text
from sm121.manifest import Inspection, Tool
from sm121.sources.disk import completed_file
from sm121.sources.fetch import fetch
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.artifact import ImageReference
    from sm121.artifact.imagedocs import Manifest
    from sm121.engine.client import Pushed
    from sm121.engine.plan import ImagePlan
    from sm121.inspector.report import Report
    from sm121.progress import Progress
    from sm121.workspace import Workspace

_AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_LEFT_OUT = "left-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a plan runs. `wheels` are the files of ours, in the order of the plan."""

    work: Workspace
    dist: Path
    dockerfile: Path
    wheels: tuple[Path, ...]
    progress: Progress
    docker: str = ""
    mirror: Path | None = None
    no_cache: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """What came of it. Without a repository there is no name, and `reference` is None."""

    image: str
    verdict: Verdict
    report: Path
    reference: ImageReference | None = None
    name: str = ""
    record: Path | None = None
    pushed: Pushed | None = None


class ImageBuild:
    """One run of one plan."""

    def __init__(self, plan: ImagePlan, place: Place) -> None:
        self.plan, self.place = plan, place
        self.progress = place.progress
        self.folder = place.work.root / "images" / plan.digest.hex[:16]

    def run(self) -> Made:
        """Do all of it. What is refused is refused before the build where that can be known."""
        with self.place.work.locked():
            features = find_features(self.place.docker)
            engine = Engine.connect(features.host)
            try:
                return self._made(engine, features)
            finally:
                engine.close()

    def _made(self, engine: Engine, features: Features) -> Made:
        base = self._base()
        self._ensure_runnable(engine)
        image = self._image(engine, features)
        inspected = self._inspected(engine, image, base)
        if self.plan.repository is None:
            name = f"images/{self.plan.digest.hex[:16]}"
            path = self._written(f"{name}.report.json", dump_report(inspected.report).encode())
            self._written(f"{name}.report.html", report_html(inspected.report).encode())
            return Made(image, inspected.report.verdict, path)
        return self._published(engine, features, image, inspected, self.plan.repository, len(base.diff_ids))

    def _base(self) -> BaseImage:
        """Look at the base's documents in its registry: they must be for the platform."""
        plan = self.plan
        with (
            self.progress.step(f"look at the base {plan.base}"),
            open_registry(plan.base_reference, plan.platform) as image,
        ):
            return BaseImage(plan.base, tuple(str(digest) for digest in image.config.diff_ids))

    def _ensure_runnable(self, engine: Engine) -> None:
        finding = judge_emulation(
            engine.cpu(),
            self.plan.platform,
            self.plan.builder,
            engine.emulation(self.plan.platform, self.plan.base_reference),
        )
        if finding.verdict in {Verdict.FAIL, Verdict.UNKNOWN}:
            raise PreflightError(f"{finding.subject}: {finding.got}.", do=finding.advice or finding.wanted)
        if finding.verdict is Verdict.WARN:
            self.progress.say(f"note: {finding.message}", style="yellow")

    def _image(self, engine: Engine, features: Features) -> str:
        """The ID of the built image: of an earlier run if the engine still has it."""
        known = self.folder / "image-id"
        if not self.place.no_cache and known.is_file():
            image = known.read_text(encoding="ascii").strip()
            if engine.has(image):
                self.progress.kept(f"build the image ({image})")
                return image
        context = self._context()
        image = self._built(features, context)
        with completed_file(known) as file:
            file.write(f"{image}\n".encode())
        return image

    def _context(self) -> Path:
        plan, place = self.plan, self.place
        with self.progress.step(f"bring the locked set: {len(plan.runtime.packages)} wheels"):
            runtime = wheels_of(plan.runtime, place.work.files, self.progress, place.mirror)
            (installer,) = fetch(
                [plan.installer], place.work.files, mirror=place.mirror, progress=self.progress
            ).values()
        context = self.folder / "context"
        fill_context(context, place.dockerfile, installer, runtime, place.wheels)
        return context

    def _built(self, features: Features, context: Path) -> str:
        iidfile = self.folder / "iid"
        iidfile.unlink(missing_ok=True)
        call = BuildCall(
            context=context,
            dockerfile=context / "Dockerfile",
            platform=str(self.plan.platform),
            target=self.plan.modules,
            arguments=self.plan.arguments,
            labels=self.plan.labels,
            network=self.plan.network,
            iidfile=iidfile,
            secrets=_secrets(),
            no_cache=self.place.no_cache,
            epoch=EPOCH,
        )
        log = self.place.work.log("image")
        with self.progress.step(f"build the image for {self.plan.platform} (log: {log})"):
            lines: list[str] = []
            status = process.stream(
                build_command(features, call), log=log, on_line=lambda line: self._line(line, lines),
                env=docker_environment(),
            )  # fmt: skip
            if status or not iidfile.is_file():
                raise build_failure(lines, str(log), status)
        return iidfile.read_text(encoding="ascii").strip()

    def _line(self, line: str, lines: list[str]) -> None:
        lines.append(line)
        del lines[:-60]
        words = line.split(None, 2)
        if len(words) == 3 and words[0].startswith("#") and words[1].startswith("[") and words[1] != "[internal]":
            self.progress.say(f"  {line[:100]}", style="dim")

    def _inspected(self, engine: Engine, image: str, base: BaseImage) -> Inspected:
        expected = []
        for path, wheel in zip(self.place.wheels, self.plan.wheels, strict=True):
            with Wheel(path) as opened:
                expected.append(ExpectedWheel(described(opened), wheel.sha256.hex))
        options = Options(
            promise=self._promise(), wheels=tuple(expected), base=base, progress=self.progress
        )  # fmt: skip
        with self.progress.step("inspect the image as the engine holds it"):
            opened_image = open_engine(image, self.plan.platform, client=Engine.connect(engine.host).client)
            with opened_image:
                report = inspect_artifact(opened_image, options)
                contents = contents_of(opened_image)
        if not self.progress.quiet:
            report_text(report, self.progress.console, rest="the report has them")
        if not report.verdict.publishable:
            self._refuse(report)
        return Inspected(report, contents)

    def _promise(self) -> Promise:
        """What the wheels' manifests say of their libraries."""
        libraries = [library for wheel in self.plan.wheels for library in wheel.manifest.libraries]
        return Promise(
            digests={each.path: each.sha256.hex for each in libraries if each.origin != _LEFT_OUT},
            left_out=tuple(each.path for each in libraries if each.origin == _LEFT_OUT),
        )

    def _refuse(self, report: Report) -> None:
        folder = self.place.work.logs / f"image-{self.plan.digest.hex[:16]}"
        for name, text in (("report.json", dump_report(report)), ("report.html", report_html(report))):
            with completed_file(folder / name) as file:
                file.write(text.encode())
        refuse_failed(report, str(folder / "report.html"))

    def _published(
        self, engine: Engine, features: Features, image: str, inspected: Inspected, repository: ImageReference,
        based: int,
    ) -> Made:  # fmt: skip
        """Push under a name of the image's ID, compare what the registry holds, describe it, then name it."""
        plan = self.plan
        staged = f"{STAGING}{image.removeprefix('sha256:')[:12]}"
        with self.progress.step(f"push to {repository}"):
            pushed = engine.push(image, str(repository), staged)
        reference = repository.with_digest(pushed.digest)
        layers, manifest = self._compared(engine, image, reference, based)
        subject = plan.wheels[0].manifest.subject
        version = subject.base + (".partial" if subject.version.endswith(".partial") else "")
        name = str(ImmutableName.of(version, plan.line, pushed.digest))
        report = dump_report(inspected.report).encode()
        verdict = inspected.report.verdict
        record = self._record(
            name, pushed, manifest.config.digest, layers, features, Inspection(verdict, Sha256.of_bytes(report))
        )
        papers = attachments(record, report, inspected.contents)
        with (
            self.progress.step(f"attach record, report, bill of materials and provenance to {pushed.digest}"),
            Repository(repository, write=True) as place,
        ):
            for paper in papers:
                attach(place, Descriptor(manifest.media_type, pushed.digest, pushed.size), paper)
        with self.progress.step(f"name it {name}"):
            again = engine.push(image, str(repository), name)
        if again.digest != pushed.digest:
            raise DigestError(
                f"{repository}:{name} is {again.digest}; {pushed.digest} was pushed and inspected.",
                do="use neither; another program writes into that repository.",
            )
        engine.untag(f"{repository}:{staged}")
        files = {paper.kind: self._written(f"images/{paper.title}", paper.data) for paper in papers}
        self._written(f"images/{name}.report.html", report_html(inspected.report).encode())
        return Made(image, verdict, files[REPORT], reference, name, files[RECORD], pushed)

    def _compared(
        self, engine: Engine, image: str, reference: ImageReference, based: int
    ) -> tuple[tuple[RecordedLayer, ...], Manifest]:
        """The registry's image must have the layers that were inspected. Nothing but its documents is read."""
        held = tuple(str(digest) for digest in engine.diff_ids(image))
        with open_registry(reference, self.plan.platform) as there:
            manifest, config = there.manifest, there.config
            assert manifest is not None
            found = tuple(str(digest) for digest in config.diff_ids)
            if held != found or len(manifest.layers) != len(found):
                raise DigestError(
                    f"{reference} does not have the layers that were inspected.", do="do not use it; push again."
                )
            layers = tuple(
                RecordedLayer(layer.digest, layer.size, diff_id, _holds(number, based))
                for number, (layer, diff_id) in enumerate(zip(manifest.layers, config.diff_ids, strict=True))
            )
            return layers, manifest

    def _record(
        self, name: str, pushed: Pushed, config: Sha256, layers: tuple[RecordedLayer, ...], features: Features,
        inspection: Inspection,
    ) -> ImageRecord:  # fmt: skip
        plan = self.plan
        packages = tuple(
            Package(each.name, each.version, path.name, Sha256(path.parent.name))
            for each, path in zip(
                plan.runtime.packages,
                wheels_of(plan.runtime, self.place.work.files, self.progress, self.place.mirror),
                strict=True,
            )
        )
        return ImageRecord(
            name=name, digest=pushed.digest, config=config, platform=plan.platform, builder=plan.builder,
            base_name=plan.base_reference.name, base_digest=plan.base_digest, python=plan.runtime.python_name, epoch=EPOCH,
            lock=plan.runtime.digest, line=plan.line, packages=packages, wheels=plan.wheels, layers=layers,
            labels=tuple(sorted(plan.labels.items())), tools=(Tool("docker", features.described),), inspection=inspection,
        )  # fmt: skip

    def _written(self, name: str, data: bytes) -> Path:
        path = self.place.dist / name
        with completed_file(path) as file:
            file.write(data)
        return path


def build_failure(lines: list[str], log: str, status: int) -> ImageError | StorageError | PreflightError:
    """The error that a failed build's last lines tell of."""
    text = "\n".join(lines)
    told = [line for line in lines if "ERROR" in line or "error:" in line.lower()][-6:] or lines[-6:]
    shown = "".join(f"\n    {line[:200]}" for line in told)
    if "exec format error" in text:
        return PreflightError(
            f"the build runs programs of another CPU, and no emulation is there for them.{shown}",
            do="install qemu-user-static and binfmt-support where the engine runs, or use --builder oci.",
        )
    if "no space left on device" in text:
        return StorageError(f"the disk of the engine is full.{shown}", do="free space there: `docker system df`.")
    if "THESE PACKAGES DO NOT MATCH THE HASHES" in text:
        return ImageError(
            f"a wheel is not the locked one.{shown}", do=f"read {log}; remove the folder of the context."
        )
    return ImageError(f"docker ended with {status} while it built the image.{shown}", do=f"read {log}.")


def _holds(number: int, based: int) -> str:
    """What a layer holds, in words: the base's layers, then our steps in order."""
    return "base" if number < based else f"step {number - based + 1} of the Dockerfile"


def _secrets() -> Mapping[str, Path]:
    """The host's own certificate authorities, for packages that are fetched while the image is built."""
    files = [Path(os.environ[name]) for name in _AUTHORITIES if os.environ.get(name)]
    return {"ca": files[0]} if files and files[0].is_file() else {}
