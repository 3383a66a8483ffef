"""The version a wheel carries, and what counts as one.

A result is named by the local part of PEP 440: `0.33.0+cu130.sm121` is upstream's 0.33.0, CUDA line cu130, for
compute capability 12.1. Line and target stand there once: upstream adds a CUDA suffix of its own to some builds,
and two of them make a version that no installer reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from sm121.errors import PackError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from sm121.target import Capability

_OVERRIDES = (
    "VLLM_VERSION_OVERRIDE",
    "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_VLLM",
    "SETUPTOOLS_SCM_PRETEND_VERSION",
)
_PEP440 = "https://packaging.python.org/en/latest/specifications/version-specifiers/"
_NO_TAGS = "https://github.com/vllm-project/vllm/issues/9119"
_NO_GIT = "https://github.com/vllm-project/vllm/issues/13130"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a wheel is named after: upstream's project and version, CUDA line, compute capability."""

    project: str
    base: Version
    line: str
    capability: Capability
    part: str = ""
    """What else tells the wheel from others of its version: `partial` where only some of the libraries that could be
    compiled were, or the name of a set."""

    @classmethod
    def of(cls, project: str, pinned: str, line: str, capability: Capability, *, part: str = "") -> Self:
        """Check all parts; raise PackError with every fault."""
        problems = []
        if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", project):
            problems.append(f"a project name was wanted, found {project!r}.")
        if not re.fullmatch(r"cu[1-9]\d\d", line):
            problems.append(f"a CUDA line such as cu130 was wanted for the stamp, found {line!r}.")
        base = _release(pinned, problems)
        if problems or base is None:
            raise PackError(problems, do="pin a released version of upstream, without a local part.")
        return cls(project, base, line, capability, part)

    @property
    def local(self) -> str:
        """`cu130.sm121`, or `cu130.sm121.partial`."""
        return f"{self.line}.sm{self.capability.number}" + (f".{self.part}" if self.part else "")

    @property
    def version(self) -> str:
        """The full version, normalised: `0.33.0+cu130.sm121`."""
        return f"{self.base}+{self.local}"

    @property
    def distribution(self) -> str:
        """The project as file names write it: `flashinfer_python`."""
        return canonicalize_name(self.project).replace("-", "_")

    @property
    def dist_info(self) -> str:
        """`vllm-0.33.0+cu130.sm121.dist-info`."""
        return f"{self.distribution}-{self.version}.dist-info"

    def __str__(self) -> str:
        return f"{self.project} {self.version}"


def version_fields(version: Version) -> tuple[int | str, ...]:
    """The version tuple that setuptools-scm writes: release numbers, then the other parts as words."""
    fields: tuple[int | str, ...] = version.release
    if version.epoch:
        fields = (f"{version.epoch}!", *fields)
    if version.pre is not None:
        fields += (f"{version.pre[0]}{version.pre[1]}",)
    if version.post is not None:
        fields += (f"post{version.post}",)
    if version.dev is not None:
        fields += (f"dev{version.dev}",)
    return (*fields, version.local) if version.local is not None else fields


def _release(text: str, problems: list[str]) -> Version | None:
    try:
        version = Version(text)
    except ValueError:
        reason = "it has two plus signs" if text.count("+") > 1 else "PEP 440 does not read it"
        problems.append(f"a released version was wanted for the stamp, found {text!r}: {reason}.")
        return None
    if version.is_devrelease:
        problems.append(
            f"a released version was wanted for the stamp, found {text!r}: a development version, as a clone "
            "without tags gives it."
        )
    if version.local is not None:
        problems.append(
            f"a version without a local part was wanted for the stamp, found {text!r}: {version.local!r} would "
            "stand there beside ours, and name the CUDA line twice."
        )
    return version


def judge_version(found: str, pinned: str) -> Finding:
    """Compare the version a build gave itself with the pinned tag or version (`v0.26.0` or `0.26.0`)."""
    check, wanted = "stamp.pinned", f"version {pinned.removeprefix('v')}, as pinned"
    try:
        have, want = Version(found), Version(pinned)
    except ValueError as error:
        return Finding(
            check,
            "version",
            Verdict.FAIL,
            f"{error} (built {found!r}, pinned {pinned!r})",
            wanted,
            source=_PEP440,
        )
    if have.is_devrelease and not want.is_devrelease:
        return Finding(
            check, "version", Verdict.FAIL, f"{found}, a development version: the source tree carried no tag",
            wanted, "Build from the sdist, or from a clone that has the release's tag.", _NO_TAGS,
        )  # fmt: skip
    if have.public != want.public or (want.local is not None and have.local != want.local):
        return Finding(check, "version", Verdict.FAIL, found, wanted, "Build the pinned sources.", _NO_TAGS)
    return Finding(check, "version", Verdict.PASS, found, wanted)


def judge_override(folder: str, *, has_git: bool, env: dict[str, str]) -> tuple[list[Finding], str | None]:
    """Say, before a compile, whether a source tree will know its version.

    Returns findings and the version in its normal form where an override gives one. A tree without `.git` asks
    for an override; a value that PEP 440 does not read would reach the wheel as it is.
    """
    check = "stamp.override"
    given = [(name, env[name]) for name in _OVERRIDES if env.get(name)]
    if not given and not has_git:
        return [
            Finding(
                check, folder, Verdict.FAIL, "no .git folder and no version override",
                f"a version, from a tag or from {' or '.join(_OVERRIDES)}",
                "Set VLLM_VERSION_OVERRIDE to the released version, or build from the sdist.", _NO_GIT,
            )
        ], None  # fmt: skip
    findings, normal = [], None
    for name, value in given:
        try:
            version = Version(value)
        except ValueError:
            findings.append(
                Finding(
                    check, name, Verdict.FAIL, f"{value!r}, which is no version", "a version as PEP 440 reads it",
                    f"Set {name} to the released version.", _PEP440,
                )
            )  # fmt: skip
            continue
        normal = normal or str(version)
        if str(version) != value:
            findings.append(
                Finding(
                    check, name, Verdict.WARN, f"{value!r}, not in the normal form", str(version),
                    f"It is passed on as {version}.", _PEP440,
                )
            )  # fmt: skip
        else:
            findings.append(Finding(check, name, Verdict.PASS, value))
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        normal = None
    return findings or [Finding(check, folder, Verdict.INFO, "the version comes from the git tag")], normal
