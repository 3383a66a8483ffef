"""The real ptxas, cuobjdump and nvdisasm over finished fixtures, each by hash."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from finish_files import FIXTURES, LIBRARIES

from pinned_wheels import inspection_program, ptxas_of
from sm121 import process
from sm121.device import payload, read_device_code, read_mark
from sm121.finish.library import Settings, finish_library
from sm121.finish.model import FinishedLibrary, Layout
from sm121.finish.ptxas import Ptxas
from sm121.progress import Progress
from sm121.target import GB10, Capability
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.network]

RECORDED = CudaVersion(13, 0, 88)
TOOLKIT = "13.0"


@pytest.fixture(scope="module")
def ptxas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ptxas_of(TOOLKIT, tmp_path_factory.mktemp("ptxas"))


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inspection_program("cuobjdump", tmp_path_factory.mktemp("cuobjdump"))


@pytest.fixture(scope="module")
def nvdisasm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inspection_program("nvdisasm", tmp_path_factory.mktemp("nvdisasm"))


def finish(
    name: str, out: Path, ptxas: Path, *, target: Capability = GB10, keep_ptx: bool = False
) -> FinishedLibrary:
    settings = Settings(target=target, ptxas=ptxas, cache=out.parent / "cache", keep_ptx=keep_ptx)
    return finish_library(FIXTURES / name, out, settings, Progress(quiet=True))


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_same_ptxas_gives_the_recorded_machine_code(ptxas: Path, tmp_path: Path, name: str) -> None:
    assert Ptxas.at(ptxas).version == RECORDED
    finish(name, tmp_path / "out.so", ptxas)
    data = (tmp_path / "out.so").read_bytes()
    marks = read_mark(data)
    assert marks
    for mark in marks:
        recorded = FIXTURES / "cubins" / f"{mark.ptx}.{mark.image.arch.sm}.cubin"
        assert payload(data, mark.image) == recorded.read_bytes()


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("keep_ptx", [False, True])
def test_cuobjdump_agrees(ptxas: Path, cuobjdump: Path, tmp_path: Path, name: str, keep_ptx: bool) -> None:
    out = tmp_path / "out.so"
    finish(name, out, ptxas, keep_ptx=keep_ptx)
    images = read_device_code(out.read_bytes()).images
    said = process.run([cuobjdump, "-all", "-lelf", "-lptx", out]).stdout
    listed = sorted(re.findall(r"\.(sm_\d+)[af]?\.(cubin|ptx)$", said, re.MULTILINE))
    kinds = {"cubin": "cubin", "ptx": "ptx"}
    assert listed == sorted((f"sm_{image.arch.number}", kinds[image.kind]) for image in images)
    names = re.findall(r"identifier = (\S+)", process.run([cuobjdump, "-all", out]).stdout)
    assert sorted(names) == sorted(mark.image.name for mark in read_mark(out.read_bytes()))


@pytest.mark.parametrize("name", LIBRARIES)
def test_nvdisasm_reads_every_new_cubin(ptxas: Path, nvdisasm: Path, tmp_path: Path, name: str) -> None:
    finish(name, tmp_path / "out.so", ptxas)
    data = (tmp_path / "out.so").read_bytes()
    for mark in read_mark(data):
        cubin = tmp_path / f"{mark.ptx}.cubin"
        cubin.write_bytes(payload(data, mark.image))
        text = process.run([nvdisasm, cubin]).stdout
        assert "EXIT" in text
        assert ".text." in text


def test_other_capabilities_get_code_of_their_own(ptxas: Path, tmp_path: Path) -> None:
    for target in Capability(9, 0), Capability(10, 0):
        finish("x86_64.so", tmp_path / "out.so", ptxas, target=target)
        made = {mark.image.target for mark in read_mark((tmp_path / "out.so").read_bytes())}
        assert made == {ArchSpec(target.major, target.minor).sm}


def test_refusals_are_those_of_ptxas_itself(ptxas: Path) -> None:
    found = Ptxas.at(ptxas)
    assert found.refusal((9, 0), ArchSpec(8, 0), ArchSpec(12, 1)) == ""
    assert found.refusal((9, 0), ArchSpec(12, 0, "f"), ArchSpec(12, 1, "f")) == ""
    assert "is newer than ptxas" in found.refusal((99, 0), ArchSpec(8, 0), ArchSpec(12, 1))
    assert "does not know sm_129" in found.refusal((9, 0), ArchSpec(8, 0), ArchSpec(12, 9))
    assert "cannot be compiled for sm_121" in found.refusal((9, 0), ArchSpec(9, 0, "a"), ArchSpec(12, 1))


def test_objects_keep_their_layout(ptxas: Path, tmp_path: Path) -> None:
    result = finish("options.o", tmp_path / "out.o", ptxas)
    assert result.layout is Layout.IN_PLACE
    assert result.units[0].compiled
    assert result.units[0].compiled.options == ("-O2", "-maxrregcount=32")
