"""Names of images: the immutable one, which holds the digest, and moving ones, which are given by an act of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sm121.errors import ImageError, UsageError
from sm121.image.remote import is_fallback

if TYPE_CHECKING:
    from sm121.artifact.reference import ImageReference
    from sm121.values import Sha256

_IMMUTABLE = re.compile(
    r"(?P<version>[0-9][A-Za-z0-9_.]*)-(?P<line>cu\d{3})-sm121-(?P<digest>[0-9a-f]{12})", re.ASCII
)
DIGITS = 12
STAGING = "staging-"
"""What a tag begins with under which an engine pushes an image that has no name yet: it cannot push without one."""


@dataclass(frozen=True, slots=True)
class ImmutableName:
    """`<version>-<line>-sm121-<12 of digest>`: a tag that can mean one image only."""

    version: str
    line: str
    digest: str

    @classmethod
    def of(cls, version: str, line: str, digest: Sha256) -> Self:
        """The name of an image; `version` is upstream's, with `.partial` if the wheel is one."""
        made = cls(version, line, digest.hex[:DIGITS])
        if _IMMUTABLE.fullmatch(str(made)) is None:
            raise ImageError(
                f"{made} is no immutable name; version {version!r} or line {line!r} does not fit into a tag."
            )
        return made

    @classmethod
    def parse(cls, tag: str) -> Self | None:
        """Read a tag; None if it is no immutable name."""
        match = _IMMUTABLE.fullmatch(tag)
        return cls(match["version"], match["line"], match["digest"]) if match else None

    def means(self, digest: Sha256) -> bool:
        """Whether it can be the name of that image."""
        return digest.hex.startswith(self.digest)

    def __str__(self) -> str:
        return f"{self.version}-{self.line}-sm121-{self.digest}"


def moving_name(reference: ImageReference) -> str:
    """The tag of a name that may be moved. Raises UsageError for a digest, an immutable name, or none."""
    if reference.digest is not None:
        raise UsageError(
            f"{reference} is a digest, which no name can be.",
            do=f"write {reference.name}:NAME, such as {reference.name}:cu130.",
        )
    if not reference.tag:
        raise UsageError(
            f"{reference.name} names a repository.", do=f"write {reference.name}:NAME, such as :cu130."
        )
    if ImmutableName.parse(reference.tag) or is_fallback(reference.tag):
        raise UsageError(
            f"{reference.tag} is an immutable name; it is given once, when an image is pushed.",
            do="choose a name that may move, such as cu130.",
        )
    return reference.tag


def output_name(reference: ImageReference) -> ImageReference:
    """A repository that images are pushed to. Raises UsageError for a digest or a tag: names follow from the image."""
    if reference.digest is not None:
        raise UsageError(
            f"{reference} cannot be pushed to: a digest follows from the image.", do=f"write {reference.name}."
        )
    if reference.tag:
        raise UsageError(
            f"{reference} cannot be pushed to: an image is named <version>-<line>-sm121-<digest> by itself.",
            do=f"write {reference.name}; give moving names with `sm121 promote {reference} ...` afterwards.",
        )
    return reference
