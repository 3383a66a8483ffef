"""Containers and entries: what stands in them, and every way in which they can be damaged."""

from __future__ import annotations

import pytest
from device_files import container, entry, fixture, fixtures

from sm121.device import DamagedError, DeviceImage, payload, read_device_code

CUBIN = entry(b"cubin!!!")


def problems(data: bytes) -> str:
    code = read_device_code(data)
    assert not code.host_only
    return "\n".join(code.damage)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("k_120a.o", ["sm_120a"]),
        ("k_120f.o", ["sm_120f"]),
        ("k_121a.o", ["sm_121a"]),
        ("ptx_120.o", ["compute_120"]),
        ("multi.o", ["sm_80", "sm_90a", "sm_120f", "compute_120f"]),
        ("lto.o", ["lto_120", "lto_121a"]),
        ("k.fatbin", ["sm_120f", "compute_120f"]),
        ("cuda12_lz4.fatbin", ["compute_120f", "sm_120f"]),
        ("hostonly.so", []),
        ("host_aarch64.so", []),
    ],
)
def test_targets(name: str, targets: list[str]) -> None:
    code = read_device_code(fixture(name))
    assert sorted(image.target for image in code.images) == sorted(targets)
    assert (code.damage, code.notices) == ((), ())
    assert code.host_only == (not targets)
    assert code.has_device_code == bool(targets)


def test_every_field_of_an_image() -> None:
    data = fixture("cuda12_lz4.fatbin")
    ptx, cubin = read_device_code(data).images
    assert (ptx.kind, ptx.compression, ptx.version, ptx.options, ptx.name) == (
        "ptx",
        "lz4",
        (8, 8),
        "-O3",
        "k.ptx",
    )
    assert (cubin.kind, cubin.compression, cubin.version, cubin.name) == ("cubin", "lz4", (1, 8), "k.cubin")
    assert (cubin.size, cubin.container, cubin.index) == (len(fixture("cuda12_120f.cubin")), 0, 1)
    assert payload(data, cubin) == fixture("cuda12_120f.cubin")
    assert ptx.header_offset == 16
    assert data[cubin.header_offset : cubin.header_offset + 4] == b"\2\0\1\1"


@pytest.mark.parametrize("name", fixtures())
def test_offsets_count_from_the_start_of_the_file(name: str) -> None:
    data = fixture(name)
    code = read_device_code(data)
    for one in code.containers:
        if code.format != "cubin":
            assert data[one.offset : one.offset + 4] == b"\x50\xed\x55\xba"
        assert [image.container for image in one.images] == [one.index] * len(one.images)
    assert [one.index for one in code.containers] == list(range(len(code.containers)))


def test_containers_are_padded_with_zeros_of_any_length() -> None:
    data = container(CUBIN) + bytes(8) + container(CUBIN) + bytes(9000) + container() + bytes(5)
    code = read_device_code(data)
    assert not code.damage
    assert [len(one.images) for one in code.containers] == [1, 1, 0]


def test_numbers_of_an_entry() -> None:
    data = container(
        entry(b"x" * 20, sm=121, flags=0x108011, compressed=13, size=99),
        entry(b"y" * 20, kind=1, sm=90, flags=0x2011, compressed=17, size=77, version=(9, 0)),
        entry(b"z" * 20, kind=8, sm=120, flags=0x210011),
    )
    read = [
        (image.target, image.compression, image.stored, image.size) for image in read_device_code(data).images
    ]
    assert read == [("sm_121a", "zstd", 13, 99), ("compute_90", "lz4", 17, 77), ("lto_120f", "", 24, 24)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (container(CUBIN, more=8), "container at 0x0 is truncated: wanted 96 bytes, found 88"),
        (container(CUBIN, more=1 << 62), "container at 0x0 is truncated"),
        (container(CUBIN, version=2), "wanted version 1 and a header of 16 bytes, found version 2"),
        (container(CUBIN, header=8), "found version 1 and 8 bytes"),
        (container(CUBIN, header=24), "found version 1 and 24 bytes"),
        (container(entry(b"", header=8)), "a header of at least 64 bytes, found 0x0101 and 8 bytes"),
        (container(entry(b"", mark=0x7777)), "wanted the mark 0x0101"),
        (
            container(entry(b"12345678", padded=16)),
            "entry payload at 0x50 is truncated: wanted 16 bytes, found 8",
        ),
        (container(entry(b"12345678", padded=1 << 63)), "entry payload at 0x50 is truncated"),
        (container(entry(b"12345678", padded=0)), "entry header at 0x50 is truncated"),
        (container(entry(b"12345678", flags=0x8011, compressed=9)), "wanted at most 8 bytes of payload, found 9"),
        (container(entry(b"12345678", sm=0)), "wanted an sm number such as 120, found 0"),
        (container(entry(b"12345678", sm=70000)), "wanted an sm number such as 120, found 70000"),
        (container(CUBIN) + b"garbage!" + container(CUBIN), "wanted magic 0xba55ed50, found 0x62726167"),
        (container(CUBIN) + container(CUBIN, magic=0xBA55ED51), "wanted magic 0xba55ed50, found 0xba55ed51"),
        (container(CUBIN) + b"\x50\xed\x55\xba", "container header at 0x58 is truncated"),
    ],
)
def test_damage_is_named_with_its_place(data: bytes, words: str) -> None:
    assert words in problems(data)


def test_what_lies_behind_damage_is_named_and_not_listed() -> None:
    data = container(CUBIN) + container(CUBIN, magic=1) + container(CUBIN)
    code = read_device_code(data)
    assert len(code.containers) == 1
    assert f"{2 * len(container(CUBIN))} bytes up to {len(data):#x} not read" in "\n".join(code.damage)


@pytest.mark.parametrize(
    ("strange", "words"),
    [
        (entry(b"", kind=16), "found 0x10"),
        (entry(b"12345678", flags=0x11, compressed=4), "for a compressed payload, found 0x11"),
    ],
)
def test_what_is_not_understood_is_kept_and_noticed(strange: bytes, words: str) -> None:
    code = read_device_code(container(strange, CUBIN))
    assert len(code.images) == 1
    assert [unknown.sm for unknown in code.containers[0].unknown] == [120]
    assert words in "\n".join(code.notices)
    assert not code.damage
    assert not read_device_code(container(strange)).host_only


def test_no_kind_of_file_at_all() -> None:
    with pytest.raises(DamagedError) as caught:
        read_device_code(b"hi\n")
    assert "ELF" in str(caught.value)


def test_what_was_read_twice_is_equal() -> None:
    data = fixture("multi.o")
    assert read_device_code(data) == read_device_code(memoryview(data)) == read_device_code(bytearray(data))
    assert isinstance(read_device_code(data).images[0], DeviceImage)
