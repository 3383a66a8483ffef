"""Upstream's sources of a version: the pinned file, or for a version that no build uses the index's own hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from sm121 import index
from sm121.errors import FetchError, UsageError
from sm121.sources.fetch import fetch
from sm121.sources.unpack import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sm121.pins import Pins
    from sm121.progress import Progress
    from sm121.sources.store import FilePin
    from sm121.values import Sha256

PROJECTS = ("vllm", "flashinfer-python")


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as the index lists it today: good for looking at, not for building from."""

    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where sources come from and where they are kept."""

    pins: Pins
    store: Path
    mirror: Path | None
    progress: Progress

    def versions(self, project: str) -> list[str]:
        """The pinned versions, as the pins list them. Raises UsageError for a project without sources."""
        return list(_pinned(self.pins, project))

    def place(self, project: str, version: str, into: Path, *, only: Callable[[str], bool] | None = None) -> None:
        """Unpack the sources into the new folder `into`; `only` chooses by path in the source tree.

        Raises UsageError for a version that neither pins nor index have, and what fetching and unpacking raise.
        """
        pin = self._file(project, version)
        path = fetch([pin], self.store, mirror=self.mirror, progress=self.progress)[pin.filename]
        strip = 0 if pin.filename.endswith(".whl") else 1
        members = None if only is None else (lambda name: only("/".join(name.split("/")[strip:])))
        unpack(path, into, strip=strip, members=members)

    def _file(self, project: str, version: str) -> FilePin:
        pinned = _pinned(self.pins, project)
        if version in pinned:
            return pinned[version]
        known = f"pinned are {', '.join(pinned)}"
        if self.mirror is not None:
            raise UsageError(f"{project} {version} is not pinned, and a mirror has no hashes; {known}.")
        fitting = [
            file
            for file in index.project_files(project)
            if file.version == version and file.filename.endswith(_ending(project))
        ]
        for file in fitting:
            if file.sha256 is not None and file.size is not None:
                return Listed(project, version, file.filename, file.size, file.sha256)
        raise FetchError(f"the package index has no sources of {project} {version} with a hash; {known}.")


def _pinned(pins: Pins, project: str) -> dict[str, FilePin]:
    name = canonicalize_name(project)
    if name == "vllm":
        return {release.version: release.sdist for release in pins.releases}
    if name == "flashinfer-python":
        return {release.flashinfer.version: next(iter(release.flashinfer.files)) for release in pins.releases}
    raise UsageError(f"there are no sources of {project!r} to patch.", do=f"name one of {', '.join(PROJECTS)}.")


def _ending(project: str) -> str:
    return ".tar.gz" if canonicalize_name(project) == "vllm" else "-none-any.whl"
