"""The images that ours are made FROM, and the installer that fills them: `pins/images.toml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.artifact.reference import ImageReference
from sm121.errors import ImageError, PinsError
from sm121.pins.loading import read_package
from sm121.pins.reading import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sm121.pins.model import Package

FILE = "images.toml"


@dataclass(frozen=True, slots=True)
class BasePin:
    """A base: `image` by digest, None while it is only proposed; `packages` are what it lacks."""

    name: str
    proposed: str
    image: ImageReference | None
    read: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImagePins:
    """All of the file."""

    runtime: BasePin
    builders: Mapping[str, BasePin]
    installer: Package


def load_images(folder: Path) -> ImagePins:
    """Read the file in the folder of pins. Raises PinsError that names every fault."""
    problems: list[str] = []
    table = Table.of_file(folder / FILE, problems)
    runtime = _base("runtime", table.table("runtime"))
    builders = {name: _base(f"builder.{name}", inner) for name, inner in table.named("builder")}
    inner = table.table("installer")
    installer = read_package("pip", inner)
    inner.done()
    table.done()
    if problems:
        raise PinsError(problems, do=f"mend {folder / FILE}.")
    return ImagePins(runtime, builders, installer)


def _base(name: str, table: Table) -> BasePin:
    image = table.parsed("image", _by_digest, None, optional=True)
    read = table.text("read", "")
    if image is not None and not re.search(r"\d{4}-\d{2}-\d{2}$", read):
        table.problem("read", f"= {read!r} must say where and end with the day, like 2026-11-30")
    packages = table.texts("packages", optional=True)
    for package in packages:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", package):
            table.problem("packages", f"holds {package!r}, which is no name of a Debian package")
    pin = BasePin(name, table.text("proposed"), image, read, packages)
    table.done()
    return pin


def _by_digest(text: str) -> ImageReference:
    try:
        return ImageReference.parse(text).by_digest()
    except ImageError as error:
        raise ValueError(" ".join([*error.problems, error.do])) from error
