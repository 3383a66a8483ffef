"""Whether nvcc is the planned one, and whether it knows the options that it will get."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.resources.toolkit import first_release, supports, toolkit_data
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

USUAL_PLACE = "/usr/local/cuda/bin/nvcc"
"""Where torch looks when neither CUDA_HOME nor PATH leads to an nvcc."""

_CHANGERS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
_ARCH_OPTIONS = {"gencode", "generate-code", "arch", "gpu-architecture", "code", "gpu-code"}


def judge_nvcc_flags(flags: str, cuda: CudaVersion, min_driver: str | None = None) -> list[Finding]:
    """Judge a line of nvcc options for the toolkit `cuda`.

    `min_driver` is the oldest driver that the result shall run on; empty or None if nothing is asked.
    """
    try:
        words = shlex.split(flags)
    except ValueError as error:
        return [_flag(flags, Verdict.FAIL, f"the options cannot be taken apart: {error}")]
    findings: list[Finding] = []
    needed: dict[str, str] = {}
    for name, value in _options(words):
        row = next((row for row in toolkit_data()["option"] if name in {row["name"], row.get("short")}), None)
        if row:
            findings += _known_option(row, value, cuda, needed)
        elif name in _ARCH_OPTIONS:
            findings += _targets(name, value, cuda)
    findings += _drivers(needed, cuda, min_driver)
    return findings or [_flag(flags, Verdict.PASS, f"nothing that CUDA {cuda.release} could refuse is known")]


def judge_toolkit(
    found: Mapping[str, str], env: Mapping[str, str], planned: CudaVersion, torch: str = ""
) -> list[Finding]:
    """Judge which nvcc a build would take.

    `found` maps each nvcc on the machine to its version ("" if it does not tell), `env` is the environment of the
    build, `torch` torch's full version. CUDA_HOME decides, then CUDA_PATH, then PATH, then the usual place.
    """
    versions = {posixpath.normpath(path): version for path, version in found.items()}
    on_path = _first_on_path(versions, env.get("PATH", ""))
    used, reason = _used(versions, env, on_path)
    findings = [
        _nvcc(name, Verdict.WARN, f"{env[name]!r} changes every call of nvcc", advice=f"Unset {name}.")
        for name in _CHANGERS
        if env.get(name)
    ]
    if not used:
        got = f"{reason}; found: {_shown(versions) or 'none on this machine'}"
        advice = "Set CUDA_HOME to the toolkit's folder."
        return [*findings, _nvcc("nvcc", Verdict.FAIL, got, f"CUDA {planned.release}", advice)]
    version = _version(versions[used])
    if version is None:
        return [
            *findings,
            _nvcc(used, Verdict.UNKNOWN, f"it tells no version ({reason})", f"CUDA {planned.release}"),
        ]
    findings.append(_compared(used, version, planned, reason, versions))
    if on_path and on_path != used and versions[on_path] != versions[used]:
        got = f"first on PATH is nvcc {versions[on_path] or 'of unknown version'}, which some build scripts call"
        findings.append(_nvcc(on_path, Verdict.WARN, got, advice=f"Put {posixpath.dirname(used)} first on PATH."))
    others = {path: text for path, text in versions.items() if path != used and text != versions[used]}
    if others and findings[-1].verdict is Verdict.PASS:
        findings.append(_nvcc("nvcc", Verdict.INFO, f"other toolkits are not used: {_shown(others)}"))
    return findings + _against_torch(version, torch)


def _known_option(
    row: Mapping[str, Any], value: str, cuda: CudaVersion, needed: dict[str, str]
) -> Iterator[Finding]:
    shown = f"--{row['name']}" + (f"={value}" if value and "values" in row else "")
    since = CudaVersion.parse(row["since"]) if "since" in row else None
    if since and cuda.release < since:
        got = f"nvcc of CUDA {cuda.release} does not know --{row['name']}"
        yield _flag(
            shown, Verdict.FAIL, got, f"CUDA {since} or newer", "Leave it out, or use a newer toolkit.", row
        )
    elif "values" in row and value not in row["values"]:
        yield _flag(shown, Verdict.FAIL, f"{value!r} is no value of it", " or ".join(row["values"]), source=row)
    elif "warns" in row:
        yield _flag(shown, Verdict.WARN, row["warns"], source=row)
    elif value in row.get("driver", {}):
        needed[shown] = row["driver"][value]


def _targets(name: str, value: str, cuda: CudaVersion) -> Iterator[Finding]:
    for text in dict.fromkeys(re.findall(r"(?:sm|compute|lto)_\w+", value)):
        try:
            target = ArchSpec.from_sm(text)
        except ValueError as error:
            yield _flag(f"--{name}", Verdict.FAIL, str(error))
            continue
        known = supports(cuda, target)
        if known is None:
            yield _flag(f"--{name}", Verdict.UNKNOWN, f"whether CUDA {cuda.release} knows {text} is not known")
        elif not known:
            first = first_release(target)
            wanted = f"CUDA {first}" if first else ""
            yield _flag(f"--{name}", Verdict.FAIL, f"nvcc of CUDA {cuda.release} does not know {text}", wanted)


def _drivers(needed: Mapping[str, str], cuda: CudaVersion, min_driver: str | None) -> Iterator[Finding]:
    rows = [row for row in toolkit_data()["driver"] if CudaVersion.parse(row["cuda"]) <= cuda.release]
    floor = max((Version(row["minimum"]) for row in rows), default=Version("0"))
    try:
        oldest = Version(min_driver) if min_driver else None
    except ValueError:
        yield _flag("driver", Verdict.UNKNOWN, f"{min_driver!r} is no driver version")
        return
    if oldest and oldest < floor:
        got = f"code of CUDA {cuda.major} needs driver {floor} or newer"
        yield _flag("driver", Verdict.WARN, got, f"driver {oldest}", f"Say that driver {floor} is needed.")
    for shown, text in needed.items():
        if Version(text) <= floor:
            continue
        got = f"what it compresses needs driver {text} or newer"
        if oldest is None:
            yield _flag(shown, Verdict.INFO, got)
        elif oldest < Version(text):
            yield _flag(
                shown, Verdict.WARN, got, f"driver {oldest}", "Use --compress-mode=speed, or ask for that driver."
            )


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Name without dashes and value of each option; a value may be the next word."""
    for position, word in enumerate(words):
        match = re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(.*))?", word, re.DOTALL)
        if not match:
            continue
        following = words[position + 1] if position + 1 < len(words) else ""
        yield match[1], match[2] if match[2] is not None else ("" if following.startswith("-") else following)


def _used(versions: Mapping[str, str], env: Mapping[str, str], on_path: str) -> tuple[str, str]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(name):
            nvcc = posixpath.normpath(f"{env[name]}/bin/nvcc")
            return (
                (nvcc, f"{name} leads to it")
                if nvcc in versions
                else ("", f"{name}={env[name]} holds no bin/nvcc")
            )
    if on_path:
        return on_path, "it is the first on PATH"
    if USUAL_PLACE in versions:
        return USUAL_PLACE, "it lies in the usual place"
    return "", "neither CUDA_HOME nor PATH leads to an nvcc"


def _first_on_path(versions: Mapping[str, str], path: str) -> str:
    candidates = (posixpath.normpath(f"{folder}/nvcc") for folder in path.split(":") if folder)
    return next((candidate for candidate in candidates if candidate in versions), "")


def _compared(
    used: str, version: CudaVersion, planned: CudaVersion, reason: str, versions: Mapping[str, str]
) -> Finding:
    if version.release == planned.release:
        return _nvcc(used, Verdict.PASS, f"nvcc {version}, {reason}")
    right = [
        path for path, text in versions.items() if (other := _version(text)) and other.release == planned.release
    ]
    advice = f"Set CUDA_HOME to the folder of a CUDA {planned.release} toolkit and put its bin first on PATH."
    if right:
        home = posixpath.dirname(posixpath.dirname(right[0]))
        advice = f"Set CUDA_HOME={home} and put {home}/bin first on PATH: nvcc {versions[right[0]]} lies there."
    return _nvcc(used, Verdict.FAIL, f"nvcc {version} would be used, {reason}", f"CUDA {planned.release}", advice)


def _against_torch(version: CudaVersion, torch: str) -> list[Finding]:
    match = re.search(r"\+cu(\d{2})(\d)\b", torch)
    if not match:
        return []
    made = CudaVersion(int(match[1]), int(match[2]))
    if made.major != version.major:
        got = f"torch {torch} is made with CUDA {made}, nvcc is {version}"
        return [
            _nvcc(
                "torch",
                Verdict.FAIL,
                got,
                f"nvcc of CUDA {made.major}.x",
                "Use torch and nvcc of one major release.",
            )
        ]
    if made != version.release:
        return [
            _nvcc("torch", Verdict.INFO, f"torch {torch} is made with CUDA {made}, nvcc is {version.release}")
        ]
    return []


def _version(text: str) -> CudaVersion | None:
    try:
        return CudaVersion.parse(text)
    except ValueError:
        return None


def _shown(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{path} ({text or 'unknown version'})" for path, text in sorted(versions.items()))


def _flag(
    subject: str,
    verdict: Verdict,
    got: str,
    wanted: str = "",
    advice: str = "",
    source: Mapping[str, Any] | None = None,
) -> Finding:
    link = str(source["source"]) if source else ""
    return Finding("resources.nvcc-flags", subject or "nvcc options", verdict, got, wanted, advice, link)


def _nvcc(subject: str, verdict: Verdict, got: str, wanted: str = "", advice: str = "") -> Finding:
    return Finding("resources.nvcc", subject, verdict, got, wanted, advice)
