"""Libraries finished from end to end, with a recorded ptxas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from finish_files import FIXTURES, LIBRARIES, copy, fixture

from sm121.device import ElfFile, payload, ptx_kernels, read_cubin, read_device_code
from sm121.device.mark import read_mark
from sm121.errors import FinishError, StorageError, UsageError
from sm121.finish import library as finishing
from sm121.finish.library import finish_libraries, finish_library, plan_libraries
from sm121.finish.model import Layout
from sm121.finish.units import Deed
from sm121.target import GB10, loads_as
from sm121.values import ArchSpec, Sha256

if TYPE_CHECKING:
    from pathlib import Path

    from finish_files import RecordedPtxas

    from sm121.progress import Progress

SECTION = ".nv_fatbin"
IN_PLACE = ("ptx_120f.so", "options.o")


def finished(
    ptxas: RecordedPtxas, quiet: Progress, folder: Path, name: str, layout: Layout = Layout.COMPACT, **more: bool
) -> bytes:
    out = folder / f"{layout}-{name}"
    finish_library(FIXTURES / name, out, ptxas.settings(folder, layout=layout, **more), quiet)
    return out.read_bytes()


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("keep_ptx", [False, True])
def test_nothing_is_left_to_compile_and_nothing_dead_is_left(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, name: str, keep_ptx: bool
) -> None:
    old, data = fixture(name), finished(ptxas, quiet, tmp_path, name, keep_ptx=keep_ptx)
    before, after = read_device_code(old), read_device_code(data)
    assert not after.damage
    assert not after.notices
    assert len(after.containers) == len(before.containers)
    for was, now in zip(before.containers, after.containers, strict=True):
        how = [loads_as(image.kind, image.arch, GB10) for image in was.images]
        cubins = [image for image in now.images if image.kind == "cubin"]
        assert bool(cubins) == any(each.value != "no" for each in how)
        assert all(loads_as(image.kind, image.arch, GB10).machine_code for image in cubins)
        usable = [image.target for image in was.images if loads_as(image.kind, image.arch, GB10).value == "jit"]
        assert [image.target for image in now.images if image.kind == "ptx"] == (usable if keep_ptx else [])


@pytest.mark.parametrize("name", LIBRARIES)
def test_new_machine_code_has_the_kernels_of_its_ptx(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, name: str
) -> None:
    data = finished(ptxas, quiet, tmp_path, name)
    old = fixture(name)
    ptx = {
        Sha256.of_bytes(text).hex[:16]: text
        for image in read_device_code(old).images
        if image.kind == "ptx"
        for text in [payload(old, image).rstrip(b"\0")]
    }
    marks = read_mark(data)
    assert len(marks) == len(ptxas.compiled)
    for mark in marks:
        kernels = {kernel.name for kernel in read_cubin(payload(data, mark.image)).kernels}
        assert kernels == {*ptx_kernels(ptx[mark.ptx])}
        assert mark.image.compression == "zstd"


@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, Layout.COMPACT) for name in LIBRARIES), *((name, Layout.IN_PLACE) for name in IN_PLACE)],
)
def test_finishing_twice_gives_the_same_bytes(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, name: str, layout: Layout
) -> None:
    first = finished(ptxas, quiet, tmp_path, name, layout)
    again = tmp_path / "again.so"
    for each in Layout.COMPACT, Layout.IN_PLACE:
        result = finish_library(
            tmp_path / f"{layout}-{name}", again, ptxas.settings(tmp_path, layout=each), quiet
        )
        assert again.read_bytes() == first
        assert not result.changed
        assert result.layout is Layout.UNCHANGED
    assert finished(ptxas, quiet, tmp_path, name, layout) == first


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_only_device_code_differs_and_the_freed_room_is_zero(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, name: str
) -> None:
    old, new = fixture(name), finished(ptxas, quiet, tmp_path, name, Layout.IN_PLACE)
    assert len(old) == len(new)
    rest = bytearray(old)
    for was, now in zip(read_device_code(old).containers, read_device_code(new).containers, strict=True):
        assert was.offset == now.offset
        end = was.offset + was.size
        assert new[now.offset + now.size : end] == bytes(was.size - now.size)
        rest[was.offset : end] = new[was.offset : end]
    assert bytes(rest) == new


@pytest.mark.parametrize("name", LIBRARIES)
def test_compact_is_smaller_by_whole_pages_and_keeps_every_address(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, name: str
) -> None:
    old, new = fixture(name), finished(ptxas, quiet, tmp_path, name)
    saved = len(old) - len(new)
    assert saved > 0
    assert saved % 4096 == 0
    first, second = ElfFile.parse(old), ElfFile.parse(new)
    assert [(s.name, s.address) for s in first.sections] == [(s.name, s.address) for s in second.sections]
    assert [s.type for s in first.segments] == [s.type for s in second.segments]
    (device,) = second.named(SECTION)
    assert device.size == sum(each.size for each in read_device_code(new).containers)


def test_a_library_that_loads_as_it_is_stays_as_it_is(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    source = FIXTURES.parents[1] / "device" / "fixtures" / "k_121a.o"
    result = finish_library(source, tmp_path / "out.o", ptxas.settings(tmp_path), quiet)
    assert (tmp_path / "out.o").read_bytes() == source.read_bytes()
    assert (result.changed, result.layout, ptxas.compiled) == (False, Layout.UNCHANGED, [])


def test_a_library_may_be_finished_over_itself_and_keeps_its_mode(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    path = copy("x86_64.so", tmp_path / "x.so")
    path.chmod(0o750)
    finish_library(path, path, ptxas.settings(tmp_path), quiet)
    assert path.read_bytes() == finished(ptxas, quiet, tmp_path, "x86_64.so")
    assert path.stat().st_mode & 0o777 == 0o750


def test_the_record_tells_what_was_done(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    out = tmp_path / "out.so"
    result = finish_library(FIXTURES / "x86_64.so", out, ptxas.settings(tmp_path), quiet)
    assert [unit.deed for unit in result.units] == [Deed.COMPILED, Deed.SLIMMED, Deed.EMPTIED, Deed.COMPILED]
    assert (result.before.sha256, result.before.size) == (Sha256.of_file(FIXTURES / "x86_64.so"), 42744)
    assert (result.after.sha256, result.after.size) == (Sha256.of_file(out), out.stat().st_size)
    assert result.seconds == 1.0
    first = result.units[0]
    assert (first.kept, first.dropped) == ((), ("sm_80", "compute_80"))
    assert first.compiled
    assert (first.compiled.ptx_target, first.compiled.target, first.compiled.kernels) == (
        "compute_80",
        "sm_121",
        3,
    )
    image = read_device_code(out.read_bytes()).containers[0].images[0]
    assert first.compiled.cubin.size == image.size
    assert first.compiled.stored == image.stored + -image.stored % 8
    data = result.to_data()
    assert json.loads(json.dumps(data)) == data
    assert data["counts"] == {"unchanged": 0, "slimmed": 1, "compiled": 2, "emptied": 1}
    assert "seconds" not in json.dumps(data)
    assert "seconds" in json.dumps(result.to_data(times=True))


def test_what_was_compiled_is_not_compiled_again(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    """Also for another library: both hold the same PTX, made for two processors."""
    finished(ptxas, quiet, tmp_path, "x86_64.so")
    assert len(ptxas.compiled) == 2
    finished(ptxas, quiet, tmp_path, "aarch64.so")
    assert len(ptxas.compiled) == 2


def test_an_interrupted_run_goes_on_where_it_was(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    out = tmp_path / "out.so"
    ptxas.fail = "a3b505c226290ed2"
    with pytest.raises(FinishError, match=r"(?s)x86_64\.so, unit 3: .*was never seen"):
        finish_library(FIXTURES / "x86_64.so", out, ptxas.settings(tmp_path), quiet)
    assert not out.exists()
    assert ptxas.compiled == ["dea51b9771d086ef"]
    ptxas.fail = ""
    finish_library(FIXTURES / "x86_64.so", out, ptxas.settings(tmp_path), quiet)
    assert ptxas.compiled == ["dea51b9771d086ef", "a3b505c226290ed2"]


def test_several_libraries_keep_their_paths(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    given = {"a/one.so": FIXTURES / "x86_64.so", "b/two.so": FIXTURES / "aarch64.so"}
    result = finish_libraries(given, tmp_path / "into", ptxas.settings(tmp_path), quiet)
    assert [*result] == [*given]
    for name, each in result.items():
        assert each.path == tmp_path / "into" / name
        assert each.path.read_bytes() != given[name].read_bytes()
    with pytest.raises(UsageError, match="no path inside a wheel"):
        finish_libraries({"../x.so": FIXTURES / "x86_64.so"}, tmp_path, ptxas.settings(tmp_path), quiet)


def test_a_plan_starts_nothing(ptxas: RecordedPtxas, tmp_path: Path) -> None:
    plan = plan_libraries({"x.so": FIXTURES / "x86_64.so"}, ptxas.settings(tmp_path))
    assert [str(unit.deed) for unit in plan["x.so"]] == ["compiled", "slimmed", "emptied", "compiled"]
    assert ptxas.compiled == []


def test_every_refusal_comes_before_anything_is_compiled(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    (tmp_path / "empty.so").touch()
    given = {
        "good.so": FIXTURES / "x86_64.so",
        "specific.o": FIXTURES / "ptx_90a.o",
        "lto.o": FIXTURES.parents[1] / "device" / "fixtures" / "lto.o",
        "rdc.so": FIXTURES.parents[1] / "device" / "fixtures" / "rdc.so",
        "empty.so": tmp_path / "empty.so",
        "missing.so": tmp_path / "missing.so",
        "text.so": FIXTURES / "jit.cu",
    }
    with pytest.raises(FinishError) as caught:
        finish_libraries(given, tmp_path / "into", ptxas.settings(tmp_path), quiet)
    told = {problem.partition(":")[0] for problem in caught.value.problems}
    assert told == {*given} - {"good.so"}
    assert ptxas.compiled == []
    assert not (tmp_path / "into").exists()


def test_ptx_newer_than_ptxas_is_refused(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    path = copy("x86_64.so", tmp_path / "x.so")
    data = bytearray(path.read_bytes())
    for image in read_device_code(data).images:
        if image.kind == "ptx":
            data[image.header_offset + 24] = 5
    path.write_bytes(data)
    with pytest.raises(FinishError, match=r"PTX 9\.5 for compute_80 is newer than ptxas 13\.0\.88"):
        finish_library(path, tmp_path / "out.so", ptxas.settings(tmp_path), quiet)
    assert not (tmp_path / "out.so").exists()


@pytest.mark.parametrize(
    ("name", "word"), [("ptx_90a.o", "architecture-specific"), ("small.o", "has room for 352 bytes")]
)
def test_one_that_cannot_be_finished_is_left_alone(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, name: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ptxas, "cubin", lambda digest, arch: FIXTURES / "cubins" / "924a0b455e1b7357.sm_121.cubin"
    )
    path = copy(name, tmp_path / name)
    before = path.read_bytes()
    with pytest.raises(FinishError, match=word):
        finish_library(path, path, ptxas.settings(tmp_path), quiet)
    assert path.read_bytes() == before


def test_one_that_would_hold_nothing_is_left_alone(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    device = FIXTURES.parents[1] / "device" / "fixtures"
    for name, word in ("k_120a.o", "nothing in its 1 units loads on 12.1"), ("hostonly.so", "no device code"):
        with pytest.raises(FinishError, match=word):
            finish_library(device / name, tmp_path / "out", ptxas.settings(tmp_path), quiet)
        assert not (tmp_path / "out").exists()


def test_in_place_needs_room_in_every_unit(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    with pytest.raises(FinishError, match="has room for 1152 bytes") as caught:
        finished(ptxas, quiet, tmp_path, "x86_64.so", Layout.IN_PLACE)
    assert caught.value.do == "let the layout be compact."


def test_the_target_must_be_plain_and_of_use(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    for arch in ArchSpec(12, 1, "a"), ArchSpec(9, 0), ArchSpec(12, 2):
        settings = replace(ptxas.settings(tmp_path), arch=arch)
        with pytest.raises(UsageError, match="no plain target whose code loads"):
            finish_library(FIXTURES / "x86_64.so", tmp_path / "out.so", settings, quiet)


def test_a_cubin_of_other_kernels_is_refused(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ptxas, "cubin", lambda digest, arch: FIXTURES / "cubins" / "924a0b455e1b7357.sm_121.cubin"
    )
    with pytest.raises(FinishError) as caught:
        finish_library(FIXTURES / "x86_64.so", tmp_path / "out.so", ptxas.settings(tmp_path), quiet)
    text = str(caught.value)
    assert "the kernel _Z5twicePf is in the cubin and not in the PTX." in text
    assert "the kernel _Z3mixPf is in the PTX and not in the cubin." in text


def test_a_cubin_of_another_target_is_refused(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.cubin"
    data = bytearray((FIXTURES / "cubins" / "924a0b455e1b7357.sm_121.cubin").read_bytes())
    data[0x31] = 120
    wrong.write_bytes(data)
    monkeypatch.setattr(ptxas, "cubin", lambda digest, arch: wrong)
    with pytest.raises(FinishError, match="a cubin for sm_121 was wanted, ptxas made one for sm_120"):
        finish_library(FIXTURES / "options.o", tmp_path / "out.o", ptxas.settings(tmp_path), quiet)


def test_a_result_that_is_not_proven_is_not_kept(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "library_differences", lambda *_: ["a byte differs."])
    path = copy("x86_64.so", tmp_path / "x.so")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FinishError, match="the finished library is not right: a byte differs"):
        finish_library(path, path, ptxas.settings(tmp_path), quiet)
    assert path.read_bytes() == fixture("x86_64.so")
    assert sorted(each for each in tmp_path.iterdir() if each.name != "cache") == before


def test_a_folder_that_cannot_be_written_is_told(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        finish_library(FIXTURES / "x86_64.so", tmp_path / "file" / "out.so", ptxas.settings(tmp_path), quiet)
