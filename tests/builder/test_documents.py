from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm121.documents import write_document
from sm121.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path


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
