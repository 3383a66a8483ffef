"""Parts of CUDA toolkits that are installed side by side: one release, or which ones stand apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.pins.knowledge import toolkit_releases
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from sm121.pins.environment import Environment

_NVCC = "nvidia-cuda-nvcc"
_ONE_COMPILER = frozenset({_NVCC, "nvidia-nvvm", "nvidia-cuda-crt"})
_RUNTIME = "nvidia-cuda-runtime"
_NEAR = frozenset({"nvidia-cuda-cccl", "nvidia-cuda-nvrtc", "nvidia-nvptxcompiler"})
_FLOATING = "https://github.com/flashinfer-ai/flashinfer/issues/3493"


@dataclass(frozen=True, slots=True)
class _Part:
    """An installed part and the toolkit releases that its version belongs to."""

    name: str
    version: Version
    releases: tuple[str, ...]

    @property
    def newest(self) -> str:
        return max(self.releases, key=Version, default="")

    @property
    def cuda(self) -> CudaVersion:
        """Its CUDA release: from the table, else from its number, which follows the release for most parts."""
        numbers = Version(self.newest) if self.releases else self.version
        return CudaVersion(numbers.major, numbers.minor)

    def agrees(self, other: _Part) -> bool:
        return bool(set(self.releases) & set(other.releases))

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def toolkit_parts(environment: Environment) -> list[Finding]:
    """Whether the toolkit parts of an environment are of one release; wheels of CUDA 12 and 13 apart."""
    names = {part for parts in toolkit_releases().values() for part in parts}
    parts = [
        _Part(name, version, _releases(name, version))
        for name in environment.installed
        if name in names and (version := environment.version(name))
    ]
    findings = []
    for suffix in ("", "-cu12"):
        group = [part for part in parts if part.name.endswith("-cu12") == bool(suffix)]
        if len(group) > 1:
            findings += _judge(group, suffix)
    return findings


def _releases(name: str, version: Version) -> tuple[str, ...]:
    return tuple(
        release
        for release, parts in toolkit_releases().items()
        if name in parts and parts[name].contains(version, prereleases=True)
    )


def _judge(parts: list[_Part], suffix: str) -> list[Finding]:
    common = set.intersection(*(set(part.releases) for part in parts))
    if common:
        return [
            Finding(
                "pins.toolkit", "CUDA toolkit", Verdict.PASS,
                f"{len(parts)} parts, all of release {max(common, key=Version)}", "one release",
            )
        ]  # fmt: skip
    findings = [
        _stray(part, reference, suffix)
        for part in sorted(parts, key=lambda part: part.name)
        if (reference := _contradicted(part, parts, suffix))
    ]
    return findings or [
        Finding(
            "pins.toolkit", "CUDA toolkit", Verdict.WARN,
            f"no one release has all of {', '.join(str(part) for part in parts)}", "one release",
        )
    ]  # fmt: skip


def _contradicted(part: _Part, parts: list[_Part], suffix: str) -> _Part | None:
    """What a part is measured by and does not agree with.

    First come the runtime's headers, because torch pins them; a compiler's halves must also agree with nvcc.
    Without either, the part that most others agree with is the measure.
    """
    named = {other.name.removesuffix(suffix) if suffix else other.name: other for other in parts}
    measures = [named[name] for name in (_RUNTIME, _NVCC) if name in named]
    if part in measures[1:] or not measures:
        measures = measures[:1] or [max(parts, key=lambda one: sum(one.agrees(other) for other in parts))]
    elif (part.name.removesuffix(suffix) if suffix else part.name) not in _ONE_COMPILER:
        measures = measures[:1]
    return next((measure for measure in measures if measure is not part and not part.agrees(measure)), None)


def _stray(part: _Part, reference: _Part, suffix: str) -> Finding:
    plain = part.name.removesuffix(suffix) if suffix else part.name
    update_only = part.cuda == reference.cuda and reference.name == _RUNTIME + suffix
    if plain in _ONE_COMPILER | {_RUNTIME}:
        verdict = Verdict.WARN if update_only else Verdict.FAIL
    elif plain in _NEAR:
        verdict = Verdict.WARN
    else:
        verdict = Verdict.INFO if part.releases else Verdict.UNKNOWN
    advice = ""
    if verdict in {Verdict.FAIL, Verdict.WARN}:
        right = toolkit_releases().get(reference.newest, {}).get(part.name)
        advice = f"Pin {part.name}{right}." if right else f"Pin every part to the release of {reference.name}."
    of = f"is of CUDA {part.cuda}" + ("" if part.releases else " by its number")
    wanted = f"the release of {reference}, CUDA {reference.cuda}"
    source = _FLOATING if verdict is Verdict.FAIL else ""
    return Finding("pins.toolkit", str(part), verdict, of, wanted, advice, source)
