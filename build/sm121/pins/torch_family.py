"""torch and its companions: which CUDA release each was built for, and which torch each was built against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.pins.environment import cuda_of
from sm121.pins.knowledge import known
from sm121.values import CudaVersion, parsed_version

if TYPE_CHECKING:
    from packaging.version import Version

    from sm121.pins.environment import Environment
    from sm121.pins.knowledge import TorchBuild

_FAMILY = ("torch", "torchvision", "torchaudio")
_NIGHTLY = "https://github.com/vllm-project/vllm/issues/56829"


def torch_build(environment: Environment) -> list[Finding]:
    """Whether the torch of the environment can use CUDA at all, and of which release it is."""
    if "torch" not in environment.installed:
        return []
    subject = environment.shown("torch")
    version = environment.version("torch")
    if version is None:
        return [Finding("pins.torch-build", subject, Verdict.UNKNOWN, "is no version, its build is unknown")]
    if version.local:
        return [_judged_by_suffix(subject, version, environment)]
    if not environment.from_index:
        return [
            Finding(
                "pins.torch-build", subject, Verdict.UNKNOWN, "has no suffix: which build it is, is unknown",
                _wanted(environment), "Ask the installed torch: torch.version.cuda.",
            )
        ]  # fmt: skip
    for build in known().torch:
        if build.cpu == environment.cpu and build.versions.contains(version, prereleases=True):
            return [_judged_by_index(subject, build, environment)]
    return [
        Finding(
            "pins.torch-build", subject, Verdict.UNKNOWN,
            f"whether the index's {environment.cpu} wheel of this version is a CUDA or a CPU build is unknown",
            advice="Read torch/version.py inside the wheel that will be installed.",
        )
    ]  # fmt: skip


def torch_family(environment: Environment) -> list[Finding]:
    """Whether torch, torchvision and torchaudio are of one CUDA release and were built for each other."""
    members = [name for name in _FAMILY if name in environment.installed]
    if "torch" not in members or len(members) < 2:
        return []
    return [*_suffixes(environment, members), *_pairs(environment)]


def _judged_by_suffix(subject: str, version: Version, environment: Environment) -> Finding:
    local = version.local or ""
    built = cuda_of(version)
    if built is not None:
        return _against_plan(subject, built, environment, "by its suffix")
    words = set(local.split("."))
    if "cpu" in words:
        return Finding(
            "pins.torch-build", subject, Verdict.FAIL, "is a CPU build", _wanted(environment),
            "Take the build for the line's CUDA release.",
        )  # fmt: skip
    if any(word.startswith(("rocm", "xpu", "hip")) for word in words):
        return Finding("pins.torch-build", subject, Verdict.FAIL, f"is built for {local}", _wanted(environment))
    return Finding(
        "pins.torch-build", subject, Verdict.UNKNOWN, f"the suffix {local} names no CUDA release",
        _wanted(environment), "Ask the installed torch: torch.version.cuda.",
    )  # fmt: skip


def _judged_by_index(subject: str, build: TorchBuild, environment: Environment) -> Finding:
    if build.build != "cpu":
        return _against_plan(
            subject, CudaVersion.parse(build.build), environment, f"on the index, {build.dated.read}"
        )
    doubt = "; public statements about this version disagree" if build.disputed else ""
    return Finding(
        "pins.torch-build", subject, Verdict.WARN if build.disputed else Verdict.FAIL,
        f"is a cpu build for {environment.cpu} on the package index (read {build.dated.read}){doubt}",
        _wanted(environment),
        "Read torch/version.py inside the wheel that will be installed."
        if build.disputed
        else "Take 2.11.0 or newer, or PyTorch's own index of the line.",
        build.dated.link,
    )  # fmt: skip


def _against_plan(subject: str, built: CudaVersion, environment: Environment, how: str) -> Finding:
    """Compare a CUDA build with the plan: majors must agree, an older minor must hold every symbol."""
    plan = environment.cuda
    got = f"is built for CUDA {built.release} ({how})"
    if plan is None or plan.release == built.release:
        return Finding("pins.torch-build", subject, Verdict.PASS, got, _wanted(environment))
    if plan.major != built.major:
        return Finding(
            "pins.torch-build", subject, Verdict.FAIL, got, _wanted(environment),
            "Libraries of two CUDA majors do not share one process; take the torch of the line.",
        )  # fmt: skip
    if built.release < plan.release:
        return Finding(
            "pins.torch-build", subject, Verdict.WARN, got, _wanted(environment),
            f"Every CUDA symbol that is used must exist in the libraries of {built.release}.",
        )  # fmt: skip
    return Finding("pins.torch-build", subject, Verdict.INFO, got, _wanted(environment))


def _wanted(environment: Environment) -> str:
    return f"a build for CUDA {environment.cuda.release}" if environment.cuda else "a CUDA build"


def _suffixes(environment: Environment, members: list[str]) -> list[Finding]:
    lines: dict[str, list[str]] = {}
    silent = []
    for name in members:
        version = environment.version(name)
        line = cuda_of(version) if version else None
        local = (version.local or "") if version else ""
        if line or "cpu" in local.split("."):
            lines.setdefault(line.local if line else "cpu", []).append(environment.shown(name))
        else:
            silent.append(environment.shown(name))
    findings = []
    if len(lines) > 1:
        told = "; ".join(f"{', '.join(names)} of {line}" for line, names in lines.items())
        findings.append(
            Finding(
                "pins.torch-family", "torch family", Verdict.FAIL, f"mixes CUDA lines: {told}", "one CUDA line",
                "Take all three from one index of one line.", _NIGHTLY,
            )
        )  # fmt: skip
    elif lines and not silent:
        findings.append(
            Finding(
                "pins.torch-family", "torch family", Verdict.PASS, f"all of {next(iter(lines))}", "one CUDA line"
            )
        )
    if silent and not (environment.from_index and len(silent) == len(members)):
        findings.append(
            Finding(
                "pins.torch-family", "torch family", Verdict.UNKNOWN,
                f"{', '.join(silent)} without a suffix: the CUDA line is unknown", "one CUDA line",
                "Read version.py inside the installed packages.",
            )
        )  # fmt: skip
    return findings


def _pairs(environment: Environment) -> list[Finding]:
    torch = environment.version("torch")
    findings = []
    for pair in known().pairs:
        version = environment.version(pair.package)
        if torch is None or version is None:
            continue
        wanted = next(
            (
                torch_
                for own, torch_ in pair.torch.items()
                if parsed_version(own) == parsed_version(version.public)
            ),
            None,
        )
        subject = environment.shown(pair.package)
        if wanted is None:
            findings.append(
                Finding(
                    "pins.torch-pair", subject, Verdict.UNKNOWN,
                    f"which torch it was built against is unknown (table of {pair.dated.read})",
                    advice="Compare with the Requires-Dist of its METADATA.",
                )
            )  # fmt: skip
        elif not wanted.contains(torch.public, prereleases=True):
            findings.append(
                Finding(
                    "pins.torch-pair", subject, Verdict.FAIL, f"stands beside {environment.shown('torch')}",
                    f"torch{wanted}", f"Take the {pair.package} of that torch.", pair.dated.link,
                )
            )  # fmt: skip
        else:
            findings.append(
                Finding(
                    "pins.torch-pair",
                    subject,
                    Verdict.PASS,
                    f"goes with {environment.shown('torch')}",
                    f"torch{wanted}",
                )
            )
    return findings
