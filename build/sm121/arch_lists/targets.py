"""What a request becomes: the targets that each group of sources is compiled for, before anything runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm121.arch_lists.data import Group, added_archs, flashinfer_release, vllm_release
from sm121.arch_lists.intersect import loose_intersection
from sm121.arch_lists.parse import parse_arch_list
from sm121.errors import PlanError
from sm121.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sm121.arch_lists.data import Archs, VllmRelease
    from sm121.values import ArchSpec, CudaVersion


@dataclass(frozen=True, slots=True)
class GroupTargets:
    """The targets of one group; `offered` are all that its gates hold for this toolkit."""

    group: Group
    targets: tuple[ArchSpec, ...]
    offered: tuple[ArchSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """A request traced to targets.

    `generic` is what most sources get, `gated` what the SM12x kernels get, `dropped` what was asked for and gives
    no target, `refused` what the project itself ends with an error for, with the CUDA release that it wants.
    `rules` names the release whose rules were used; `exact` says whether they were read for `version`.
    """

    project: str
    version: str
    cuda: CudaVersion
    rules: str
    exact: bool
    requested: tuple[ArchSpec, ...]
    generic: tuple[ArchSpec, ...]
    gated: tuple[ArchSpec, ...]
    dropped: tuple[ArchSpec, ...] = ()
    refused: tuple[tuple[ArchSpec, CudaVersion], ...] = ()
    groups: tuple[GroupTargets, ...] = ()
    source: str = ""

    @property
    def all(self) -> tuple[ArchSpec, ...]:
        """Every target that something is compiled for, without PTX marks, in order."""
        every = [*self.generic, *(target for group in self.groups for target in group.targets)]
        return tuple(sorted({replace(target, ptx=False) for target in every}))


def effective(
    project: str, version: str, cuda: CudaVersion, arch_list: str, patches: Collection[str] = ()
) -> Targets:
    """Trace `arch_list` to targets; `patches` are the file names of those applied.

    Raises PlanError with every bad item if the list does not parse.
    """
    parsed = parse_arch_list(project, arch_list)
    if not parsed.ok:
        raise PlanError(finding.message for finding in parsed.findings if finding.verdict is Verdict.FAIL)
    return trace(project, version, cuda, parsed.archs, patches)


def trace(
    project: str, version: str, cuda: CudaVersion, requested: Archs, patches: Collection[str] = ()
) -> Targets:
    """Like `effective`, for a list that is already taken apart."""
    if project == "vllm":
        return _vllm(version, cuda, requested, patches)
    if project == "flashinfer":
        return _flashinfer(version, cuda, requested)
    return Targets(
        project=project,
        version=version,
        cuda=cuda,
        rules="torch 2.14.1",
        exact=True,
        requested=requested,
        generic=requested,
        gated=requested,
        source="torch/utils/cpp_extension.py of torch 2.14.1",
    )


def expected_images(
    project: str, version: str, cuda: CudaVersion, arch_list: str, patches: Collection[str] = ()
) -> dict[str, dict[str, int]]:
    """Device images that a complete build must hold: extension -> target -> number of translation units.

    Targets are written as in the library: `sm_120f`, `compute_80`. A unit counts once for each of its targets.
    For FlashInfer, patterns of module names stand in place of extensions, and only lists of 12.x targets are
    known. Empty if there is no data for this very release: nothing is promised then.
    """
    targets = effective(project, version, cuda, arch_list, patches)
    if not targets.exact:
        return {}
    if project == "flashinfer":
        return _flashinfer_images(targets)
    images: dict[str, Counter[str]] = {}
    for row in targets.groups:
        for target in row.targets:
            counts = images.setdefault(row.group.extension, Counter())
            counts[replace(target, ptx=False).sm] += row.group.units
            if target.ptx:
                counts[replace(target, ptx=False).compute] += row.group.units
    return {extension: dict(sorted(counts.items())) for extension, counts in sorted(images.items())}


def _vllm(version: str, cuda: CudaVersion, requested: Archs, patches: Collection[str]) -> Targets:
    release, exact = vllm_release(version)
    supported = release.supported.at(cuda) + added_archs(patches, cuda)
    # torch's CMake module passes numbers on, vLLM sorts them and forgets PTX.
    wanted = sorted({replace(arch, ptx=False) for arch in requested})
    found = loose_intersection(supported, wanted, release.matching)
    gates = {name: _through(release, name, cuda, found.targets) for name in release.gates}
    groups = []
    for group in release.groups:
        offered = supported if not group.gates else ()
        offered += tuple(arch for name in group.gates for arch in release.gates[name].at(cuda))
        groups.append(GroupTargets(group, _group_targets(group, found.targets, gates), offered))
    return Targets(
        project="vllm",
        version=version,
        cuda=cuda,
        rules=f"vLLM {release.versions[-1]}",
        exact=exact,
        requested=requested,
        generic=found.targets,
        gated=gates[release.sm12x],
        dropped=found.dropped,
        groups=tuple(groups),
        source=release.source,
    )


def _through(release: VllmRelease, gate: str, cuda: CudaVersion, generic: Archs) -> Archs:
    return loose_intersection(release.gates[gate].at(cuda), generic, release.matching).targets


def _group_targets(group: Group, generic: Archs, gates: Mapping[str, Archs]) -> Archs:
    if not group.gates:
        return generic
    passed = [gates[name] for name in group.gates if gates[name]]
    if group.first:
        passed = passed[:1]
    targets = [target for archs in passed for target in archs]
    if group.generic == "not 10-11":
        targets += [target for target in generic if target.major not in {10, 11}]
    elif group.generic == "with" and passed:
        targets += generic
    elif group.generic == "instead" and passed:
        targets = list(generic)
    return tuple(dict.fromkeys(targets))


def _flashinfer(version: str, cuda: CudaVersion, requested: Archs) -> Targets:
    release, exact = flashinfer_release(version)
    targets, refused = [], []
    for arch in requested:
        if arch.suffix:
            targets.append(arch)
            continue
        rule = next((rule for rule in release.suffixes if rule.fits(arch, cuda)), None)
        if rule and rule.refused:
            refused.append((arch, rule.refused))
        else:
            targets.append(replace(arch, suffix=rule.suffix if rule else ""))
    unique = tuple(sorted(set(targets)))
    return Targets(
        project="flashinfer",
        version=version,
        cuda=cuda,
        rules=f"FlashInfer {release.read[-1]}",
        exact=exact,
        requested=requested,
        generic=unique,
        gated=tuple(target for target in unique if target.major == 12),
        refused=tuple(refused),
        source=release.source,
    )


def _flashinfer_images(targets: Targets) -> dict[str, dict[str, int]]:
    release, _ = flashinfer_release(targets.version)
    if targets.refused or any(target.major != 12 for target in targets.generic):
        return {}
    images = {}
    for group in release.groups:
        if group.only is None:
            images[group.name] = {target.sm: group.units for target in targets.generic}
        elif group.when & set(targets.generic):
            images[group.name] = {group.only.sm: group.units}
    return images
