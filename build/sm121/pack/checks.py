"""What a wheel says about itself, judged from names and sizes: fit to be handed out, fit to be installed.

These look at the container only. What the libraries inside hold is the inspection's matter.
"""

from __future__ import annotations

import re
import tomllib
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.pack.platform_tag import libraries_elsewhere
from sm121.progress import size as shown_size
from sm121.sources.members import damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_NAMES = "https://packaging.python.org/en/latest/specifications/binary-distribution-format/"
_ABI3 = "https://peps.python.org/pep-0803/"
_MANYLINUX = "https://peps.python.org/pep-0600/"
_GRAFTED = "https://github.com/pytorch/ao/pull/2927"
_HASHED_NAME = re.compile(r"^(lib[\w+.]*?)(?:-[0-9a-f]{6,})?\.so(?:\.[\d.]+)?$")
_MANYLINUX_TAG = re.compile(r"manylinux_(\d+)_(\d+)_\w+")
_BRINGERS = re.compile(r"nvidia-.*|torch|cuda-.*")


def judge_wheel(path: Path, *, channel: str = "private", place: Place | None = None) -> list[Finding]:
    """All checks of this module on a wheel; PackError or UnpackError when it cannot be read."""
    with damage(path.name), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        folders = sorted({top for name in members if (top := name.split("/")[0]).endswith(".dist-info")})
        if len(folders) != 1:
            return [
                Finding(
                    "wheel.names",
                    path.name,
                    Verdict.FAIL,
                    f"{len(folders)} dist-info folders",
                    "one",
                    source=_NAMES,
                )
            ]
        missing = [name for name in ("METADATA", "WHEEL", "RECORD") if f"{folders[0]}/{name}" not in members]
        if missing:
            got = f"no {' and no '.join(missing)}"
            return [
                Finding("wheel.names", path.name, Verdict.FAIL, got, "METADATA, WHEEL, RECORD", source=_NAMES)
            ]
        metadata, _ = parse_email(archive.read(f"{folders[0]}/METADATA"))
        tags = [
            line.partition(":")[2].strip()
            for line in archive.read(f"{folders[0]}/WHEEL").decode("utf-8", "replace").splitlines()
            if line.startswith("Tag:")
        ]
    return [
        *judge_names(path.name, folders[0], metadata.get("version", ""), tags),
        *judge_grafts(metadata.get("name", ""), members),
        judge_size(path.stat().st_size, channel),
        *(judge_install(path.name, place) if place else []),
    ]


def judge_names(filename: str, dist_info: str, metadata_version: str, wheel_tags: Sequence[str]) -> list[Finding]:
    """Compare the name, which installers believe, with dist-info folder, METADATA version and WHEEL tags."""
    check, advice = "wheel.names", "Build the wheel under this version; a file that was renamed is not one."
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        return [Finding(check, filename, Verdict.FAIL, str(error), "a wheel's file name", source=_NAMES)]
    findings = []
    folder, _, folder_version = dist_info.removesuffix(".dist-info").rpartition("-")
    if canonicalize_name(folder) != name:
        findings.append(
            Finding(
                check, filename, Verdict.FAIL, f"its folder is {dist_info}", f"a folder of {name}", advice, _NAMES
            )
        )
    for what, found in ((dist_info, folder_version), ("METADATA", metadata_version)):
        if not _same_version(found, version):
            findings.append(
                Finding(
                    check,
                    filename,
                    Verdict.FAIL,
                    f"{what} says {found}",
                    f"{version}, as in the name",
                    advice,
                    _NAMES,
                )
            )
    named, written = {str(tag) for tag in tags}, set(wheel_tags)
    if named != written:
        findings.append(
            Finding(
                check, filename, Verdict.FAIL, f"WHEEL says {', '.join(sorted(written)) or 'no tag'}",
                f"{', '.join(sorted(named))}, as in the name", advice, _NAMES,
            )
        )  # fmt: skip
    return findings or [Finding(check, filename, Verdict.PASS, "name, folder, METADATA and WHEEL agree")]


def _same_version(found: str, wanted: Version) -> bool:
    try:
        return Version(found) == wanted
    except ValueError:
        return False


def judge_grafts(project: str, members: Iterable[str]) -> list[Finding]:
    """Find libraries in a wheel that torch, CUDA's own packages or the driver bring.

    A second CUDA runtime in one process has a state of its own, and a driver library of the build machine fits no
    other driver. Names with a hash in them (`libcudart-1a2b3c4d.so.13`) are what repairing tools make.
    """
    check = "wheel.grafts"
    if _BRINGERS.fullmatch(canonicalize_name(project)):
        return [Finding(check, project, Verdict.INFO, "it is a package whose own libraries these are")]
    stems = {pattern.split(".so")[0] for pattern in libraries_elsewhere()}
    findings = []
    for member in members:
        match = _HASHED_NAME.match(PurePosixPath(member).name)
        if match and any(fnmatchcase(match[1], stem) for stem in stems):
            findings.append(
                Finding(
                    check, member, Verdict.FAIL, f"{match[1]} lies in the wheel",
                    "it comes from torch, CUDA's packages or the driver",
                    "Build without repairing the wheel, or exclude the library from the repair.", _GRAFTED,
                )
            )  # fmt: skip
    return findings or [Finding(check, project, Verdict.PASS, "no CUDA, torch or driver library in the wheel")]


def channels() -> dict[str, int | None]:
    """The largest file in bytes per channel; None where there is no limit."""
    text = resources.files(__package__).joinpath("channels.toml").read_text(encoding="utf-8")
    return {each["name"]: each.get("limit") for each in tomllib.loads(text)["channel"]}


def judge_size(size: int, channel: str, limit: int | None = None) -> Finding:
    """Compare a file of `size` bytes with what `channel` takes; a `limit` in bytes that is given counts more."""
    check, known = "wheel.size", channels()
    if limit is None and channel.lower() not in known:
        return Finding(
            check, channel, Verdict.UNKNOWN, "its limit is not known", f"one of {', '.join(known)}, or a limit"
        )
    limit = known[channel.lower()] if limit is None else limit
    if limit is None:
        return Finding(check, channel, Verdict.PASS, f"{shown_size(size)}, and there is no limit")
    if size >= limit:
        return Finding(
            check, channel, Verdict.FAIL, f"{size} bytes is too large", f"size below the limit of {limit} bytes",
            "Leave extensions out, compile for fewer targets, or use another channel.",
        )  # fmt: skip
    return Finding(check, channel, Verdict.PASS, f"{size} bytes", f"size below the limit of {limit} bytes")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a wheel is to be installed: Python `3.12` or `3.13t`, glibc `2.39`, CPU `aarch64`."""

    python: str
    glibc: str
    machine: str

    def __str__(self) -> str:
        return f"Python {self.python}, glibc {self.glibc}, {self.machine}"


SPARK = Place("3.12", "2.39", "aarch64")
"""DGX OS 7, which is Ubuntu 24.04 (https://docs.nvidia.com/dgx/dgx-os-7-user-guide/, read 2026-11-29)."""


def judge_install(filename: str, place: Place) -> list[Finding]:
    """Say whether pip would take the file there."""
    check, where = "wheel.install", str(place)
    python, glibc, machine = place.python, place.glibc, place.machine
    version = re.fullmatch(r"3\.(\d+)(t?)", python)
    library = re.fullmatch(r"2\.(\d+)", glibc)
    try:
        _, _, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        return [Finding(check, filename, Verdict.FAIL, str(error), "a wheel's file name", source=_NAMES)]
    if not version or not library:
        return [Finding(check, filename, Verdict.UNKNOWN, where, "versions such as 3.12 or 3.13t, and 2.39")]
    minor, threads = int(version[1]), version[2]
    platforms = [f"manylinux_2_{number}_{machine}" for number in range(int(library[1]), 4, -1)]
    platforms += [f"linux_{machine}", "any"]
    interpreters = [
        *cpython_tags((3, minor), [f"cp3{minor}{threads}"], platforms),
        *compatible_tags((3, minor), f"cp3{minor}", platforms),
    ]
    if not tags.isdisjoint(interpreters):
        return [Finding(check, filename, Verdict.PASS, f"installs on {where}")]
    findings = []
    if not {tag.platform for tag in tags} & set(platforms):
        findings.append(_wrong_platform(check, filename, sorted({tag.platform for tag in tags}), glibc, machine))
    pairs = {(tag.interpreter, tag.abi) for tag in interpreters}
    if not {(tag.interpreter, tag.abi) for tag in tags} & pairs:
        abis = ", ".join(sorted({tag.abi for tag in tags}))
        got = f"it is built for {abis}, which Python {python} does not load"
        if threads:
            got = f"it is built for {abis}, and Python {python} is free-threaded"
        findings.append(
            Finding(check, filename, Verdict.FAIL, got, where, "Use the Python with the interpreter lock.", _ABI3)
        )
    return findings or [Finding(check, filename, Verdict.FAIL, "none of its tags fits", where, source=_NAMES)]


def _wrong_platform(check: str, filename: str, found: list[str], glibc: str, machine: str) -> Finding:
    floors = [
        f"{match[1]}.{match[2]}"
        for platform in found
        if platform.endswith(f"_{machine}") and (match := _MANYLINUX_TAG.fullmatch(platform))
    ]
    if floors:
        return Finding(
            check, filename, Verdict.FAIL, f"{', '.join(found)} asks for glibc {floors[0]}, found {glibc}",
            f"glibc {floors[0]} or later", "Use a newer system, or build on an older one.", _MANYLINUX,
        )  # fmt: skip
    return Finding(
        check, filename, Verdict.FAIL, f"it is for {', '.join(found)}", f"a wheel for {machine}",
        "Take the wheel for this machine.", _MANYLINUX,
    )  # fmt: skip
