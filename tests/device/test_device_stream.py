"""One forward pass finds what the whole file shows, in the memory of what it keeps."""

from __future__ import annotations

import io
import random
import zipfile

import pytest
from device_files import Part, container, elf, entry, fixture, fixtures, patched, wrappers

from sm121.device import DamagedError, read_device_code, read_host, stream

PAYLOAD = random.Random(121).randbytes(3 << 20)


class Forward(io.RawIOBase):
    """Bytes that can be read once, a few at a time, as from a compressed member."""

    def __init__(self, data: bytes, step: int = 1 << 30) -> None:
        self._file = io.BytesIO(data)
        self._step = step

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, self._step) if size >= 0 else -1)


def library(*payloads: bytes) -> bytes:
    fatbins = b"".join(container(entry(payload)) for payload in payloads)
    return elf([Part(".text", b"\x50\xed\x55\xba" * 9), Part(".nv_fatbin", fatbins), Part(".data", b"end"),
                Part(".nvFatBinSegment", wrappers(*[0] * len(payloads)))])  # fmt: skip


@pytest.mark.parametrize("name", fixtures())
def test_the_same_as_of_the_whole_file(name: str) -> None:
    data = fixture(name)
    for step in (1 << 30, 777):
        found = stream(Forward(data, step), len(data))  # type: ignore[arg-type]
        assert found.device == read_device_code(data)
        assert found.host == (read_host(data) if found.device.format == "elf" else None)


def test_large_payloads_in_several_containers() -> None:
    data = library(PAYLOAD, b"small", PAYLOAD[: 1 << 20], PAYLOAD[5:])
    assert len(read_device_code(data).images) == 4
    assert stream(io.BytesIO(data), len(data)).device == read_device_code(data)


def test_a_member_of_an_archive() -> None:
    data = library(PAYLOAD, PAYLOAD[9:])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.so", data)
    with zipfile.ZipFile(packed) as archive, archive.open("x.so") as member:
        found = stream(member, archive.getinfo("x.so").file_size)
    assert found.device == read_device_code(data)


@pytest.mark.parametrize(
    "data",
    [
        patched(library(PAYLOAD), library(PAYLOAD).index(b"\x50\xed\x55\xba\1\0"), b"oops"),
        patched(library(PAYLOAD), library(PAYLOAD).index(b"\x50\xed\x55\xba\1\0") + 8, b"\xff\xff\xff\xff"),
        patched(library(PAYLOAD, PAYLOAD), library(PAYLOAD).index(b"\1\1\x40\0\0\0") + 6, b"\xff\xff\xff\xff"),
        library(PAYLOAD)[:-100],
    ],
)
def test_the_same_damage(data: bytes) -> None:
    whole = read_device_code(data)
    assert whole.damage
    assert stream(io.BytesIO(data), len(data)).device == whole


def test_no_kind_of_file() -> None:
    with pytest.raises(DamagedError, match="neither an ELF file"):
        stream(io.BytesIO(b"hi"), 2)


def test_a_false_container_that_covers_the_true_ones_hides_nothing() -> None:
    """Its payload is the rest of the file, with sections and all."""
    true = container(entry(PAYLOAD))
    parts = [Part(".nv_fatbin", true), Part(".nvFatBinSegment", wrappers(0))]
    whole = elf([Part(".rodata", container(entry(b""))), *parts])
    cover = len(whole) - whole.index(b"\x50\xed\x55\xba") - 80
    bait = container(entry(b"", padded=cover), more=cover)
    data = elf([Part(".rodata", bait), *parts])
    assert len(read_device_code(data).images) == 1
    found = stream(io.BytesIO(data), len(data)).device
    assert not found.host_only
    assert found.damage or found.notices


@pytest.mark.parametrize("wrong", [-1, 1, 1000])
def test_a_file_of_another_size_is_damaged(wrong: int) -> None:
    data = library(b"x")
    with pytest.raises(DamagedError, match="wanted a file of"):
        stream(io.BytesIO(data), len(data) + wrong)


@pytest.mark.parametrize("size", [0, -1, 1 << 63])
def test_an_impossible_size(size: int) -> None:
    with pytest.raises(DamagedError):
        stream(io.BytesIO(b""), size)
