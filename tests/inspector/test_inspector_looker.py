"""What looking into images may cost at most, whatever they claim."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import zstandard
from made_facts import fixture

from sm121.device import read_cubin, read_device_code
from sm121.inspector import looker
from sm121.inspector.looker import Looker
from sm121.target import GB10

if TYPE_CHECKING:
    import pytest

FREE = 1 << 20


def _damages(*sizes: int) -> list[str]:
    """What is said of a container's images that come to these sizes, packed as well as can be."""
    body = b""
    for size in sizes:
        packed = zstandard.compress(fixture("k_120f.cubin").ljust(size, b"\0"))
        fields = (
            2, 0x101, 64, len(packed) + -len(packed) % 8, len(packed), 0, 8, 1, 120, 0, 0, 0x208011, 0, size,
        )  # fmt: skip
        body += struct.pack("<HHIQIIHHIIIQQQ", *fields) + packed + bytes(-len(packed) % 8)
    data = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    (container,) = read_device_code(data).containers
    return [image.damage for image in Looker(GB10)(data, container).images]


def test_images_that_come_to_far_more_than_the_file_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _damages(FREE, FREE, FREE) == ["", "", ""]
    monkeypatch.setattr(looker, "FREE_SUM", FREE)
    first, second, third = _damages(FREE, 4 * FREE, FREE)
    assert first == ""
    assert "bytes claim to be more than" in second
    assert "bytes claim to be more than" in third


def test_what_is_packed_as_compilers_pack_it_is_read_beyond_the_free_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looker, "FREE_SUM", 0)
    size = len(fixture("k_120f.cubin"))
    assert _damages(*[size] * 50) == [""] * 50


def test_names_of_a_file_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = len("".join(kernel.name for kernel in read_cubin(fixture("k_120f.cubin")).kernels))
    monkeypatch.setattr(looker, "LARGEST_NAMES", kernels)
    first, second = _damages(FREE, FREE)
    assert first == ""
    assert f"the names of its kernels come to more than {kernels} characters" in second
    monkeypatch.setattr(looker, "LARGEST_NAMES", 1 << 30)
    monkeypatch.setattr(looker, "FREE_NAMES", 0)
    assert _damages(FREE, FREE) == ["", ""]
    monkeypatch.setattr(looker, "LARGEST_RATIO", 0)
    assert "the names of its kernels" in _damages(FREE)[0]
