"""The reference that the hardware tests measure against, tested where there is no such hardware."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hardware"))
from nvfp4_reference import TILE_ROWS, TILE_SCALES, decode, relative_error, scale_place, unpack


def test_all_sixteen_values() -> None:
    assert [decode(bits) for bits in range(8)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert [decode(bits) for bits in range(8, 16)] == [0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_the_low_half_of_a_byte_comes_first() -> None:
    assert unpack(0xA1) == (0.5, -1.0)


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (256, 8), (384, 64)])
def test_every_scale_has_a_place_of_its_own(rows: int, columns: int) -> None:
    places = {scale_place(row, column, columns) for row in range(rows) for column in range(columns)}
    assert places == set(range(rows * columns))


def test_places_as_the_layout_is_documented() -> None:
    assert [scale_place(0, column, 4) for column in range(4)] == [0, 1, 2, 3]
    assert [scale_place(row, 0, 4) for row in (1, 32, 64, 96)] == [16, 4, 8, 12]
    assert scale_place(0, 4, 8) == TILE_ROWS * TILE_SCALES
    assert scale_place(128, 0, 8) == 2 * TILE_ROWS * TILE_SCALES


def test_the_error_is_relative() -> None:
    assert relative_error([1.0, 2.0], [1.0, 2.0]) == 0
    assert relative_error([2.0], [1.0]) == 1
    assert relative_error([1.0], [0.0]) == 1
