"""The three FlashInfer distributions that must be of one version, and what happens if they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.pins.environment import cuda_of

if TYPE_CHECKING:
    from sm121.pins.environment import Environment

_PYTHON = "flashinfer-python"
_CUBIN = "flashinfer-cubin"
_CACHE = "flashinfer-jit-cache"
_SWITCH = "FLASHINFER_DISABLE_VERSION_CHECK"
_SOURCE = "https://github.com/flashinfer-ai/flashinfer/issues/4781"
_SWITCHED_OFF = "https://github.com/lightseekorg/tokenspeed/pull/284"
_TOLERANT = Version("0.7")
"""From here on a mismatch is a warning in the log and a compilation at run time; before, importing fails."""


def flashinfer_set(environment: Environment) -> list[Finding]:
    """Whether flashinfer-python, -cubin and -jit-cache (shim and providers) fit each other and the image."""
    if _PYTHON not in environment.installed:
        return _without_python(environment)
    findings = _switch(environment)
    python = environment.version(_PYTHON)
    subject = environment.shown(_PYTHON)
    if python is None or python.public == "0.0.0" or "unknown" in (python.local or ""):
        return [
            *findings,
            Finding(
                "pins.flashinfer", subject, Verdict.WARN,
                "its real version is unknown: a source tree without build metadata", "a released version",
                "Install the wheel of the pinned version.", _SOURCE,
            ),
        ]  # fmt: skip
    others = [name for name in environment.installed if name == _CUBIN or name.startswith(_CACHE)]
    slips = [finding for name in others if (finding := _slip(environment, name, python))]
    slips += [finding for name in others if name != _CUBIN and (finding := _line(environment, name))]
    if not slips:
        company = f" with {', '.join(environment.shown(name) for name in others)}" if others else " alone"
        slips = [
            Finding("pins.flashinfer", subject, Verdict.PASS, f"stands{company}", "one version", source=_SOURCE)
        ]
    return [*findings, *slips]


def _without_python(environment: Environment) -> list[Finding]:
    orphans = [name for name in environment.installed if name == _CUBIN or name.startswith(_CACHE)]
    return [
        Finding("pins.flashinfer", environment.shown(name), Verdict.WARN, "stands without flashinfer-python")
        for name in orphans
    ]


def _switch(environment: Environment) -> list[Finding]:
    if environment.variables.get(_SWITCH, "") in {"", "0"}:
        return []
    return [
        Finding(
            "pins.flashinfer", _SWITCH, Verdict.WARN, "is set, so FlashInfer loads kernels of any other version",
            "unset", "Unset it and install one version of all three.", _SWITCHED_OFF,
        )
    ]  # fmt: skip


def _slip(environment: Environment, name: str, python: Version) -> Finding | None:
    """A distribution that is not of flashinfer-python's version."""
    version = environment.version(name)
    subject = environment.shown(name)
    shim = environment.version(_CACHE)
    if version is not None and name.startswith(f"{_CACHE}-") and shim is not None and version != shim:
        return Finding(
            "pins.flashinfer", subject, Verdict.FAIL, f"is a provider beside {environment.shown(_CACHE)}",
            "exactly the version of flashinfer-jit-cache, local part included",
            "FlashInfer would ignore it and compile at run time.", _SOURCE,
        )  # fmt: skip
    if version is not None and version.public == python.public:
        return None
    tolerant = python >= _TOLERANT
    consequence = (
        "Importing flashinfer fails." if not tolerant else "It is ignored and its modules compile at run time."
    )
    if tolerant and name == _CUBIN:
        consequence = "It is ignored; it holds nothing for 12.1 in any case."
    return Finding(
        "pins.flashinfer", subject, Verdict.WARN if tolerant and name == _CUBIN else Verdict.FAIL,
        f"stands beside {environment.shown(_PYTHON)}", f"version {python.public}",
        f"{consequence} Install {python.public} or remove it.", _SOURCE,
    )  # fmt: skip


def _line(environment: Environment, name: str) -> Finding | None:
    """A cache that was compiled for another CUDA line than the image's."""
    version = environment.version(name)
    cuda = environment.cuda
    if version is None or cuda is None:
        return None
    subject = environment.shown(name)
    built = cuda_of(version)
    if built is None:
        return Finding(
            "pins.flashinfer", subject, Verdict.UNKNOWN, "has no suffix: its CUDA line is unknown",
            cuda.local, "Inspect its libraries: they name the libcudart they need.", _SOURCE,
        )  # fmt: skip
    if built.release == cuda.release:
        return None
    same_major = built.major == cuda.major
    return Finding(
        "pins.flashinfer", subject, Verdict.WARN if same_major else Verdict.FAIL,
        f"was compiled for {built.local}", f"{cuda.local}, the line of the image",
        "" if same_major else "Its libraries need a libcudart that the image does not have.", _SOURCE,
    )  # fmt: skip
