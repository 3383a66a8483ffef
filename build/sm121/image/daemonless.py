"""An image without an engine: a base by digest, our layers appended, the same bytes on every machine.

Nothing in the image is run, so its CPU need not be that of this machine. Layers, lowest first: the base; the frame (an
environment's folder, a user); heavy wheels of the runtime set, each alone; the rest of the set; each of our wheels
alone. So a rebuilt wheel moves one layer, and a new torch does not move CUDA's libraries.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import zstandard
from packaging.utils import parse_wheel_filename
from zlib_ng import zlib_ng

from sm121.artifact import Wheel, WheelName
from sm121.artifact.imagedocs import LINUX_ARM64, Platform
from sm121.errors import ImageError, PackError, UsageError
from sm121.image.base import read_base, take_base
from sm121.image.contents import contents_digest
from sm121.image.documents import OCI_CONFIG, Document, LayerDone, canonical, image_config, image_manifest
from sm121.image.frame import FOLDER, frame, run_options
from sm121.image.labels import stamp_labels
from sm121.image.layer import LEVELS, Compression, write_layer
from sm121.image.placing import Prefix, collisions, described, harmless, measure, misrecorded, place
from sm121.image.record import BuiltWheel, Package
from sm121.image.runtime_set import RuntimeSet, wheels_of
from sm121.manifest import Manifest
from sm121.pins.choose import tags
from sm121.pins.model import Cpu
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.artifact.imagedocs import Descriptor
    from sm121.image.base import Base
    from sm121.image.layer import Entry
    from sm121.image.placing import Placed
    from sm121.image.store import BlobStore
    from sm121.progress import Progress

PLATFORMS = {Cpu.AARCH64: LINUX_ARM64, Cpu.X86_64: Platform("linux", "amd64")}
HEAVY = 48_000_000
"""Bytes from which a wheel of the runtime set has a layer of its own."""
_MOST_HEAVY = 60
MAKER = "sm121: "
WHEEL_LAYER = f"{MAKER}wheel "
"""How the history names a layer that holds one of our wheels and nothing else."""
DEFAULT_EPOCH = 315532800
"""1980-01-01, the earliest time that a wheel's own archive can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """What an image shall be made of. The first of `wheels` names it; `epoch` is the time of every path."""

    base: str
    wheels: tuple[Path, ...]
    lock: Path
    epoch: int = DEFAULT_EPOCH
    compression: Compression = Compression.GZIP
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mirror: Path | None = None
    insecure: bool = False
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Assembled:
    """An image whose blobs are all in the store, not inspected and without a name."""

    manifest: Document
    config: Document
    layers: tuple[Descriptor, ...]
    ours: tuple[LayerDone, ...]
    base: Base
    platform: Platform
    wheels: tuple[BuiltWheel, ...]
    runtime: RuntimeSet
    packages: tuple[Package, ...]
    labels: Mapping[str, str]


def read_wheels(paths: Sequence[Path]) -> tuple[BuiltWheel, ...]:
    """Wheels of ours with the manifests beside them; raises PackError for each that has none or differs from it."""
    found, faults = [], []
    for path in paths:
        try:
            found.append(_read_wheel(path))
        except PackError as error:
            faults += error.problems
    if faults:
        raise PackError(
            faults, do="name wheels as they were published into dist/, with their manifests beside them."
        )
    return tuple(found)


def _read_wheel(path: Path) -> BuiltWheel:
    beside = path.with_name(f"{path.name}.manifest.json")
    if not path.is_file():
        raise PackError(f"the wheel {path} does not exist.")
    if not beside.is_file():
        raise PackError(f"{path.name} has no manifest beside it ({beside.name}).")
    data = beside.read_bytes()
    manifest = Manifest.from_json(data, beside.name)
    WheelName.parse(path.name)
    output, digest = manifest.output(path.name), Sha256.of_file(path)
    if output is None or output.sha256 != digest:
        raise PackError(
            f"{path.name} is {digest}; its manifest describes {output.sha256 if output else 'other files'}."
        )
    if not manifest.verdict.publishable:
        raise PackError(f"{path.name}: the verdict of its inspection is {manifest.verdict}.")
    with Wheel(path) as wheel:
        dist = described(wheel)
    commit = next((stamp.commit for stamp in dist.stamps if stamp.commit), "")
    return BuiltWheel(
        path.name, digest, path.stat().st_size, contents_digest(dist), commit, manifest, Sha256.of_bytes(data)
    )


def judge_request(wheels: Sequence[BuiltWheel], runtime: RuntimeSet, lock: str) -> None:
    """Raise UsageError that names everything in which wheels and runtime set do not belong together. Pure."""
    faults = []
    for wheel in wheels:
        subject = wheel.manifest.subject
        if subject.cpu != runtime.cpu:
            faults.append(f"{wheel.filename} is for {subject.cpu}, {lock} for {runtime.cpu}.")
        if subject.line != runtime.line:
            faults.append(f"{wheel.filename} is of line {subject.line}, {lock} of line {runtime.line}.")
        if subject.project == "vllm" and subject.base != runtime.vllm:
            faults.append(f"{wheel.filename} is vLLM {subject.base}, {lock} was written for {runtime.vllm}.")
    if faults:
        raise UsageError(
            faults, do="lock the runtime set for these wheels: `sm121 pins lock --line LINE --output FILE`."
        )


def judge_libc(base: str, libc: tuple[int, int], wheels: Sequence[BuiltWheel], runtime: RuntimeSet) -> None:
    """Raise ImageError that names all that the base's glibc or Python is too old for. Pure."""
    shown = f"{base} has glibc {libc[0]}.{libc[1]}"
    faults = []
    if libc < runtime.libc:
        faults.append(f"{shown}; the runtime set needs {runtime.libc[0]}.{runtime.libc[1]} or newer.")
    taken = tags(runtime.cpu, python=runtime.python, libc=libc)
    faults += [
        f"{shown} and Python {runtime.python_name}; {wheel.filename} does not install there."
        for wheel in wheels
        if not parse_wheel_filename(wheel.filename)[3] & taken.keys()
    ]
    if faults:
        raise ImageError(faults, do="take a newer base.")


def assemble(request: ImageRequest, store: BlobStore, files: Path, progress: Progress) -> Assembled:
    """Make the image in the store; `files` is where fetched wheels are kept. It gets no name here.

    Raises what its parts raise: UsageError, PackError, ImageError, DigestError, FetchError, StorageError.
    """
    wheels, runtime = read_wheels(request.wheels), RuntimeSet.read(request.lock)
    judge_request(wheels, runtime, request.lock.name)
    platform = PLATFORMS[runtime.cpu]
    with progress.step(f"base {request.base}"):
        base = take_base(request.base, platform, store, progress, insecure=request.insecure)
        facts = read_base(base, store, runtime.python_name)
    judge_libc(base.name, facts.libc, wheels, runtime)
    with progress.step(f"runtime set: {len(runtime.packages)} wheels"):
        paths = wheels_of(runtime, files, progress, request.mirror)
    prefix = Prefix(FOLDER, runtime.python_name)
    making = _Making(request, store, prefix, progress)
    ours = [making.layer("frame", frame(prefix, facts), "environment and user", "frame")]
    with ExitStack() as stack:
        placed = _placed(stack, paths, prefix, request, store, progress)
        mine = [
            place(stack.enter_context(Wheel(path)), prefix, direct=wheel.sha256)
            for path, wheel in zip(request.wheels, wheels, strict=True)
        ]
        if faults := collisions([*placed, *mine], prefix):
            raise PackError(faults, do="leave one of the wheels out of the lock.")
        ours += making.runtime(placed)
        ours += [making.wheel(wheel) for wheel in mine]
    labels = {
        **request.labels,
        **stamp_labels(
            wheels,
            base=(base.public, base.digest),
            lock=runtime.digest,
            python=runtime.python_name,
            epoch=request.epoch,
        ),
    }
    run = run_options(base.config, prefix, labels, request.env)
    config = store.add(Document(OCI_CONFIG, image_config(base.config, run, ours, request.epoch)))
    layers = [*base.layers, *(layer.descriptor for layer in ours)]
    annotations = {key: value for key, value in labels.items() if key.startswith("org.opencontainers.image.")}
    manifest = store.add(image_manifest(config, layers, annotations))
    packages = tuple(_package(path, one) for path, one in zip(paths, placed, strict=True))
    return Assembled(
        manifest, config, tuple(layers), tuple(ours), base, platform, wheels, runtime, packages, labels
    )  # fmt: skip


def _placed(
    stack: ExitStack,
    paths: Sequence[Path],
    prefix: Prefix,
    request: ImageRequest,
    store: BlobStore,
    progress: Progress,
) -> list[Placed]:
    """Plan the files of the runtime set; its wheels stay open with `stack`."""
    opened = [stack.enter_context(Wheel(path)) for path in paths]
    with progress.step("read the runtime set"), ThreadPoolExecutor(request.threads) as pool:
        measured = list(pool.map(partial(_measured, store.root / "measured"), opened))
    for wheel, digests in zip(opened, measured, strict=True):
        if wrong := misrecorded(wheel, digests):
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            progress.say(
                f"note: the RECORD of {wheel.name} is wrong about {wrong[0]}{more}; the image's will be right."
            )
    shared = harmless(prefix)
    placed, owned = [], set[str]()
    for wheel, digests in reversed([*zip(opened, measured, strict=True)]):
        # Of files that are known to be harmless the last wheel has the only one, as after an installation.
        one = place(wheel, prefix, measured={path: each for path, each in digests.items() if path not in owned})
        owned |= {path for path in digests if f"{prefix.site}/{path}" in shared}
        placed.append(one)
    return placed[::-1]


def _measured(folder: Path, wheel: Wheel) -> dict[str, Sha256]:
    """Wheels of the store lie in folders that are named after their sha256."""
    return measure(wheel, folder / f"{wheel.path.parent.name}.json")


def _package(path: Path, placed: Placed) -> Package:
    return Package(placed.name, placed.version, path.name, Sha256(path.parent.name))


@dataclass(frozen=True, slots=True)
class _Making:
    """Makes layers, each once: what a layer is made of decides whether it is there already."""

    request: ImageRequest
    store: BlobStore
    prefix: Prefix
    progress: Progress

    def runtime(self, placed: Sequence[Placed]) -> list[LayerDone]:
        """Heavy wheels alone, the others together."""
        ordered = sorted(placed, key=lambda wheel: wheel.size, reverse=True)
        heavy = {wheel.filename for wheel in ordered[:_MOST_HEAVY] if wheel.size >= HEAVY}
        groups = [[wheel] for wheel in placed if wheel.filename in heavy]
        rest = [wheel for wheel in placed if wheel.filename not in heavy]
        done = []
        for group in [*groups, *([rest] if rest else [])]:
            what = group[0].filename if len(group) == 1 else f"{len(group)} wheels of the runtime set"
            done.append(self.layer(what, _merged(group), f"runtime set: {what}", "runtime"))
        return done

    def wheel(self, placed: Placed) -> LayerDone:
        return self.layer(placed.filename, placed.entries, f"wheel {placed.filename}", "wheel")

    def layer(self, title: str, entries: Sequence[Entry], created_by: str, comment: str) -> LayerDone:
        """The layer of these entries: from an earlier run, or made now."""
        request = self.request
        key = self._key(entries)
        known = self.store.root / "layers" / f"{key.hex}.json"
        made_by = f"{MAKER}{created_by}"
        if (done := _known(known, self.store, made_by, comment)) is not None:
            self.progress.kept(f"layer: {title}")
            return done
        with self.progress.step(f"layer: {title}"):
            done = write_layer(
                self.store, entries, epoch=request.epoch, created_by=made_by, comment=comment,
                compression=request.compression, threads=request.threads,
            )  # fmt: skip
        known.parent.mkdir(parents=True, exist_ok=True)
        partial = known.with_suffix(".new")
        partial.write_bytes(
            canonical(
                {
                    "digest": done.digest.hex,
                    "size": done.size,
                    "diff_id": done.diff_id.hex,
                    "type": done.media_type,
                }
            )
        )
        partial.replace(known)
        return done

    def _key(self, entries: Sequence[Entry]) -> Sha256:
        request = self.request
        listed = [[e.path, e.mode, e.sha256.hex if e.sha256 else "", e.link, e.owner] for e in entries]
        how = [request.epoch, request.compression, LEVELS[request.compression], *tool_versions().values()]
        return Sha256.of_bytes(canonical([2, how, sorted(listed)]))


def tool_versions() -> dict[str, str]:
    """What decides the bytes of compressed layers."""
    return {"zlib-ng": str(zlib_ng.ZLIBNG_RUNTIME_VERSION), "zstd": ".".join(map(str, zstandard.ZSTD_VERSION))}


def _known(path: Path, store: BlobStore, created_by: str, comment: str) -> LayerDone | None:
    try:
        data = json.loads(path.read_bytes())
        done = LayerDone(
            Sha256(data["digest"]), data["size"], Sha256(data["diff_id"]), data["type"], created_by, comment
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return done if store.has(done.digest, done.size) else None


def _merged(group: Sequence[Placed]) -> list[Entry]:
    """The entries of several wheels; of equal files that two own, one."""
    merged: dict[str, Entry] = {}
    for wheel in group:
        merged.update({entry.path: entry for entry in wheel.entries})
    return [merged[path] for path in sorted(merged)]
