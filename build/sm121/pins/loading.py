"""From the folder `pins/` to `Pins`: all files are read, all faults are named at once."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from sm121.errors import PinsError
from sm121.pins.knowledge import toolkit_releases
from sm121.pins.model import (
    Component,
    Cpu,
    FilePin,
    Line,
    Origin,
    Package,
    Pins,
    Release,
    Role,
    ToolchainKind,
    Toolkit,
)  # fmt: skip
from sm121.pins.reading import Table, closest
from sm121.values import ArchSpec, CudaVersion, GitCommit, Sha256, parsed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

R = TypeVar("R")

FILES = (
    "lines.toml",
    "toolkits.toml",
    "tools.toml",
    "torch.toml",
    "flashinfer.toml",
    "vllm.toml",
    "companions.toml",
)
"""The files of the folder `pins/`."""

_NO_HASH = Sha256("0" * 64)
_NO_CUDA = CudaVersion(0, 0)
_FILE_KEYS = (*(str(cpu) for cpu in Cpu), "any", "sdist")
_ORIGINS = ("wheel", "empty", "placeholder")


def load(folder: Path) -> Pins:
    """Read all pins. Raises PinsError that names every fault of every file, with file and key path."""
    if not folder.is_dir():
        raise PinsError(
            f"the folder {folder} does not exist.", do="run in the repository, or name its folder of pins."
        )
    problems: list[str] = []
    tables = {name: Table.of_file(folder / name, problems) for name in FILES}
    pins = _pins(tables)
    for table in tables.values():
        table.done()
    problems += _contradictions(pins)
    if problems:
        raise PinsError(dict.fromkeys(problems), do=f"mend the files in {folder}.")
    return pins


def _pins(tables: Mapping[str, Table]) -> Pins:
    toolkits = _each(tables["toolkits.toml"], "toolkit", _toolkit)
    tools = _each(tables["tools.toml"], "tool", read_package)
    torches = _each(tables["torch.toml"], "torch", partial(_version_of, "torch"))
    flashinfers = _each(tables["flashinfer.toml"], "flashinfer", partial(_version_of, "flashinfer-python"))
    companions = dict(_each(tables["companions.toml"], "companions", _companions))
    releases = _each(
        tables["vllm.toml"], "vllm", partial(_release, flashinfers=flashinfers, companions=companions)
    )
    for version in companions.keys() - {release.version for release in releases}:
        tables["companions.toml"].table("companions").problem(version, "belongs to no release in vllm.toml")
    lines = _each(
        tables["lines.toml"], "line", partial(_line, toolkits=toolkits, tools=tuple(tools), torches=torches)
    )
    return Pins(
        tuple(lines), tuple(releases), tuple(toolkits), tuple(torches),
        _chosen(tables["lines.toml"], "default", [line.name for line in lines]),
        _chosen(tables["vllm.toml"], "default", [release.version for release in releases]),
    )  # fmt: skip


def _each(outer: Table, key: str, read: Callable[[str, Table], R]) -> list[R]:
    found = []
    for name, table in outer.named(key):
        found.append(read(name, table))
        table.done()
    return found


def _chosen(table: Table, key: str, names: Sequence[str]) -> str:
    """A text that must be one of `names`."""
    word = table.text(key)
    if word and word not in names:
        table.problem(key, f"= {word!r} is not one of {', '.join(names)}{closest(word, names)}")
    return word


def read_package(name: str, table: Table, version: str = "") -> Package:
    """Read a package with its files; faults go to the table."""
    if canonicalize_name(name) != name:
        table.fault(f"the name {name!r} is written {canonicalize_name(name)!r}")
    version = version or table.text("version")
    if version and parsed_version(version) is None:
        table.fault(f"{version!r} is not a PEP 440 version")
    read = table.text("read")
    if read and not re.search(r"\d{4}-\d{2}-\d{2}$", read):
        table.problem("read", f"= {read!r} must say where and end with the day, like 2026-11-29")
    files = tuple(_file(name, version, key, table, read) for key in _FILE_KEYS if key in table)
    if not files:
        table.fault(f"names no file, wanted at least one of {', '.join(_FILE_KEYS)}")
    roles = table.texts("roles", optional=True)
    for word in roles:
        if word not in set(Role):
            table.problem("roles", f"= {word!r} is not one of {', '.join(Role)}{closest(word, Role)}")
    return Package(
        name, version, files,
        roles=tuple(Role(word) for word in roles if word in set(Role)),
        needed_by=table.texts("needed-by", optional=True),
        cuda=table.parsed("cuda", CudaVersion.parse, None, optional=True),
        commit=table.text("commit", ""),
        note=table.text("note", ""),
    )  # fmt: skip


def _version_of(name: str, version: str, table: Table) -> Package:
    return read_package(name, table, version)


def _file(name: str, version: str, key: str, outer: Table, read: str) -> FilePin:
    table = outer.table(key)
    filename = table.text("file")
    size = table.whole("size")
    if size <= 0 and "size" in table:
        table.problem("size", f"= {size} must be a number of bytes above 0")
    sha256 = table.parsed("sha256", Sha256, _NO_HASH)
    table.done()
    if filename and (fault := _misnamed(filename, name, version, key)):
        table.problem("file", f"= {filename!r} {fault}")
    return FilePin(name, version, filename, size, sha256, read, Cpu(key) if key in set(Cpu) else None)


def _misnamed(filename: str, name: str, version: str, key: str) -> str:
    """What a file's name contradicts, "" if nothing."""
    try:
        if key == "sdist":
            found, number = parse_sdist_filename(filename)
            platforms: set[str] = set()
        else:
            found, number, _, tags = parse_wheel_filename(filename)
            platforms = {tag.platform for tag in tags}
    except ValueError as error:
        return f"is not the name of a {'source distribution' if key == 'sdist' else 'wheel'}: {error}"
    if found != canonicalize_name(name):
        return f"belongs to {found}, not to {name}"
    if version and number != parsed_version(version):
        return f"is version {number}, the pin says {version}"
    if key == "any" and platforms != {"any"}:
        return "serves some platforms only, so it belongs under its CPU"
    if key in set(Cpu) and not any(platform.endswith(f"_{key}") for platform in platforms):
        return f"does not serve {key}"
    return ""


def _toolkit(release: str, table: Table) -> Toolkit:
    known = toolkit_releases().get(release)
    parts = _each(table, "part", read_package)
    if known is None:
        table.fault(f"the toolkit release {release} is not known{closest(release, toolkit_releases())}")
        return Toolkit(release, _NO_CUDA, tuple(parts))
    for part in parts:
        if not part.roles:
            table.table("part").problem(part.name, f"has no roles; they are {', '.join(Role)}")
        wanted = known.get(part.name)
        if wanted is None:
            table.table("part").problem(part.name, f"is no part of toolkit {release}{closest(part.name, known)}")
        elif parsed_version(part.version) and not wanted.contains(part.version, prereleases=True):
            table.table("part").problem(
                part.name, f"= {part.version} is of another release: {release} has {wanted}"
            )
    version = Version(release)
    return Toolkit(release, CudaVersion(version.major, version.minor), tuple(parts))


def _companions(version: str, table: Table) -> tuple[str, tuple[Package, ...]]:
    packages = []
    for name, inner in table.tables():
        packages.append(read_package(name, inner))
        inner.done()
    return version, tuple(packages)


def _line(
    name: str, table: Table, *, toolkits: list[Toolkit], tools: tuple[Package, ...], torches: list[Package]
) -> Line:
    named = {kit.release: kit for kit in toolkits}
    nothing = Toolkit("", _NO_CUDA, ())
    compiler = named.get(_chosen(table, "compiler", list(named)), nothing)
    runtime = named.get(_chosen(table, "runtime", list(named)), nothing)
    if compiler.cuda.major != runtime.cuda.major and compiler.parts and runtime.parts:
        table.problem(
            "runtime", f"= {runtime.release} and compiler = {compiler.release}: code runs on its own major only"
        )
    kind = _chosen(table, "toolchain", [str(kind) for kind in ToolchainKind])
    return Line(
        name, compiler, runtime,
        ToolchainKind(kind) if kind in set(ToolchainKind) else ToolchainKind.WHEELS,
        _archs(table, "vllm-archs"), _archs(table, "flashinfer-archs"),
        table.parsed("local", _local, ""), table.text("summary"), tools,
        tuple(torch for torch in torches if torch.cuda and torch.cuda.release == runtime.cuda),
    )  # fmt: skip


def _archs(table: Table, key: str) -> tuple[ArchSpec, ...]:
    archs = []
    for text in table.texts(key):
        try:
            archs.append(ArchSpec.parse(text))
        except ValueError as error:
            table.problem(key, f"holds {text!r}: {error}")
    if key in table and not archs:
        table.problem(key, "names no architecture; an empty list would mean automatic detection")
    return tuple(archs)


def _local(text: str) -> str:
    """A local version in its normal form."""
    try:
        version = Version(f"1+{text}")
    except ValueError as error:
        raise ValueError("a local version is letters and digits separated by dots (PEP 440)") from error
    if version.local != text:
        raise ValueError(f"its normal form is {version.local}")
    return text


def _release(
    version: str, table: Table, *, flashinfers: list[Package], companions: Mapping[str, tuple[Package, ...]]
) -> Release:
    own = read_package("vllm", table, version)
    if "sdist" not in table:
        table.problem("sdist", "is missing")
    sdists = [file for file in own.files if file.filename.endswith(".tar.gz")]
    requires = table.texts("requires")
    flashinfer = _chosen(table, "flashinfer", [package.version for package in flashinfers])
    if version not in companions:
        table.fault("has no companions in companions.toml")
    return Release(
        version, own.commit,
        table.parsed("python", _specifier, ""),
        _demanded_torch(table, requires),
        next((package for package in flashinfers if package.version == flashinfer), own),
        sdists[0] if sdists else FilePin("vllm", version, "", 0, _NO_HASH, ""),
        tuple(file for file in own.files if file.cpu is not None),
        requires,
        tuple(_each(table, "component", _component)),
        companions.get(version, ()),
    )  # fmt: skip


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError("a range of versions looks like >=3.11,<3.15") from error
    return text


def _demanded_torch(table: Table, requires: Iterable[str]) -> str:
    """The one torch version that upstream's METADATA allows."""
    found = ""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            table.problem("requires", f"holds {text!r}: {str(error).splitlines()[0]}")
            continue
        exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
        if requirement.name == "torch" and exact:
            found = exact[1]
    if not found:
        table.problem("requires", "has no exact torch, as in torch==2.14.0")
    return found


def _component(name: str, table: Table) -> Component:
    ref = table.text("ref")
    commit = table.parsed("commit", lambda text: str(GitCommit(text)), "", optional=True)
    if re.fullmatch(r"[0-9a-f]{40}", ref):
        commit = ref
    variable = table.text("variable")
    origins = tuple(_origin(inner) for inner in table.each("origin", optional=True))
    return Component(
        name, table.text("repository"), ref, commit, variable, origins, table.texts("extensions", optional=True)
    )


def _origin(table: Table) -> Origin:
    kind = _chosen(table, "kind", _ORIGINS)
    wheel = kind == "wheel"
    origin = Origin(
        kind,
        table.text("package", None if wheel else ""),
        table.text("path", None if wheel else ""),
        table.text("version", ""),
        table.text("note", ""),
    )
    table.done()
    return origin


def _contradictions(pins: Pins) -> list[str]:
    """Faults that only two entries together show."""
    seen: dict[str, FilePin] = {}
    problems = []
    packages = [
        *(part for kit in pins.toolkits for part in kit.parts),
        *(package for line in pins.lines for package in line.programs),
        *pins.torches,
        *(package for release in pins.releases for package in (release.flashinfer, *release.companions)),
    ]
    for package in packages:
        for file in package.files:
            other = seen.setdefault(file.filename, file)
            if (other.sha256, other.size) != (file.sha256, file.size):
                problems.append(
                    f"{file.filename} is pinned twice, with {other.size} bytes {other.sha256} and with "
                    f"{file.size} bytes {file.sha256}"
                )
    locals_: dict[str, str] = {}
    for line in pins.lines:
        other_line = locals_.setdefault(line.local, line.name)
        if other_line != line.name:
            problems.append(f"lines.toml: {other_line} and {line.name} share the local version {line.local!r}")
    return problems
