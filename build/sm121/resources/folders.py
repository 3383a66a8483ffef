"""Whether the sources that a build needs are where it is told to look, and are the pinned ones."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

REQUIRED = {"flashinfer": ("cutlass",)}
"""Project to submodules without which it cannot compile (flashinfer-python 0.6.14 to 0.7.2.post1, 2026-11-29)."""
_THIRD_PARTY = {"3rdparty", "third_party", "submodules", "extern", "external"}


def judge_source_folders(
    env: Mapping[str, str],
    needed: Iterable[str],
    *,
    offline: bool,
    is_folder: Callable[[str], bool] | None = None,
) -> list[Finding]:
    """Judge the environment variables that name source folders (`VLLM_CUTLASS_SRC_DIR` and its kind).

    CMake resolves a relative path against its own folder, so only absolute ones are right. `is_folder` says
    whether a folder is there and holds something; without it, only the variables are judged.
    """
    findings = []
    for name in needed:
        value = env.get(name)
        if value is None and not offline:
            findings.append(_finding(name, Verdict.INFO, "not set, so upstream fetches these sources itself"))
        elif not value:
            got = "not set, and nothing can be fetched offline" if value is None else "empty"
            advice = f"Set {name} to the folder of these sources."
            findings.append(_finding(name, Verdict.FAIL, got, "an absolute path", advice))
        elif not posixpath.isabs(value):
            got = f"{value!r} is relative, and CMake reads it from another folder"
            findings.append(_finding(name, Verdict.FAIL, got, "an absolute path", "Write the whole path."))
        elif is_folder and not is_folder(value):
            findings.append(_finding(name, Verdict.FAIL, f"{value} is no folder, or an empty one", "the sources"))
        else:
            findings.append(_finding(name, Verdict.PASS, value))
    return findings


def judge_cutlass(name: str, text: str, pin: str) -> list[Finding]:
    """Compare the version in CUTLASS's version.h (`text`) with the pinned one (`4.0.0` or `v4.0.0`)."""
    parts = [re.search(rf"^\s*#\s*define\s+CUTLASS_{part}\s+(\d+)", text, re.MULTILINE) for part in
             ("MAJOR", "MINOR", "PATCH")]  # fmt: skip
    if not all(parts):
        return [_finding(name, Verdict.UNKNOWN, "it does not say which CUTLASS this is", f"CUTLASS {pin}")]
    found = ".".join(part[1] for part in parts if part)
    try:
        same = Version(found) == Version(pin)
    except ValueError:
        return [_finding(name, Verdict.UNKNOWN, f"CUTLASS {found}", f"CUTLASS {pin}, which is no version")]
    if same:
        return [_finding(name, Verdict.PASS, f"CUTLASS {found}")]
    advice = "Take the pinned CUTLASS, or change the pin and say why."
    return [_finding(name, Verdict.FAIL, f"CUTLASS {found}", f"CUTLASS {pin}", advice)]


def judge_submodules(project: str, names: Iterable[str], empty: Iterable[str]) -> list[Finding]:
    """Judge an unpacked source archive by its file names and the folders in it that are empty.

    Archives that a git host makes lack the content of submodules.
    """
    listed, hollow = list(names), [folder.rstrip("/") for folder in empty]
    advice = "Take the project's own source package or wheel, or a checkout with its submodules."
    findings = [
        _finding(folder, Verdict.FAIL, "the folder is empty: its submodule was left out", "its sources", advice)
        for folder in hollow
        if _THIRD_PARTY & set(folder.split("/")) or posixpath.basename(folder) in REQUIRED.get(project, ())
    ]
    if any(_THIRD_PARTY & set(name.split("/")) for name in listed):
        findings += [
            _finding(wanted, Verdict.FAIL, f"{project} lacks it", "its sources", advice)
            for wanted in REQUIRED.get(project, ())
            if not any(wanted in name.split("/") for name in [*listed, *hollow])
        ]
    return findings or [_finding(project, Verdict.PASS, "no submodule is empty")]


def empty_folders(root: Path) -> list[str]:
    """Folders below `root` with nothing in them, relative to it."""
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())
    )


def _finding(subject: str, verdict: Verdict, got: str, wanted: str = "", advice: str = "") -> Finding:
    return Finding("resources.sources", subject, verdict, got, wanted, advice)
