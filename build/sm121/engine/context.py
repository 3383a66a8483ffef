"""The folder that a Dockerfile reads: the installer, the locked wheels, ours. Hard links where the disk has them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename

from sm121.sources.disk import writing
from sm121.sources.unpack import unpack
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MOUNT = "/mnt"
"""Where the Dockerfile mounts a folder of wheels."""


def fill_context(
    folder: Path, dockerfile: Path, installer: Path, runtime: Sequence[Path], ours: Sequence[Path]
) -> Path:
    """Make the folder anew; returns its Dockerfile."""
    with writing(folder):
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("runtime", "ours"):
            (folder / name).mkdir(parents=True)
        unpack(installer, folder / "tools")
        for path in runtime:
            _linked(path, folder / "runtime" / path.name)
        for path in ours:
            _linked(path, folder / "ours" / path.name)
        (folder / "runtime" / "requirements.txt").write_text(locked_requirements(runtime))
        (folder / "ours" / "requirements.txt").write_text(direct_requirements(ours))
        copied = folder / "Dockerfile"
        shutil.copyfile(dockerfile, copied)
    return copied


def locked_requirements(wheels: Iterable[Path]) -> str:
    """One wheel for each name, by version and hash."""
    lines = []
    for path in wheels:
        name, version, _, _ = parse_wheel_filename(path.name)
        lines.append(f"{canonicalize_name(name)}=={version} --hash=sha256:{Sha256.of_file(path).hex}\n")
    return "".join(sorted(lines))


def direct_requirements(wheels: Iterable[Path]) -> str:
    """Wheels by file and hash: pip writes the hash into the image (direct_url.json)."""
    lines = []
    for path in wheels:
        name = canonicalize_name(parse_wheel_filename(path.name)[0])
        lines.append(f"{name} @ file://{MOUNT}/{quote(path.name)} --hash=sha256:{Sha256.of_file(path).hex}\n")
    return "".join(sorted(lines))


def _linked(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)
