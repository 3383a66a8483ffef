"""Put an inspected result under its final name.

    dist/by-digest/sha256-<hex>/<wheel>, <wheel>.sha256, <wheel>.manifest.json, ...
    dist/<wheel>, <wheel>.sha256, <wheel>.manifest.json, ...            the same files again

The folder named by the digest is filled under a temporary name and renamed, so it is there as a whole or not at
all. The plain names follow, the wheel last: whatever interrupts, no wheel is ever without its manifest.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sm121.errors import PackError, StorageError, VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.pack.checks import judge_wheel
from sm121.pack.storage import completed_file, pieces, sync_folder
from sm121.sources.disk import writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.pack.checks import Place

BY_DIGEST = "by-digest"


class Output(Protocol):
    """A file that a record describes."""

    @property
    def sha256(self) -> Sha256: ...


class Record(Protocol):
    """What must go with a result: the manifest, as far as publishing reads it."""

    @property
    def verdict(self) -> Verdict: ...

    def output(self, name: str) -> Output | None: ...

    def to_json(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Published:
    """Where a result is. `exact` is the name that stands for these bytes and no others."""

    wheel: Path
    sha256: Sha256
    exact: Path

    @property
    def manifest(self) -> Path:
        return _beside(self.wheel, ".manifest.json")

    @property
    def checksum(self) -> Path:
        return _beside(self.wheel, ".sha256")

    @property
    def page(self) -> Path:
        """The inspection as a page, if the result was published with one."""
        return _beside(self.wheel, ".report.html")


def ensure_publishable(dist: Path) -> None:
    """Raise StorageError if results could not be written to `dist`: better before a compile than after it."""
    with writing(dist):
        dist.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=dist) as file:
            file.write(b"\0")


def publish(
    wheel: Path,
    record: Record,
    dist: Path,
    *,
    documents: Mapping[str, bytes] | None = None,
    replace: bool = False,
    channel: str = "private",
    place: Place | None = None,
) -> Published:
    """Publish `wheel` with its manifest and further `documents` (suffix such as `.report.json` to content).

    `channel` is where it will be handed out, `place` a machine that must be able to install it. A wheel that is
    there with the same bytes is left as it is, with the manifest it was published with.

    Raises VerdictFail or VerdictUnknown if the inspection did not pass; PackError if the wheel contradicts its
    name, if the record describes other bytes, or if `dist` holds another wheel of this name and `replace` is not
    given.
    """
    _check_verdict(wheel.name, record.verdict)
    faults = [
        each.message
        for each in judge_wheel(wheel, channel=channel, place=place)
        if each.verdict in {Verdict.FAIL, Verdict.UNKNOWN}
    ]
    if faults:
        raise PackError(faults, do="build the wheel again under the name that it shall have.")
    digest = Sha256.of_file(wheel)
    described = record.output(wheel.name)
    if described is None or described.sha256 != digest:
        found = described.sha256 if described else "no such file"
        raise PackError(
            f"the manifest should describe {wheel.name} as {digest}, found {found}.",
            do="inspect this wheel again.",
        )
    folder = dist / BY_DIGEST / f"sha256-{digest.hex}"
    published = Published(dist / wheel.name, digest, folder / wheel.name)
    other = _other_bytes(published)
    if other and not replace:
        raise PackError(
            f"{published.wheel} exists with other bytes ({other}, the new wheel is {digest}).",
            do="move the old one away, or give --replace; its copy by digest stays in any case.",
        )
    texts = {
        ".manifest.json": record.to_json(),
        ".sha256": f"{digest.hex}  {wheel.name}\n".encode(),
        **(documents or {}),
    }
    with writing(dist):
        _fill(folder, wheel, digest, texts)
        if other:
            published.wheel.unlink()
        for name in sorted(each.name for each in folder.iterdir() if each.name != wheel.name):
            _name(folder / name, dist / name)
        sync_folder(dist)
        _name(published.exact, published.wheel)
        sync_folder(dist)
    return published


def find_published(dist: Path, filename: str, sha256: Sha256) -> Published | None:
    """The result of that name and digest if `dist` holds all of it; the plain name is compared, not believed."""
    published = Published(dist / filename, sha256, dist / BY_DIGEST / f"sha256-{sha256.hex}" / filename)
    present = all(
        path.is_file() for path in (published.exact, published.manifest, published.checksum, published.wheel)
    )
    return published if present and Sha256.of_file(published.wheel) == sha256 else None


def _check_verdict(name: str, verdict: Verdict) -> None:
    kind = {Verdict.FAIL: VerdictFail, Verdict.UNKNOWN: VerdictUnknown}.get(verdict)
    if kind is not None:
        raise kind(f"{name} is not published: the verdict of its inspection is {verdict}.", do="read the report.")


def _other_bytes(published: Published) -> Sha256 | None:
    """The digest behind the plain name if that is another file than the exact one."""
    if not published.wheel.exists():
        return None
    if published.exact.exists() and published.wheel.samefile(published.exact):
        return None
    found = Sha256.of_file(published.wheel)
    return found if found != published.sha256 else None


def _fill(folder: Path, wheel: Path, digest: Sha256, texts: Mapping[str, bytes]) -> None:
    """Make the folder that stands for the digest, unless it is there."""
    if folder.is_dir():
        if not (folder / wheel.name).is_file() or Sha256.of_file(folder / wheel.name) != digest:
            raise StorageError(
                f"{folder} should hold {wheel.name} with the digest in its name, found other content.",
                do="remove that folder; it was changed after it was published.",
            )
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".", suffix=".partial") as name:
        new = Path(name) / folder.name
        new.mkdir()
        for suffix, text in texts.items():
            with completed_file(_beside(new / wheel.name, suffix)) as file:
                file.write(text)
        with completed_file(new / wheel.name) as file:
            file.writelines(pieces(wheel))
        if Sha256.of_file(new / wheel.name) != digest:
            raise StorageError(
                f"{wheel} changed while it was copied.", do="let one build at a time work in a folder."
            )
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process published the same bytes just now
                raise
    sync_folder(folder.parent)


def _name(file: Path, name: Path) -> None:
    """Give `file` a second name, in place of whatever has it; a copy where the disk has no hard links."""
    if name.exists() and name.samefile(file):
        return
    try:
        with tempfile.TemporaryDirectory(dir=name.parent, prefix=".", suffix=".partial") as folder:
            link = Path(folder) / name.name
            os.link(file, link)
            link.replace(name)
    except OSError:
        with completed_file(name) as copy:
            copy.writelines(pieces(file))


def _beside(wheel: Path, suffix: str) -> Path:
    return wheel.with_name(wheel.name + suffix)
