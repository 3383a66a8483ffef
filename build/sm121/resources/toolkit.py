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


def other_name(target: ArchSpec, cuda: CudaVersion) -> ArchSpec | None:
    """The name that the toolkit of that release has for `target`'s chip, if it was renamed: 10.1 became 11.0."""
    for row in toolkit_data()["renamed"]:
        old, new = ArchSpec.parse(row["old"]), ArchSpec.parse(row["new"])
        renamed = cuda.release >= CudaVersion.parse(row["cuda"])
        wrong, right = (old, new) if renamed else (new, old)
        if target.number == wrong.number:
            return ArchSpec(right.major, right.minor, target.suffix)
    return None


@cache
def toolkit_data() -> Mapping[str, Any]:
    """The tables of toolkits.toml."""
    return tomllib.loads(files("sm121.resources").joinpath("toolkits.toml").read_text(encoding="utf-8"))
