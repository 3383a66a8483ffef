"""Local memory: what `ptxas -v` said when the fixtures were made is what the bytes say."""

from __future__ import annotations

import pytest
from device_files import fixture

from sm121.device.spills import Local, local_memory
from sm121.errors import DamagedError


def test_spills_are_those_that_ptxas_counts() -> None:
    found = local_memory(fixture("spill_120f.cubin"), marks_spills=True)
    assert found["_Z7spilledPfi"] == Local(stack=160, stores=180, loads=212)
    assert found["_Z5arrayPfi"] == Local(stack=256)
    assert found["_Z5plainPf"] == Local()


def test_an_array_may_be_a_spill_where_the_compiler_marks_none() -> None:
    found = local_memory(fixture("spill_120f.cubin"), marks_spills=False)
    array = found["_Z5arrayPfi"]
    assert not array.marked
    assert array.stores > 0
    assert array.loads > 0
    assert found["_Z7spilledPfi"] == Local(stack=160, stores=180, loads=212), "it has marks"
    assert found["_Z5plainPf"].marked, "it has no local memory at all"


@pytest.mark.parametrize(
    "name", ["k_120f.cubin", "fp4_121a.cubin", "cuda12_120f.cubin", "cuda12_90a.cubin", "inert_120f.cubin"]
)
def test_kernels_without_local_memory(name: str) -> None:
    found = local_memory(fixture(name), marks_spills="cuda12" not in name)
    assert found
    assert all((one.stores, one.loads, one.marked) == (0, 0, True) for one in found.values())


def test_every_cut_is_named_or_harmless() -> None:
    data = fixture("spill_120f.cubin")
    for size in range(0, len(data), 97):
        try:
            local_memory(data[:size], marks_spills=True)
        except DamagedError:
            continue
