"""FlashInfer's modules as wheels that flashinfer-python finds by itself.

From 0.7 on the libraries lie in a wheel per architecture (`flashinfer-jit-cache-sm121a`), and a small one of
the name `flashinfer-jit-cache` tells FlashInfer which of those are installed; it finds them by an entry point.
Up to 0.6 one wheel does both. What FlashInfer asks of them: flashinfer/jit/env.py of 0.6.14 and 0.7.2.post1,
read 2026-11-30.
"""

from __future__ import annotations

import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.errors import PackError
from sm121.pack.ledger import LEDGER_NAME, Library, MadeWith, Origin, ledger_text
from sm121.pack.metadata import wheel_text
from sm121.pack.official import EXECUTABLE
from sm121.pack.packing import packed_files, packed_text, write_members
from sm121.pack.platform_tag import elf_machine, platform_tag_of
from sm121.pack.storage import completed_file
from sm121.sources.disk import writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.pack.packing import Packed
    from sm121.pack.platform_tag import PlatformTag
    from sm121.pack.stamp import Stamp

FINDER = "flashinfer-jit-cache"
"""The distribution that FlashInfer asks."""
ENTRY_POINTS = "flashinfer.jit_cache.providers"
"""Group of entry points by which the finder knows the installed providers."""

_FINDER = '''\
"""Tells FlashInfer which modules are there compiled ahead of time."""

from importlib.metadata import entry_points

__version__ = {version!r}


def get_jit_cache_providers():
    """Every installed provider, in the order of their names."""
    found = sorted(entry_points(group={group!r}), key=lambda entry: entry.name)
    return tuple(entry.load()() for entry in found)
'''
_PROVIDER = '''\
"""FlashInfer modules compiled ahead of time for {architecture}."""

from dataclasses import dataclass
from pathlib import Path

__version__ = {version!r}
_FOLDER = Path(__file__).resolve().parent / "jit_cache"


@dataclass(frozen=True)
class Provider:
    """What FlashInfer asks of a provider."""

    provider_id: str
    distribution: str
    version: str
    jit_cache_dir: Path
    cuda_architectures: frozenset
    modules: frozenset


def get_provider():
    """This wheel's modules: libraries NAME/NAME.so below `jit_cache_dir`."""
    return Provider(
        provider_id={architecture!r},
        distribution={distribution!r},
        version=__version__,
        jit_cache_dir=_FOLDER,
        cuda_architectures=frozenset([{architecture!r}]),
        modules=frozenset(path.stem for path in _FOLDER.glob("*/*.so")),
    )
'''
_WHOLE = '''\
"""FlashInfer modules compiled ahead of time."""

from pathlib import Path

__version__ = {version!r}


def get_jit_cache_dir():
    """The folder with the libraries NAME/NAME.so."""
    return str(Path(__file__).resolve().parent / "jit_cache")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWheel:
    """A complete wheel, not yet published. `zlib` is the version that deflated it."""

    path: Path
    sha256: Sha256
    platform_tag: PlatformTag | None
    """None for a wheel without libraries."""
    libraries: tuple[Library, ...]
    zlib: str = zlib.ZLIB_RUNTIME_VERSION


def assemble_modules(
    libraries: Mapping[str, Path],
    stamp: Stamp,
    architecture: str,
    cpu: str,
    into: Path,
    *,
    source: Path,
    made_with: MadeWith,
    licences: Mapping[str, bytes],
    epoch: int = 0,
) -> CacheWheel:
    """Write the wheel that holds `libraries` (module to file) into the folder `into`.

    `architecture` is `sm121a`, or "" for the one wheel of FlashInfer 0.6; `source` the flashinfer-python wheel whose
    sources were compiled, `licences` its licence files. Raises PackError with every fault before anything is written.
    """
    _check(libraries, cpu)
    package = f"{FINDER}-{architecture}".replace("-", "_") if architecture else FINDER.replace("-", "_")
    placed = {f"{package}/jit_cache/{name}/{name}.so": file for name, file in libraries.items()}
    base = f"{stamp.distribution}-{stamp.version}-cp39-abi3"
    tag = platform_tag_of(placed, cpu, f"{base}-linux_{cpu}.whl", scratch=into / "scratch")
    words = {"version": stamp.version, "architecture": architecture, "distribution": stamp.project}
    texts = {
        f"{package}/__init__.py": (_PROVIDER if architecture else _WHOLE).format(**words).encode(),
        f"{stamp.dist_info}/METADATA": _metadata(
            stamp, f"FlashInfer modules compiled ahead of time for {architecture or 'sm121a'}",
            [f"flashinfer-python=={stamp.base}", "torch"], sorted(licences),
        ),
        f"{stamp.dist_info}/WHEEL": wheel_text([f"cp39-abi3-{tag.tag}"]),
        **{f"{stamp.dist_info}/licenses/{name}": text for name, text in licences.items()},
    }  # fmt: skip
    if architecture:
        entry = f"[{ENTRY_POINTS}]\n{architecture} = {package}:get_provider\n"
        texts[f"{stamp.dist_info}/entry_points.txt"] = entry.encode()
    path = into / f"{base}-{tag.tag}.whl"
    with writing(into), tempfile.TemporaryDirectory(prefix=".packing-", dir=into) as scratch:
        ours = packed_files(placed, lambda _name: EXECUTABLE, Path(scratch))
        told = tuple(
            Library(name, Origin.SOURCE, each.sha256, each.entry.size) for name, each in sorted(ours.items())
        )
        origin = (source.name, Sha256.of_file(source))
        texts[f"{stamp.dist_info}/{LEDGER_NAME}"] = ledger_text(stamp, tag, origin, made_with, told)
        digest = _write(path, [*ours.values(), *_packed(texts)], stamp, epoch)
    return CacheWheel(path=path, sha256=digest, platform_tag=tag, libraries=told)


def assemble_finder(stamp: Stamp, providers: Sequence[str], into: Path, *, epoch: int = 0) -> CacheWheel:
    """Write the small wheel `flashinfer-jit-cache` that finds `providers`, distributions of the same version."""
    package = FINDER.replace("-", "_")
    texts = {
        f"{package}/__init__.py": _FINDER.format(version=stamp.version, group=ENTRY_POINTS).encode(),
        # FlashInfer's own checks want nothing but providers here, pinned to this very version.
        f"{stamp.dist_info}/METADATA": _metadata(
            stamp, "Finds FlashInfer modules that are compiled ahead of time",
            [f"{name}=={stamp.version}" for name in providers], [],
        ),
        f"{stamp.dist_info}/WHEEL": wheel_text(["py3-none-any"], pure=True),
    }  # fmt: skip
    path = into / f"{stamp.distribution}-{stamp.version}-py3-none-any.whl"
    with writing(into):
        digest = _write(path, _packed(texts), stamp, epoch)
    return CacheWheel(path=path, sha256=digest, platform_tag=None, libraries=())


def _check(libraries: Mapping[str, Path], cpu: str) -> None:
    problems = [] if libraries else ["a wheel of modules was wanted, and there is none."]
    for name, file in sorted(libraries.items()):
        try:
            with file.open("rb") as opened:
                machine = elf_machine(opened.read(20))
        except OSError as error:
            machine = f"nothing that can be read ({error.strerror})"
        if machine != cpu:
            problems.append(f"{file}, the module {name}, should be a library for {cpu}, found {machine}.")
    if problems:
        raise PackError(problems, do="compile the modules again; nothing was written.")


def _packed(texts: Mapping[str, bytes]) -> list[Packed]:
    return [packed_text(name, data) for name, data in texts.items()]


def _write(path: Path, members: list[Packed], stamp: Stamp, epoch: int) -> Sha256:
    path.parent.mkdir(parents=True, exist_ok=True)
    with completed_file(path) as file:
        _, digest, _ = write_members(file, members, stamp.dist_info, epoch)
    return digest


def _metadata(stamp: Stamp, summary: str, requires: Sequence[str], licences: Sequence[str]) -> bytes:
    lines = [
        "Metadata-Version: 2.4", f"Name: {stamp.project}", f"Version: {stamp.version}", f"Summary: {summary}",
        "License-Expression: Apache-2.0", *(f"License-File: {name}" for name in licences),
        "Requires-Python: >=3.10", *(f"Requires-Dist: {requirement}" for requirement in requires),
    ]  # fmt: skip
    return ("\n".join(lines) + "\n").encode()
