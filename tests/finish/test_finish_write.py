"""The writer against entries that nvcc and fatbinary wrote."""

from __future__ import annotations

import pytest
from finish_files import FIXTURES, fixture

from sm121.device import DamagedError, payload, read_device_code
from sm121.device.mark import mark_name, read_mark
from sm121.device.write import container, cubin_entry, kept_entry
from sm121.finish.units import HOST_FLAGS
from sm121.values import ArchSpec, Sha256

GOLDEN = sorted(path.name for path in FIXTURES.glob("*.fatbin"))


@pytest.mark.parametrize("name", GOLDEN)
def test_entries_are_those_of_nvcc_byte_by_byte(name: str) -> None:
    data = fixture(name)
    code = read_device_code(data)
    made = [
        cubin_entry(payload(data, image), image.arch, name=image.name, flags=image.flags & HOST_FLAGS)
        for image in code.images
    ]
    assert len(made) == len(code.images) > 0
    assert container(made) == data


def test_golden_entries_cover_both_headers_all_suffixes_and_names_with_and_without_room() -> None:
    assert GOLDEN == [
        "entry_120f.fatbin", "entry_121.fatbin", "entry_121a.fatbin", "entry_90.fatbin", "named_eight.fatbin",
        "named_seven.fatbin",
    ]  # fmt: skip
    images = [image for name in GOLDEN for image in read_device_code(fixture(name)).images]
    assert {image.target for image in images} == {"sm_90", "sm_120f", "sm_121", "sm_121a"}
    assert {image.offset - image.header_offset for image in images} == {64, 72, 80, 112, 120, 128}
    assert {image.name for image in images} == {"", "seven__", "eight___"}


@pytest.mark.parametrize("name", ["x86_64.so", "aarch64.so", "options.o", "family.o"])
def test_kept_entries_make_the_container_they_come_from(name: str) -> None:
    data = fixture(name)
    for each in read_device_code(data).containers:
        entries = [kept_entry(data, image) for image in each.images]
        assert container(entries) == data[each.offset : each.offset + each.size]


def test_a_container_without_entries_is_read_as_one() -> None:
    (found,) = read_device_code(container([])).containers
    assert (found.size, found.images) == (16, ())


@pytest.mark.parametrize("end", [0, 3, 64, 4000])
def test_what_is_no_whole_cubin_is_refused(end: int) -> None:
    data = fixture("entry_121.fatbin")
    cubin = payload(data, read_device_code(data).images[0])
    with pytest.raises(DamagedError):
        cubin_entry(cubin[:end], ArchSpec(12, 1))
    with pytest.raises(DamagedError, match="cubin"):
        cubin_entry(fixture("x86_64.so"), ArchSpec(12, 1))


def test_the_mark_is_read_back_and_nothing_else_is_one() -> None:
    data = fixture("entry_121.fatbin")
    cubin = payload(data, read_device_code(data).images[0])
    digest = Sha256.of_bytes(b"the PTX")
    marked = container([cubin_entry(cubin, ArchSpec(12, 1), name=mark_name(digest))])
    (mark,) = read_mark(marked)
    assert mark.ptx == digest.hex[:16]
    assert mark.image.target == "sm_121"
    for name in ("", "k.cu", "sm121-finish-", "sm121-finish-0123456789abcdeg", f"{mark_name(digest)}0"):
        assert read_mark(container([cubin_entry(cubin, ArchSpec(12, 1), name=name)])) == ()
