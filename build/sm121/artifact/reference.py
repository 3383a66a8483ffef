"""Names of images in a registry: a tag or a digest, never a guess.

Grammar: https://github.com/distribution/reference (the one that the docker CLI uses).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from sm121.errors import ImageError
from sm121.values import Sha256

DOCKER_HUB = "docker.io"

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_LONGEST_REPOSITORY = 255
_FORM = "REGISTRY/REPOSITORY@sha256:DIGEST or REGISTRY/REPOSITORY:TAG"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """`registry/repository:tag` or `registry/repository@sha256:...`.

    A tag is a name at one moment, a digest is the image. Both at once say two things, of which tools ignore one:
    that is refused. Neither is allowed where a repository is meant, and refused by `identified()`.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: Sha256 | None = None

    def __post_init__(self) -> None:
        faults = []
        if not _HOST.fullmatch(self.registry):
            faults.append(f"The registry {self.registry!r} is no host name.")
        if not _REPOSITORY.fullmatch(self.repository) or len(self.repository) > _LONGEST_REPOSITORY:
            faults.append(
                f"The repository {self.repository!r} is not lower-case letters and digits with . _ - / between."
            )
        if self.tag and not _TAG.fullmatch(self.tag):
            faults.append(f"The tag {self.tag!r} is not made of at most 128 letters, digits and . _ - marks.")
        if self.tag and self.digest is not None:
            faults.append(f"The tag {self.tag} and a digest stand side by side; only the digest would count.")
        if faults:
            raise ImageError(faults, do=f"write {self.name}{'@' + str(self.digest) if self.digest else ':TAG'}.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference that names its registry. Raises ImageError that shows the right form."""
        registry, rest = _split_registry(text)
        if not registry:
            tail = rest if "/" in rest else f"library/{rest}"
            raise ImageError(
                f"{text!r} names no registry.", do=f"write {DOCKER_HUB}/{tail}, or the registry that is meant."
            )
        return cls._of_parts(registry, rest, text)

    @classmethod
    def parse_familiar(cls, text: str) -> Self:
        """Read a reference as the docker CLI does: without a registry, docker.io is meant (and there `library/`).

        The result names the registry in full. A missing tag stays missing: it never becomes `latest`.
        """
        registry, rest = _split_registry(text)
        if not rest:
            raise ImageError(f"{text!r} is no image reference.", do=f"write {_FORM}.")
        if registry in {"", "index.docker.io"}:
            registry = DOCKER_HUB
        if registry == DOCKER_HUB and "/" not in rest:
            rest = f"library/{rest}"
        return cls._of_parts(registry, rest, text)

    @classmethod
    def _of_parts(cls, registry: str, rest: str, text: str) -> Self:
        name, at, digest = rest.partition("@")
        repository, colon, tag = name.partition(":")
        if not repository or (colon and not tag):
            raise ImageError(f"{text!r} is no image reference.", do=f"write {_FORM}.")
        if not at:
            return cls(registry, repository, tag)
        try:
            return cls(registry, repository, tag, parse_digest(digest))
        except ValueError as error:
            raise ImageError(f"{text!r}: {error}.", do=f"write {registry}/{repository}@sha256:DIGEST.") from error

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    def identified(self) -> Self:
        """Itself if it names an image by tag or digest; raises ImageError otherwise."""
        if not self.tag and self.digest is None:
            raise ImageError(
                f"{self.name} names a repository, not an image.",
                do=f"write {self.name}@sha256:DIGEST or {self.name}:TAG.",
            )
        return self

    def by_digest(self) -> Self:
        """Itself if it names an image by digest; raises ImageError otherwise."""
        if self.digest is None:
            raise ImageError(
                f"{self} can name another image tomorrow; a digest is needed here.",
                do=f"resolve it once, then write {self.name}@sha256:DIGEST.",
            )
        return self

    def with_digest(self, digest: Sha256) -> Self:
        """The same repository, by digest."""
        return replace(self, tag="", digest=digest)

    def __str__(self) -> str:
        if self.digest is not None:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag}" if self.tag else self.name


def is_tag(text: str) -> bool:
    """Whether an image can have this tag."""
    return _TAG.fullmatch(text) is not None


def parse_digest(text: str) -> Sha256:
    """Read `sha256:...`; raises ValueError for anything else, other algorithms included."""
    algorithm, _, digits = text.partition(":")
    if algorithm != "sha256":
        raise ValueError(f"a digest begins with sha256:, found {text!r}")
    return Sha256(digits)


def _split_registry(text: str) -> tuple[str, str]:
    """The first part is a registry if it could not be the first part of a repository."""
    first, slash, rest = text.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        return first, rest
    return "", text
