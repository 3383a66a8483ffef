"""What is decided about each unit, and what forbids to rewrite a library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finish_files import FIXTURES, fixture

from sm121.device import Container, DeviceCode, DeviceImage, UnknownEntry, read_device_code
from sm121.errors import FinishError
from sm121.finish.ptxas import ptxas_options
from sm121.finish.units import Deed, plan_units
from sm121.target import GB10, Capability
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from sm121.finish.units import Unit
    from sm121.target import Kind

SM121 = ArchSpec(12, 1)
DEVICE_FIXTURES = FIXTURES.parents[1] / "device" / "fixtures"


def image(target: str, *, flags: int = 0x11, version: tuple[int, int] = (9, 0), options: str = "") -> DeviceImage:
    kind: Kind = "ptx" if target.startswith("compute_") else "lto" if target.startswith("lto_") else "cubin"
    return DeviceImage(
        kind, ArchSpec.from_sm(target), ".nv_fatbin", 0, 0, 0, 0, 8, 8, "", version, flags, options
    )


def code(*targets: str | DeviceImage, section: str = ".nv_fatbin") -> DeviceCode:
    images = tuple(each if isinstance(each, DeviceImage) else image(each) for each in targets)
    return DeviceCode("elf", "aarch64", (Container(section, 0, 0, 8, images),))


def plan(*targets: str | DeviceImage, target: Capability = GB10, keep_ptx: bool = False) -> Unit:
    (unit,) = plan_units(code(*targets), target, ArchSpec(target.major, target.minor), keep_ptx=keep_ptx)
    return unit


@pytest.mark.parametrize(
    ("targets", "deed", "kept", "source"),
    [
        ("sm_80 compute_80", Deed.COMPILED, "", "sm_121"),
        ("compute_80", Deed.COMPILED, "", "sm_121"),
        ("sm_80 compute_75 compute_90 compute_80", Deed.COMPILED, "", "sm_121"),
        ("compute_120f sm_90", Deed.COMPILED, "", "sm_121f"),
        ("compute_121a sm_90", Deed.COMPILED, "", "sm_121a"),
        ("sm_120a compute_80", Deed.COMPILED, "", "sm_121"),
        ("sm_80 sm_120f compute_80", Deed.SLIMMED, "sm_120f", ""),
        ("sm_120 sm_121 sm_90a compute_90a", Deed.SLIMMED, "sm_120 sm_121", ""),
        ("sm_121a", Deed.UNCHANGED, "sm_121a", ""),
        ("sm_80 sm_90a sm_100f", Deed.EMPTIED, "", ""),
        ("", Deed.UNCHANGED, "", ""),
    ],
)
def test_a_unit_keeps_what_loads_and_gets_what_it_lacks(targets: str, deed: Deed, kept: str, source: str) -> None:
    unit = plan(*targets.split())
    assert unit.deed is deed
    assert [each.target for each in unit.kept] == kept.split()
    assert {*unit.kept, *unit.dropped} == {*unit.container.images}
    assert (unit.source.arch.sm if unit.source else "") == source


def test_the_highest_usable_ptx_is_compiled() -> None:
    unit = plan("compute_75", "compute_121", "compute_90", "compute_90a", "sm_80")
    assert unit.source
    assert unit.source.image.target == "compute_121"


def test_usable_ptx_stays_if_asked_for() -> None:
    assert [each.target for each in plan("sm_80", "compute_80", "compute_90a", keep_ptx=True).kept] == [
        "compute_80"
    ]
    unit = plan("sm_120f", "compute_80", "sm_80", keep_ptx=True)
    assert [each.target for each in unit.kept] == ["sm_120f", "compute_80"]
    assert plan("sm_120f", "compute_120", keep_ptx=True).deed is Deed.UNCHANGED


def test_another_capability_decides_otherwise() -> None:
    unit = plan("sm_80", "compute_80", "sm_120f", target=Capability(9, 0))
    assert unit.source
    assert unit.source.arch == ArchSpec(9, 0)
    assert plan("sm_90a", "compute_80", target=Capability(9, 0)).deed is Deed.SLIMMED


def test_options_of_the_maker_are_kept() -> None:
    unit = plan(image("compute_80", options=" -O2 -maxrregcount=32 "))
    assert unit.source
    assert unit.source.options == ("-O2", "-maxrregcount=32")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", ()),
        ("-O2  -maxrregcount 32 ", ("-O2", "-maxrregcount=32")),
        (" -g --dont-merge-basicblocks --return-at-end ", ("-g", "--dont-merge-basicblocks", "--return-at-end")),
        ("-dlcm=cg --generate-line-info", ("-dlcm=cg", "--generate-line-info")),
    ],
)
def test_known_options_of_ptxas(text: str, options: tuple[str, ...]) -> None:
    assert ptxas_options(text) == options


@pytest.mark.parametrize(
    "text",
    [
        "-o /etc/passwd",
        "-O2 --options-file=x",
        "--input-as-string x",
        "x.ptx",
        "-arch=sm_90",
        "'",
        "-O9",
        "-dlcm=../x",
    ],
)
def test_options_that_could_do_harm_are_refused(text: str) -> None:
    with pytest.raises(FinishError):
        ptxas_options(text)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (code("compute_90a"), r"architecture-specific PTX \(compute_90a\)"),
        (code("compute_100f", "sm_90"), r"architecture-specific PTX \(compute_100f\)"),
        (code("compute_90a", "compute_120a"), r"compute_120a, compute_90a"),
        (code("lto_120", "sm_120"), r"LTO-IR \(lto_120\)"),
        (code("sm_121", section="__nv_relfatbin"), "relocatable device code"),
        (code(image("compute_80", flags=0x11 | 0x40)), "flags that are not understood: 0x51"),
        (code(image("compute_80", flags=0x10)), "flags that are not understood"),
        (code(image("compute_80", options="-o x")), "options that are not known"),
        (DeviceCode("elf", "", (), ("the file is cut.",)), "the file is cut"),
        (DeviceCode("elf", "", (), (), ("an entry is not understood.",)), "not understood"),
        (DeviceCode("archive", "", ()), "found a archive|found an archive"),
        (DeviceCode("cubin", "", ()), "found a cubin"),
    ],
)
def test_what_must_not_be_rewritten_is_refused(given: DeviceCode, word: str) -> None:
    with pytest.raises(FinishError, match=word):
        plan_units(given, GB10, SM121, keep_ptx=False)


def test_all_reasons_come_at_once() -> None:
    first, second = code("compute_90a").containers[0], code("lto_120").containers[0]
    given = DeviceCode("elf", "", (first, second), ("wrappers are missing.",))
    with pytest.raises(FinishError) as caught:
        plan_units(given, GB10, SM121, keep_ptx=False)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("name", ["lto.o", "rdc.so", "libk.a", "k_120f.cubin", "k.fatbin"])
def test_files_of_other_kinds_are_refused(name: str) -> None:
    found = read_device_code((DEVICE_FIXTURES / name).read_bytes())
    with pytest.raises(FinishError):
        plan_units(found, GB10, SM121, keep_ptx=False)


def test_an_entry_of_unknown_kind_is_refused() -> None:
    data = bytearray(fixture("options.o"))
    first = read_device_code(data).images[0]
    data[first.header_offset] = 0x40
    found = read_device_code(data)
    assert isinstance(found.containers[0].unknown[0], UnknownEntry)
    with pytest.raises(FinishError, match="not understood"):
        plan_units(found, GB10, SM121, keep_ptx=False)
