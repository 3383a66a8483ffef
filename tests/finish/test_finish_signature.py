"""Parameters of kernels, as PTX declares them and as a cubin was built for them."""

from __future__ import annotations

import pytest
from finish_files import FIXTURES, fixture

from sm121.device import DamagedError, payload, ptx_kernels, read_cubin, read_device_code
from sm121.device.signature import cubin_signatures, ptx_signatures
from sm121.values import Sha256

RESERVED = 1024
"""Shared memory that the system takes of every kernel from sm_90 on."""


def pairs() -> list[tuple[str, bytes, bytes]]:
    """PTX of the fixtures, and what ptxas made of it."""
    found = {}
    for path in sorted(FIXTURES.iterdir()):
        if path.suffix in {".so", ".o"}:
            data = path.read_bytes()
            for image in read_device_code(data).images:
                if image.kind == "ptx":
                    ptx = payload(data, image).rstrip(b"\0")
                    for cubin in (FIXTURES / "cubins").glob(f"{Sha256.of_bytes(ptx).hex[:16]}.*"):
                        found[cubin.name] = (cubin.name, ptx, cubin.read_bytes())
    return list(found.values())


@pytest.mark.parametrize(
    ("name", "ptx", "cubin"), pairs(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_ptx_and_cubin_agree(name: str, ptx: bytes, cubin: bytes) -> None:
    assert ptx_signatures(ptx) == cubin_signatures(cubin) != {}
    assert tuple(ptx_signatures(ptx)) == ptx_kernels(ptx)


def test_the_pairs_are_the_recorded_cubins() -> None:
    assert sorted(name for name, _, _ in pairs()) == sorted(path.name for path in (FIXTURES / "cubins").iterdir())


def test_shared_memory_is_that_of_the_same_kernels_for_another_target() -> None:
    data = fixture("x86_64.so")
    unit = read_device_code(data).containers[0]
    old, ptx = (payload(data, image) for image in unit.images)
    digest = Sha256.of_bytes(ptx.rstrip(b"\0")).hex[:16]
    new = (FIXTURES / "cubins" / f"{digest}.sm_121.cubin").read_bytes()
    before = {kernel.name: kernel.shared for kernel in read_cubin(old).kernels}
    after = {kernel.name: max(0, kernel.shared - RESERVED) for kernel in read_cubin(new).kernels}
    assert before == after
    assert sorted(before.values()) == [0, 128, 512]


def test_parameters_of_every_kind_are_laid_out() -> None:
    text = b"""
    .visible .entry none() { ret; }   // .entry not_me(.param .u64 x)
    .weak .entry all(
      .param .u32 a, .param .align 8 .b8 b[24], .param .b8 c[3], .param .f64 d[2],
      .param .u64 .ptr .global .align 16 e, .param .b16 f, /* .param .u64 no, */ .param .u64 .ptr g, .param .texref h
    ) .maxntid 128, 1, 1 { ret; }
    .entry last (.param .align 64 .b8 big[128]) { ret; }
    """
    assert ptx_signatures(text) == {
        "none": (),
        "all": ((0, 4), (8, 24), (32, 3), (40, 16), (56, 8), (64, 2), (72, 8), (80, 8)),
        "last": ((0, 128),),
    }


def test_a_parameter_that_is_not_understood_is_told() -> None:
    with pytest.raises(DamagedError, match=r"kernel k: .*\.param \.q7 x"):
        ptx_signatures(b".entry k(.param .q7 x)")
