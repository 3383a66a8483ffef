"""NVFP4 written down in plain numbers: what packed bytes and swizzled scales mean. Needs nothing but Python.

e2m1 values and the layout of scale factors: https://docs.nvidia.com/cuda/cublas/#d-block-scaling-factors-layout
"""

from __future__ import annotations

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCK = 16
"""Elements that share a scale."""
TILE_ROWS, TILE_SCALES = 128, 4


def decode(nibble: int) -> float:
    """The value of four bits: sign, two of exponent, one of mantissa."""
    value = E2M1[nibble & 7]
    return -value if nibble & 8 else value


def unpack(byte: int) -> tuple[float, float]:
    """Two values: the low half comes first."""
    return decode(byte & 15), decode(byte >> 4)


def scale_place(row: int, column: int, columns: int) -> int:
    """Where the scale of a row and a block of 16 columns lies in the swizzled array.

    `columns` is the number of scales of a row. Tiles of 128 rows and 4 scales follow each other along a row; in a
    tile, 32 rows are spread over 16 bytes each, and four such groups of rows interleave.
    """
    tiles = -(-columns // TILE_SCALES)
    tile = (row // TILE_ROWS) * tiles + column // TILE_SCALES
    inner = row % TILE_ROWS
    return tile * TILE_ROWS * TILE_SCALES + (inner % 32) * 16 + (inner // 32) * 4 + column % TILE_SCALES


def relative_error(got: list[float], wanted: list[float]) -> float:
    """Root of the squared error by the root of the squared reference."""
    error = sum((one - other) ** 2 for one, other in zip(got, wanted, strict=True))
    norm = sum(other**2 for other in wanted)
    return float((error / norm) ** 0.5) if norm else float(error > 0)
