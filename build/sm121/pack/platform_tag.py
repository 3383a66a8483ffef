"""The platform tag of a wheel, as auditwheel's analysis finds it.

The tag follows from the symbol versions that the libraries ask of the C library, the C++ runtime and their kin.
auditwheel reads ELF files only, so it is given a reduced wheel that holds nothing else; what it cannot bring
under a manylinux policy is an error here, never a tag that promises more than the files hold.
"""

from __future__ import annotations

import re
import struct
import tempfile
import tomllib
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from auditwheel.architecture import Architecture
from auditwheel.elfutils import elf_find_versioned_symbols
from auditwheel.error import AuditwheelError
from auditwheel.libc import Libc
from auditwheel.wheel_abi import analyze_wheel_abi
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from packaging.utils import parse_wheel_filename

from sm121.errors import PackError
from sm121.pack.archive import STORED, ArchiveWriter, Entry
from sm121.pack.metadata import wheel_text
from sm121.pack.official import ELF_MAGIC, EXECUTABLE, OfficialWheel
from sm121.pack.storage import pieces
from sm121.sources.disk import writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from auditwheel.policy import Policy
    from auditwheel.wheel_abi import WheelAbIInfo

_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_MACHINES = {"aarch64": 183, "x86_64": 62}


@dataclass(frozen=True, slots=True)
class SymbolNeed:
    """A member and those of its versioned symbols that keep the wheel from an older platform tag."""

    path: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlatformTag:
    """A tag such as `manylinux_2_28_aarch64` with what decided it. No needs: the oldest policy there is."""

    tag: str
    decided_by: tuple[SymbolNeed, ...] = ()

    @property
    def glibc(self) -> tuple[int, int]:
        """The oldest C library that the tag admits."""
        match = _MANYLINUX.fullmatch(self.tag)
        if match is None:
            raise PackError(f"a tag such as manylinux_2_28_aarch64 was wanted, found {self.tag!r}.")
        return int(match[1]), int(match[2])

    @property
    def cpu(self) -> str:
        """`aarch64` or `x86_64`."""
        match = _MANYLINUX.fullmatch(self.tag)
        if match is None or match[3] not in _MACHINES:
            raise PackError(f"a tag for aarch64 or x86_64 was wanted, found {self.tag!r}.")
        return match[3]

    def __str__(self) -> str:
        return self.tag


def elf_machine(start: bytes) -> str:
    """The CPU in the first 20 bytes of an ELF file; `machine 40` for one that we do not build for."""
    number = int(struct.unpack_from("<H", start, 18)[0]) if len(start) >= 20 else 0
    return next((name for name, value in _MACHINES.items() if value == number), f"machine {number}")


def libraries_elsewhere() -> tuple[str, ...]:
    """Patterns of sonames that torch, CUDA's runtime wheels or the driver bring."""
    text = resources.files(__package__).joinpath("elsewhere.toml").read_text(encoding="utf-8")
    return tuple(name for group in tomllib.loads(text)["library"] for name in group["names"])


def find_platform_tag(
    official: Path, replaced: Mapping[str, Path], left_out: Collection[str], cpu: str, *, scratch: Path
) -> PlatformTag:
    """The tag of the official wheel's ELF members, without `left_out` and with `replaced` in their places.

    `scratch` is a folder on a disk with room for all of them, packed and unpacked (1.1 GB for vLLM 0.33.0);
    nothing stays there.
    Raises PackError when no manylinux tag fits, naming every reason.
    """
    if cpu not in _MACHINES:
        raise PackError(f"a wheel for aarch64 or x86_64 was wanted, found {cpu!r}.")
    with writing(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch.resolve()) as name:
            folder = Path(name)
            needs = _reduce(official, replaced, left_out, folder)
            info = _analyse(folder / official.name, Architecture(cpu), folder)
    return _tag(info, needs, official.name)


def platform_tag_of(libraries: Mapping[str, Path], cpu: str, filename: str, *, scratch: Path) -> PlatformTag:
    """The tag of a wheel that holds these libraries (path in the wheel to file) and no others.

    `filename` is the wheel's name with any platform tag; `scratch` and failures as in `find_platform_tag`.
    """
    if cpu not in _MACHINES:
        raise PackError(f"a wheel for aarch64 or x86_64 was wanted, found {cpu!r}.")
    _, _, _, tags = parse_wheel_filename(filename)
    with writing(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch.resolve()) as name:
            folder = Path(name)
            needs = {path: _versioned_symbols(file, path) for path, file in sorted(libraries.items())}
            with (folder / filename).open("wb") as file:
                writer = ArchiveWriter(file, 0)
                for path, library in sorted(libraries.items()):
                    writer.add(_stored(path, pieces(library)), pieces(library))
                _add_records(writer, "-".join(filename.split("-")[:2]) + ".dist-info", map(str, tags), needs)
            info = _analyse(folder / filename, Architecture(cpu), folder)
    return _tag(info, needs, filename)


def _tag(info: WheelAbIInfo, needs: Mapping[str, frozenset[str]], name: str) -> PlatformTag:
    problems = _problems(info, needs)
    if problems:
        raise PackError(
            [f"no manylinux tag fits the libraries for {name}: {each}." for each in problems],
            do="build with an older C library, or leave the library out.",
        )
    return PlatformTag(info.overall_policy.name, _deciding(info, needs))


def _reduce(
    official: Path, replaced: Mapping[str, Path], left_out: Collection[str], folder: Path
) -> dict[str, frozenset[str]]:
    """Write a wheel that holds the ELF members alone; return the versioned symbols that each asks for."""
    needs: dict[str, frozenset[str]] = {}
    with OfficialWheel.open(official) as wheel, (folder / official.name).open("wb") as file:
        writer = ArchiveWriter(file, 0)
        for name in sorted({*wheel.infos, *replaced} - set(left_out)):
            if name in replaced:
                needs[name] = _versioned_symbols(replaced[name], name)
                writer.add(_stored(name, pieces(replaced[name])), pieces(replaced[name]))
            elif next(wheel.inflated(name), b"")[:4] == ELF_MAGIC:
                with (folder / "member").open("wb") as unpacked:
                    unpacked.writelines(wheel.inflated(name))
                needs[name] = _versioned_symbols(folder / "member", name)
                writer.add(wheel.entry(name, name), wheel.raw(name))
        _add_records(writer, wheel.dist_info, map(str, wheel.tags), needs)
    return needs


def _add_records(writer: ArchiveWriter, dist_info: str, tags: Iterable[str], members: Iterable[str]) -> None:
    for name, text in (
        (f"{dist_info}/WHEEL", wheel_text(tags)),
        (f"{dist_info}/RECORD", "".join(f"{each},,\n" for each in members).encode()),
    ):
        writer.add(_stored(name, [text]), [text])
    writer.finish()


def _stored(name: str, data: Iterable[bytes]) -> Entry:
    size = crc = 0
    for piece in data:
        crc = zlib.crc32(piece, crc)
        size += len(piece)
    return Entry(name, crc, size, size, STORED, EXECUTABLE)


def _versioned_symbols(path: Path, name: str) -> frozenset[str]:
    try:
        with path.open("rb") as file:
            return frozenset(symbol for _, symbol in elf_find_versioned_symbols(ELFFile(file)))
    except (ELFError, ValueError, KeyError, AssertionError) as error:
        raise PackError(
            f"{name} is no ELF file that can be read: {str(error) or type(error).__name__}."
        ) from error


def _analyse(reduced: Path, cpu: Architecture, scratch: Path) -> WheelAbIInfo:
    """Let auditwheel look at the reduced wheel, and at no library of this machine.

    It unpacks into Python's temporary folder, which is memory on many machines: for the time of the call that
    folder is `scratch`. It also changes the working directory and back, so nothing else may run beside it.
    """
    before = tempfile.tempdir
    tempfile.tempdir = str(scratch)
    try:
        return analyze_wheel_abi(
            Libc.GLIBC, cpu, reduced, frozenset(libraries_elsewhere()),
            disable_isa_ext_check=False, allow_graft=False, args_ldpaths="",
        )  # fmt: skip
    except (AuditwheelError, ELFError, RuntimeError, LookupError, ValueError, AssertionError) as error:
        raise PackError(
            f"auditwheel cannot tell the platform tag of {reduced.name}: {str(error) or type(error).__name__}.",
            do="look at the libraries; without a tag there is no wheel.",
        ) from error
    finally:
        tempfile.tempdir = before


def _problems(info: WheelAbIInfo, needs: Mapping[str, frozenset[str]]) -> list[str]:
    """Why the analysis gives no manylinux tag, or did not cover all members."""
    policies = info.policies
    seen = {str(path) for path in info.full_external_refs}
    problems = [
        f"auditwheel passed over {name}, which is for another CPU or C library"
        for name in needs
        if name not in seen
    ]
    if info.overall_policy != policies.linux:
        return problems
    newest = policies.lowest
    external = info.external_refs[newest.name]
    problems += [
        f"{', '.join(users)} needs {library}, which is neither in the wheel nor a part of {newest.name}"
        for library in sorted(external.libs)
        if (users := _users(info, library, newest.name))
    ]
    problems += [
        f"{library} is used with symbols that no tag admits: {', '.join(symbols)}"
        for library, symbols in sorted(external.blacklist.items())
    ]
    if info.sym_policy == policies.linux:
        problems += [
            f"{need.path} asks for {', '.join(need.symbols)}, newer than {newest.name}"
            for need in _beyond(newest, needs)
        ]
    if info.machine_policy == policies.linux:
        problems.append("a library asks for a CPU extension that the tag's CPU need not have")
    return problems or [f"auditwheel says {info.overall_policy.name} without a reason that is known here"]


def _users(info: WheelAbIInfo, library: str, policy: str) -> list[str]:
    return sorted(str(path) for path, refs in info.full_external_refs.items() if library in refs[policy].libs)


def _deciding(info: WheelAbIInfo, needs: Mapping[str, frozenset[str]]) -> tuple[SymbolNeed, ...]:
    """What the next older tag lacks."""
    older = [policy for policy in info.policies if policy > info.overall_policy]
    return _beyond(min(older), needs) if older else ()


def _beyond(policy: Policy, needs: Mapping[str, frozenset[str]]) -> tuple[SymbolNeed, ...]:
    admitted = {f"{kind}_{version}" for kind, versions in policy.symbol_versions.items() for version in versions}
    found = (
        (
            path,
            sorted(symbol for symbol in symbols - admitted if symbol.partition("_")[0] in policy.symbol_versions),
        )
        for path, symbols in sorted(needs.items())
    )
    return tuple(SymbolNeed(path, tuple(symbols)) for path, symbols in found if symbols)
