"""What each CUDA toolkit knows: targets and their names, as dated data."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ToolkitRelease:
    """A CUDA release and the targets that its assembler accepts."""

    cuda: CudaVersion
    targets: frozenset[ArchSpec]


@cache
def releases() -> tuple[ToolkitRelease, ...]:
    """The measured releases, oldest first."""
    rows = [
        ToolkitRelease(
            CudaVersion.parse(row["cuda"]), frozenset(ArchSpec.parse(word) for word in row["targets"].split())
        )
        for row in toolkit_data()["release"]
    ]
    return tuple(sorted(rows, key=lambda row: row.cuda))


def supports(cuda: CudaVersion, target: ArchSpec) -> bool | None:
    """Whether the toolkit of that release knows `target`; None where no measured release can tell."""
    bare = ArchSpec(target.major, target.minor, target.suffix)
    known = releases()
    older = [release for release in known if release.cuda <= cuda.release]
    if older and bare in older[-1].targets:
        return True
    if older:
        return None if cuda.release > known[-1].cuda else False
    return None if bare in known[0].targets else False


def first_release(target: ArchSpec) -> CudaVersion | None:
    """The first measured release that knows `target`; None if none does."""
    bare = ArchSpec(target.major, target.minor, target.suffix)
    return next((release.cuda for release in releases() if bare in release.targets), None)


@dataclass(frozen=True, slots=True)
class Renaming:
    """A chip's name with one toolkit, and the release that changed it."""

    name: ArchSpec
    since: CudaVersion


def renaming(target: ArchSpec, cuda: CudaVersion) -> Renaming | None:
    """What the toolkit of that release calls `target`'s chip, if that is another name: 10.1 became 11.0."""
    for row in toolkit_data()["renamed"]:
        since = CudaVersion.parse(row["cuda"])
        wrong, right = (row["old"], row["new"]) if cuda.release >= since else (row["new"], row["old"])
        if target.number == ArchSpec.parse(wrong).number:
            name = ArchSpec.parse(right)
            return Renaming(ArchSpec(name.major, name.minor, target.suffix), since)
    return None


@cache
def toolkit_data() -> Mapping[str, Any]:
    """The tables of toolkits.toml."""
    return tomllib.loads(files("sm121.resources").joinpath("toolkits.toml").read_text(encoding="utf-8"))


def driver_for(cuda: CudaVersion, capability: str = "") -> str:
    """The oldest driver branch for code of that CUDA release, and for a chip (`12.1`) where one is named.

    Releases of one major share it: machine code of 13.5 runs on the driver of 13.0. PTX does not, see drivers.toml.
    """
    rows = [row["minimum"] for row in toolkit_data()["driver"] if CudaVersion.parse(row["cuda"]) <= cuda.release]
    chips = [row["driver"] for row in toolkit_data()["device"] if row["capability"] == capability]
    return max([*rows[-1:], *chips], key=int, default="")
