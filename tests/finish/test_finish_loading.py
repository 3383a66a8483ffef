"""Finished libraries in the dynamic loader: what the CUDA runtime is handed, exceptions, rights of the memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from finish_files import FIXTURES, RecordedPtxas

from sm121 import process
from sm121.device import ElfFile, read_device_code
from sm121.finish.library import finish_library
from sm121.finish.model import Layout
from sm121.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.programs

SOURCE = Path(__file__).parent / "loading.cc"
KINDS = {"ptx": 1, "cubin": 2}
COMPILERS = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
ROOT = "/usr/aarch64-linux-gnu"


def loader(cpu: str, folder: Path) -> list[str]:
    """The command that loads a library for `cpu` with our own runtime."""
    compiler = shutil.which(COMPILERS[cpu])
    native = cpu == process.run(["uname", "-m"]).stdout.strip()
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not compiler or not (native or (cpu == "aarch64" and emulator)):
        pytest.skip(f"no compiler or no emulator for {cpu} on this machine")
    program = folder / f"loading-{cpu}"
    process.run([compiler, "-O1", "-rdynamic", SOURCE, "-o", program, "-ldl"])
    return [str(program)] if native else [str(emulator), "-L", ROOT, str(program)]


@pytest.fixture
def ptxas(tmp_path: Path) -> RecordedPtxas:
    return RecordedPtxas(tmp_path)


def finish(
    ptxas: RecordedPtxas, name: str, layout: Layout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    out = folder / f"{layout}-{name}"
    with monkeypatch.context() as patched:
        patched.setattr(process, "run", ptxas.run)
        patched.setattr(process, "measure", ptxas.measure)
        finish_library(FIXTURES / name, out, ptxas.settings(folder, layout=layout), Progress(quiet=True))
    return out


def loaded(command: Sequence[str], library: Path) -> list[str]:
    return process.run([*command, library]).stdout.splitlines()


def handed_over(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("466243b1")]


def expected(library: Path) -> list[str]:
    """What the reader says: of each container its size and its entries."""
    return sorted(
        f"466243b1 ba55ed50 {each.size - 16}"
        + "".join(f" {KINDS[image.kind]}:{image.arch.number}" for image in each.images)
        for each in read_device_code(library.read_bytes()).containers
    )


@pytest.mark.parametrize(
    ("cpu", "name", "layout"),
    [
        ("x86_64", "x86_64.so", Layout.COMPACT),
        ("x86_64", "ptx_120f.so", Layout.COMPACT),
        ("x86_64", "ptx_120f.so", Layout.IN_PLACE),
        ("aarch64", "aarch64.so", Layout.COMPACT),
    ],
)
def test_the_runtime_is_handed_each_unit_with_its_kernels(
    ptxas: RecordedPtxas, tmp_path: Path, cpu: str, name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = loader(cpu, tmp_path)
    library = finish(ptxas, name, layout, tmp_path, monkeypatch)
    before, after = loaded(command, FIXTURES / name), loaded(command, library)
    assert sorted(handed_over(before)) == expected(FIXTURES / name)
    assert sorted(handed_over(after)) == expected(library)
    assert [number(line) for line in after if keeps(line)] == [number(line) for line in before if keeps(line)]
    assert any(line.startswith("caught 121 from") for line in after)


def keeps(line: str) -> bool:
    return not line.startswith("map ")


def number(line: str) -> str:
    """The order in which units, kernels and exceptions come, without what finishing changes."""
    return "unit" if line.startswith("466243b1") else line


def test_tables_that_moved_beside_data_are_read_only_when_code_runs(
    ptxas: RecordedPtxas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = loader("x86_64", tmp_path)
    library = finish(ptxas, "x86_64.so", Layout.COMPACT, tmp_path, monkeypatch)
    maps = [line.split()[1:3] for line in loaded(command, library) if line.startswith("map ")]
    spans = []
    for span, rights in maps:
        start, _, end = span.partition("-")
        spans.append((int(start, 16), int(end, 16), rights))
    base = min(start for start, _, _ in spans)
    elf = ElfFile.parse(library.read_bytes())
    for name, wanted in {
        ".text": "r-xp", ".nv_fatbin": "r--p", ".eh_frame_hdr": "r--p", ".eh_frame": "r--p", ".gcc_except_table": "r--p",
        ".dynamic": "r--p", ".nvFatBinSegment": "rw-p",
    }.items():  # fmt: skip
        (section,) = elf.named(name)
        for address in section.address, section.address + section.size - 1:
            assert [rights for start, end, rights in spans if start <= base + address < end] == [wanted], name


@pytest.mark.parametrize("name", ["x86_64.so", "aarch64.so"])
def test_strip_leaves_a_compact_library_whole(
    ptxas: RecordedPtxas, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = name.removesuffix(".so")
    command = loader(cpu, tmp_path)
    strip = shutil.which(COMPILERS[cpu].replace("g++", "strip"))
    if not strip:
        pytest.skip(f"no strip for {cpu}")
    library = finish(ptxas, name, Layout.COMPACT, tmp_path, monkeypatch)
    whole = handed_over(loaded(command, library))
    said = process.run([strip, library])
    assert said.stderr == ""
    assert handed_over(loaded(command, library)) == whole != []
    assert not read_device_code(library.read_bytes()).damage
