"""From what a user writes to where an image is."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact.layout import open_layout
from sm121.artifact.member import printable
from sm121.artifact.pulled import open_registry
from sm121.artifact.reference import ImageReference, parse_digest
from sm121.errors import ArtifactError, ImageError, UsageError
from sm121.image.folder import LayoutFolder
from sm121.image.naming import find_image
from sm121.image.nodes import NodeFolder
from sm121.image.remote import Repository

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm121.artifact import Image
    from sm121.artifact.imagedocs import Platform
    from sm121.image.referrers import Place, Target
    from sm121.values import Sha256

OCI = "oci:"
SSH = "ssh://"


@dataclass(frozen=True, slots=True)
class Named:
    """A place and a name in it: a digest, a tag, or "" where the place as a whole is meant."""

    place: str
    name: Sha256 | str

    @classmethod
    def parse(cls, text: str) -> Named:
        """Read `REGISTRY/NAME[:TAG|@DIGEST]`, `oci:PATH[:TAG|@DIGEST]` or the path of a layout."""
        if text.startswith(OCI) or (Path(text) / "oci-layout").is_file():
            return cls._of_path(text.removeprefix(OCI))
        reference = ImageReference.parse_familiar(text)
        return cls(reference.name, reference.digest or reference.tag)

    @classmethod
    def _of_path(cls, text: str) -> Named:
        path, at, digest = text.partition("@")
        if at:
            try:
                return cls(f"{OCI}{path}", parse_digest(digest))
            except ValueError as error:
                raise UsageError(f"{printable(text)}: {error}.") from error
        if (
            not Path(path).exists()
            and (match := re.fullmatch(r"(.+):([\w.-]+)", path, re.ASCII))
            and Path(match[1]).exists()
        ):
            return cls(f"{OCI}{match[1]}", match[2])
        return cls(f"{OCI}{path}", "")

    def within(self, place: Place) -> Sha256 | str:
        """The name, or the digest of a layout's only image. Raises UsageError if neither says which is meant."""
        return self.name or exact(place, "")


@contextmanager
def opened(where: str, *, insecure: bool = False) -> Iterator[Place]:
    """Open a place for reading: a repository or a layout."""
    if where.startswith(OCI):
        yield LayoutFolder(Path(where.removeprefix(OCI)))
        return
    with Repository(ImageReference.parse_familiar(where), insecure=insecure) as repository:
        yield repository


@contextmanager
def opened_target(where: str, *, mounts: Iterable[str] = (), insecure: bool = False) -> Iterator[Target]:
    """Open a place to put images into: a repository, a layout, or a layout on another machine (`ssh://HOST/PATH`)."""
    if where.startswith(SSH):
        yield NodeFolder.parse(where)
    elif where.startswith(OCI):
        yield LayoutFolder(Path(where.removeprefix(OCI)), create=True)
    else:
        reference = ImageReference.parse_familiar(where)
        with Repository(reference, write=True, mounts=mounts, insecure=insecure) as repository:
            yield repository


def exact(place: Place, name: Sha256 | str) -> Sha256:
    """The digest that is meant: given, by an immutable name, or because a layout holds one image only.

    Raises ImageError for a name that may move, UsageError where several images could be meant.
    """
    if name:
        return find_image(place, str(name))
    if not isinstance(place, LayoutFolder):
        raise UsageError(f"{place.name} names no image.", do=f"write {place.name}@sha256:DIGEST.")
    digests = sorted({image.digest for image in place.images()})
    if len(digests) != 1:
        shown = ", ".join(map(str, digests)) or "none"
        raise UsageError(
            f"{place.name} holds {len(digests)} images: {shown}.", do=f"write {place.name}@sha256:DIGEST."
        )
    return digests[0]


def open_image(place: Place, digest: Sha256, platform: Platform) -> Image:
    """The image as the inspector reads it."""
    if isinstance(place, Repository):
        return open_registry(place.reference.with_digest(digest), platform, registry=place.registry)
    if isinstance(place, LayoutFolder):
        return open_layout(place.root, platform, digest=digest)
    raise ImageError(f"{place.name} cannot be read from here.", do="verify it on that machine.")


def same_registry(source: str, target: str) -> tuple[str, ...]:
    """Repositories of the target's registry whose blobs need not be sent: the source, if it is one."""
    try:
        one, other = ImageReference.parse_familiar(source), ImageReference.parse_familiar(target)
    except (ImageError, ArtifactError):
        return ()
    return (one.repository,) if one.registry == other.registry and not source.startswith(OCI) else ()
