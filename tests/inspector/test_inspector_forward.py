"""One forward pass gives what reading the whole file gives, whatever the file claims."""

from __future__ import annotations

import io
import mmap
import random
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from made_facts import FIXTURES, fixture

from sm121.artifact import Member
from sm121.device import DamagedError, payload
from sm121.errors import ArtifactError
from sm121.inspector.facts import LibraryFacts, PlainFacts
from sm121.inspector.forward import CHUNK, read_buffer, read_forward
from sm121.inspector.reading import Depth, read_library
from sm121.target import GB10

if TYPE_CHECKING:
    from typing import BinaryIO

    from sm121.artifact import Buffer
    from sm121.device import Container

NAMES = sorted(
    path.name for path in FIXTURES.iterdir() if path.suffix in {".so", ".o", ".a", ".cubin", ".fatbin"}
)


@dataclass(frozen=True)
class Bytes:
    """Content that streams, as a compressed member does."""

    data: bytes

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)

    def mapped(self) -> None:
        return None


def member(data: bytes, name: str = "x.so", size: int | None = None) -> Member:
    return Member(name, len(data) if size is None else size, Bytes(data))


def payloads(buffer: Buffer, container: Container) -> list[bytes]:
    return [payload(buffer, image) for image in container.images]


def forward(data: bytes, size: int | None = None) -> tuple[object, list[list[bytes]], str]:
    one = member(data, size=size)
    with one.open() as stream, read_forward(one, stream.read(64), stream, payloads, digest=True) as done:
        return done.code, list(done.seen), done.sha256


@pytest.mark.parametrize("name", NAMES)
def test_the_same_as_the_whole_file(name: str) -> None:
    data = fixture(name)
    whole = read_buffer(data, payloads, digest=True)
    assert forward(data) == (whole.code, list(whole.seen), whole.sha256)


def many_pages(count: int, size: int, seed: int = 1) -> bytes:
    """A bare fatbin of raw cubins that fill many pages each."""
    cubin = fixture("k_120f.cubin")
    rng = random.Random(seed)
    containers = []
    for _ in range(count):
        body = cubin + rng.randbytes(size)
        body += bytes(-len(body) % 8)
        entry = (
            struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(body), 0, 0, 8, 1, 120, 0, 0, 0x200011, 0, 0) + body
        )
        containers.append(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry)
    return b"".join(containers)


def test_pages_are_given_back_and_nothing_is_lost() -> None:
    data = many_pages(12, 3 * CHUNK // 2)
    whole = read_buffer(data, payloads, digest=True)
    assert forward(data) == (whole.code, list(whole.seen), whole.sha256)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be given back here")
def test_payloads_do_not_stay_in_memory() -> None:
    data = many_pages(3, 4 * CHUNK)
    one = member(data)
    with one.open() as stream, read_forward(one, stream.read(64), stream, payloads, digest=False) as done:
        image = done.code.containers[1].images[0]
        middle = image.offset + image.stored // 2
        assert bytes(done.buffer[middle : middle + 64]) == bytes(64)
        assert done.seen[1][0][image.stored // 2 :][:64] != bytes(64)


def fake_container(size: int) -> bytes:
    """What looks like a container with one large raw cubin, and is not referred to by anything."""
    body = bytes(size)
    entry = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(body), 0, 0, 8, 1, 120, 0, 0, 0x11, 0, 0) + body
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def test_a_wrong_guess_costs_a_second_pass_and_no_answer() -> None:
    # A false container stands before the section table and covers the pages that the real sections lie in.
    library = fixture("k_120f.o")
    table = struct.unpack_from("<Q", library, 0x28)[0]
    fake = fake_container(4 * mmap.PAGESIZE)
    gap = -table % 8
    data = bytearray(library[:table] + bytes(gap) + fake + library[table:])
    struct.pack_into("<Q", data, 0x28, table + gap + len(fake))
    whole = read_buffer(bytes(data), payloads, digest=True)
    assert [image.target for image in whole.code.images] == ["sm_120f"]
    assert forward(bytes(data)) == (whole.code, list(whole.seen), whole.sha256)


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_the_same_both_ways(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(fixture(rng.choice(["multi.o", "k.fatbin", "rdc.so", "libk.a", "lto.o"])))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    broken = bytes(data)

    def look(buffer: Buffer, container: Container) -> list[str]:
        seen = []
        for image in container.images:
            try:
                seen.append(str(len(payload(buffer, image, limit=1 << 20))))
            except DamagedError as error:
                seen.append(str(error))
        return seen

    one = member(broken)
    try:
        expected = read_buffer(broken, look, digest=True)
    except DamagedError as error:
        wrong = str(error)
        with pytest.raises(DamagedError) as caught, one.open() as stream:
            read_forward(one, stream.read(64), stream, look, digest=True).__enter__()
        assert str(caught.value) == wrong
        return
    with one.open() as stream, read_forward(one, stream.read(64), stream, look, digest=True) as done:
        assert (done.code, done.seen, done.sha256) == (expected.code, expected.seen, expected.sha256)


@pytest.mark.parametrize("wrong", [-100, 100])
def test_a_member_of_another_size_is_refused(wrong: int) -> None:
    data = fixture("k_120f.o")
    with pytest.raises(ArtifactError, match="bytes"):
        forward(data, len(data) + wrong)


def test_an_absurd_size_is_refused_before_memory_is_asked_for() -> None:
    with pytest.raises(ArtifactError, match="looked at"):
        forward(b"\x7fELF" + bytes(100), 1 << 50)


DEPTH = Depth(GB10)


def test_reading_tells_files_from_files() -> None:
    assert isinstance(read_library(member(b"#!/bin/sh\n", "bin/run"), DEPTH), PlainFacts)
    assert isinstance(read_library(member(b"/* GNU ld script */ INPUT(x)", "libc.so"), DEPTH), PlainFacts)
    text = read_library(member(b"hi\n", "libx.so"), DEPTH)
    assert isinstance(text, LibraryFacts)
    assert text.format == ""
    assert "ELF" in text.damage[0]
    empty = read_library(member(b"", "libx.so"), DEPTH)
    assert isinstance(empty, LibraryFacts)
    assert empty.damage


def test_ptx_files_are_read_as_text() -> None:
    text = b"// made by hand\n.version 9.0\n.target sm_103a, debug\n.visible .entry twice(\n.param .u64 p)\n{ ret; }\n"
    facts = read_library(member(text, "data/x.ptx"), DEPTH)
    assert isinstance(facts, LibraryFacts)
    assert facts.targets() == {"compute_103a": 1}
    assert [kernel.name for kernel in facts.units[0].kernels] == ["twice"]
    broken = read_library(member(b"no ptx at all", "data/x.ptx"), DEPTH)
    assert isinstance(broken, LibraryFacts)
    assert ".target" in broken.damage[0]


def test_a_library_gives_kernels_toolkit_and_host_facts() -> None:
    facts = read_library(member(fixture("k_120f.o"), "k.o"), DEPTH)
    assert isinstance(facts, LibraryFacts)
    (unit,) = facts.units
    (kernel,) = unit.kernels
    assert (kernel.name, kernel.sizes) == ("_Z1kPf", (384,))
    assert kernel.registers
    assert kernel.inert is False
    assert unit.images[0].toolkit is not None
    assert unit.images[0].toolkit.version == "13.0.88"
    assert facts.host is not None
    shallow = read_library(
        member(fixture("k_120f.o"), "k.o"), Depth(GB10, kernels=False, digest=False, symbols=False)
    )
    assert isinstance(shallow, LibraryFacts)
    assert shallow.units[0].kernels == ()
    assert shallow.sha256 == ""
    assert shallow.host is not None
    assert not shallow.host.undefined
