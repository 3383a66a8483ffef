"""An installed distribution as files: where it is, which release it is, what its RECORD says of each file."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name
from packaging.version import Version

from sm121.artifact.folder import FolderArtifact
from sm121.artifact.metadata import DirectUrl, Stamp
from sm121.artifact.record import Measured
from sm121.errors import ArtifactError, OverlayError

if TYPE_CHECKING:
    from pathlib import Path

KEPT = "sm121-overlay"
"""Folder inside of the dist-info: what was there before, and what was put on."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of RECORD as it is written."""

    path: str
    digest: str
    size: str


@dataclass(frozen=True, slots=True)
class Installed:
    """One distribution in a site folder."""

    site: Path
    info: str
    """Name of its dist-info folder."""
    project: str
    version: str
    commit: str
    module: str
    """Path of the module with version and commit, `vllm/_version.py`."""
    rows: dict[str, Row]
    """By path in the site folder."""

    @property
    def folder(self) -> Path:
        return self.site / self.info

    @property
    def kept(self) -> Path:
        return self.folder / KEPT

    def matches(self, path: str) -> bool:
        """Whether the file is what RECORD says."""
        row = self.rows[path]
        data = (self.site / path).read_bytes()
        measured = Measured.of(data)
        return row.digest == f"sha256={measured.digest}" and row.size in {"", str(measured.size)}


def find_installed(environment: Path, project: str) -> Installed:
    """Find `project` in an environment, a prefix or a site folder, without running anything of it.

    OverlayError with every reason why it cannot be told what is installed.
    """
    if not environment.is_dir():
        raise OverlayError(
            f"{environment} is no folder.", do="name a virtual environment or a site-packages folder."
        )
    sites = [environment / site for site in FolderArtifact(environment).sites]
    found = [info for site in sites for info in sorted(site.glob("*.dist-info")) if _name(info) == project]
    if len(found) != 1:
        shown = ", ".join(map(str, found)) or "none"
        raise OverlayError(
            f"one installed {project} was wanted in {environment}, found {shown}.",
            do="name the environment or the site-packages folder that the server uses.",
        )
    return _read(found[0], project)


def _name(info: Path) -> str:
    try:
        raw, _ = parse_email((info / "METADATA").read_bytes())
    except OSError:
        return ""
    return canonicalize_name(raw.get("name", ""))


def _read(info: Path, project: str) -> Installed:
    problems = []
    raw, _ = parse_email((info / "METADATA").read_bytes())
    version = raw.get("version", "")
    try:
        version = str(Version(version))
    except ValueError:
        problems.append(f"{info / 'METADATA'} has no version that PEP 440 reads: {version!r}.")
    try:
        text = (info / "RECORD").read_text(encoding="utf-8")
        rows = {row[0]: Row(*row) for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 3}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        rows = {}
        problems.append(f"{info / 'RECORD'} cannot be read: {error}.")
    if _editable(info):
        problems.append(f"{project} is installed from a source folder, which an overlay has no place in.")
    module = f"{project.replace('-', '_')}/_version.py"
    stamp = Stamp(module)
    try:
        stamp = Stamp.parse(module, (info.parent / module).read_bytes())
    except OSError as error:
        problems.append(f"{info.parent / module} cannot be read: {error.strerror}.")
    if stamp.fault:
        problems.append(f"{info.parent / module} {stamp.fault}.")
    if problems:
        raise OverlayError(problems, do=f"install a wheel of {project} anew.")
    return Installed(info.parent, info.name, project, version, stamp.commit, module, rows)


def _editable(info: Path) -> bool:
    try:
        return DirectUrl.parse((info / "direct_url.json").read_bytes()).editable
    except (OSError, ArtifactError):
        return False
