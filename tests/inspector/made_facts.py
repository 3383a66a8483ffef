"""Facts and wheels made for tests of the inspector."""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121.artifact import Distribution
from sm121.device import Code, HostLibrary, Toolkit
from sm121.inspector.facts import ABSENT, ImageFacts, LibraryFacts, UnitFacts, UnitKernel
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TESTS = Path(__file__).parent.parent
FIXTURES = TESTS / "device" / "fixtures"
CODE = Code(instructions=100, mma=0, fp4=0, traps=0, writes=3, calls=0)
SILENT = Code(instructions=16, mma=0, fp4=0, traps=0, writes=0, calls=1)
PTXAS = Toolkit("ptxas", "13.0.88", "-arch sm_120")


def cases(kind: str) -> list[dict[str, Any]]:
    """The published cases of a kind."""
    text = (TESTS / "cases" / f"{kind}.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["case"]
    return found


def image(
    target: str,
    *,
    kernels: int | None = 1,
    isa: tuple[int, int] | None = None,
    size: int = 1000,
    toolkit: Toolkit | None = None,
) -> ImageFacts:
    """An image by its target: `sm_120f`, `compute_80`."""
    ptx = target.startswith("compute_")
    return ImageFacts(
        "ptx" if ptx else "cubin", ArchSpec.from_sm(target), size, size, "", isa or ((9, 0) if ptx else (1, 8)),
        None if ptx else toolkit or PTXAS, kernels,
    )  # fmt: skip


def unit(
    targets: Iterable[str | ImageFacts],
    kernels: Mapping[str, Sequence[int | None]] | None = None,
    *,
    code: Mapping[str, Code] | None = None,
    index: int = 0,
) -> UnitFacts:
    """A unit of images; `kernels` maps names to their sizes in each image, None where they are absent."""
    images = tuple(image(item) if isinstance(item, str) else item for item in targets)
    named = kernels if kernels is not None else {"kernel": [100] * len(images)}
    rows = []
    for name, sizes in named.items():
        body = (code or {}).get(name, CODE)
        row = tuple(ABSENT if size is None else size for size in sizes)
        rows.append(UnitKernel(name, row, 32, body.fp4, body.fp8, body.traps, inert=not body.writes))
    return UnitFacts(".nv_fatbin", index, images, tuple(rows))


def library(
    path: str, units: Iterable[UnitFacts] = (), *, host: HostLibrary | None = None, machine: str = "aarch64"
) -> LibraryFacts:
    """A library of units, or a host library."""
    return LibraryFacts(path, 1000, "elf", machine, tuple(units), host=host or host_library(machine=machine))


def listed_library(path: str, targets: Mapping[str, int]) -> LibraryFacts:
    """A library of which only the number of images per target is known."""
    images = [target for target, count in targets.items() for _ in range(count)]
    units = (UnitFacts("", index, (image(target, kernels=None),)) for index, target in enumerate(images))
    return LibraryFacts(path, 1000, "elf", "aarch64", tuple(units), looked_into=False)


def host_library(
    needed: Sequence[str] = (),
    *,
    undefined: Iterable[str] = (),
    defined: Iterable[str] = (),
    versions: Mapping[str, tuple[str, ...]] | None = None,
    machine: str = "aarch64",
) -> HostLibrary:
    """What a library asks of its host."""
    return HostLibrary(
        machine=machine, type="shared", soname="", needed=tuple(needed), rpath=(), runpath=(), build_id="ab12",
        version_needs=dict(versions or {}), defined=frozenset(defined), undefined=frozenset(undefined), comment=(),
        damage=(),
    )  # fmt: skip


def distribution(
    name: str, version: str, *, requires: Sequence[str] = (), rows: Sequence[str] = (), site: str = ""
) -> Distribution:
    """A distribution with RECORD rows as they stand in the file."""
    metadata = "\n".join(
        [
            "Metadata-Version: 2.4",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {line}" for line in requires),
        ]
    )
    folder = f"{site}/" if site else ""
    return Distribution.read(
        f"{folder}{name}-{version}.dist-info",
        {
            "METADATA": f"{metadata}\n".encode(),
            "RECORD": "\n".join(rows).encode(),
            "WHEEL": b"Wheel-Version: 1.0\n",
        },
    )


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "vllm",
    version: str = "0.33.0",
    tag: str = "cp38-abi3-linux_aarch64",
    inside: str = "",
    requires: Sequence[str] = ("torch==2.14.0",),
    record: bytes | None = None,
) -> Path:
    """Write a wheel with METADATA, WHEEL and a true RECORD (or the one given)."""
    info = f"{name}-{version}.dist-info"
    metadata = "\n".join(
        [
            "Metadata-Version: 2.4",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {item}" for item in requires),
        ]
    )
    content = {
        **files,
        f"{info}/METADATA": f"{metadata}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {inside or tag}\n".encode(),
    }
    rows = [f"{path},{_hashed(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = (
        record if record is not None else "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    )
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    return path


def fixture(name: str) -> bytes:
    """A small file with device code."""
    return (FIXTURES / name).read_bytes()


def _hashed(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
