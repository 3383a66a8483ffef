"""Tells from a reference what kind of artifact it names.

A path decides by what is there. Images that are no path are named as in skopeo: `docker://REGISTRY/NAME:TAG` for a
registry, `docker-daemon:NAME` for the local engine, `oci:PATH[:TAG]` and `docker-archive:PATH[:NAME]` for one of
several images in a layout.
"""

from __future__ import annotations

import difflib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact.blobfiles import is_tar
from sm121.artifact.folder import FileArtifact, FolderArtifact
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.artifact.layout import is_layout, open_layout
from sm121.artifact.member import LIMITS, printable
from sm121.artifact.reference import ImageReference, parse_digest
from sm121.artifact.wheel import Wheel
from sm121.errors import ArtifactError, ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm121.artifact.image import Image
    from sm121.artifact.imagedocs import Platform
    from sm121.artifact.member import Artifact, Limits


def open_artifact(
    reference: str | Path, *, platform: Platform = LINUX_ARM64, limits: Limits = LIMITS
) -> Artifact:
    """Open a wheel, a library, a folder or environment, an image archive or layout, or an image reference.

    Raises ArtifactError if it does not exist or cannot be read at all, ImageError if it is an image that cannot
    be had or has nothing for `platform`.
    """
    path = Path(reference)
    if not path.exists():
        return _named(str(reference), platform, limits)
    if not path.is_dir() and not path.is_file():
        raise ArtifactError(
            f"{printable(str(reference))} is no regular file and no folder.",
            do="name a file that ends, or a folder.",
        )
    if path.is_dir():
        return open_layout(path, platform, limits=limits) if is_layout(path) else FolderArtifact(path)
    if path.suffix == ".whl" or zipfile.is_zipfile(path):
        return Wheel(path)
    if is_tar(path):
        return open_layout(path, platform, limits=limits)
    return FileArtifact(path)


def _named(text: str, platform: Platform, limits: Limits) -> Artifact:
    """Open what is no path here: an image by name."""
    for prefix, opened in _TRANSPORTS.items():
        if text.startswith(prefix):
            return opened(text.removeprefix(prefix), platform, limits)
    if text.startswith(("/", "./", "../", "~")) or text.endswith(_SUFFIXES):
        raise _missing(text)
    try:
        reference = ImageReference.parse_familiar(text).identified()
    except ImageError as error:
        reason = " ".join(error.problems)
        raise ArtifactError(
            f"{printable(text)} does not exist, and is not the name of an image: {reason}",
            do=f"check the path, or for an image {error.do}" if error.do else "check the path.",
        ) from error
    if reference.digest is None and not text.startswith(f"{reference.registry}/"):
        # As with `docker run`, a name without a registry is first of all one of this machine.
        from sm121.artifact.engine import find_in_engine  # noqa: PLC0415 -- as for registries

        held = find_in_engine(text, platform, limits=limits)
        if held is not None:
            return held
    return _pulled(reference, platform, limits)


def _pulled(reference: ImageReference, platform: Platform, limits: Limits) -> Image:
    # The clients of registries and engines take longer to load than many an artifact takes to read.
    from sm121.artifact.pulled import open_registry  # noqa: PLC0415

    return open_registry(reference, platform, limits=limits)


def _from_registry(text: str, platform: Platform, limits: Limits) -> Image:
    return _pulled(ImageReference.parse_familiar(text), platform, limits)


def _from_engine(text: str, platform: Platform, limits: Limits) -> Image:
    from sm121.artifact.engine import open_engine  # noqa: PLC0415 -- as above

    return open_engine(text, platform, limits=limits)


def _missing(text: str) -> ArtifactError:
    path = Path(text)
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ArtifactError(
            f"{printable(text)} does not exist.", do=f"check the folder {printable(str(path.parent))}."
        )
    near = difflib.get_close_matches(path.name, beside, 3, 0.6)
    shown = f"there is: {printable(', '.join(near))}." if near else "check the path."
    return ArtifactError(f"{printable(text)} does not exist.", do=shown)


def _layout(text: str, platform: Platform, limits: Limits) -> Image:
    """`PATH`, `PATH:TAG` or `PATH@sha256:...`; the longest part that exists is the path."""
    name, at, digest = text.partition("@sha256:")
    if at and Path(name).exists():
        try:
            return open_layout(Path(name), platform, digest=parse_digest(f"sha256:{digest}"), limits=limits)
        except ValueError as error:
            raise ArtifactError(f"{printable(text)}: {error}.", do="write oci:PATH@sha256:DIGEST.") from error
    parts = text.split(":")
    for count in range(len(parts), 0, -1):
        path = Path(":".join(parts[:count]))
        if path.exists():
            return open_layout(path, platform, tag=":".join(parts[count:]), limits=limits)
    raise _missing(text)


_TRANSPORTS: dict[str, Callable[[str, Platform, Limits], Artifact]] = {
    "docker://": _from_registry,
    "docker-daemon:": _from_engine,
    "oci:": _layout,
    "oci-archive:": _layout,
    "docker-archive:": _layout,
}
_SUFFIXES = (".whl", ".so", ".a", ".o", ".cubin", ".fatbin", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")
