from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.pack import archive
from sm121.pack.archive import DEFLATED, STORED, ArchiveWriter, Entry, dos_time
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping


def written(content: Mapping[str, bytes], method: int = STORED) -> bytes:
    file = io.BytesIO()
    writer = ArchiveWriter(file, 0)
    for name, data in content.items():
        stored = data
        if method == DEFLATED:
            deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
            stored = deflater.compress(data) + deflater.flush()
        writer.add(Entry(name, zlib.crc32(data), len(data), len(stored), method, 0o100644), [stored])
    size, digest = writer.finish()
    result = file.getvalue()
    assert size == len(result)
    assert digest == Sha256.of_bytes(result)
    return result


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0/\\", codec="utf-8"), min_size=1),
        st.binary(max_size=200),
        max_size=6,
    ),
    st.sampled_from([STORED, DEFLATED]),
)
def test_the_standard_library_reads_what_we_write(content: dict[str, bytes], method: int) -> None:
    with zipfile.ZipFile(io.BytesIO(written(content, method))) as found:
        assert found.testzip() is None
        assert {name: found.read(name) for name in found.namelist()} == content


@pytest.mark.parametrize("bound", [0, 5, 40, 150])
def test_sizes_and_offsets_beyond_32_bits(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    """The rule for a large archive, with a low bound: at 0 all is large, at 150 only what stands at the end."""
    monkeypatch.setattr(archive, "_LARGE", bound)
    content = {"one": b"1" * 30, "two": b"2" * 60, "three": b"3" * 4}
    data = written(content)
    assert b"PK\6\6" in data
    with zipfile.ZipFile(io.BytesIO(data)) as found:
        assert found.testzip() is None
        assert {name: found.read(name) for name in found.namelist()} == content
        assert [info.file_size for info in found.infolist()] == [30, 60, 4]


def test_more_members_than_16_bits_count() -> None:
    content = {f"{number:x}": b"" for number in range(0x10001)}
    data = written(content)
    assert b"PK\6\6" in data
    assert b"PK\6\7" in data
    with zipfile.ZipFile(io.BytesIO(data)) as found:
        assert found.namelist() == list(content)


def test_a_member_of_another_length_than_announced_is_an_error() -> None:
    writer = ArchiveWriter(io.BytesIO(), 0)
    with pytest.raises(ValueError, match="5 bytes were announced, 4 came"):
        writer.add(Entry("name", 0, 5, 5, STORED, 0o100644), [b"ab", b"cd"])


def test_times_stay_in_what_a_zip_can_say() -> None:
    assert dos_time(-1) == dos_time(0) == dos_time(315532800) == (1 << 5 | 1, 0)
    assert dos_time(1_700_000_001) == (43 << 9 | 11 << 5 | 14, 22 << 11 | 13 << 5 | 10)
    assert dos_time(10**11) == (127 << 9 | 12 << 5 | 31, 23 << 11 | 59 << 5 | 29)
