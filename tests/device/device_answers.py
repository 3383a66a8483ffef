"""Asks every reader about some bytes, for the tests with hostile ones and for the fuzzer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sm121.device import (
    DamagedError,
    ElfFile,
    payload,
    ptx_kernels,
    read_cubin,
    read_device_code,
    read_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm121.device import DeviceImage

LIMIT = 1 << 22
Answer = TypeVar("Answer")


def answer(reader: Callable[[bytes], Answer], data: bytes) -> Answer | None:
    """What the reader says, None if it says that the bytes are damaged."""
    try:
        return reader(data)
    except DamagedError as error:
        if not error.problems:
            raise AssertionError("an error without a sentence") from error
        return None


def answers(data: bytes) -> None:
    """Ask every reader; only DamagedError may come out, and what they say must agree."""
    answer(ElfFile.parse, data)
    answer(read_host, data)
    answer(read_cubin, data)
    whole = answer(read_device_code, data)
    if whole is None:
        return
    assert len(whole.damage) <= 101
    for image in whole.images:
        assert 0 <= image.header_offset <= image.offset <= image.offset + image.stored <= len(data)
        _payload(data, image)


def _payload(data: bytes, image: DeviceImage) -> None:
    content = answer(lambda buffer: payload(buffer, image, limit=LIMIT), data)
    if content is not None:
        assert len(content) == (image.stored if image.kind == "lto" else image.size)
        answer(read_cubin, content)
        ptx_kernels(content)
