"""Layers and placed wheels: equal bytes everywhere, and what an installer would have written."""

from __future__ import annotations

import base64
import csv
import errno
import gzip
import hashlib
import io
import os
import tarfile
import time
from typing import TYPE_CHECKING

import pytest
import zstandard

from made_images import OUR_FILES, our_wheel, wheel_file
from sm121 import process
from sm121.artifact import Wheel
from sm121.errors import PackError, StorageError
from sm121.image.contents import contents_digest
from sm121.image.layer import Compression, Entry, write_layer
from sm121.image.placing import Prefix, collisions, described, measure, misrecorded, place
from sm121.image.store import BlobStore, require_space
from sm121.values import Sha256

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = Prefix("opt/sm121", "3.12")
SITE = "opt/sm121/lib/python3.12/site-packages"


def entries() -> list[Entry]:
    return [
        Entry.text("b/file", b"content" * 1000),
        Entry.text("a", b"", mode=0o755, owner=7),
        Entry("c", link="a"),
        Entry.folder("empty", mode=0o700),
        Entry.text("b/" + "long" * 60, b"x"),
    ]


@pytest.mark.parametrize("how", list(Compression))
def test_a_layer_is_the_same_whatever_the_order_the_threads_and_the_clock(
    tmp_path: Path, how: Compression
) -> None:
    digests = set()
    for number, (given, threads) in enumerate([(entries(), 1), (entries()[::-1], 3), (entries(), 2)]):
        store = BlobStore(tmp_path / str(number))
        done = write_layer(store, given, epoch=1000, created_by="x", compression=how, threads=threads)
        digests.add((done.digest, done.diff_id, done.size))
        assert Sha256.of_file(store.path(done.digest)) == done.digest
        assert [path.name for path in store.folder.iterdir()] == [done.digest.hex]
        time.sleep(0.01)
    assert len(digests) == 1


def test_a_layer_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    done = write_layer(store, entries(), epoch=1000, created_by="x")
    data = store.path(done.digest).read_bytes()
    assert data[:4] == b"\x1f\x8b\x08\x00"  # no name
    assert data[4:8] == bytes(4)  # no time
    plain = gzip.decompress(data)
    assert Sha256.of_bytes(plain) == done.diff_id
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == ["a", "b", "b/file", "b/" + "long" * 60, "c", "empty"]
    assert {member.mtime for member in members} == {1000}
    assert {(member.uname, member.gname) for member in members} == {("", "")}
    assert {member.uid for member in members} == {0, 7}
    assert (members[0].mode, members[1].mode, members[-1].mode) == (0o755, 0o755, 0o700)
    assert (members[4].issym(), members[4].linkname) == (True, "a")


def test_zstd_is_read_back(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    done = write_layer(store, entries(), epoch=1, created_by="x", compression=Compression.ZSTD)
    with store.path(done.digest).open("rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file).read()
    assert Sha256.of_bytes(plain) == done.diff_id
    assert done.media_type.endswith(".tar+zstd")


@pytest.mark.parametrize(
    ("size", "digest", "said"),
    [
        (8, None, "ends 1 bytes early"),
        (6, None, "more bytes follow"),
        (7, Sha256("0" * 64), "the bytes are sha256:"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(
    tmp_path: Path, size: int, digest: Sha256 | None, said: str
) -> None:
    good = Entry.text("a", b"content")
    bad = Entry(good.path, good.mode, good.source, size, digest)
    store = BlobStore(tmp_path)
    with pytest.raises(PackError, match=said):
        write_layer(store, [bad], epoch=1, created_by="x")
    assert list(store.folder.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = BlobStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        write_layer(store, entries(), epoch=1, created_by="x")
    assert list(store.folder.iterdir()) == []
    with pytest.raises(StorageError, match="the base takes"):
        require_space(tmp_path, 1 << 60, "the base")


def test_a_wheel_is_placed_as_an_installer_would(tmp_path: Path) -> None:
    files = {
        **OUR_FILES, "thing-1.0+cu130.sm121.data/scripts/tool": b"#!python\nprint(1)\n",
        "thing-1.0+cu130.sm121.data/data/share/x": b"x", "thing-1.0+cu130.sm121.data/purelib/more.py": b"",
    }  # fmt: skip
    path = our_wheel(tmp_path, files)
    with Wheel(path) as wheel:
        placed = place(wheel, PREFIX, direct=Sha256.of_file(path))
        texts = {}
        for entry in placed.entries:
            assert entry.source is not None
            with entry.source.open() as stream:
                texts[entry.path] = stream.read()
    info = f"{SITE}/thing-1.0+cu130.sm121.dist-info"
    assert set(texts) == {
        f"{SITE}/thing/__init__.py", f"{SITE}/thing/_version.py", f"{SITE}/more.py", "opt/sm121/share/x",
        "opt/sm121/bin/tool", "opt/sm121/bin/vllm",
        *(f"{info}/{name}" for name in (
            "METADATA", "WHEEL", "entry_points.txt", "INSTALLER", "REQUESTED", "direct_url.json", "RECORD"
        )),
    }  # fmt: skip
    assert texts["opt/sm121/bin/tool"] == b"#!/opt/sm121/bin/python\nprint(1)\n"
    assert texts["opt/sm121/bin/vllm"].startswith(b"#!/opt/sm121/bin/python\nfrom thing import main\n")
    rows = list(csv.reader(io.StringIO(texts[f"{info}/RECORD"].decode())))
    assert rows[:-1] == sorted(rows[:-1])
    for name, digest, size in rows[:-1]:
        data = texts[str(name if not name.startswith("../") else "opt/sm121/" + name.removeprefix("../../../"))
                     if name.startswith("../") else f"{SITE}/{name}"]  # fmt: skip
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert int(size) == len(data)
    assert placed.commit == "gabc1234"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"x.data/nonsense/a": b""}, "into a scheme that is none"),
        ({"x-1.0.dist-info/entry_points.txt": b"[console_scripts]\nx = a b:c\n"}, "names no function"),
        ({"x-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../x = a:c\n"}, "names no function"),
    ],
)
def test_wheels_that_would_write_elsewhere(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with Wheel(wheel_file(tmp_path, "x", "1.0", files)) as wheel, pytest.raises(PackError, match=said):
        place(wheel, PREFIX)


def test_a_wheel_whose_record_is_wrong(tmp_path: Path) -> None:
    """PyNvVideoCodec 2.0.4 is one: its RECORD gives other hashes than its libraries have."""
    right = wheel_file(tmp_path / "a", "x", "1.0", {"x.py": b"one"})
    wrong = tmp_path / right.name
    wrong.write_bytes(right.read_bytes().replace(b"x.py,sha256=", b"x.py,sha256="))
    import zipfile  # noqa: PLC0415

    with zipfile.ZipFile(right) as old, zipfile.ZipFile(wrong, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"two" if name == "x.py" else old.read(name))
    with Wheel(wrong) as wheel:
        measured = measure(wheel, tmp_path / "known.json")
        assert misrecorded(wheel, measured) == ["x.py"]
        assert measure(wheel, tmp_path / "known.json") == measured
        placed = place(wheel, PREFIX, measured=measured)
        write_layer(BlobStore(tmp_path / "store"), placed.entries, epoch=1, created_by="x")
        record = next(entry for entry in placed.entries if entry.path.endswith("/RECORD"))
        assert record.source is not None
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"two").digest()).rstrip(b"=").decode()
        with record.source.open() as stream:
            assert f"x.py,sha256={digest},3" in stream.read().decode()
        with pytest.raises(PackError, match=r"x\.py: the bytes are"):
            write_layer(BlobStore(tmp_path / "store"), place(wheel, PREFIX).entries, epoch=1, created_by="x")


def test_two_owners_of_one_path(tmp_path: Path) -> None:
    one = wheel_file(tmp_path, "one", "1.0", {"shared.py": b"1", "equal.py": b"", "build_backend.py": b"1"})
    two = wheel_file(tmp_path, "two", "1.0", {"shared.py": b"2", "equal.py": b"", "build_backend.py": b"2"})
    with Wheel(one) as first, Wheel(two) as second:
        found = collisions([place(first, PREFIX), place(second, PREFIX)], PREFIX)
    assert found == [f"{SITE}/shared.py is of one and of two, with different bytes."]


def test_what_is_installed_has_the_digest_of_the_wheel(tmp_path: Path) -> None:
    path = our_wheel(tmp_path)
    with Wheel(path) as wheel:
        before = contents_digest(described(wheel))
    other = our_wheel(tmp_path / "other", {**OUR_FILES, "thing/more.py": b""})
    with Wheel(other) as wheel:
        assert contents_digest(described(wheel)) != before


@pytest.mark.programs
def test_files_are_where_uv_puts_them(tmp_path: Path) -> None:
    """Against another installer: the same paths and bytes, apart from what each installer writes itself."""
    files = {
        **OUR_FILES, "thing-1.0+cu130.sm121.data/scripts/tool": b"#!python\nprint(1)\n",
        "thing-1.0+cu130.sm121.data/data/share/x": b"x",
    }  # fmt: skip
    path = our_wheel(tmp_path, files)
    target = tmp_path / "target"
    uv = process.find("uv")
    if uv is None:
        pytest.skip("uv is not on PATH")
    process.run([uv, "venv", "--quiet", "--offline", target])
    process.run(
        [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", target / "bin/python", path]
    )
    with Wheel(path) as wheel:
        placed = place(wheel, PREFIX, direct=Sha256.of_file(path))
    mine = {
        entry.path.removeprefix("opt/sm121/").replace("lib/python3.12/", "lib/pythonX/"): entry.sha256
        for entry in placed.entries
    }
    found = {
        file.relative_to(target).as_posix(): Sha256.of_file(file)
        for file in target.rglob("*")
        if file.is_file() and ("thing" in file.as_posix() or file.name in {"tool", "vllm", "x"})
    }
    theirs = {
        "lib/pythonX/" + name.split("/", 2)[2] if name.startswith("lib/") else name: digest
        for name, digest in found.items()
    }
    own = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
    assert {n for n in mine if not n.endswith(own)} == {n for n in theirs if not n.endswith(own)}
    assert all(
        mine[name] == digest
        for name, digest in theirs.items()
        if not name.endswith(own) and not name.startswith("bin/")
    )
