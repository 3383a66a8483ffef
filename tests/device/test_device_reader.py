"""Libraries, objects and archives: that what sections, wrappers and containers say of each other agrees."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

import pytest
from device_files import Part, container, elf, entry, fixture, patched, section, wrappers

from sm121.device import DamagedError, payload, read_cubin, read_device_code, read_host

if TYPE_CHECKING:
    from pathlib import Path

FATBIN = ".nv_fatbin"
SEGMENT = ".nvFatBinSegment"
CUBIN = entry(fixture("k_120f.cubin"), flags=0x200011)
ONE = container(CUBIN)


def library(*parts: Part) -> bytes:
    return elf(list(parts))


def without_sections(data: bytes) -> bytes:
    return patched(patched(data, 0x28, bytes(8)), 0x3C, bytes(4))


def problems(data: bytes) -> str:
    code = read_device_code(data)
    assert not code.host_only
    return "\n".join(code.damage)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("aarch64.so", [FATBIN, FATBIN]),
        ("rdc.so", ["__nv_relfatbin", "__nv_relfatbin", FATBIN]),
        ("libk.a", ["__nv_relfatbin", "__nv_relfatbin"]),
        ("k_120f.o", [FATBIN]),
    ],
)
def test_sections_of_the_containers(name: str, sections: list[str]) -> None:
    assert [one.section for one in read_device_code(fixture(name)).containers] == sections


@pytest.mark.parametrize(
    ("name", "kind", "machine"),
    [
        ("aarch64.so", "elf", "aarch64"),
        ("hostonly.so", "elf", "x86_64"),
        ("libk.a", "archive", "x86_64"),
        ("k_120f.cubin", "cubin", "cuda"),
        ("k.fatbin", "fatbin", ""),
    ],
)
def test_kind_and_machine(name: str, kind: str, machine: str) -> None:
    code = read_device_code(fixture(name))
    assert (code.format, code.machine) == (kind, machine)


def test_kernels_of_a_device_linked_library() -> None:
    data = fixture("rdc.so")
    read = [read_cubin(payload(data, image)) for image in read_device_code(data).images]
    assert [[kernel.name for kernel in cubin.kernels] for cubin in read] == [["_Z1kPf"], [], ["_Z1kPf"]]
    assert [cubin.toolkit.tool for cubin in read if cubin.toolkit] == ["ptxas", "ptxas", "nvlink"]


def test_a_stub_of_a_device_link_holds_no_kernel() -> None:
    data = fixture("aarch64.so")
    _, stub = read_device_code(data).containers
    assert [read_cubin(payload(data, image)).kernels for image in stub.images] == [()]


def test_members_of_an_archive() -> None:
    data = fixture("libk.a")
    code = read_device_code(data)
    assert [one.member for one in code.containers] == ["a_very_long_name_of_an_object.o", "callee.o"]
    assert [read_cubin(payload(data, image)).functions for image in code.images] == [0, 1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"!<thin>\n", "a thin archive holds only the names"),
        (b"!<arch>\n" + b"x" * 60, "archive member at 0x8 is damaged"),
        (b"!<arch>\n" + b"x" * 10, "archive member header at 0x8 is truncated"),
        (fixture("libk.a")[:-3000], "archive member"),
    ],
)
def test_damaged_archives(data: bytes, words: str) -> None:
    assert words in problems(data)


def test_damage_in_an_archive_names_the_member_and_spares_the_others() -> None:
    data = fixture("libk.a")
    first, second = read_device_code(data).containers
    code = read_device_code(patched(data, first.offset, b"oops"))
    assert [one.member for one in code.containers] == [second.member]
    assert "a_very_long_name_of_an_object.o(__nv_relfatbin): container" in code.damage[0]


def test_names_in_bsd_archives() -> None:
    name, data = b"long name.o\0", fixture("k_120f.o")
    size = str(len(name) + len(data)).encode().ljust(10)
    header = b"#1/12".ljust(16) + b"0".ljust(12) + b"0".ljust(6) * 2 + b"644".ljust(8) + size + b"`\n"
    (one,) = read_device_code(b"!<arch>\n" + header + name + data).containers
    assert one.member == "long name.o"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (library(Part(FATBIN, ONE), Part(SEGMENT, b"")), "found 0 wrappers and 1 containers"),
        (library(Part(FATBIN, ONE)), "found 0 wrappers and 1 containers"),
        (library(Part(FATBIN, ONE), Part(SEGMENT, wrappers(0, 0))), "found 2 wrappers and 1 containers"),
        (library(Part(FATBIN, ONE + ONE), Part(SEGMENT, wrappers(0))), "found 1 wrappers and 2 containers"),
        (library(Part(SEGMENT, wrappers(0))), "found 1 wrappers and 0 containers"),
        (library(Part(FATBIN, b""), Part(SEGMENT, wrappers(0))), "found 1 wrappers and 0 containers"),
        (
            library(Part(FATBIN, ONE), Part(SEGMENT, wrappers(0, magic=7))),
            "wanted magic 0x466243b1, found 0x00000007",
        ),
        (library(Part(FATBIN, ONE), Part(SEGMENT, wrappers(0)[:-1])), "wanted a multiple of 24 bytes, found 23"),
        (library(Part(FATBIN, ONE, type=8), Part(SEGMENT, wrappers(0))), "its 5352 bytes were taken out"),
        (library(Part(FATBIN, b"\1" * 64), Part(SEGMENT, b"")), "wanted magic 0xba55ed50"),
        (library(Part(FATBIN, ONE, size=1 << 40), Part(SEGMENT, wrappers(0))), f"section {FATBIN} is truncated"),
        (library(Part(FATBIN, ONE), Part(SEGMENT, wrappers(0)), Part(SEGMENT, wrappers(0))), "found 2."),
    ],
)
def test_wrappers_and_containers_must_agree(data: bytes, words: str) -> None:
    assert words in problems(data)


def test_an_empty_section_is_no_device_code() -> None:
    assert read_device_code(library(Part(FATBIN, b""), Part(SEGMENT, b""))).host_only


@pytest.mark.parametrize("name", ["aarch64.so", "rdc.so"])
def test_a_wrapper_must_point_to_a_container(name: str) -> None:
    data = fixture(name)
    target = read_device_code(data).containers[0].offset
    relocation = data.index(struct.pack("<Q", target), 64)
    moved = data.replace(struct.pack("<Q", target), struct.pack("<Q", target + 8))
    assert relocation
    assert f"points to {target + 8:#x}, where no container was read" in problems(moved)


def test_an_object_has_its_pointers_in_relocations() -> None:
    data = fixture("multi.o")
    _, offset, _ = section(data, ".rela.nvFatBinSegment")
    assert "where no container was read" in problems(patched(data, offset + 16, struct.pack("<q", 16)))


def test_a_stub_may_lack_its_wrapper_but_a_kernel_may_not() -> None:
    data = fixture("aarch64.so")
    header, _, size = section(data, SEGMENT)
    assert size == 48
    shrunk = patched(data, header + 32, struct.pack("<Q", 24))
    assert len(read_device_code(shrunk).containers) == 2
    assert read_device_code(shrunk).damage == ()
    first = read_device_code(data).containers[0]
    _, offset, _ = section(data, SEGMENT)
    swapped = patched(shrunk, header + 24, struct.pack("<Q", offset + 24))
    swapped = patched(
        swapped, header + 16, struct.pack("<Q", struct.unpack_from("<Q", data, header + 16)[0] + 24)
    )
    assert f"container at {first.offset:#x} has no wrapper" in problems(swapped)


def test_with_the_last_wrapper_the_linker_drops_the_section() -> None:
    data = fixture("aarch64.so")
    kernel, stub = read_device_code(data).containers
    for unit, damaged in ((stub, False), (kernel, True)):
        content = data[unit.offset : unit.offset + unit.size]
        found = read_device_code(elf([Part(FATBIN, content)]))
        assert len(found.containers) == 1
        assert bool(found.damage) == damaged


@pytest.mark.parametrize("name", ["aarch64.so", "rdc.so"])
def test_without_section_headers_the_wrappers_lead_to_the_containers(name: str) -> None:
    data = fixture(name)
    whole, stripped = read_device_code(data), read_device_code(without_sections(data))
    assert [(one.offset, one.size) for one in stripped.containers] == sorted(
        (one.offset, one.size) for one in whole.containers
    )
    assert [image.target for image in stripped.images] == [image.target for image in whole.images]
    assert (stripped.damage, stripped.notices) == ((), ())


def test_renamed_sections_hide_nothing() -> None:
    data = fixture("aarch64.so")
    renamed = data.replace(b".nv_fatbin\0", b".nv_hidden\0")
    assert "found 2 wrappers and 0 containers" in problems(renamed)
    both = renamed.replace(b".nvFatBinSegment\0", b".some_other_data\0")
    assert [image.target for image in read_device_code(both).images] == ["sm_120f", "compute_90", "sm_120f"]


def test_without_sections_and_wrappers_nothing_is_ruled_out() -> None:
    code = read_device_code(without_sections(fixture("hostonly.so")))
    assert not code.host_only
    assert not code.damage
    assert "device code cannot be ruled out" in code.notices[0]


def test_a_wrapper_that_leads_nowhere_is_damage() -> None:
    data = elf([], segments=[(1, 6, 0, 0x1000, 400)], headers=False) + bytes(8) + wrappers(0x900000)
    assert "its pointer leads nowhere" in problems(data.ljust(400, b"\0"))


@pytest.mark.parametrize(
    ("order", "layout", "machine", "size_at", "size"),
    [("<", 1, 3, 40, 52), (">", 1, 22, 40, 52), (">", 2, 22, 52, 64)],
)
def test_hosts_without_cuda_are_told_from_damage(
    order: str, layout: int, machine: int, size_at: int, size: int
) -> None:
    header = bytearray(b"\x7fELF" + bytes([layout, 1 if order == "<" else 2, 1]) + bytes(93))
    struct.pack_into(order + "H", header, 18, machine)
    struct.pack_into(order + "H", header, size_at, size)
    code = read_device_code(bytes(header))
    assert code.machine in {"i386", "s390"}
    assert (code.damage, code.has_device_code, code.host_only) == ((), False, False)
    assert "not looked into" in code.notices[0]
    assert read_host(bytes(header)).machine == code.machine
    with pytest.raises(DamagedError, match="unsupported ELF file"):
        read_device_code(patched(bytes(header), size_at, bytes(2)))


def test_a_bare_fatbin_in_an_archive() -> None:
    data = fixture("k.fatbin")
    member = b"k.fatbin/".ljust(48) + str(len(data)).encode().ljust(10) + b"`\n" + data
    code = read_device_code(b"!<arch>\n" + member)
    assert [image.target for image in code.images] == ["sm_120f", "compute_120f"]
    assert code.containers[0].member == "k.fatbin"


@pytest.mark.parametrize(
    "data",
    [
        elf([], machine=190),
        elf([], machine=190, os_abi=0x99, e_flags=0x06007802),
        elf([], machine=190, os_abi=0x41, e_flags=2),
    ],
)
def test_a_cubin_without_a_target_is_not_understood(data: bytes) -> None:
    code = read_device_code(data)
    assert code.has_device_code
    assert code.images == ()
    assert "cubin of unknown layout" in code.notices[0]


def test_a_map_is_a_buffer(tmp_path: Path) -> None:
    (tmp_path / "k.o").write_bytes(fixture("k_120f.o"))
    with (tmp_path / "k.o").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        assert read_device_code(buffer) == read_device_code(fixture("k_120f.o"))


def test_damage_is_one_error_with_every_problem() -> None:
    with pytest.raises(DamagedError) as caught:
        read_cubin(b"")
    assert caught.value.exit_code == 27
