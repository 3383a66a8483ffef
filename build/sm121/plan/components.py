"""What is known of each vLLM version: its extensions and the measured cost of compiling them. Dated data."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One extension of a vLLM version (extensions.toml)."""

    name: str
    path: str
    sources: str
    official: str
    why: str
    cuda: int = 0
    """The CUDA major whose runtime the official library needs; 0 for none."""
    required: bool = False
    """Whether vLLM does not import, or does nothing, without it."""
    sm12x: bool = False
    """Whether sources outside the sdist make SM12x code (or PTX for it) when they are compiled."""

    @property
    def from_sdist(self) -> bool:
        return self.sources == "sdist"

    def serves(self, major: int) -> bool:
        """Whether the official library can share a process with torch of that CUDA major."""
        return self.cuda in {0, major}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured cost per object: CPU seconds and peak bytes, with the machine and date."""

    measured: str
    seconds: Mapping[str, float]
    peak: Mapping[str, int]
    finishing: Mapping[str, float]
    """CPU seconds of ptxas by extension."""


HEAVY = 3 << 30
"""An object whose compiler takes more than this many bytes counts as heavy."""


def components(version: str, cpu: str) -> list[Component]:
    """The extensions of `version`; empty if the version is not in the data."""
    found = []
    for entry in _load("extensions.toml")["extension"]:
        if version in entry["versions"]:
            fields = {name: value for name, value in entry.items() if name != "versions"}
            fields["path"] = fields["path"].format(cpu=cpu)
            found.append(Component(**fields))
    return found


def requirement_changes(version: str, major: int) -> dict[str, str]:
    """Requirements of the official wheel that read otherwise for that CUDA major: upstream's words to ours."""
    return {
        entry["official"]: entry["becomes"]
        for entry in _load("requirements.toml")["requirement"]
        if version in entry["versions"] and entry["cuda"] == major
    }


def known_versions() -> list[str]:
    """The vLLM versions in the data."""
    return sorted({version for entry in _load("extensions.toml")["extension"] for version in entry["versions"]})


def costs(version: str) -> Costs:
    """Measured costs of the nearest version in the data; empty mappings if there are none."""
    table = _load("costs.toml").get(version)
    if table is None:
        return Costs(measured="not measured", seconds={}, peak={}, finishing={})
    objects: dict[str, list[float]] = table["objects"]
    return Costs(
        measured=table["measured"],
        seconds={name: seconds for name, (seconds, _gib) in objects.items()},
        peak={name: int(gib * (1 << 30)) for name, (_seconds, gib) in objects.items()},
        finishing={name: value for name, value in table["finishing"].items() if name != "measured"},
    )


def heavy_share(objects: Iterable[tuple[float, int]]) -> float:
    """The share of heavy objects in the CPU time of all, which are (CPU seconds, peak bytes).

    1 where nothing was measured: any file may be a heavy one, and more jobs would count on light ones.
    """
    times = [(seconds, peak > HEAVY) for seconds, peak in objects]
    total = sum(seconds for seconds, _ in times)
    return sum(seconds for seconds, heavy in times if heavy) / total if total else 1.0


def peak_memory(peaks: Iterable[int], jobs: int, heavy_jobs: int) -> int:
    """The most bytes that compilers take at one time: the heaviest objects that may run together, heavy ones limited."""
    ordered = sorted(peaks, reverse=True)
    heavy = [peak for peak in ordered if peak > HEAVY][:heavy_jobs]
    light = [peak for peak in ordered if peak <= HEAVY][: max(0, jobs - len(heavy))]
    return sum(heavy) + sum(light)


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
