"""Archives: whole or not at all, and nothing outside the folder, whatever they say."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm121.errors import StorageError, UnpackError
from sm121.sources import unpack as unpacking
from sm121.sources.tree import read_tree, tree_digest
from sm121.sources.unpack import MTIME, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


Entry = tuple[tarfile.TarInfo, bytes]


def member(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode, info.mtime = kind, len(data), target, mode, 1
    return info, data


def sdist(path: Path, members: Iterable[Entry]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return path


def wheel(path: Path, members: Iterable[tuple[str, bytes, int]]) -> Path:
    """Members are (name, content, mode); mode 0 as a tool without Unix modes writes it."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def nothing_is_left(folder: Path) -> bool:
    return [path.name for path in folder.iterdir() if path.is_dir()] == []


def test_sdist(tmp_path: Path) -> None:
    archive = sdist(
        tmp_path / "p-1.tar.gz",
        [
            member("p-1", kind=tarfile.DIRTYPE, mode=0o700),
            member("p-1/setup.py", b"x"),
            member("p-1/run.sh", b"#!/bin/sh\n", mode=0o4755),
            member("p-1/include/a.h", b"int a;"),
            member("p-1/link.h", kind=tarfile.SYMTYPE, target="include/a.h"),
            member("p-1/include/up", kind=tarfile.SYMTYPE, target="../setup.py"),
            member("p-1/copy.h", kind=tarfile.LNKTYPE, target="p-1/include/a.h"),
        ],
    )
    tree = tmp_path / "my tree"
    unpack(archive, tree, strip=1)
    assert (tree / "setup.py").read_bytes() == b"x"
    assert (tree / "link.h").read_bytes() == b"int a;"
    assert (tree / "include" / "up").read_bytes() == b"x"
    assert (tree / "copy.h").read_bytes() == b"int a;"
    assert (tree / "copy.h").stat().st_nlink == 1, "a hard link becomes a file of its own"
    assert stat.S_IMODE((tree / "run.sh").stat().st_mode) == 0o755, "no set-user-id"
    assert stat.S_IMODE((tree / "setup.py").stat().st_mode) == 0o644
    assert {path.lstat().st_mtime for path in [tree, *tree.rglob("*")]} == {MTIME}


def test_wheel_programs(tmp_path: Path) -> None:
    """Some wheels record no modes: what they call programs would not start."""
    archive = wheel(
        tmp_path / "x.whl",
        [("n/bin/nvcc", b"elf", 0), ("n/bin/own", b"elf", 0o100755), ("n/include/a.h", b"", 0o100644), ("n/lib/", b"", 0)],
    )  # fmt: skip
    unpack(archive, tmp_path / "plain")
    assert not os.access(tmp_path / "plain/n/bin/nvcc", os.X_OK)
    assert os.access(tmp_path / "plain/n/bin/own", os.X_OK)
    assert (tmp_path / "plain/n/lib").is_dir()
    unpack(archive, tmp_path / "mended", executable=lambda path: path.startswith("n/bin/"))
    assert os.access(tmp_path / "mended/n/bin/nvcc", os.X_OK)
    assert not os.access(tmp_path / "mended/n/include/a.h", os.X_OK)


def test_some_members_and_fewer_folders(tmp_path: Path) -> None:
    archive = wheel(tmp_path / "x.whl", [("n/cu13/include/a.h", b"a", 0), ("n/other", b"b", 0), ("top", b"c", 0)])
    unpack(archive, tmp_path / "cuda", members=lambda path: path.startswith("n/cu13/"), strip=2)
    assert [entry.path for entry in read_tree(tmp_path / "cuda")] == ["include/a.h"]
    with pytest.raises(UnpackError, match="none of the members"):
        unpack(archive, tmp_path / "none", members=lambda path: path.endswith(".cu"))
    with pytest.raises(UnpackError, match="'top' has too few folders"):
        unpack(archive, tmp_path / "short", strip=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cuda", "x.whl"]


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (member("/etc/passwd", b"x"), "absolute"),
        (member("p/../../out", b"x"), "'..'"),
        (member("p\\..\\out", b"x"), "Windows"),
        (member("c:/out", b"x"), "Windows"),
        (member("p/dev", kind=tarfile.CHRTYPE), "device"),
        (member("p/fifo", kind=tarfile.FIFOTYPE), "device"),
        (member("p/l", kind=tarfile.SYMTYPE, target="/etc/passwd"), "leaves"),
        (member("p/l", kind=tarfile.SYMTYPE, target="../../out"), "leaves"),
        (member("p/h", kind=tarfile.LNKTYPE, target="/etc/passwd"), "hard link"),
        (member("p/h", kind=tarfile.LNKTYPE, target="p/absent"), "hard link"),
        (member("p/good/below", b"x"), "lies below"),
        (member("p/good", b"other"), "twice"),
        (member("p/new\nline", b"x"), "no usable name"),
    ],
)
def test_bad_members(bad: Entry, word: str, tmp_path: Path) -> None:
    archive = sdist(tmp_path / "p.tar.gz", [member("p/good", b"good"), bad])
    with pytest.raises(UnpackError, match=word):
        unpack(archive, tmp_path / "tree")
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "links",
    [
        [("p/here", "."), ("p/out", "here/../../x")],
        [("p/a/up", ".."), ("p/a/out", "up/../../x")],
        [("p/loop", "loop")],
        [("p/one", "two"), ("p/two", "one")],
    ],
    ids=["by way of .", "two steps", "itself", "each other"],
)
def test_links_that_leave_by_way_of_others(links: list[tuple[str, str]], tmp_path: Path) -> None:
    archive = sdist(
        tmp_path / "p.tar.gz",
        [member("p/a/b/c", b"x"), *(member(name, kind=tarfile.SYMTYPE, target=target) for name, target in links)],
    )
    with pytest.raises(UnpackError, match="leaves the folder"):
        unpack(archive, tmp_path / "tree")
    assert nothing_is_left(tmp_path)


def test_a_link_that_only_seems_to_leave(tmp_path: Path) -> None:
    """`p/l` is `p/a/b`, so three folders up from it is the folder itself."""
    archive = sdist(
        tmp_path / "p.tar.gz",
        [
            member("p/a/b/c", b"x"),
            member("p/up", kind=tarfile.SYMTYPE, target="l/../../.."),
            member("p/l", kind=tarfile.SYMTYPE, target="a/b"),
        ],
    )
    unpack(archive, tmp_path / "tree")
    assert (tmp_path / "tree/p/up").resolve() == tmp_path / "tree"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    archive = sdist(
        tmp_path / "p.tar.gz",
        [member("p/d", kind=tarfile.SYMTYPE, target="e"), member("p/d/f", b"x"), member("p/e/g", b"y")],
    )
    with pytest.raises(UnpackError, match="lies below 'p/d', which is a link"):
        unpack(archive, tmp_path / "tree")


def test_every_bad_member_is_named_in_one_error(tmp_path: Path) -> None:
    archive = sdist(
        tmp_path / "p.tar.gz",
        [member("/a", b""), member("../b", b""), member("ok", b""), member("c", kind=tarfile.BLKTYPE)],
    )
    with pytest.raises(UnpackError) as caught:
        unpack(archive, tmp_path / "tree")
    assert [problem.split("'")[1] for problem in caught.value.problems] == ["/a", "../b", "c"]
    unwanted = sdist(tmp_path / "q.tar.gz", [member("/a", b""), member("ok", b"")])
    with pytest.raises(UnpackError, match="'/a'"):
        unpack(unwanted, tmp_path / "tree", members=lambda path: path == "ok")


def test_a_thousand_bad_members_do_not_fill_the_screen(tmp_path: Path) -> None:
    archive = sdist(tmp_path / "p.tar.gz", [member(f"/{number}", b"") for number in range(1000)])
    with pytest.raises(UnpackError, match="950 more") as caught:
        unpack(archive, tmp_path / "tree")
    assert len(caught.value.problems) == 51


def test_the_same_member_twice_is_one(tmp_path: Path) -> None:
    archive = sdist(tmp_path / "p.tar.gz", [member("p/a", b"same"), member("p/./a", b"same")])
    unpack(archive, tmp_path / "tree")
    assert [entry.path for entry in read_tree(tmp_path / "tree")] == ["p/a"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_zip_members(tmp_path: Path) -> None:
    bad = wheel(
        tmp_path / "bad.whl",
        [("/abs", b"", 0), ("../up", b"", 0), ("a", b"1", 0), ("a", b"2", 0), ("l", b"/etc", 0o120777),
         ("pipe", b"", 0o010644)],
    )  # fmt: skip
    with pytest.raises(UnpackError) as caught:
        unpack(bad, tmp_path / "tree")
    assert len(caught.value.problems) == 5
    good = wheel(tmp_path / "good.whl", [("lib/a.so.1", b"so", 0), ("lib/a.so", b"a.so.1", 0o120777)])
    unpack(good, tmp_path / "tree")
    assert (tmp_path / "tree/lib/a.so").read_bytes() == b"so"


def test_encrypted_zip(tmp_path: Path) -> None:
    archive = wheel(tmp_path / "x.whl", [("a", b"1", 0)])
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    with pytest.raises(UnpackError, match="encrypted"):
        unpack(archive, tmp_path / "tree")


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.mark.parametrize("harm", [truncate, flip])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_damaged_archives(kind: str, harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    noise = os.urandom(50_000)
    archive = (
        wheel(tmp_path / "x.whl", [("a", noise, 0)])
        if kind == "zip"
        else sdist(tmp_path / "x.gz", [member("a", noise)])
    )
    archive.write_bytes(harm(archive.read_bytes()))
    with pytest.raises(UnpackError, match="damaged"):
        unpack(archive, tmp_path / "tree")
    assert nothing_is_left(tmp_path)


def test_a_tar_that_ends_early_inside_a_whole_gzip(tmp_path: Path) -> None:
    """The standard library takes a broken header for the end of the archive and says nothing."""
    plain = gzip.decompress(
        sdist(tmp_path / "x.gz", [member("a", b"1"), member("b", b"2"), member("c", b"3")]).read_bytes()
    )
    for broken in (plain[:1024], plain[:1024] + b"\xff" * 512 + plain[1536:], plain[:2048]):
        (tmp_path / "y.gz").write_bytes(gzip.compress(broken))
        with pytest.raises(UnpackError, match="damaged"):
            unpack(tmp_path / "y.gz", tmp_path / "tree")
        assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(("data", "word"), [(b"<html>", "'<htm'"), (b"", "''"), (b"\x7fELF", "ELF")])
def test_no_archive(data: bytes, word: str, tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(data)
    with pytest.raises(UnpackError, match=r"neither a zip nor a tar\.gz") as caught:
        unpack(tmp_path / "x.whl", tmp_path / "tree")
    assert word in str(caught.value)


def test_absent_archive(tmp_path: Path) -> None:
    with pytest.raises(UnpackError, match="cannot be read"):
        unpack(tmp_path / "x.whl", tmp_path / "tree")


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = bytes(3_000_000)
    links = [member(f"h{number}", kind=tarfile.LNKTYPE, target="a") for number in range(4)]
    for archive in (
        wheel(tmp_path / "x.whl", [("a", zeros, 0)]),
        sdist(tmp_path / "x.gz", [member("a", zeros)]),
        sdist(tmp_path / "y.gz", [member("a", zeros[:600_000]), *links]),
    ):
        assert archive.stat().st_size < 10_000
        with pytest.raises(UnpackError, match=r"limit is 2\.0 MB"):
            unpack(archive, tmp_path / "tree", limit=2_000_000)
    monkeypatch.setattr(unpacking, "MEMBER_LIMIT", 10)
    with pytest.raises(UnpackError, match="more than 10 members"):
        unpack(sdist(tmp_path / "z.gz", [member(str(n)) for n in range(11)]), tmp_path / "tree")
    assert nothing_is_left(tmp_path)


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 34
    (tmp_path / "x.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))
    with pytest.raises(UnpackError, match="claims"):
        unpack(tmp_path / "x.gz", tmp_path / "tree")


def test_the_folder_must_be_new(tmp_path: Path) -> None:
    archive = wheel(tmp_path / "x.whl", [("a", b"", 0)])
    (tmp_path / "tree").mkdir()
    with pytest.raises(UnpackError, match="exists already"):
        unpack(archive, tmp_path / "tree")


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = wheel(tmp_path / "x.whl", [("a", b"some bytes", 0)])
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5))
    with pytest.raises(StorageError, match=r"unpacks to 10 B, .* has 5 B left"):
        unpack(archive, tmp_path / "tree")


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = wheel(tmp_path / "x.whl", [("a", b"1", 0), ("b", b"2", 0)])

    def stop(path: str) -> bool:
        if path == "b":
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "tree", executable=stop)
    assert nothing_is_left(tmp_path)


def test_equal_archives_give_equal_trees(tmp_path: Path) -> None:
    one = sdist(tmp_path / "1.gz", [member("p/a", b"1"), member("p/b", b"2", mode=0o755)])
    two = wheel(tmp_path / "2.whl", [("p/b", b"2", 0o100777), ("p/a", b"1", 0)])
    unpack(one, tmp_path / "one")
    unpack(two, tmp_path / "elsewhere")
    assert tree_digest(tmp_path / "one") == tree_digest(tmp_path / "elsewhere")


NAMES = st.text(st.sampled_from("ab./\\: é\x00\n"), min_size=1, max_size=8)
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(st.tuples(NAMES, KINDS, NAMES), max_size=6))
def test_no_archive_writes_outside(
    entries: list[tuple[str, bytes, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("any")
    inner = home / "deep" / "deeper"
    inner.mkdir(parents=True)
    usable = [(name.replace("\0", ""), kind, target.replace("\0", "")) for name, kind, target in entries]
    archive = sdist(
        home / "x.gz",
        [member(name, b"x" if kind == tarfile.REGTYPE else b"", kind=kind, target=target) for name, kind, target in usable],
    )  # fmt: skip
    try:
        unpack(archive, inner / "tree")
    except UnpackError:
        assert list(inner.iterdir()) == []
    else:
        root = (inner / "tree").resolve()
        for path in (inner / "tree").rglob("*"):
            assert path.is_symlink() or path.resolve().is_relative_to(root)
            if path.is_symlink():
                assert path.parent.joinpath(path.readlink()).resolve().is_relative_to(root)
    assert sorted(path.name for path in home.iterdir()) == ["deep", "x.gz"]
    assert [path.name for path in inner.parent.iterdir()] == ["deeper"]
