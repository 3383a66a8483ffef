"""Makes an overlay from libraries and from what they shall go over."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.artifact.metadata import Stamp
from sm121.errors import OverlayError
from sm121.overlay.installed import find_installed
from sm121.overlay.model import DOCUMENT, FILES, Overlay, Piece
from sm121.pack.official import OfficialWheel
from sm121.pack.platform_tag import elf_machine
from sm121.sources.disk import completed_file, writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Base:
    """A release that an overlay can go over: project, full version, commit, and the libraries that it has."""

    project: str
    version: str
    commit: str
    libraries: frozenset[str]


def base_of(place: Path, project: str) -> Base:
    """What `place`, a wheel or an environment with `project`, is. OverlayError or PackError if that is not clear."""
    if place.is_dir():
        found = find_installed(place, project)
        return Base(project, found.version, found.commit, frozenset(found.rows))
    with OfficialWheel.open(place) as wheel:
        module = f"{wheel.distribution}/_version.py"
        if module not in wheel.infos:
            raise OverlayError(f"{place.name} has no {module}.", do="name a wheel of the project.")
        stamp = Stamp.parse(module, wheel.read(module))
        if wheel.distribution != project:
            raise OverlayError(f"a wheel of {project} was wanted, found {place.name}.")
        return Base(project, str(wheel.version), stamp.commit, frozenset(wheel.infos))


def make_overlay(libraries: Mapping[str, Path], base: Base, into: Path, notes: Sequence[str] = ()) -> Path:
    """Write the overlay below `into`, complete or not at all; return its folder, named after its content.

    `libraries` maps paths in a site folder to files. OverlayError with every reason why they cannot go over `base`.
    """
    problems = []
    machines = {}
    if not base.commit:
        problems.append(f"{base.project} {base.version} does not say which commit it is of.")
    for path, file in libraries.items():
        if path not in base.libraries:
            problems.append(f"{base.project} {base.version} has no {path} that could be replaced.")
        with file.open("rb") as opened:
            machines[path] = elf_machine(opened.read(20))
    if len({*machines.values()}) > 1:
        problems.append(
            "the libraries are for several processors: " + ", ".join(f"{p}: {m}" for p, m in machines.items())
        )
    if problems:
        raise OverlayError(problems, do="name the release with --onto, and libraries that it has.")
    pieces = tuple(
        Piece(path, Sha256.of_file(file), file.stat().st_size) for path, file in sorted(libraries.items())
    )
    version = str(Version(base.version))
    overlay = Overlay(base.project, version, base.commit, next(iter(machines.values()), ""), pieces, tuple(notes))
    if faults := overlay.faults():
        raise OverlayError(faults, do="name a release with --onto.")
    folder = into / overlay.name
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".overlay-", dir=into) as scratch:
            made = Path(scratch) / "made"
            for path, file in libraries.items():
                (made / FILES / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, made / FILES / path)
                (made / FILES / path).chmod(0o755)
            with completed_file(made / DOCUMENT) as document:
                document.write(overlay.to_json())
            if folder.exists():
                folder.rename(Path(scratch) / "former")
            made.rename(folder)
    return folder
