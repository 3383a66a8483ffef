"""Picks the image for a platform out of what stands under one name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.artifact.imagedocs import INDEX_TYPES, ImageConfig, Index, Manifest, read_index_or_manifest
from sm121.artifact.member import printable
from sm121.errors import ArtifactError, DigestError, ImageError
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sm121.artifact.imagedocs import Descriptor, Platform

_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_DEEPEST = 3
_MOST_MANIFESTS = 256


@dataclass(frozen=True, slots=True)
class Chosen:
    """The image that was picked. `claimed` is the platform that its index names for it, if there is one."""

    manifest: Manifest
    config: ImageConfig
    claimed: Platform | None


@dataclass(frozen=True, slots=True)
class Chooser:
    """Follows an index to the one image that is meant.

    `fetch` gives the bytes of a descriptor; size and digest are verified here. `tag` and `digest` narrow the
    choice in a layout that holds several images.
    """

    name: str
    platform: Platform
    fetch: Callable[[Descriptor], bytes]
    tag: str = ""
    digest: Sha256 | None = None

    def choose(self, top: Index | Manifest) -> Chosen:
        """Raises ImageError that lists what there is if nothing, or more than one image, fits."""
        if isinstance(top, Manifest):
            return self._of_manifest(top, None)
        offers = {offer.digest: offer for offer in self._offers(top, 1, named=False)}
        if not offers:
            raise ImageError(f"{self.name} holds no such image.", do=f"name one of: {_names(top.manifests)}.")
        if len(offers) == 1:
            (offer,) = offers.values()
            return self._of_manifest(self._manifest(offer), offer.platform)
        platforms = {digest: self._platform(offer) for digest, offer in offers.items()}
        fitting = [digest for digest, platform in platforms.items() if self.platform.accepts(platform)]
        if not fitting:
            raise self._refused(platforms.values())
        exact = [digest for digest in fitting if platforms[digest].variant == self.platform.variant] or fitting
        if len(exact) > 1:
            several = [offers[digest] for digest in exact]
            raise ImageError(
                f"{self.name} holds {len(exact)} images for {self.platform}.",
                do=f"name one of: {_names(several)}.",
            )
        offer = offers[exact[0]]
        return self._of_manifest(self._manifest(offer), offer.platform)

    def _of_manifest(self, manifest: Manifest, claimed: Platform | None) -> Chosen:
        config = ImageConfig.parse(self._verified(manifest.config))
        if not self.platform.accepts(claimed or config.platform):
            raise self._refused([claimed or config.platform])
        return Chosen(manifest, config, claimed)

    def _offers(self, index: Index, depth: int, *, named: bool) -> Iterator[Descriptor]:
        """The images of an index and of the indexes in it, statements about images left out."""
        if len(index.manifests) > _MOST_MANIFESTS or depth > _DEEPEST:
            raise ArtifactError(f"{self.name} has an index of indexes that is too large to be one image's.")
        for offer in index.manifests:
            fits = named or self._named(offer)
            if offer.attestation:
                continue
            if offer.media_type in INDEX_TYPES:
                inner = read_index_or_manifest(self._verified(offer))
                if isinstance(inner, Index):
                    yield from self._offers(inner, depth + 1, named=fits)
            elif fits:
                yield offer

    def _named(self, offer: Descriptor) -> bool:
        if self.digest is not None:
            return offer.digest == self.digest
        names = {offer.annotations.get(key, "") for key in _NAMES}
        return not self.tag or any(name == self.tag or name.endswith(f":{self.tag}") for name in names)

    def _platform(self, offer: Descriptor) -> Platform:
        if offer.platform is not None:
            return offer.platform
        return ImageConfig.parse(self._verified(self._manifest(offer).config)).platform

    def _manifest(self, offer: Descriptor) -> Manifest:
        manifest = read_index_or_manifest(self._verified(offer))
        if isinstance(manifest, Index):
            raise ArtifactError(f"{self.name}: {offer.digest} is an index, though its index calls it an image.")
        return manifest

    def _verified(self, descriptor: Descriptor) -> bytes:
        data = self.fetch(descriptor)
        digest = Sha256.of_bytes(data)
        if digest != descriptor.digest or len(data) != descriptor.size:
            raise DigestError(
                f"{self.name}: {descriptor.digest} of {descriptor.size} bytes was wanted; the bytes found are "
                f"{len(data)} with {digest}.",
                do="do not use this image: a document of it was changed or is damaged.",
            )
        return data

    def _refused(self, platforms: Iterable[Platform]) -> ImageError:
        there = sorted({str(platform) or "an unnamed platform" for platform in platforms})
        return ImageError(
            f"{self.name} has no image for {self.platform}; it has {printable(', '.join(there))}.",
            do="ask for the platform that is there, or for another image.",
        )


def _names(offers: Iterable[Descriptor]) -> str:
    names = [f"{_name(offer)} ({offer.digest})" if _name(offer) else str(offer.digest) for offer in offers]
    return printable(", ".join(names)) or "(it is empty)"


def _name(offer: Descriptor) -> str:
    return next((offer.annotations[key] for key in _NAMES if key in offer.annotations), "")
