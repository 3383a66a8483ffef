"""The bytes of a device image, decompressed within strict bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lz4.block
import zstandard

from sm121.device.window import Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from sm121.device.fatbin import DeviceImage
    from sm121.device.window import Buffer

LIMIT = 1 << 30
"""Bytes; far above the largest image seen, far below what would hurt."""


def payload(buffer: Buffer, image: DeviceImage, *, limit: int = LIMIT) -> bytes:
    """The image as ptxas, nvlink or cicc wrote it: exactly `image.size` bytes.

    `buffer` is the one that the image was found in. LTO-IR is scrambled in a way that is not published, so its stored
    bytes are returned, `image.stored` of them. DamagedError if the payload is truncated or does not decompress
    to the size that its header declares, or if that size is above `limit`; no more than `limit` is ever allocated.
    """
    what = f"payload of {image.target}"
    if image.size > limit:
        raise DamagedError(
            f"{what} at {image.offset:#x}: wanted at most {limit} bytes, its header declares {image.size}.",
            do="raise the limit if the file is trusted.",
        )
    raw = Window.over(buffer).take(image.offset, image.stored, what)
    if not image.compression or image.kind == "lto":
        return raw
    try:
        data = _zstd(raw, image.size) if image.compression == "zstd" else _lz4(raw, image.size)
    except (zstandard.ZstdError, lz4.block.LZ4BlockError, ValueError, OverflowError, MemoryError) as error:
        raise DamagedError(
            f"{what} at {image.offset:#x} is damaged: {image.compression} says {error}."
        ) from error
    if len(data) != image.size:
        raise DamagedError(
            f"{what} at {image.offset:#x} is damaged: wanted {image.size} bytes after decompression, found {len(data)}."
        )
    return data


def _zstd(raw: bytes, size: int) -> bytes:
    # The library allocates what the frame claims, whatever the caller's bound, so the claim is compared first.
    claimed = zstandard.frame_content_size(raw)
    if claimed not in {-1, size} or not size:
        raise ValueError(f"the frame holds {max(claimed, 0) or 'some'} bytes, the entry declares {size}")
    return zstandard.ZstdDecompressor().decompress(raw, max_output_size=size, allow_extra_data=False)


def _lz4(raw: bytes, size: int) -> bytes:
    return bytes(lz4.block.decompress(raw, uncompressed_size=size))
