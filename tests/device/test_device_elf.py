"""ELF tables: what is read, and what is named when it does not fit."""

from __future__ import annotations

import struct

import pytest
from device_files import Part, elf, fixture, fixtures, patched, section

from sm121.device import DamagedError, ElfFile, read_device_code

DATA = Part(".data", b"12345678", address=0x1000)


def test_sections_of_a_library() -> None:
    read = ElfFile.parse(fixture("aarch64.so"))
    assert (read.machine, read.type, read.damage) == ("aarch64", "shared", ())
    _, offset, size = section(fixture("aarch64.so"), ".nv_fatbin")
    (found,) = read.named(".nv_fatbin")
    assert (found.offset, found.size) == (offset, size)
    assert read.content(found).head(4) == b"\x50\xed\x55\xba"


def test_counts_of_extended_numbering_stand_in_section_0() -> None:
    plain, extended = ElfFile.parse(elf([DATA])), ElfFile.parse(elf([DATA], extended=True))
    assert plain.sections[1:] == extended.sections[1:]
    assert [part.name for part in extended.sections] == ["", ".data", ".shstrtab"]
    assert not extended.damage


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an ELF file"),
        (b"hi\n", "not an ELF file"),
        (b"\x7fELF", "ELF header at 0x0 is truncated: wanted 64 bytes, found 4"),
        (patched(elf([]), 4, b"\1"), "wanted class 2 (64-bit)"),
        (patched(elf([]), 5, b"\2"), "little-endian"),
    ],
)
def test_what_is_no_elf_file(data: bytes, words: str) -> None:
    with pytest.raises(DamagedError) as caught:
        ElfFile.parse(data)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (elf([DATA])[:-1], "section header table of 3 rows at"),
        (elf([Part(".data", b"", size=4096)]), "section .data is truncated: wanted 4096 bytes"),
        (patched(elf([DATA]), 0x3A, struct.pack("<H", 65)), "wanted rows of 64 bytes, found 65"),
        (patched(elf([DATA]), 0x3E, struct.pack("<H", 9)), "section names: wanted a section below 3, found 9"),
        (patched(elf([DATA]), 0x28, struct.pack("<Q", 1 << 60)), "section header table"),
        (elf([DATA], segments=[(1, 4, 0, 0, 1 << 40)]), "segment is truncated"),
        (elf([Part(f".{index}", b"", size=400) for index in range(64)]), "the sections overlap"),
    ],
)
def test_claims_that_the_bytes_do_not_bear_out(data: bytes, words: str) -> None:
    assert words in "\n".join(ElfFile.parse(data).damage)


def test_a_section_table_of_absurd_size_is_not_read() -> None:
    data = patched(elf([DATA], extended=True), len(elf([DATA])) - 3 * 64 + 32, struct.pack("<Q", 1 << 40))
    assert "wanted at most 262144 rows, found 1099511627776" in "\n".join(ElfFile.parse(data).damage)


def test_an_address_is_found_through_the_segments() -> None:
    read = ElfFile.parse(elf([DATA], segments=[(1, 6, 64, 0x1000, 100)]))
    assert read.offset_of(0x1010) == 64 + 0x10
    assert read.offset_of(0x1000 + 100) is None


@pytest.mark.parametrize("name", fixtures())
def test_a_file_cut_off_anywhere_is_told_from_a_whole_one(name: str) -> None:
    """A file that lacks bytes is never silently shorter: it is damaged, or holds exactly what it held."""
    data = fixture(name)
    whole = read_device_code(data)
    for end in range(1, len(data), len(data) // 150 + 1):
        try:
            cut = read_device_code(data[:end])
        except DamagedError:
            continue
        assert cut.damage or cut.images == whole.images, end
        assert not (cut.host_only and whole.has_device_code), end


@pytest.mark.parametrize(("machine", "damaged"), [(190, False), (183, True)])
def test_shared_memory_of_a_cubin_has_a_size_and_no_bytes(machine: int, *, damaged: bool) -> None:
    """NCCL and NVSHMEM ship cubins whose `.nv_debug.shared` reaches beyond the end of the file."""
    read = ElfFile.parse(elf([Part(".nv_debug.shared", b"", 0x7000000A, size=36800)], machine=machine))
    assert bool(read.damage) is damaged
    if not damaged:
        (found,) = read.named(".nv_debug.shared")
        assert (found.size, read.content(found).size) == (36800, 0)
