"""Tells from a reference what kind of artifact it names."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact.folder import FileArtifact, FolderArtifact
from sm121.artifact.wheel import Wheel
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from sm121.artifact.member import Artifact


def open_artifact(reference: str | Path) -> Artifact:
    """Open a wheel, a library, a folder or environment, an image archive or layout, or an image reference.

    Raises ArtifactError if it does not exist or cannot be read at all.
    """
    path = Path(reference)
    if not path.exists():
        raise ArtifactError(f"{reference} does not exist.", do="name a wheel, library, folder, or image.")
    if path.is_dir():
        return FolderArtifact(path)
    if path.suffix == ".whl" or zipfile.is_zipfile(path):
        return Wheel(path)
    return FileArtifact(path)
