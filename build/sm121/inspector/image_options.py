"""What `sm121 inspect` is told about an image: its platform, the base it must begin with, wheels it must hold."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact import ImageReference, Platform, Wheel
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.errors import ArtifactError, ImageError, UsageError
from sm121.inspector.inspection import BaseImage, ExpectedWheel
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--platform",
        type=_platform,
        default=LINUX_ARM64,
        metavar="OS/CPU",
        help="of several in one index (default: linux/arm64)",
    )
    group.add_argument(
        "--wheel", type=Path, action="append", default=[], metavar="FILE",
        help="a wheel that must be installed, compared file by file; may be repeated; environments too",
    )  # fmt: skip
    group.add_argument("--base", default="", metavar="IMAGE@DIGEST", help="the image that it must begin with")


def expected_wheels(paths: Sequence[Path]) -> tuple[ExpectedWheel, ...]:
    """What each wheel file holds by its own list. Raises ArtifactError that names every one that is none."""
    found, faults = [], []
    for path in paths:
        try:
            with Wheel(path) as wheel:
                distribution = wheel.identify().distribution
            if distribution is None:
                faults.append(f"{path.name} has not one .dist-info.")
            else:
                found.append(ExpectedWheel(distribution, Sha256.of_file(path).hex))
        except (ArtifactError, OSError) as error:
            faults += error.problems if isinstance(error, ArtifactError) else [f"{path}: {error.strerror}."]
    if faults:
        raise ArtifactError(faults, do="name wheel files with --wheel.")
    return tuple(found)


def base_image(text: str, platform: Platform) -> BaseImage | None:
    """The base's layers, from its documents in its registry; None for ""."""
    if not text:
        return None
    from sm121.artifact.pulled import open_registry  # noqa: PLC0415 -- the client takes long to load

    try:
        reference = ImageReference.parse_familiar(text).by_digest()
    except ImageError as error:
        raise UsageError([f"--base: {problem}" for problem in error.problems], do=error.do) from error
    with open_registry(reference, platform) as image:
        return BaseImage(str(reference), tuple(str(digest) for digest in image.config.diff_ids))


def _platform(text: str) -> Platform:
    try:
        return Platform.parse(text)
    except ArtifactError as error:
        raise argparse.ArgumentTypeError(str(error.problems[0])) from error
