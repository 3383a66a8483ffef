"""Knowledge about packages that ages: dated data files beside this module, each entry with its source."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from packaging.specifiers import SpecifierSet


def data(name: str) -> dict[str, object]:
    """One data file of the room."""
    return tomllib.loads(files("sm121.pins").joinpath("data", name).read_text(encoding="utf-8"))


def toolkit_releases() -> dict[str, dict[str, SpecifierSet]]:
    """Toolkit release -> part -> versions that belong to it, as the cuda-toolkit package's METADATA says."""
    releases = data("toolkits.toml")["release"]
    assert isinstance(releases, dict)
    return {
        release: {part: SpecifierSet(wanted) for part, wanted in parts.items()}
        for release, parts in releases.items()
    }
