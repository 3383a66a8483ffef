"""The labels of an image: every element of the stamp chain, so that `docker inspect` alone says what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from sm121 import __version__
from sm121.image.documents import timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.image.record import BuiltWheel
    from sm121.values import Sha256

_OCI = "org.opencontainers.image"


def label_key(wheel: BuiltWheel) -> str:
    """What the labels of a wheel begin with: its distribution, since one project may come as several wheels."""
    return f"sm121.{canonicalize_name(wheel.filename.partition('-')[0])}"


def stamp_labels(
    wheels: Sequence[BuiltWheel], *, base: tuple[str, Sha256], lock: Sha256, python: str, epoch: int
) -> dict[str, str]:
    """Labels for an image that holds `wheels`; the first one names it. `base` is name and digest.

    Pin = source tree = METADATA = `_version.py` = file name = label: the labels repeat what the wheels' manifests say,
    and the inspection compares them with what is installed.
    """
    first = wheels[0].manifest.subject
    labels = {
        f"{_OCI}.title": f"{first.project} for compute capability {first.capability}",
        f"{_OCI}.version": first.version,
        f"{_OCI}.created": timestamp(epoch),
        f"{_OCI}.base.name": base[0].partition("@")[0],
        f"{_OCI}.base.digest": str(base[1]),
        "sm121.tool": f"sm121 {__version__}",
        "sm121.line": first.line,
        "sm121.capability": first.capability,
        "sm121.cpu": first.cpu,
        "sm121.python": python,
        "sm121.lock.sha256": lock.hex,
        "sm121.source-date-epoch": str(epoch),
    }
    if wheels[0].commit:
        labels[f"{_OCI}.revision"] = wheels[0].commit
    for wheel in wheels:
        subject = wheel.manifest.subject
        key = label_key(wheel)
        labels |= {
            f"{key}.version": subject.version,
            f"{key}.base": subject.base,
            f"{key}.commit": wheel.commit,
            f"{key}.wheel": wheel.filename,
            f"{key}.wheel.sha256": wheel.sha256.hex,
            f"{key}.manifest.sha256": wheel.manifest_sha256.hex,
            f"{key}.plan.sha256": wheel.manifest.plan.hex,
        }
    return {key: value for key, value in sorted(labels.items()) if value}
