from __future__ import annotations

from pathlib import Path

import pytest

from sm121.documents import read_document, read_text_document, write_document
from sm121.errors import StorageError


def test_a_document_goes_where_it_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_document("-", "out\n")
    assert capsys.readouterr().out == "out\n"
    write_document(str(tmp_path / "d"), "one\n")
    write_document(str(tmp_path / "d"), "two\n")
    assert (tmp_path / "d").read_text() == "two\n"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_link_is_followed_and_a_device_is_written_into(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_document(str(tmp_path / "link"), "x")
    assert (tmp_path / "target").read_text() == "x"
    write_document("/dev/null", "x")
    with pytest.raises(StorageError, match="cannot be written"):
        write_document("/dev/full", "x")


@pytest.mark.parametrize("place", ["nothing/d", "."])
def test_a_place_that_does_not_serve_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(StorageError) as caught:
        write_document(str(tmp_path / place), "x")
    assert caught.value.do


def test_names_too_long_are_told_and_names_that_are_no_text_are_written(tmp_path: Path) -> None:
    for length in (250, 300):
        with pytest.raises(StorageError, match="cannot be written"):
            write_document(str(tmp_path / ("n" * length)), "x")
    write_document(str(tmp_path / "d"), "a\udcffb")
    assert (tmp_path / "d").read_text() == "a\\udcffb"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_what_never_ends_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("é")
    assert read_text_document(tmp_path / "d") == "é"
    with pytest.raises(OSError, match="larger than"):
        read_document(Path("/dev/zero"))
