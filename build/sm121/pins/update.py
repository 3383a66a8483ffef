"""Maintenance of the files in `pins/`: a new vLLM release with all that it demands, newer build programs.

The files are edited, not written anew: comments and order stay. A set that does not pass its own check is not
written.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from sm121 import index
from sm121.errors import FetchError, PinsError
from sm121.findings import Verdict
from sm121.pins.audit import check
from sm121.pins.choose import best_wheel, sdist
from sm121.pins.edit import today
from sm121.pins.facts import (
    CUDA_TXT,
    floating_limits,
    gather,
    record,
    requirements_of,
    requirements_txt,
    toolkit_parts_of,
)  # fmt: skip
from sm121.pins.loading import load
from sm121.pins.model import Cpu
from sm121.pins.reading import closest
from sm121.pins.resolve import resolve
from sm121.pins.upstream import fetched, is_build_file
from sm121.values import parsed_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.requirements import Requirement

    from sm121.findings import Finding
    from sm121.index import IndexFile
    from sm121.pins.edit import Edits
    from sm121.pins.model import Origin, Pins, Release
    from sm121.progress import Progress

_OLDEST_TOOLKIT = Version("12.8")
_TABLE_HEAD = """\
# Which version of which part belongs to which CUDA toolkit release: the METADATA of the cuda-toolkit packages.
# Part numbers follow the release only sometimes (cuBLAS 13.10 is of CUDA 13.5), so membership is looked up here.

read = "METADATA of the cuda-toolkit wheels, package index, {day}"
"""
_OPTIONAL = frozenset({"b12x"})
"""Extras of vLLM whose requirement is recorded, because they matter on 12.1."""


def add_release(edits: Edits, pins: Pins, version: str, progress: Progress) -> None:
    """Pin a vLLM release, and torch, FlashInfer and companions as it demands them. Raises FetchError, PinsError."""
    listing = index.project_files("vllm")
    source = _known_version(listing, version)
    with progress.step(f"read vLLM {version}"):
        wheels = {cpu: best_wheel(listing, version, cpu) for cpu in Cpu}
        metadata = index.metadata(wheels[Cpu.AARCH64])
        stamp = index.member(wheels[Cpu.AARCH64], "vllm/_version.py").decode()
        texts = index.sdist_texts(source, lambda path: is_build_file(path) or path == CUDA_TXT)
    gpu: set[str] = {canonicalize_name(wanted.name) for wanted in requirements_txt(texts[CUDA_TXT])}
    requires = [wanted for wanted in requirements_of(metadata) if _concerns(wanted, gpu)]
    exact: dict[str, str] = {canonicalize_name(wanted.name): _exact(wanted) for wanted in requires}
    for name in ("torch", "flashinfer-python"):
        if not exact.get(name):
            raise PinsError(f"vLLM {version} does not demand one exact {name}.")
    with progress.step("read torch and FlashInfer"):
        _add_torch(edits, exact["torch"])
        flashinfer = _add_flashinfer(edits, exact["flashinfer-python"])
    with progress.step("resolve the companions"):
        _add_companions(edits, pins, version)
    table = edits.table("vllm.toml", "vllm", version)
    edits.put(table, "commit", _search(r"commit_id = 'g?([0-9a-f]+)'", stamp))
    edits.put(table, "python", _search(r"(?m)^Requires-Python: (.+)$", metadata))
    edits.put(table, "flashinfer", exact["flashinfer-python"])
    edits.put_files(table, {**{str(cpu): wheel for cpu, wheel in wheels.items()}, "sdist": source})
    edits.put(table, "requires", [str(wanted) for wanted in requires])
    with progress.step("look for third-party sources"):
        carriers = {"vllm": wheels[Cpu.AARCH64], "flashinfer-python": flashinfer}
        _add_components(edits, pins, version, texts, carriers)


def update_tools(edits: Edits) -> None:
    """Move every build program to the newest release that has wheels for both CPUs."""
    for name, table in edits.documents["tools.toml"]["tool"].items():
        listing = index.project_files(name)
        newest = newest_release(listing)
        edits.put(table, "version", newest)
        edits.put_wheels(table, listing, newest)


def newest_release(listing: Sequence[IndexFile]) -> str:
    """The newest version that is no pre-release and not withdrawn. Raises FetchError if there is none."""
    numbers = [
        number
        for file in listing
        if not file.yanked
        and (number := parsed_version(file.version))
        and not (number.is_prerelease or number.is_devrelease)
    ]
    if not numbers:
        raise FetchError("the index has no release of the project.")
    return str(max(numbers))


def verify(edits: Edits, version: str, cpu: Cpu, progress: Progress) -> list[Finding]:
    """Load the edited files and check every line that has a torch for `version`.

    Raises PinsError if a file does not load, if no line fits, or if a check fails.
    """
    with tempfile.TemporaryDirectory(prefix="sm121-pins-") as folder:
        for name, text in edits.after().items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        changed = load(Path(folder))
    release = changed.vllm(version)
    lines = [line for line in changed.lines if any(torch.version == release.torch for torch in line.torches)]
    if not lines:
        cuda = next(torch.cuda for torch in changed.torches if torch.version == release.torch)
        raise PinsError(
            f"vLLM {version} demands torch {release.torch}, built for CUDA {cuda}, and no line runs with that release.",
            do=f"add a toolkit of CUDA {cuda} to toolkits.toml and a line with that runtime to lines.toml.",
        )
    findings = []
    for line in lines:
        with progress.step(f"check line {line.name}"):
            findings += check(line, release, cpu, gather(line, release, cpu, progress=progress))
    faults = [finding.message for finding in findings if finding.verdict is Verdict.FAIL]
    if faults:
        raise PinsError(faults, do="nothing was written; a set that fails its check is not pinned.")
    return findings


def _known_version(listing: Sequence[IndexFile], version: str) -> IndexFile:
    """The source distribution of a version, with a helpful refusal."""
    try:
        return sdist(listing, version)
    except FetchError as error:
        numbers = sorted({file.version for file in listing if parsed_version(file.version)}, key=Version)
        raise FetchError(
            f"the index has no source distribution of vLLM {version}{closest(version, reversed(numbers)) or '.'}",
            do=f"the newest are {', '.join(numbers[-5:])}.",
        ) from error


def _concerns(wanted: Requirement, gpu: set[str]) -> bool:
    """Whether a requirement belongs to the GPU side of vLLM."""
    if "extra ==" in str(wanted.marker or ""):
        return wanted.name in _OPTIONAL
    return canonicalize_name(wanted.name) in gpu


def _exact(wanted: Requirement) -> str:
    match = re.fullmatch(r"==([^*,]+)", str(wanted.specifier))
    return match[1] if match else ""


def _search(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise PinsError(f"upstream's files do not match {pattern!r} any more.")
    return match[1].strip()


def _add_torch(edits: Edits, version: str) -> None:
    listing = index.project_files("torch")
    demands = requirements_of(index.metadata(best_wheel(listing, version, Cpu.AARCH64)))
    kit = next((_exact(wanted) for wanted in demands if wanted.name == "cuda-toolkit"), "")
    if not kit:
        raise PinsError(
            f"the index's torch {version} for aarch64 names no cuda-toolkit: it is a CPU build.",
            do="another vLLM release, or torch from PyTorch's own index.",
        )
    table = edits.table("torch.toml", "torch", version)
    edits.put(table, "cuda", ".".join(kit.split(".")[:2]))
    edits.put_wheels(table, listing, version)


def _add_flashinfer(edits: Edits, version: str) -> IndexFile:
    listing = index.project_files("flashinfer-python")
    wheel = best_wheel(listing, version, Cpu.AARCH64)
    table = edits.table("flashinfer.toml", "flashinfer", version)
    meta = index.member(wheel, "flashinfer/_build_meta.py").decode()
    edits.put(table, "commit", _search(r"[\"']([0-9a-f]{40})[\"']", meta))
    edits.put_wheels(table, listing, version)
    return wheel


def _add_companions(edits: Edits, pins: Pins, version: str) -> None:
    """Pin the same companions as the newest release has, at the versions that a resolver finds."""
    limits = floating_limits(pins.line())
    resolution = resolve([f"vllm=={version}"], limits, Cpu.AARCH64)
    for package in _newest(pins).companions:
        number = resolution.versions.get(package.name)
        if number is None:
            continue
        listing = index.project_files(package.name)
        table = edits.table("companions.toml", "companions", version, package.name)
        edits.put(table, "version", number)
        if package.cuda is not None:
            edits.put(table, "cuda", _built_for(best_wheel(listing, number, Cpu.AARCH64), package.name))
        edits.put_wheels(table, listing, number)


def _built_for(wheel: IndexFile, name: str) -> str:
    """The CUDA release that version.py inside a wheel names: `0.29.0+cu130`."""
    text = index.member(wheel, f"{name}/version.py").decode()
    local = _search(r"__version__ = '[^'+]+\+cu(\d+)'", text)
    return f"{local[:-1]}.{local[-1]}"


def _newest(pins: Pins) -> Release:
    return max(pins.releases, key=lambda release: Version(release.version))


def _add_components(
    edits: Edits, pins: Pins, version: str, texts: Mapping[str, str], carriers: Mapping[str, IndexFile]
) -> None:
    """Write the third-party trees; how each can be had without its repository is carried over from before."""
    known = {component.name: component for component in _newest(pins).components}
    contents = {name: record(wheel) for name, wheel in carriers.items()}
    for tree in fetched({path: text for path, text in texts.items() if is_build_file(path)}):
        table = edits.table("vllm.toml", "vllm", version, "component", tree.name)
        edits.put(table, "repository", tree.repository)
        edits.put(table, "ref", tree.ref)
        edits.put(table, "variable", tree.variable)
        before = known.get(tree.name)
        extensions = list(tree.extensions or (before.extensions if before else ()))
        if extensions and list(table.get("extensions", [])) != extensions:
            table["extensions"] = extensions
        origins = [_origin(origin, carriers, contents) for origin in (before.origins if before else ())]
        edits.put_tables(table, "origin", [origin for origin in origins if origin])


def _origin(
    origin: Origin, carriers: Mapping[str, IndexFile], contents: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """An origin as it is now: {} if the wheel carries the tree no more, the version read anew."""
    found = {"kind": origin.kind}
    if origin.kind == "wheel":
        if not any(path.startswith(f"{origin.path}/") for path in contents[origin.package]):
            return {}
        found |= {"package": origin.package, "path": origin.path}
    if origin.version:
        text = index.member(carriers[origin.package], f"{origin.path}/include/cutlass/version.h").decode()
        found["version"] = ".".join(
            _search(rf"#define CUTLASS_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")
        )
    if origin.note:
        found["note"] = origin.note
    return found


def toolkit_table() -> str:
    """The text of `data/toolkits.toml`, read anew: every release of cuda-toolkit from 12.8 on.

    Raises FetchError if the index cannot be asked.
    """
    wheels = [
        file
        for file in index.project_files("cuda-toolkit")
        if file.filename.endswith(".whl") and (number := parsed_version(file.version))
        and number >= _OLDEST_TOOLKIT and not number.is_prerelease
    ]  # fmt: skip
    blocks = [_TABLE_HEAD.format(day=today())]
    for wheel in wheels:
        parts = toolkit_parts_of(requirements_of(index.metadata(wheel)))
        lines = "".join(f'{name} = "{wanted}"\n' for name, wanted in sorted(parts.items()))
        blocks.append(f'[release."{wheel.version}"]\n{lines}')
    return "\n".join(blocks)
