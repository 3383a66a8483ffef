"""Acts on names: the immutable one is given once; a moving one is moved with a record of where it stood before."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from sm121.artifact.imagedocs import ImageConfig, Index, Platform, read_index_or_manifest
from sm121.artifact.jsondoc import JsonReader
from sm121.artifact.member import printable
from sm121.errors import ArtifactError, ImageError, VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.image.documents import canonical
from sm121.image.names import STAGING, ImmutableName
from sm121.image.record import ImageRecord
from sm121.image.referrers import PROMOTION, RECORD, REPORT, Attachment, attach, attached
from sm121.image.remote import is_fallback
from sm121.sources.disk import writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sm121.image.documents import Document
    from sm121.image.referrers import Place


@dataclass(frozen=True, slots=True)
class Promotion:
    """A moving name was set. `before` is the digest it named until then, "" if it was new; `at` is UTC."""

    name: str
    digest: str
    immutable: str
    before: str
    at: str

    def to_json(self) -> bytes:
        return canonical({"version": 1, **asdict(self)})

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read one back; raises ImageError if it is none."""
        reader = JsonReader("a record of a promotion")
        try:
            top = reader.top(data)
            made = cls(*(reader.text(top, key) for key in ("name", "digest", "immutable", "before", "at")))
            reader.finish()
        except ArtifactError as error:
            raise ImageError(error.problems, do="remove that attachment from the registry.") from error
        return made


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name stands for now. `names` are the immutable names of the same digest."""

    name: str
    digest: Sha256
    media_type: str
    platforms: tuple[str, ...]
    names: tuple[str, ...]
    promotions: tuple[Promotion, ...]

    def to_data(self) -> dict[str, Any]:
        return {
            "name": self.name, "digest": str(self.digest), "media_type": self.media_type,
            "platforms": list(self.platforms), "names": list(self.names),
            "promotions": [asdict(each) for each in self.promotions],
        }  # fmt: skip


def give_immutable_name(place: Place, name: str, digest: Sha256) -> None:
    """Tag a pushed digest with its immutable name; again is nothing. Raises ImageError if it means another image."""
    parsed = ImmutableName.parse(name)
    if parsed is None or not parsed.means(digest):
        raise ImageError(f"{name} cannot be the name of {digest}.", do="name an image by its own digest.")
    document = place.document(digest)
    there = place.find(name)
    if there is not None and there.digest != digest:
        raise ImageError(
            f"{place.name}:{name} is {there.digest}; {digest} was to get that name, which never moves.",
            do="find out who gave it; nothing was changed.",
        )
    if there is None:
        place.name_document(document, name)


def record_of(place: Place, digest: Sha256) -> ImageRecord:
    """The record that is attached to an image. Raises ImageError if there is none, or it is of another image."""
    found = list(attached(place, digest, RECORD))
    if not found:
        raise ImageError(
            f"{place.name}@{digest} has no record attached: it is not known what it was made of.",
            do="push it with `sm121 push`, or copy it with what is attached (`sm121 copy`).",
        )
    record = ImageRecord.from_json(found[-1].data, f"the record of {digest}")
    if record.digest != digest:
        raise ImageError(f"the record attached to {digest} describes {record.digest}.", do="do not use it.")
    name = ImmutableName.parse(record.name)
    if name is None or not name.means(digest):
        raise ImageError(
            f"the record attached to {digest} names it {printable(record.name)}.", do="do not use it."
        )
    return record


def require_passed(place: Place, digest: Sha256) -> ImageRecord:
    """The record of an image whose inspection passed and is there to be read.

    Raises ImageError without record or report, VerdictFail or VerdictUnknown if it did not pass.
    """
    record = record_of(place, digest)
    reports = {Sha256.of_bytes(each.data): each.data for each in attached(place, digest, REPORT)}
    report = reports.get(record.inspection.report)
    if report is None:
        raise ImageError(
            f"{place.name}@{digest} has no inspection report, or another one than its record names "
            f"({record.inspection.report}).",
            do="push it with `sm121 push`, or copy it with what is attached (`sm121 copy`).",
        )
    verdicts = {record.verdict, _verdict(report)}
    if not all(verdict.publishable for verdict in verdicts):
        kind = VerdictFail if Verdict.FAIL in verdicts else VerdictUnknown
        raise kind(
            f"{place.name}@{digest}: the verdict of its inspection is {' and '.join(sorted(verdicts))}.",
            do="promote another image.",
        )
    return record


def _verdict(report: bytes) -> Verdict:
    try:
        return Verdict(json.loads(report)["verdict"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return Verdict.UNKNOWN


def promote(
    place: Place, name: str, digest: Sha256, journal: Path, *, now: Callable[[], float] = time.time
) -> Promotion | None:
    """Let a moving name stand for an image that passed; None if it does already.

    What it stood for is written down first, attached to the image and in the local journal: an interruption leaves a
    record too many, never a move without one.
    """
    record = require_passed(place, digest)
    before = place.find(name)
    if before is not None and before.digest == digest:
        return None
    document = place.document(digest)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now()))
    promotion = Promotion(name, str(digest), record.name, str(before.digest) if before else "", at)
    noted = {f"sm121.{key}": value for key, value in asdict(promotion).items() if value}
    attach(
        place, document.descriptor, Attachment(PROMOTION, f"{name}.promotion.json", promotion.to_json(), noted)
    )
    with writing(journal):
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("ab") as file:
            file.write(canonical({"repository": place.name, **asdict(promotion)}) + b"\n")
    place.name_document(document, name)
    after = place.find(name)
    if after is None or after.digest != digest:
        raise ImageError(
            f"{place.name}:{name} is {after.digest if after else 'nothing'} after it was set to {digest}: somebody else "
            "moved it at the same time.",
            do=f"look at `sm121 resolve {place.name}:{name}`, then promote again if that is not what you want.",
        )
    return promotion


def find_image(place: Place, text: str) -> Sha256:
    """A digest or an immutable name of this place as a digest. Raises ImageError for names that may move."""
    if re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        return Sha256(text.removeprefix("sha256:"))
    name = ImmutableName.parse(text)
    if name is None:
        raise ImageError(
            f"{text} may name another image tomorrow; a digest or an immutable name was wanted.",
            do=f"`sm121 resolve {place.name}:{text}` says what it is now.",
        )
    digest = place.document(text).digest
    if not name.means(digest):
        raise ImageError(f"{place.name}:{text} is {digest}, which its name contradicts.", do="do not use it.")
    return digest


def resolve(place: Place, name: Sha256 | str, *, every: bool = True) -> Resolved:
    """What a name stands for: digest, platforms, immutable names, promotions (with `every`)."""
    document = place.document(name)
    names = [tag for tag in _tags(place) if (known := ImmutableName.parse(tag)) and known.means(document.digest)]
    promotions = _promotions(place, document.digest) if every else ()
    return Resolved(
        f"{place.name}{'@' if isinstance(name, Sha256) else ':'}{name}", document.digest, document.media_type,
        platforms_of(place, document), tuple(names), promotions,
    )  # fmt: skip


def _tags(place: Place) -> list[str]:
    """The names of a place; none where it does not tell: some registries keep them from who may pull."""
    try:
        return place.tags()
    except ImageError:
        return []


def _promotions(place: Place, digest: Sha256) -> tuple[Promotion, ...]:
    found = [Promotion.parse(each.data) for each in attached(place, digest, PROMOTION)]
    return tuple(sorted(found, key=lambda each: (each.at, each.name)))


def platforms_of(place: Place, document: Document) -> tuple[str, ...]:
    """The platforms of an image or index, read from its documents."""
    read = read_index_or_manifest(document.data)
    if isinstance(read, Index):
        named = {str(each.platform) for each in read.manifests if each.platform and not each.attestation}
        return tuple(sorted(named))
    return (str(ImageConfig.parse(place.small_blob(read.config)).platform),)


def require_platform(place: Place, digest: Sha256, platform: Platform) -> None:
    """Raise ImageError if an image has nothing for a platform."""
    there = platforms_of(place, place.document(digest))
    if not any(platform.accepts(Platform.parse(each)) for each in there):
        raise ImageError(
            f"{place.name}@{digest} is for {', '.join(there) or 'no platform'}; {platform} was wanted.",
            do="name an image for that platform.",
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """One name of a repository. `kind` is immutable, moving or staging (see `STAGING`); `fault` says what is wrong."""

    tag: str
    kind: str
    digest: str
    promotion: Promotion | None = None
    fault: str = ""

    def to_data(self) -> Mapping[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}


def list_names(place: Place) -> list[Listed]:
    """Every name of a repository with its digest, moving ones with the act that set them; fallback tags left out."""
    found = []
    for tag in place.tags():
        if is_fallback(tag):
            continue
        document = place.find(tag)
        if document is None:
            continue
        immutable = ImmutableName.parse(tag)
        if immutable is not None:
            fault = "" if immutable.means(document.digest) else "its digest contradicts its name"
            found.append(Listed(tag, "immutable", str(document.digest), fault=fault))
            continue
        if tag.startswith(STAGING):
            found.append(Listed(tag, "staging", str(document.digest)))
            continue
        acts = [act for act in _promotions(place, document.digest) if act.name == tag]
        fault = "" if acts else "no promotion is recorded"
        found.append(Listed(tag, "moving", str(document.digest), acts[-1] if acts else None, fault))
    return found
