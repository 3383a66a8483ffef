"""The tar reader against the standard library's writer, and against what no writer makes."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_maker import layer

from sm121.artifact.tarstream import TarEntry, TarKind, tar_entries
from sm121.errors import ArtifactError

KINDS = {
    tarfile.REGTYPE: TarKind.FILE, tarfile.SYMTYPE: TarKind.SYMLINK, tarfile.LNKTYPE: TarKind.LINK,
    tarfile.DIRTYPE: TarKind.FOLDER, tarfile.FIFOTYPE: TarKind.OTHER, tarfile.CHRTYPE: TarKind.OTHER,
}  # fmt: skip


class Bytes:
    """Bytes as a forward stream, which counts how much is asked for at once."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.largest = 0

    def read(self, count: int) -> bytes:
        self.largest = max(self.largest, count)
        data = self.data[self.position : self.position + count]
        self.position += len(data)
        return data

    def skip_to(self, position: int) -> bool:
        assert position >= self.position
        self.position = min(position, len(self.data))
        return position <= len(self.data)


def read(data: bytes) -> list[TarEntry]:
    return list(tar_entries(Bytes(data)))


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=120).map(
    lambda text: text.replace("\n", "n") or "x"
)
entries = st.lists(
    st.tuples(
        st.lists(names, min_size=1, max_size=4).map("/".join),
        st.sampled_from(sorted(KINDS)),
        st.binary(max_size=1100),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_what_the_standard_library_writes_is_read_alike(made: list[tuple[str, bytes, bytes]], form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for path, kind, data in made:
            info = tarfile.TarInfo(path)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(data)
            if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE}:
                info.linkname = path[::-1].strip("/") or "x"
            archive.addfile(info, io.BytesIO(data))
    raw = out.getvalue()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        wanted = [
            (info.name, KINDS[info.type], info.size, info.offset_data if info.isreg() else None, info.linkname)
            for info in archive
        ]
    got = [
        (
            entry.path.rstrip("/"),
            entry.kind,
            entry.size,
            entry.offset if entry.kind is TarKind.FILE else None,
            entry.link,
        )
        for entry in read(raw)
    ]
    assert got == wanted


def header(**changes: bytes) -> bytearray:
    """One header of an empty file, with fields replaced and the checksum made right again."""
    data = bytearray(layer(("a", b""))[:512])
    places = {"name": 0, "mode": 100, "size": 124, "type": 156, "link": 157, "magic": 257, "prefix": 345}
    for name, value in changes.items():
        data[places[name] : places[name] + len(value)] = value
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return data


END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x", "ends within the header"),
        (b"1" * 512, "checksum"),
        (bytes(header(size=b"99999999999\0")) + END, "not octal"),
        (bytes(header(size=b"\x80" + b"\xff" * 11)) + END, "out of range"),
        (bytes(header(size=b"\xff" * 12)) + END, "out of range"),
        (bytes(header(size=b"00000002000\0")) + bytes(512), "ends within 'a'"),
        (bytes(header(type=b"x", size=b"77777777777\0")), "extended header of"),
        (bytes(header(type=b"L", size=b"00000010000\0")) + b"x" * 512, "within an extended header"),
        (bytes(header(type=b"x", size=b"00000001000\0")) + b"9" * 512 + bytes(header()), "damaged"),
        (bytes(header(type=b"x", size=b"00000000010\0")) + b"8 a=b\nxx".ljust(512, b"\0"), "damaged"),
        (bytes(header(type=b"x", size=b"00000000010\0")) + b"8 path=\n".ljust(512, b"\0"), "behind an extended header"),
        (bytes(header(type=b"g", size=b"0\0")) * 17, "in a row"),
        (bytes(header(type=b"L", size=b"00000012000\0")) + b"n" * 5120 + bytes(header()) + END, "4096 is the most"),
        (bytes(header(type=b"S")) [:482] + b"\1" + bytes(29), "checksum"),
    ],
)  # fmt: skip
def test_damage_is_said(data: bytes, said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        read(data)


def test_headers_are_never_taken_into_memory_whole() -> None:
    source = Bytes(bytes(header(type=b"x", size=b"77777777777\0")) + bytes(1 << 16))
    with pytest.raises(ArtifactError):
        list(tar_entries(source))
    assert source.largest == 512


def test_old_and_odd_archives() -> None:
    assert read(b"") == []
    assert read(END) == []
    assert read(bytes(header()))[0].path == "a"  # no end mark
    folder = read(bytes(header(name=b"old/\0", type=b"\0", magic=bytes(8))) + END)
    assert (folder[0].kind, folder[0].path) == (TarKind.FOLDER, "old/")
    big = bytearray(header(size=b"\x80" + (512).to_bytes(11, "big")))
    assert read(bytes(big) + bytes(512) + END)[0].size == 512
    prefixed = read(bytes(header(prefix=b"long/folder")) + END)
    assert prefixed[0].path == "long/folder/a"
    link = read(bytes(header(type=b"1", size=b"00000001000\0", link=b"b")) + END)
    assert (link[0].kind, link[0].size, link[0].link) == (TarKind.LINK, 0, "b")
    assert read(bytes(header(name=b"\xff\x1b[0m")) + END)[0].path == "\\xff\x1b[0m"


def test_sparse_files_are_marked_and_passed_over() -> None:
    old = bytearray(header(type=b"S", size=b"00000001000\0"))
    old[482] = 1
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    more = bytes(504) + b"\1" + bytes(7)
    got = read(bytes(old) + more + bytes(512) + b"d" * 512 + bytes(header()) + END)
    assert [(entry.size, entry.offset, bool(entry.fault)) for entry in got] == [
        (512, 1536, True),
        (0, 2560, False),
    ]


def test_global_headers_hold_for_all_that_follows() -> None:
    record = b"12 path=all\n"
    common = bytes(header(type=b"g", size=b"%011o\0" % len(record))) + record.ljust(512, b"\0")
    assert [entry.path for entry in read(common + bytes(header()) * 2 + END)] == ["all", "all"]
