"""ptxas: who it is, what it refuses, and its results kept by content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from finish_files import fixture

from sm121.device import payload, read_device_code
from sm121.errors import FinishError, ToolchainError
from sm121.finish.ptxas import Assembler, Ptxas
from sm121.values import ArchSpec, CudaVersion, Sha256

if TYPE_CHECKING:
    from pathlib import Path

    from finish_files import RecordedPtxas

SM121 = ArchSpec(12, 1)


def ptx() -> bytes:
    data = fixture("x86_64.so")
    return payload(data, next(image for image in read_device_code(data).images if image.kind == "ptx")).rstrip(
        b"\0"
    )


def test_it_is_named_by_version_and_digest(ptxas: RecordedPtxas) -> None:
    found = Ptxas.at(ptxas.path)
    assert found.version == CudaVersion(13, 0, 88)
    assert found.sha256 == Sha256.of_file(ptxas.path)


def test_what_is_no_ptxas_is_refused(ptxas: RecordedPtxas, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="there is no ptxas at"):
        Ptxas.at(tmp_path / "missing")
    for said in ("", "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"):
        ptxas.says = said
        with pytest.raises(ToolchainError, match="should be a ptxas"):
            Ptxas.at(ptxas.path)


def test_ptx_that_it_cannot_read_is_refused_in_its_words(ptxas: RecordedPtxas) -> None:
    found = Ptxas.at(ptxas.path)
    assert found.refusal((9, 0), ArchSpec(8, 0), SM121) == ""
    newer = found.refusal((9, 5), ArchSpec(8, 0), SM121)
    assert newer.startswith("PTX 9.5 for compute_80 is newer than ptxas 13.0.88, which says: ")
    assert "current version is '9.0'" in newer
    assert "cannot be compiled for sm_121" in found.refusal((9, 0), ArchSpec(9, 0, "a"), SM121)


def test_a_result_is_made_once(ptxas: RecordedPtxas, tmp_path: Path) -> None:
    assembler = Assembler(Ptxas.at(ptxas.path), tmp_path / "cache")
    assert not assembler.has(ptx(), SM121, ())
    first = assembler.assemble(ptx(), SM121, ())
    assert assembler.has(ptx(), SM121, ())
    assert assembler.assemble(ptx(), SM121, ()) == first
    assert len(ptxas.compiled) == 1
    assert first.seconds == 0.5
    assembler.assemble(ptx(), SM121, ("-O2",))
    ptxas.path.write_bytes(b"another program")
    Assembler(Ptxas.at(ptxas.path), tmp_path / "cache").assemble(ptx(), SM121, ())
    assert len(ptxas.compiled) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "no record", "no json", "other json"])
def test_a_damaged_result_is_made_again(ptxas: RecordedPtxas, tmp_path: Path, damage: str) -> None:
    assembler = Assembler(Ptxas.at(ptxas.path), tmp_path / "cache")
    first = assembler.assemble(ptx(), SM121, ())
    (cubin,) = (tmp_path / "cache").glob("*.cubin")
    record = cubin.with_suffix(".json")
    data = cubin.read_bytes()
    match damage:
        case "cut":
            cubin.write_bytes(data[:-1])
        case "flipped":
            cubin.write_bytes(data[:2000] + bytes([data[2000] ^ 1]) + data[2001:])
        case "no record":
            record.unlink()
        case "no json":
            record.write_bytes(b"{")
        case _:
            record.write_text(json.dumps([1]))
    assert assembler.assemble(ptx(), SM121, ()) == first
    assert len(ptxas.compiled) == 2


def test_a_failure_is_told_and_leaves_nothing(ptxas: RecordedPtxas, tmp_path: Path) -> None:
    ptxas.fail = Sha256.of_bytes(ptx()).hex[:16]
    with pytest.raises(FinishError, match="was never seen"):
        Assembler(Ptxas.at(ptxas.path), tmp_path / "cache").assemble(ptx(), SM121, ())
    assert not list(tmp_path.glob("cache/*"))
