"""Cubins: the target by the order of trust, toolkit, kernels, registers, telling instructions."""

from __future__ import annotations

import struct

import pytest
from device_files import Part, elf, fixture, patched, section

from sm121.device import Code, DamagedError, cubin, payload, ptx, ptx_kernels, read_cubin, read_device_code
from sm121.device.sass import count
from sm121.values import ArchSpec


def note(arguments: str, *, version: str = "Cuda compilation tools, release 13.0, V13.0.88") -> Part:
    strings = [b"", b"ptxas", version.encode(), b"build", arguments.encode()]
    offsets = [sum(len(text) + 1 for text in strings[:index]) for index in range(5)]
    body = struct.pack("<6I", 2, *offsets) + b"".join(text + b"\0" for text in strings)
    owner = b"NVIDIA Corp\0"
    return Part(".note.nv.tkinfo", struct.pack("<III", len(owner), len(body), 2000) + owner + body, 7)


def compat(*records: tuple[int, int, int], extra: bytes = b"") -> Part:
    return Part(".nv.compat", b"".join(struct.pack("<BBH", *record) for record in records) + extra)


def made(*parts: Part, flags: int, os_abi: int = 0x41, abi: int = 8) -> bytes:
    return elf(list(parts), machine=190, kind=2, os_abi=os_abi, abi=abi, e_flags=flags)


@pytest.mark.parametrize(
    ("name", "target", "version"),
    [
        ("k_120f.cubin", "12.0f", "13.0.88"),
        ("fp4_121a.cubin", "12.1a", "13.0.88"),
        ("cuda12_120f.cubin", "12.0f", "12.9.86"),
    ],
)
def test_target_and_toolkit(name: str, target: str, version: str) -> None:
    cubin = read_cubin(fixture(name))
    assert (str(cubin.arch), cubin.suffix_known, cubin.damage) == (target, True, ())
    assert cubin.toolkit
    assert (cubin.toolkit.tool, cubin.toolkit.version) == ("ptxas", version)
    assert cubin.toolkit.arguments.startswith(f"-arch {cubin.arch.sm}")


def test_the_old_layout_tells_its_release_by_the_version_of_the_header() -> None:
    cubin = read_cubin(fixture("cuda12_90a.cubin"))
    assert (str(cubin.arch), cubin.suffix_known, cubin.toolkit, cubin.e_version) == ("9.0a", True, None, 0x81)
    assert [(kernel.registers, kernel.code, kernel.inert) for kernel in cubin.kernels] == [(8, None, None)]


@pytest.mark.parametrize(
    ("data", "target", "known"),
    [
        (made(note("-arch sm_120f -m 64"), flags=0x06007802), "12.0f", True),
        (made(note("-arch sm_120 -m 64"), flags=0x06007802), "12.0", True),
        (made(note("-arch=sm_121a"), flags=0x06007902), "12.1a", True),
        (made(note("-arch sm_121a"), compat((2, 9, 0)), flags=0x06007902), "12.1a", True),
        (made(note("-m 64"), compat((2, 9, 1)), flags=0x06007902), "12.1a", True),
        (made(note("-arch sm_90a"), flags=0x06007902), "12.1", False),
        (made(compat((4, 2, 6), extra=b"\2\x09\1\0\0\0\2\x09\1\0"), flags=0x06007802), "12.0a", True),
        (made(compat((4, 2, 400)), flags=0x06007802), "12.0", False),
        (made(flags=0x0600780A), "12.0a", True),
        (made(flags=0x06007802), "12.0", False),
        (made(flags=0x1000640C), "10.0a", True),
        (made(flags=0x0F006404), "10.0", False),
        (made(flags=0x00500550, os_abi=0x33, abi=7), "8.0", True),
        (made(flags=0x005A0D5A, os_abi=0x33, abi=7), "9.0a", True),
    ],
)
def test_order_of_trust_for_the_suffix(data: bytes, target: str, *, known: bool) -> None:
    cubin = read_cubin(data)
    assert (cubin.arch, cubin.suffix_known) == (ArchSpec.parse(target), known)
    (image,) = read_device_code(data).images
    assert (image.arch, image.suffix_known) == (cubin.arch, cubin.suffix_known)


def test_kernels_registers_shared_memory() -> None:
    """As `cuobjdump -res-usage` 13.5 says."""
    (kernel,) = read_cubin(fixture("cuda12_120f.cubin")).kernels
    assert (kernel.name, kernel.size, kernel.registers, kernel.shared) == ("k", 384, 8, 2048)
    kernels = {kernel.name: kernel for kernel in read_cubin(fixture("inert_120f.cubin")).kernels}
    assert [kernels[name].registers for name in ("_Z4addsPf", "_Z8may_trapPfi", "_Z5emptyPf")] == [12, 10, 4]


def test_a_device_function_is_no_kernel() -> None:
    data = fixture("rdc.so")
    read = [read_cubin(payload(data, image)) for image in read_device_code(data).images]
    assert [(len(cubin.kernels), cubin.functions) for cubin in read] == [(1, 0), (0, 1), (1, 1)]


def test_instructions_as_nvdisasm_counts_them() -> None:
    code = {kernel.name: kernel.code for kernel in read_cubin(fixture("fp4_121a.cubin")).kernels}
    assert code == {
        "_Z5nvfp4PfPKj": Code(instructions=32, mma=1, fp4=1, traps=0, writes=4, calls=0),
        "_Z5mxfp8PfPKj": Code(instructions=32, mma=1, fp4=0, traps=0, writes=4, calls=0, fp8=1),
    }


def test_inert_kernels() -> None:
    kernels = {kernel.name: kernel for kernel in read_cubin(fixture("inert_120f.cubin")).kernels}
    code = {name: (kernel.code.traps, kernel.code.calls) for name, kernel in kernels.items() if kernel.code}
    assert {name: kernel.inert for name, kernel in kernels.items()} == {
        "_Z5emptyPf": True,
        "_Z6printsPf": True,
        "_Z5trapsPf": True,
        "_Z16prints_and_trapsPf": True,
        "_Z8may_trapPfi": False,
        "_Z4addsPf": False,
    }
    assert code["_Z5emptyPf"] == (0, 0)
    assert code["_Z6printsPf"] == (0, 1)
    assert code["_Z5trapsPf"] == (1, 0)
    assert code["_Z16prints_and_trapsPf"] == (1, 1)


def test_a_kernel_that_calls_what_stands_elsewhere_may_write_there() -> None:
    data = fixture("rdc.so")
    unlinked, _, linked = (payload(data, image) for image in read_device_code(data).images)
    assert [kernel.calls_others for kernel in read_cubin(unlinked).kernels] == [True]
    (kernel,) = read_cubin(linked).kernels
    assert (kernel.calls_others, kernel.inert) == (True, False)
    header, offset, size = section(linked, ".text._Z1kPf")
    assert header
    body = b"".join(
        word if word[0] != 0x86 else b"\x18\x79" + word[2:]
        for word in (linked[at : at + 16] for at in range(offset, offset + size, 16))
    )
    (kernel,) = read_cubin(patched(linked, offset, body)).kernels
    assert kernel.code
    assert (kernel.code.writes, kernel.inert) == (0, None)


@pytest.mark.parametrize(
    ("opcode", "group"),
    [
        (0x47F, "fp4"), (0x47F, "mma"), (0x27A, "mma"), (0x27A, "fp8"), (0x47A, "fp8"), (0x23C, "mma"),
        (0x95C, "traps"), (0x944, "calls"),
        (0x343, "calls"), (0x986, "writes"), (0x97F, "writes"), (0x385, "writes"), (0x9A6, "writes"), (0x3B5, "writes"),
    ],
)  # fmt: skip
def test_one_instruction(opcode: int, group: str) -> None:
    word = (0xABCD000 | opcode).to_bytes(8, "little") + bytes(8)
    nothing = (0x918).to_bytes(2, "little") + bytes([0x86, 0x09] * 7)
    code = count(nothing + word + nothing + word + word[:8], ArchSpec(12, 1, "a"))
    assert code
    assert (code.instructions, getattr(code, group)) == (4, 2)


@pytest.mark.parametrize("opcode", [0x27F, 0x286, 0x086, 0x15D, 0x145, 0x984, 0x981, 0x988])
def test_other_instructions_count_for_nothing(opcode: int) -> None:
    code = count(opcode.to_bytes(16, "little"), ArchSpec(12, 0, "f"))
    assert code == Code(1, 0, 0, 0, 0, 0)


def test_unknown_opcodes_are_not_guessed() -> None:
    assert count(bytes(16), ArchSpec(9, 0, "a")) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an ELF file"),
        (fixture("hostonly.so"), "wanted ELF machine 190, found 62"),
        (b"\x7fELF", "truncated"),
    ],
)
def test_what_is_no_cubin(data: bytes, words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        read_cubin(data)


def test_a_cubin_cut_short_says_so() -> None:
    data = fixture("inert_120f.cubin")
    assert "truncated" in " ".join(read_cubin(data[:-2000]).damage)


def test_kernels_of_ptx() -> None:
    text = b".visible .entry _Z1kPf(\n.param .u64 p)\n{}\n.entry $x()\n.weak .entry\t_Z1kPf()\n.func helper()\n"
    assert ptx_kernels(text) == ("_Z1kPf", "$x")
    assert ptx_kernels(b"") == ()
    assert ptx_kernels(b".entry.entry .entry a;.entry  \n\t b\0.entry") == ("a", "b")


def test_no_more_functions_than_any_compiler_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "_MOST_KERNELS", 2)
    assert ptx_kernels(b".entry a .entry b") == ("a", "b")
    with pytest.raises(DamagedError, match="wanted at most 2 entry functions"):
        ptx_kernels(b".entry a .entry a .entry a")
    whole = read_cubin(fixture("inert_120f.cubin"))
    monkeypatch.setattr(cubin, "_MOST_FUNCTIONS", len(whole.kernels) + whole.functions - 1)
    assert "wanted at most" in " ".join(read_cubin(fixture("inert_120f.cubin")).damage)


def test_a_tool_that_says_too_much_is_cut_short() -> None:
    toolkit = read_cubin(made(note("-arch sm_120f", version="V" * 40_000), flags=0x06007802)).toolkit
    assert toolkit is not None
    assert (toolkit.tool, toolkit.arguments) == ("ptxas", "-arch sm_120f")
    assert toolkit.version == "V" * (1 << 14)
