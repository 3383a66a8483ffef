"""Whatever the bytes, the readers answer or raise DamagedError; they agree with each other, and stay within bounds."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from device_answers import answer, answers
from device_files import Part, container, elf, entry, fixture, fixtures, wrappers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm121.device import fatbin, read_cubin, read_device_code, read_host, window

REGRESSIONS = [
    b"\x7fELF",
    b"\x50\xed\x55\xba",
    b"!<arch>\n",
    b"!<arch>\n" + b"#1/99".ljust(48) + b"10".ljust(10) + b"`\n" + b"0123456789",
    b"!<arch>\n" + b"/7".ljust(48) + b"0".ljust(10) + b"`\n",
    b"!<arch>\n" + "/٣".encode().ljust(48) + b"0".ljust(10) + b"`\n",
]
"""Inputs that once were, or could be, read wrongly."""


@pytest.mark.parametrize("data", REGRESSIONS)
def test_regressions(data: bytes) -> None:
    answers(data)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A fixture with some bytes overwritten, most of them in headers and tables, and perhaps its end cut off."""
    data = bytearray(fixture(draw(st.sampled_from(fixtures()))))
    table = struct.unpack_from("<Q", data, 0x28)[0] if data[:4] == b"\x7fELF" else 0
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.sampled_from([0, min(table, len(data) - 1), draw(st.integers(0, len(data) - 1))]))
        at = min(start + draw(st.integers(0, 400)), len(data) - 1)
        new = draw(
            st.binary(min_size=1, max_size=8)
            | st.sampled_from([bytes(8), b"\xff" * 8, b"\xff" * 4, (1 << 31).to_bytes(8, "little")])
        )
        data[at : at + len(new)] = new[: len(data) - at]
    return bytes(data[: draw(st.just(len(data)) | st.integers(1, len(data)))])


@given(damaged())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_files(data: bytes) -> None:
    answers(data)


@given(
    st.sampled_from([b"", b"\x7fELF\x02\x01\x01", b"\x50\xed\x55\xba\1\0\x10\0", b"!<arch>\n"]),
    st.binary(max_size=400),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes(head: bytes, rest: bytes) -> None:
    answers(head + rest)


@st.composite
def fatbins(draw: st.DrawFn) -> bytes:
    """Fatbins whose numbers are those of the format, or off."""
    number = st.sampled_from([0, 1, 7, 8, 63, 64, 65, 72, 1 << 31, (1 << 32) - 1])
    entries = [
        entry(
            draw(st.binary(max_size=64)), kind=draw(st.sampled_from([1, 2, 8, 16])), sm=draw(st.sampled_from([0, 90, 121])),
            flags=draw(st.sampled_from([0x11, 0x8011, 0x2011, 0x208011])), compressed=draw(number), size=draw(number),
            padded=draw(st.none() | number),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    return container(*entries, more=draw(st.sampled_from([0, 0, 0, 1, 8, -8])) if entries else 0)


@given(st.lists(fatbins(), max_size=3), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_fatbins_of_odd_numbers(parts: list[bytes], wrapped: int) -> None:
    answers(b"".join(parts))
    answers(elf([Part(".nv_fatbin", b"".join(parts)), Part(".nvFatBinSegment", wrappers(*[0] * wrapped))]))


def _symbols(count: int) -> bytes:
    return struct.pack("<IBBHQQ", 1, 2, 0x10, 3, 0, 16) * count


@pytest.mark.parametrize(
    "data",
    [
        container(*[entry(b"", kind=9)] * 900),
        container(*[entry(b"")] * 900),
        container() * 900,
        b"".join(container(entry(b"")) for _ in range(900)),
    ],
)
def test_no_more_entries_than_any_compiler_writes(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "_MOST_ENTRIES", 500)
    code = read_device_code(data)
    assert "wanted at most 500 entries" in code.damage[0]
    assert sum(1 + len(one.images) + len(one.unknown) for one in code.containers) <= 500


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (b"!<arch>\n" + (b"x.o/".ljust(48) + b"64".ljust(10) + b"`\n" + b"\x7fELF".ljust(64, b"\xff")) * 4000, 2),
        (elf([Part("n" * 3000, b"") for _ in range(800)]), 20),
        (elf([Part(".strtab", b"\0" + b"k" * 50_000 + b"\0", 3), Part(".symtab", _symbols(20_000), 2, link=1),
              Part(".text.k", bytes(16))], machine=190, os_abi=0x41, e_flags=0x06007802), 20),
        (elf([Part(".nv.info", b"\4\x2f\x08\0" + bytes(8), 1)] * 900, machine=190, os_abi=0x41, e_flags=0x06007802), 10),
    ],
)  # fmt: skip
def test_memory_stays_within_bounds(data: bytes, most: int) -> None:
    """`most` is in units of a million bytes; the inputs are made to earn much for little."""
    tracemalloc.start()
    try:
        for reader in (read_device_code, read_cubin, read_host):
            answer(reader, data)
        assert tracemalloc.get_traced_memory()[1] < most * 1_000_000
    finally:
        tracemalloc.stop()


def test_names_that_overlap_cost_less_the_larger_their_table_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two uses of each byte are normal and are granted to any table; more is granted to small ones alone."""
    monkeypatch.setattr(window, "_FREE_OVERLAP", 0)
    strings = window.Strings(b"n" * (1 << 20) + b"\0")
    assert sum(strings.at(0) is not None for _ in range(100)) == 2
