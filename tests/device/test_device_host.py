"""What a library asks of its host, with and without section headers."""

from __future__ import annotations

import struct
import subprocess
from typing import TYPE_CHECKING

import pytest
from device_files import fixture, patched

from sm121.device import DamagedError, ElfFile, read_host

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = fixture("host_aarch64.so")
DT_NULL, DT_PLTRELSZ, DT_PLTREL, DT_JMPREL = 0, 2, 20, 23


def without_sections(data: bytes) -> bytes:
    return patched(patched(data, 0x28, bytes(8)), 0x3C, bytes(4))


def test_a_library() -> None:
    """As readelf says."""
    host = read_host(LIBRARY)
    assert (host.machine, host.type, host.soname) == ("aarch64", "shared", "libhost.so.1")
    assert host.needed == ("libstdc++.so.6", "libgcc_s.so.1", "libc.so.6")
    assert (host.rpath, host.runpath) == ((), ("$ORIGIN/../lib", "/opt/lib"))
    assert host.build_id == "f80a08951bd07b80e61bdc15a2d9eefb9edb6b0e"
    assert host.version_needs == {
        "libgcc_s.so.1": ("GCC_3.0",),
        "libc.so.6": ("GLIBC_2.17",),
        "libstdc++.so.6": ("CXXABI_1.3", "GLIBCXX_3.4", "GLIBCXX_3.4.21"),
    }
    assert "twice" in host.defined
    assert "__errno_location" in host.undefined
    assert host.bound["__errno_location"] == ("libc.so.6", "GLIBC_2.17")
    assert host.versions == frozenset()
    assert not host.defined & host.undefined
    assert host.damage == ()


def test_compilers_are_named_in_the_comment() -> None:
    assert read_host(fixture("hostonly.so")).comment == ("GCC: (Debian 12.2.0-14+deb12u1) 12.2.0",)


def test_weak_symbols_need_not_be_defined() -> None:
    assert b"_ITM_deregisterTMCloneTable" in fixture("hostonly.so")
    assert not any("TMCloneTable" in name for name in read_host(fixture("hostonly.so")).undefined)


@pytest.mark.parametrize("name", ["host_aarch64.so", "rdc.so", "hostonly.so"])
def test_the_same_without_section_headers(name: str) -> None:
    whole, stripped = read_host(fixture(name)), read_host(without_sections(fixture(name)))
    for field in (
        "soname",
        "needed",
        "runpath",
        "build_id",
        "version_needs",
        "defined",
        "undefined",
        "bound",
        "damage",
    ):
        assert getattr(whole, field) == getattr(stripped, field)


def test_a_hash_table_without_symbols_does_not_tell_their_number() -> None:
    """aarch64.so defines nothing: without section headers its undefined symbols cannot be counted, and that is said."""
    host = read_host(without_sections(fixture("aarch64.so")))
    assert "the hash table is empty" in " ".join(host.damage)
    assert host.needed == read_host(fixture("aarch64.so")).needed


def test_an_object_has_global_symbols_and_no_dynamic_ones() -> None:
    host = read_host(fixture("k_120f.o"))
    assert (host.type, host.needed, host.build_id) == ("relocatable", (), "")
    assert "_Z1kPf" in host.defined
    assert "__cudaRegisterFatBinary" in host.undefined


def test_strings_that_do_not_exist_are_damage() -> None:
    dynamic = next(segment for segment in ElfFile.parse(LIBRARY).segments if segment.type == 2)
    broken = patched(LIBRARY, dynamic.offset + 8, (1 << 40).to_bytes(8, "little"))
    assert "dynamic string at 0x10000000000 does not exist" in " ".join(read_host(broken).damage)


def test_no_library() -> None:
    with pytest.raises(DamagedError):
        read_host(b"hi")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("flag", "wanted"), [("-Wl,-z,lazy", {"called"}), ("-Wl,-z,now", set()), ("-fno-plt", set())]
)
@pytest.mark.parametrize("sections", [True, False])
def test_functions_that_are_looked_up_when_they_are_called(
    tmp_path: Path, flag: str, wanted: set[str], *, sections: bool
) -> None:
    """`both` is called and pointed at, so it must be there when the library is loaded."""
    source = (
        "void called(void); void both(void); void (*pointer)(void) = both; void f(void) { called(); both(); }"
    )
    made = tmp_path / "made.so"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-z,lazy", flag, "-x", "c", "-", "-o", str(made)]
    subprocess.run(command, input=source, text=True, check=True)
    host = read_host(made.read_bytes() if sections else without_sections(made.read_bytes()))
    assert host.undefined == {"called", "both"}
    assert host.lazy == wanted
    assert host.damage == ()


def test_damaged_relocations_are_said() -> None:
    assert read_host(LIBRARY).lazy >= {"__errno_location"}
    broken = read_host(patched(LIBRARY, _tag(DT_JMPREL) + 8, (1 << 40).to_bytes(8, "little")))
    assert broken.lazy == frozenset()
    assert any("relocations" in text for text in broken.damage)


def test_only_jumps_wait_for_a_call() -> None:
    """A TLS descriptor stands in the jump table too; glibc fills it in when it loads the library."""
    jumps = _value(DT_JMPREL)
    kinds = {LIBRARY[at + 8 : at + 12] for at in range(jumps, jumps + _value(DT_PLTRELSZ), 24)}
    assert kinds == {(1026).to_bytes(4, "little")}
    number = int.from_bytes(LIBRARY[jumps + 12 : jumps + 16], "little")
    lazy = read_host(LIBRARY).lazy
    changed = read_host(patched(LIBRARY, jumps + 8, (1031).to_bytes(4, "little")))
    assert len(lazy - changed.lazy) == 1
    (table,) = ElfFile.parse(LIBRARY).named(".dynsym")
    variant = read_host(patched(LIBRARY, table.offset + 24 * number + 5, b"\x80"))
    assert variant.lazy == changed.lazy


@pytest.mark.parametrize(
    ("tag", "value", "now"),
    [(DT_PLTREL, 17, True), (30, 8, True), (0x6FFFFFFB, 1, True), (24, 0, True), (30, 4, False)],
)
def test_what_the_loader_would_not_put_off(tag: int, value: int, *, now: bool) -> None:
    place = _tag(tag) if tag == DT_PLTREL else _tag(DT_NULL)
    host = read_host(patched(LIBRARY, place, struct.pack("<QQ", tag, value)))
    assert (host.lazy == frozenset()) == now
    assert host.damage == ()


def test_more_relative_relocations_than_there_are_rows() -> None:
    host = read_host(patched(LIBRARY, _tag(DT_NULL), struct.pack("<QQ", 0x6FFFFFF9, 1 << 60)))
    assert host.lazy >= read_host(LIBRARY).lazy
    assert host.damage == ()


def _tag(wanted: int) -> int:
    """Where a tag of LIBRARY's dynamic section stands."""
    (dynamic,) = ElfFile.parse(LIBRARY).named(".dynamic")
    rows = range(dynamic.offset, dynamic.offset + dynamic.size, 16)
    return next(row for row in rows if LIBRARY[row : row + 8] == wanted.to_bytes(8, "little"))


def _value(tag: int) -> int:
    return int.from_bytes(LIBRARY[_tag(tag) + 8 : _tag(tag) + 16], "little")
