"""What there is instead of a file that is not there: another CPU, another version, another local version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class _Name:
    """What a file name claims. `cpu` is "" for a wheel of any CPU and for an sdist."""

    filename: str
    version: Version
    kind: str
    cpu: str

    @classmethod
    def read(cls, filename: str) -> Self | None:
        try:
            if filename.endswith(".whl"):
                _, version, _, tags = parse_wheel_filename(filename)
                cpus = sorted({_cpu(tag.platform) for tag in tags})
                return cls(filename, version, "wheel", "" if cpus == [""] else "+".join(filter(None, cpus)))
            return cls(filename, parse_sdist_filename(filename)[1], "sdist", "")
        except (InvalidWheelFilename, InvalidSdistFilename):
            return None


def _cpu(platform: str) -> str:
    for cpu in ("x86_64", "aarch64", "arm64", "amd64", "ppc64le", "s390x", "riscv64", "i686", "armv7l"):
        if platform.endswith(cpu):
            return cpu
    return "" if platform == "any" else platform


def instead(wanted: str, filenames: Iterable[str]) -> str:
    """One or two sentences about the nearest of `filenames`; "" if there are none."""
    there = [name for name in map(_Name.read, filenames) if name]
    want = _Name.read(wanted)
    if not there:
        return ""
    if want is None:
        return f"It has {_some([name.filename for name in there])}."
    same = [name for name in there if name.version.public == want.version.public and name.kind == want.kind]
    if not same:
        versions = sorted({name.version for name in there if name.kind == want.kind}, reverse=True)
        if not versions:
            return f"It has no {want.kind} of the project at all, but {_some([name.filename for name in there])}."
        return f"It has no {want.kind} of version {want.version}, but of {_some([str(v) for v in versions])}."
    right_cpu = [name for name in same if name.cpu in {"", want.cpu}]
    if want.cpu and not right_cpu:
        cpus = ", ".join(sorted({name.cpu for name in same}))
        return (
            f"It has version {want.version.public} for {cpus} only, not for {want.cpu}: "
            f"{_some([name.filename for name in same])}."
        )
    nearest = sorted(same, key=lambda name: (name.cpu not in {"", want.cpu}, name.filename))
    return f"Of version {want.version.public} it has {_some([name.filename for name in nearest])}."


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
