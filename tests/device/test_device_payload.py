"""Payloads: what comes out, and that nothing comes out of what lies about its size."""

from __future__ import annotations

import tracemalloc

import lz4.block
import pytest
import zstandard
from device_files import container, entry, fixture, fixtures, patched

from sm121.device import DamagedError, payload, read_cubin, read_device_code

TEXT = b".version 9.0\n.target sm_120\n" * 40
ZSTD = zstandard.ZstdCompressor().compress(TEXT)
STREAMED = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
LZ4 = lz4.block.compress(TEXT, store_size=False)


def unpacked(packed: bytes, flags: int, *, size: int = len(TEXT), limit: int = 1 << 20, stored: int = 0) -> bytes:
    data = container(entry(packed, kind=1, flags=flags, compressed=stored or len(packed), size=size))
    (image,) = read_device_code(data).images
    return payload(data, image, limit=limit)


@pytest.mark.parametrize(("packed", "flags"), [(ZSTD, 0x8011), (STREAMED, 0x8011), (LZ4, 0x2011)])
def test_decompression(packed: bytes, flags: int) -> None:
    assert unpacked(packed, flags) == TEXT


@pytest.mark.parametrize("name", fixtures())
def test_every_cubin_of_every_fixture_reads(name: str) -> None:
    data = fixture(name)
    for image in read_device_code(data).images:
        content = payload(data, image)
        if image.kind == "cubin":
            assert read_cubin(content).arch == image.arch
            assert read_cubin(content).damage == ()
        if image.kind == "ptx":
            assert f".target {image.target.replace('compute', 'sm')}".encode() in content
        assert len(content) == (image.stored if image.kind == "lto" else image.size)


@pytest.mark.parametrize(("packed", "flags"), [(ZSTD, 0x8011), (STREAMED, 0x8011), (LZ4, 0x2011)])
@pytest.mark.parametrize("size", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 1 << 19])
def test_a_size_that_lies_is_damage(packed: bytes, flags: int, size: int) -> None:
    with pytest.raises(DamagedError, match="damaged"):
        unpacked(packed, flags, size=size)


@pytest.mark.parametrize(("packed", "flags"), [(ZSTD, 0x8011), (STREAMED, 0x8011), (LZ4, 0x2011)])
def test_a_payload_cut_short_is_damage(packed: bytes, flags: int) -> None:
    with pytest.raises(DamagedError, match="damaged"):
        unpacked(packed, flags, stored=len(packed) - 5)


@pytest.mark.parametrize(("packed", "flags", "at"), [(ZSTD, 0x8011, 2), (STREAMED, 0x8011, 0), (LZ4, 0x2011, 0)])
def test_a_payload_of_other_bytes_is_damage(packed: bytes, flags: int, at: int) -> None:
    with pytest.raises(DamagedError, match="damaged"):
        unpacked(patched(packed, at, bytes(8)), flags)


def test_the_limit_comes_before_the_bytes() -> None:
    with pytest.raises(DamagedError, match="wanted at most 1000 bytes, its header declares"):
        unpacked(ZSTD, 0x8011, limit=1000)


@pytest.mark.parametrize("claim", [100, len(TEXT)])
def test_a_bomb_allocates_no_more_than_it_declared(claim: int) -> None:
    """The frame claims 64 MiB, the entry less: the library must not be asked to believe the frame."""
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    assert len(bomb) < 1 << 13
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        for packed in (bomb, streamed):
            with pytest.raises(DamagedError):
                unpacked(packed, 0x8011, size=claim)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_payload_belongs_to_the_buffer_that_it_was_found_in() -> None:
    (image,) = read_device_code(fixture("k_120f.o")).images
    with pytest.raises(DamagedError, match="truncated"):
        payload(fixture("k_120f.o")[: image.offset + 10], image)
