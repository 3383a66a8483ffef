"""Opening wheels, files and folders, and reading their members."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import pytest

from sm121.artifact import Kind, open_artifact
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

BODY = bytes(range(256)) * 5000


def _wheel(folder: Path) -> Path:
    path = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing/deflated.so", BODY, zipfile.ZIP_DEFLATED)
        archive.writestr("thing/stored.so", BODY, zipfile.ZIP_STORED)
        archive.writestr("thing/empty.py", b"")
        archive.mkdir("thing/folder/")
    return path


def test_a_wheel_gives_its_files_streamed_and_as_buffers(tmp_path: Path) -> None:
    with open_artifact(_wheel(tmp_path)) as artifact:
        members = {member.path: member for member in artifact.members()}
        assert artifact.kind is Kind.WHEEL
        assert artifact.problems == []
        assert set(members) == {"thing/deflated.so", "thing/stored.so", "thing/empty.py"}
        for path in ("thing/deflated.so", "thing/stored.so"):
            assert members[path].size == len(BODY)
            assert members[path].read() == BODY
            with members[path].buffer() as buffer:
                assert bytes(buffer) == BODY
        with members["thing/empty.py"].buffer() as buffer:
            assert bytes(buffer) == b""


def test_only_wanted_members_are_given(tmp_path: Path) -> None:
    with open_artifact(_wheel(tmp_path)) as artifact:
        assert [member.path for member in artifact.members(lambda path: "stored" in path)] == ["thing/stored.so"]


def test_a_single_file_is_its_only_member(tmp_path: Path) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(BODY)
    with open_artifact(str(path)) as artifact:
        (member,) = artifact.members()
        assert (artifact.kind, artifact.name, member.path, member.size) == (
            Kind.FILE, "k.cubin", "k.cubin", len(BODY),
        )  # fmt: skip
        with member.buffer() as buffer:
            assert buffer[:4] == BODY[:4]


def test_a_folder_follows_links_to_files_outside_only(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "far.so").write_bytes(b"far")
    root = tmp_path / "root"
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "a.so.1").write_bytes(b"near")
    (root / "lib" / "a.so").symlink_to("a.so.1")
    (root / "lib64").symlink_to("lib")
    (root / "far.so").symlink_to(outside / "far.so")
    (root / "away").symlink_to(outside)
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    with open_artifact(root) as artifact:
        assert {member.path: member.read() for member in artifact.members()} == {
            "far.so": b"far", "lib/a.so.1": b"near",
        }  # fmt: skip
        assert [finding.subject for finding in artifact.problems] == ["away"]


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        open_artifact(tmp_path / "missing.whl")
