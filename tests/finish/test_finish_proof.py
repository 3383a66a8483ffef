"""The proof must see every change to a finished library that a program could notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finish_files import FIXTURES, LIBRARIES, fixture

from sm121.device import DamagedError, ElfFile, read_device_code
from sm121.device.elf import SHT_NOBITS
from sm121.device.programs import Programs
from sm121.device.write import kept_entry
from sm121.finish.library import finish_library
from sm121.finish.model import Layout
from sm121.finish.proof import library_differences, without

if TYPE_CHECKING:
    from pathlib import Path

    from finish_files import RecordedPtxas

    from sm121.progress import Progress

CASES = [*((name, Layout.COMPACT) for name in LIBRARIES), ("ptx_120f.so", Layout.IN_PLACE)]


class Finished:
    """A finished fixture, and the question whether a change to it is seen."""

    def __init__(self, ptxas: RecordedPtxas, quiet: Progress, folder: Path, name: str, layout: Layout) -> None:
        out = folder / "out.so"
        result = finish_library(FIXTURES / name, out, ptxas.settings(folder, layout=layout), quiet)
        assert result.layout is layout
        self.old, self.new = fixture(name), out.read_bytes()
        self.code = read_device_code(self.old)
        self.entries = {
            each.index: [kept_entry(self.new, image) for image in each.images]
            for each in read_device_code(self.new).containers
        }

    def differences(self, data: bytes) -> list[str]:
        return library_differences(self.old, data, self.code, self.entries)

    def unused(self) -> list[range]:
        """Bytes that neither the loader nor a section uses, and the place of what takes no room in the file."""
        elf, programs = ElfFile.parse(self.new), Programs.read(ElfFile.parse(self.new))
        used = [range(64), range(programs.offset, programs.offset + len(programs.packed()))]
        used += [range(programs.sections_at, programs.sections_at + 64 * len(elf.sections))]
        used += [range(each.offset, each.offset + each.size) for each in elf.sections if each.type != SHT_NOBITS]
        used += [range(each.offset, each.offset + each.size) for each in elf.segments]
        holes = list(without(range(len(self.new)), used))
        for each in elf.sections:
            if each.type == SHT_NOBITS or not each.index:
                at = programs.sections_at + 64 * each.index + 24
                holes.append(range(at, at + 8))
        return holes


@pytest.fixture(params=CASES, ids="-".join)
def finished(request: pytest.FixtureRequest, ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> Finished:
    return Finished(ptxas, quiet, tmp_path, *request.param)


def test_the_finished_library_is_proven(finished: Finished) -> None:
    assert finished.differences(finished.new) == []


def test_every_changed_byte_is_seen(finished: Finished) -> None:
    unused = finished.unused()
    elf = ElfFile.parse(finished.new)
    programs = Programs.read(elf)
    dense = {*range(64), *range(programs.offset, programs.offset + len(programs.packed()))}
    dense |= {*range(programs.sections_at, programs.sections_at + 64 * len(elf.sections))}
    for each in elf.named(".rela.dyn", ".nvFatBinSegment"):
        dense |= {*range(each.offset, each.offset + each.size)}
    unseen = []
    for offset in sorted(dense | {*range(0, len(finished.new), 97)}):
        if any(offset in span for span in unused):
            continue
        data = bytearray(finished.new)
        data[offset] ^= 0x21
        if not finished.differences(bytes(data)):
            unseen.append(hex(offset))
    assert unseen == []


def test_every_cut_is_seen(finished: Finished) -> None:
    for size in (0, 1, 63, 64, 4096, *range(5000, len(finished.new), 3001), len(finished.new) - 1):
        assert finished.differences(finished.new[:size])


def test_a_longer_file_is_seen_where_the_size_must_not_change(finished: Finished) -> None:
    if len(finished.new) == len(finished.old):
        assert finished.differences(finished.new + b"\0")


def test_swapped_wrappers_are_seen(finished: Finished) -> None:
    """Each unit would then look for its kernels in another's code."""
    elf = ElfFile.parse(finished.new)
    (table,) = elf.named(".rela.dyn")
    starts = {each.offset for each in read_device_code(finished.new).containers}
    places = [
        at
        for at in range(table.offset + 16, table.offset + table.size, 24)
        if elf.offset_of(int.from_bytes(finished.new[at : at + 8], "little")) in starts
    ]
    assert len(places) == len(starts)
    data = bytearray(finished.new)
    one, two = places[:2]
    data[one : one + 8], data[two : two + 8] = data[two : two + 8], data[one : one + 8]
    assert not read_device_code(bytes(data)).damage
    assert finished.differences(bytes(data))


def test_another_entry_is_seen(finished: Finished) -> None:
    finished.entries[0] = []
    assert finished.differences(finished.new) == ["unit 0 does not hold the images that it should."]


def test_damage_of_a_finished_library_is_never_silent(finished: Finished) -> None:
    """What `inspect` says of a cut or flipped library: damage, or an error; never fewer units without a word."""
    units = len(read_device_code(finished.new).containers)
    for size in range(64, len(finished.new), 1777):
        try:
            code = read_device_code(finished.new[:size])
        except DamagedError:
            continue
        assert code.damage or (len(code.containers) == units), size
    (device,) = ElfFile.parse(finished.new).named(".nv_fatbin")
    for container in read_device_code(finished.new).containers:
        # Bytes 6 and 7 tell the size of this header; a larger one would be valid.
        for at in {*range(container.offset, container.offset + 16)} - {
            container.offset + 6,
            container.offset + 7,
        }:
            data = bytearray(finished.new)
            data[at] ^= 0x10
            assert read_device_code(bytes(data)).damage, at - device.offset
