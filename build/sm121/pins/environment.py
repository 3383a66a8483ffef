"""Versions that share one environment, and what is known to go wrong between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sm121.errors import UsageError
from sm121.findings import Finding, Verdict
from sm121.pins.knowledge import known
from sm121.pins.model import Cpu
from sm121.values import CudaVersion, parsed_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.version import Version

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Environment:
    """What is or will be installed together. An absent name means: not installed."""

    installed: Mapping[str, str]
    """Normalised name -> version, local part included."""
    cpu: Cpu = Cpu.AARCH64
    cuda: CudaVersion | None = None
    """The release of the plan or image."""
    from_index: bool = False
    """Whether torch comes from the package index, where no file name carries a suffix."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the serving process."""

    @classmethod
    def of_lines(
        cls,
        lines: Iterable[str],
        *,
        cpu: Cpu = Cpu.AARCH64,
        cuda: CudaVersion | None = None,
        from_index: bool = False,
    ) -> Self:
        """Read what `pip freeze` prints. Raises UsageError for lines that are not `name==version`."""
        installed: dict[str, str] = {}
        faults = []
        for number, line in enumerate(lines, 1):
            text = line.split(" #")[0].split(" --hash")[0].strip().rstrip("\\").strip()
            if not text or text.startswith(("#", "--", "-r", "-c")):
                continue
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                faults.append(f"line {number} is not name==version: {text!r}.")
                continue
            exact = re.fullmatch(r"===?([^*,]+)", str(requirement.specifier))
            if exact:
                installed[canonicalize_name(requirement.name)] = exact[1]
            elif requirement.url is None:
                faults.append(f"line {number} names no exact version: {text!r}.")
        if faults:
            more = [f"And {len(faults) - _SHOWN} more lines."] if len(faults) > _SHOWN else []
            raise UsageError(faults[:_SHOWN] + more, do="give the output of `pip freeze` or of `uv pip freeze`.")
        return cls(installed, cpu, cuda, from_index)

    def version(self, name: str) -> Version | None:
        """The installed version; None if absent or no version."""
        return parsed_version(self.installed.get(name, ""))

    def shown(self, name: str) -> str:
        """`torch 2.14.0+cu130`."""
        return f"{name} {self.installed[name]}"


def cuda_of(version: Version) -> CudaVersion | None:
    """The CUDA release that a local version names: 2.14.0+cu130 -> 13.0."""
    match = re.search(r"(?:^|\.)cu(\d\d)(\d+)(?:\.|$)", version.local or "")
    return CudaVersion(int(match[1]), int(match[2])) if match else None


def known_bad(environment: Environment) -> list[Finding]:
    """Versions that are known not to work on 12.1, alone or beside another."""
    findings = []
    for bad in known().bad:
        version = environment.version(bad.package)
        if version is None or not bad.versions.contains(version, prereleases=True):
            continue
        beside = environment.version(bad.beside) if bad.beside else None
        if bad.beside and (beside is None or not bad.beside_versions.contains(beside, prereleases=True)):
            continue
        company = f" beside {environment.shown(bad.beside)}" if bad.beside else ""
        excused = bool(bad.unless and environment.variables.get(bad.unless))
        findings.append(
            Finding(
                "pins.known-bad", bad.package, Verdict.INFO if excused else bad.verdict,
                f"{environment.shown(bad.package)}{company} {bad.what} (as of {bad.dated.read})"
                + (f"; {bad.unless} is set" if excused else ""),
                advice="" if excused else f"{bad.remedy[0].upper()}{bad.remedy[1:]}.", source=bad.dated.link,
            )
        )  # fmt: skip
    if not findings and environment.installed:
        findings.append(
            Finding(
                "pins.known-bad", "versions", Verdict.PASS,
                f"none of {len(environment.installed)} packages is among the {len(known().bad)} known bad sets",
            )
        )  # fmt: skip
    return findings


def known_collisions(environment: Environment) -> list[Finding]:
    """Files that two of the installed distributions are known to own with different content."""
    findings = []
    for collision in known().collisions:
        owners = [
            name
            for name, versions in collision.owners.items()
            if (version := environment.version(name)) and versions.contains(version, prereleases=True)
        ]
        if len(owners) > 1:
            findings.append(
                Finding(
                    "pins.file-owners", collision.path, collision.verdict,
                    f"owned by {' and by '.join(environment.shown(name) for name in owners)} with different "
                    f"content: {collision.what}",
                    "one owner", f"{collision.remedy[0].upper()}{collision.remedy[1:]}.", collision.dated.link,
                )
            )  # fmt: skip
    return findings
