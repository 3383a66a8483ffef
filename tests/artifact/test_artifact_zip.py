"""Zip files that nobody vouches for: every fault becomes a finding or an ArtifactError, nothing else."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest

from sm121.artifact import Limits
from sm121.artifact.wheel import Wheel
from sm121.errors import ArtifactError
from sm121.findings import Verdict

if TYPE_CHECKING:
    from pathlib import Path

BODY = bytes(range(256)) * 300


def written(path: Path, *entries: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def checks(path: Path, limits: Limits | None = None) -> dict[str, str]:
    with Wheel(path, limits) as opened:
        return {finding.subject: finding.check for finding in opened.problems}


def patched(path: Path, before: bytes, after: bytes) -> Path:
    data = path.read_bytes()
    assert before in data
    path.write_bytes(data.replace(before, after))
    return path


def central(path: Path, offset: int, value: bytes) -> Path:
    """Change the first row of the central directory."""
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\x01\x02")
    data[start + offset : start + offset + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("size", [0, 1, 21, 22, 100])
def test_what_is_no_zip_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"x" * size)
    with pytest.raises(ArtifactError, match="not a readable zip file"):
        Wheel(path)


def test_a_truncated_zip_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.whl", ("a", BODY), ("b", BODY))
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match="not a readable zip file"):
            Wheel(path)


@pytest.mark.parametrize(
    "name",
    ["../out", "a/../../out", "/etc/passwd", "\\out", "a\\b", "C:/x", "a\x00b", "a\x1b[31m", "a\nb", "/"],
)
def test_unsafe_names_are_named_printably(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = name
        archive.writestr(info, b"x")
    with Wheel(path) as opened:
        assert {finding.check for finding in opened.problems} == {"archive.path"}
        assert all(finding.message.isprintable() for finding in opened.problems)
        list(opened.members())


def test_duplicates_are_named_and_the_last_one_counts(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        path = written(tmp_path / "x.whl", ("a", b"first"), ("b", b"b"), ("a", b"second"))
    with Wheel(path) as opened:
        assert [(finding.check, finding.subject) for finding in opened.problems] == [("archive.duplicate", "a")]
        assert {member.path: member.read() for member in opened.members()} == {"a": b"second", "b": b"b"}


def test_symbolic_links_are_no_members(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, b"/etc/passwd")
    assert checks(path) == {"link": "archive.link"}
    with Wheel(path) as opened:
        assert list(opened.members()) == []


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_changed_content_is_found_when_it_is_read(tmp_path: Path, how: int) -> None:
    path = written(tmp_path / "x.whl", ("a", b"hello world, " * 9), how=how)
    with zipfile.ZipFile(path) as archive:
        at = archive.infolist()[0].header_offset + 30 + 1 + 5
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    with Wheel(path) as opened:
        (member,) = opened.members()
        with pytest.raises(ArtifactError, match=r"a in x\.whl is damaged"):
            member.read()
        with pytest.raises(ArtifactError, match="damaged"), member.buffer():
            pass
        identity = opened.identify()
        assert any(finding.check == "archive.damage" for finding in identity.problems)


def test_a_member_that_is_longer_or_shorter_than_it_says(tmp_path: Path) -> None:
    for claimed in (len(BODY) - 1, len(BODY) + 1, 1, 0):
        path = central(written(tmp_path / "x.whl", ("a", BODY)), 24, struct.pack("<I", claimed))
        with Wheel(path) as opened:
            (member,) = opened.members()
            assert member.size == claimed
            if claimed:
                with pytest.raises(ArtifactError, match=r"damaged|bytes"), member.buffer():
                    pass
            with pytest.raises(ArtifactError, match="damaged"), member.open() as stream:
                stream.read()


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    path = written(tmp_path / "x.whl", ("bomb", bytes(50 << 20)))
    assert path.stat().st_size < 100_000
    assert checks(path, Limits(member=1 << 20, total=1 << 20)) == {
        "bomb": "archive.size", "the archive": "archive.size",
    }  # fmt: skip
    central(path, 24, struct.pack("<I", 1000))
    with Wheel(path) as opened:
        (member,) = opened.members()
        with pytest.raises(ArtifactError, match="longer than the 1000 bytes"), member.open() as stream:
            stream.read()


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.whl", *[(f"f{number}", b"") for number in range(20)])
    with pytest.raises(ArtifactError, match="lists 20 entries"):
        Wheel(path, Limits(entries=10))


def test_encrypted_members_are_named(tmp_path: Path) -> None:
    path = central(written(tmp_path / "x.whl", ("a", b"a")), 8, struct.pack("<H", 1))
    with Wheel(path) as opened:
        assert [finding.got for finding in opened.problems] == ["it is encrypted"]
        (member,) = opened.members()
        with pytest.raises(ArtifactError, match="encrypted"):
            member.read()


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_named(tmp_path: Path, how: int) -> None:
    assert checks(written(tmp_path / "x.whl", ("a", BODY), how=how)) == {"a": "archive.damage"}


def test_two_names_for_one_member(tmp_path: Path) -> None:
    """Readers that follow the header in front of the data see another file than those of the directory."""
    path = written(tmp_path / "x.whl", ("good.py", b"x"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"good.py", b"evil.py", 1))
    with Wheel(path) as opened:
        assert "calls it evil.py" in opened.problems[0].got


def test_overlapping_members_are_named(tmp_path: Path) -> None:
    """Two rows of the directory for one piece of data: how a small archive claims petabytes."""
    path = written(tmp_path / "x.whl", ("a", BODY), ("b", BODY))
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    data[second + 42 : second + 46] = struct.pack("<I", 0)
    path.write_bytes(data)
    found = checks(path)
    assert found["b"] in {"archive.damage", "archive.overlap"}
    with Wheel(path) as opened:
        assert {finding.check for finding in opened.problems} >= {"archive.overlap"}


@pytest.mark.parametrize("hidden", [b"#!/bin/sh\n", b"PK\x03\x04" + bytes(60)])
def test_bytes_that_no_entry_names(tmp_path: Path, hidden: bytes) -> None:
    path = written(tmp_path / "x.whl", ("a", BODY), ("b", b"b"))
    path.write_bytes(hidden + path.read_bytes())
    with Wheel(path) as opened:
        (finding,) = opened.problems
        assert (finding.check, finding.verdict) == ("archive.gap", Verdict.WARN)
        assert f"has {len(hidden)} bytes" in finding.got
        assert [member.read() for member in opened.members()] == [BODY, b"b"]


def test_a_header_outside_the_file(tmp_path: Path) -> None:
    path = central(written(tmp_path / "x.whl", ("a", BODY)), 42, struct.pack("<I", 0x7FFFFFFF))
    try:
        assert checks(path) == {"a": "archive.damage"}
    except ArtifactError as error:
        assert "not a readable zip file" in str(error)  # noqa: PT017 -- either is right


def test_zip64_archives_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a", "w", force_zip64=True) as out,
    ):
        out.write(BODY)
    with Wheel(path) as opened:
        assert opened.problems == []
        (member,) = opened.members()
        assert member.read() == BODY


@pytest.mark.parametrize("piece", [1, 7, 257, 258, 259, 1000])
def test_reading_in_pieces_of_any_size_gives_all(tmp_path: Path, piece: int) -> None:
    data = b"ab" * (1 << 17) + BODY  # more than what is inflated at once
    with Wheel(written(tmp_path / "x.whl", ("a", data))) as opened:
        (member,) = opened.members()
        with member.open() as stream:
            assert isinstance(stream, io.BufferedReader)
            got, target = bytearray(), bytearray(piece)
            while count := stream.raw.readinto(target):
                got += target[:count]
        assert bytes(got) == data
