"""Files by hash: from a server that misbehaves, from a mirror, from a store; and what is said if they are not there."""

from __future__ import annotations

import io
import os
import shutil
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from loopback import serving
from rich.console import Console

from sm121.errors import DigestError, FetchError, PinsError, Sm121Error, StorageError, UsageError
from sm121.index import IndexFile
from sm121.progress import Progress
from sm121.sources import download as downloading
from sm121.sources.fetch import IndexOrigin, Transfer, fetch
from sm121.sources.offers import instead
from sm121.sources.store import Store
from sm121.values import Sha256

if TYPE_CHECKING:
    from sm121.sources.store import FilePin

CASES = {
    case["id"]: case
    for case in tomllib.loads((Path(__file__).parent.parent / "cases" / "wheels.toml").read_text())["case"]
    if case["id"] in {"B50-a", "B51-a"}
}
CONTENT = os.urandom(3_000_000)
NAME = "thing-1.0-py3-none-any.whl"


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256


def pin(content: bytes = CONTENT, filename: str = NAME) -> Pin:
    return Pin("thing", "1.0", filename, len(content), Sha256.of_bytes(content))


def quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


def spoken(progress: Progress) -> str:
    assert isinstance(progress.console.file, io.StringIO)
    return progress.console.file.getvalue()


def index_of(url: str, *filenames: str, sha256: Sha256 | None = None) -> IndexOrigin:
    names = filenames or (NAME,)
    return IndexOrigin(lambda project: [IndexFile(project, "1.0", name, url, None, sha256) for name in names])


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "pause", lambda self, seconds: None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def leftovers(store: Path) -> list[str]:
    return sorted(path.name for path in store.rglob("*") if path.is_file() and not path.name.startswith("."))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("script", "requests"),
    [
        ([], 1),
        (["break off"], 2),
        (["break off", "break off", "break off", "break off", "break off", "break off", "break off"], 8),
        (["503", "429", "500"], 4),
        (["break off", "no range"], 2),
        (["break off", "416"], 3),
        (["break off", "elsewhere"], 3),
        (["no length"], 1),
        (["gzip"], 1),
    ],
    ids=["good", "broken off", "often broken off", "busy", "ignores Range", "refuses Range", "goes on elsewhere",
         "no length", "wrongly declared encoding"],
)  # fmt: skip
def test_servers(script: list[str], requests: int, tmp_path: Path) -> None:
    with serving(CONTENT, *script) as server:
        found = fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))
    assert found[NAME].read_bytes() == CONTENT
    assert len(server.requests) == requests
    assert leftovers(tmp_path) == [NAME]


@pytest.mark.programs
def test_resumed_after_an_interrupted_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.part(pin()).parent.mkdir(parents=True)
    store.part(pin()).write_bytes(CONTENT[:1_000_000])
    with serving(CONTENT) as server:
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))
    assert server.requests == ["bytes=1000000-"]
    assert server.sent == 2_000_000


@pytest.mark.programs
@pytest.mark.parametrize(
    "left", [bytes(1_000_000), bytes(4_000_000), CONTENT[:-1] + b"x"], ids=["bad", "long", "whole"]
)
def test_what_an_earlier_run_left_is_not_believed(left: bytes, tmp_path: Path) -> None:
    store, progress = Store(tmp_path), quiet()
    store.part(pin()).parent.mkdir(parents=True)
    store.part(pin()).write_bytes(left)
    with serving(CONTENT) as server:
        fetch([pin()], tmp_path, progress=progress, origin=index_of(server.url))
    assert store.path(pin()).read_bytes() == CONTENT
    assert server.requests[-1] == ""


@pytest.mark.programs
def test_wrong_bytes(tmp_path: Path) -> None:
    other = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with serving(other) as server, pytest.raises(DigestError) as caught:
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))
    told = str(caught.value)
    assert NAME in told
    assert str(pin().sha256) in told
    assert str(Sha256.of_bytes(other)) in told
    assert leftovers(tmp_path) == []


@pytest.mark.programs
@pytest.mark.parametrize("how", ["", "endless"])
def test_wrong_size(how: str, tmp_path: Path) -> None:
    with (
        serving(CONTENT + b"more", how) as server,
        pytest.raises(DigestError, match=r"3000004 bytes|more than 3000000"),
    ):
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))
    assert leftovers(tmp_path) == []


@pytest.mark.programs
def test_no_password_in_messages(tmp_path: Path) -> None:
    with serving(CONTENT, "403") as server, pytest.raises(FetchError, match="HTTP 403") as caught:
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))
    assert "secret" not in str(caught.value)
    assert "http://127.0.0.1" in str(caught.value)


@pytest.mark.programs
def test_a_server_that_never_sends_is_given_up(tmp_path: Path) -> None:
    with serving(CONTENT, *["503"] * 20) as server, pytest.raises(FetchError, match="HTTP 503") as caught:
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))
    assert len(server.requests) == downloading.TRIES + 1
    assert "again" in caught.value.do


@pytest.mark.programs
def test_a_dead_server(tmp_path: Path) -> None:
    with serving(CONTENT) as server:
        pass
    with pytest.raises(FetchError, match="connection failed"):
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of(server.url))


@pytest.mark.programs
def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    with serving(CONTENT) as server, ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(fetch, [pin()], tmp_path, progress=quiet(), origin=index_of(server.url)) for _ in range(4)
        ]
        paths = {one.result()[NAME] for one in running}
    assert len(server.requests) == 1
    assert {path.read_bytes() for path in paths} == {CONTENT}


@pytest.mark.programs
def test_back_off_grows_and_is_told_by_the_server(tmp_path: Path) -> None:
    pauses: list[float] = []
    with serving(CONTENT, "503", *["elsewhere"] * 3) as server:
        (tmp_path / "x").mkdir()
        part = tmp_path / "x" / "part"
        part.write_bytes(CONTENT[:10])
        with downloading.session() as opened:
            downloading.Download(opened, server.url, pin(), part, lambda _: None, pauses.append).run()
    assert pauses == [0.0, 2.0, 4.0, 8.0]
    assert part.read_bytes() == CONTENT


def test_several_faults_in_one_error(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / NAME).write_bytes(CONTENT)
    (mirror / "thing-2.0-py3-none-any.whl").write_bytes(b"other")
    absent = pin(filename="thing-3.0-py3-none-any.whl")
    other = pin(filename="thing-2.0-py3-none-any.whl")
    with pytest.raises(DigestError) as caught:
        fetch([pin(), absent, other], tmp_path / "store", mirror=mirror, progress=quiet())
    assert len(caught.value.problems) == 2
    assert "thing-3.0" in str(caught.value)
    assert leftovers(tmp_path / "store") == [NAME], "the good file is kept for the next run"


@pytest.mark.parametrize("place", ["", "thing", "any folder"])
def test_mirrors(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "mirror" / place
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(CONTENT)
    found = fetch([pin()], tmp_path / "store", mirror=tmp_path / "mirror", progress=quiet())
    assert found[NAME].read_bytes() == CONTENT
    assert (folder / NAME).stat().st_mode & 0o200, "the mirror's own file is left alone"


def test_a_store_is_a_mirror(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / NAME).write_bytes(CONTENT)
    fetch([pin()], tmp_path / "one", mirror=tmp_path / "mirror", progress=quiet())
    found = fetch([pin()], tmp_path / "two", mirror=tmp_path / "one", progress=quiet())
    assert found[NAME].read_bytes() == CONTENT


def test_a_mirror_is_the_only_place(tmp_path: Path) -> None:
    """No network is asked: without a marker this test could not connect at all."""
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "thing-1.0-cp312-cp312-manylinux_2_28_x86_64.whl").write_bytes(b"")
    wanted = pin(filename="thing-1.0-cp312-cp312-manylinux_2_28_aarch64.whl")
    with pytest.raises(FetchError, match="for x86_64 only, not for aarch64"):
        fetch([wanted], tmp_path / "store", mirror=tmp_path / "mirror", progress=quiet())
    with pytest.raises(UsageError, match="does not exist"):
        fetch([wanted], tmp_path / "store", mirror=tmp_path / "absent", progress=quiet())


def filled(tmp_path: Path) -> Path:
    mirror, store = tmp_path / "mirror", tmp_path / "store"
    mirror.mkdir()
    (mirror / NAME).write_bytes(CONTENT)
    fetch([pin()], store, mirror=mirror, progress=quiet())
    return store


def test_a_stored_file_is_used_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)

    def refuse(*_arguments: object) -> Sha256:
        raise AssertionError("read all bytes")

    monkeypatch.setattr(Sha256, "of_file", refuse)
    assert fetch([pin()], store, mirror=tmp_path / "gone", progress=quiet())[NAME].exists()
    with pytest.raises(AssertionError, match="read all bytes"):
        fetch([pin()], store, mirror=tmp_path / "gone", progress=quiet(), rehash=True)


def test_a_stored_file_that_changed_is_fetched_again(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = Store(store).path(pin())
    path.chmod(0o644)
    path.write_bytes(bytes(len(CONTENT)))
    assert fetch([pin()], store, mirror=tmp_path / "mirror", progress=quiet())[NAME].read_bytes() == CONTENT
    times = path.stat()
    path.chmod(0o644)
    path.write_bytes(bytes(len(CONTENT)))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert Store(store).holds(pin()), "same size, same time: the cheap check cannot see it"
    assert not Store(store).holds(pin(), rehash=True)
    assert not Store(store).holds(pin()), "and is not trusted any more"
    assert fetch([pin()], store, mirror=tmp_path / "mirror", progress=quiet())[NAME].read_bytes() == CONTENT


def test_a_file_without_proof_is_proven(tmp_path: Path) -> None:
    store = Store(filled(tmp_path))
    for record in store.root.rglob("*.proof.json"):
        record.write_text("{")
    assert store.holds(pin())


def test_pins_that_contradict(tmp_path: Path) -> None:
    with pytest.raises(PinsError, match="pinned twice"):
        fetch([pin(), pin(b"other")], tmp_path, progress=quiet(), mirror=tmp_path)
    with pytest.raises(PinsError, match="no file name"):
        fetch([pin(filename="../x.whl")], tmp_path, progress=quiet(), mirror=tmp_path)


def test_full_disk_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1_000_000))
    with pytest.raises(StorageError, match=r"3\.0 MB are to be fetched, .* has 1\.0 MB left"):
        fetch([pin()], tmp_path, progress=quiet(), mirror=tmp_path)


def test_full_disk_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full is a file on a disk without space; a link to it would be refused, which is not the point here."""
    monkeypatch.setattr(Store, "_refuse_oddities", lambda *_: None)
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / NAME).write_bytes(CONTENT)
    store = Store(tmp_path / "store")
    store.part(pin()).parent.mkdir(parents=True)
    store.part(pin()).symlink_to("/dev/full")
    with pytest.raises(StorageError, match="disk is full"):
        fetch([pin()], tmp_path / "store", mirror=tmp_path / "mirror", progress=quiet())


@pytest.mark.parametrize("part", [True, False])
def test_links_in_the_store_are_not_followed(tmp_path: Path, part: bool) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    store = Store(tmp_path / "store")
    odd = store.part(pin()) if part else store.path(pin())
    odd.parent.mkdir(parents=True)
    odd.symlink_to(victim)
    with pytest.raises(StorageError, match="in the way"):
        fetch([pin()], tmp_path / "store", mirror=tmp_path, progress=quiet())
    assert victim.read_text() == "precious"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / NAME).write_bytes(CONTENT)
    with pytest.raises(StorageError):
        fetch([pin()], tmp_path / "store", mirror=tmp_path / "mirror", progress=quiet())


@pytest.mark.parametrize("place", ["file", "part", "lock", "record", "store"])
def test_a_folder_in_the_way_says_what_to_do(place: str, tmp_path: Path) -> None:
    wanted, store = pin(), Store(tmp_path / "store")
    path = store.path(wanted)
    ways = {
        "file": path, "part": store.part(wanted), "lock": path.with_name(f".{wanted.filename}.lock"),
        "record": store._record(wanted), "store": path.parent,
    }  # fmt: skip
    way = ways[place]
    if place == "store":
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        way.write_text("")
    else:
        way.mkdir(parents=True)
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / NAME).write_bytes(CONTENT)
    with pytest.raises(Sm121Error) as caught:
        fetch([wanted], tmp_path / "store", mirror=mirror, progress=quiet())
    assert str(way) in str(caught.value)
    assert caught.value.do


def test_interrupting_ends_the_other_transfers(tmp_path: Path) -> None:
    """The bytes that came in stay."""
    started = threading.Event()

    class Slow:
        def bring(self, pin: FilePin, part: Path, transfer: Transfer) -> None:
            if pin.filename == NAME:
                started.wait(10)
                raise KeyboardInterrupt
            part.write_bytes(b"some")
            started.set()
            while True:
                transfer.moved(0)

    with pytest.raises(KeyboardInterrupt):
        fetch([pin(), pin(filename="b-1.0-py3-none-any.whl")], tmp_path, progress=quiet(), origin=Slow())
    assert leftovers(tmp_path) == ["b-1.0-py3-none-any.whl.part"]


def test_an_index_is_asked_once_per_project(tmp_path: Path) -> None:
    asked: list[str] = []

    def files(project: str) -> list[IndexFile]:
        asked.append(project)
        raise FetchError(f"no index has {project}.", do="check the network.")

    with pytest.raises(FetchError) as caught:
        fetch(
            [pin(), pin(filename="thing-2.0-py3-none-any.whl")],
            tmp_path,
            progress=quiet(),
            origin=IndexOrigin(files),
        )
    assert asked == ["thing"]
    assert caught.value.problems == ["no index has thing."]


def test_an_index_that_lists_another_hash(tmp_path: Path) -> None:
    with pytest.raises(DigestError, match="listed at"):
        fetch([pin()], tmp_path, progress=quiet(), origin=index_of("http://x/", sha256=Sha256("0" * 64)))


@pytest.mark.parametrize("case_id", sorted(CASES))
def test_case(case_id: str, tmp_path: Path) -> None:
    given, expect = CASES[case_id]["given"], CASES[case_id]["expect"]
    wanted = given.get("wanted") or given["index_files"][0].replace("x86_64", given["target_platform"])
    asked = replace(pin(filename=wanted), name="vllm")
    with pytest.raises(Sm121Error) as caught:
        fetch([asked], tmp_path, progress=quiet(), origin=index_of("http://x/", *given["index_files"]))
    assert expect["verdict"] == "FAIL"
    told = str(caught.value).lower()
    assert "word" not in expect or any(word.lower() in told for word in expect["word"])
    assert all(word.lower() in told for word in expect.get("all_words", []))


@pytest.mark.parametrize(
    ("wanted", "there", "words"),
    [
        (
            "vllm-0.34.0.tar.gz", ["vllm-0.33.0.tar.gz", "vllm-0.34.0-cp38-abi3-manylinux_2_28_aarch64.whl"],
            "no sdist of version 0.34.0, but of 0.33.0",
        ),
        ("vllm-0.33.0.tar.gz", ["vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl"], "no sdist of the project at all"),
        ("vllm-1.0-py3-none-any.whl", ["vllm-1.0-py2-none-any.whl"], "Of version 1.0 it has vllm-1.0-py2"),
        ("odd name", ["vllm-1.0.tar.gz", "other.txt"], "It has vllm-1.0.tar.gz"),
        ("vllm-1.0.tar.gz", ["readme.txt"], ""),
        ("vllm-1.0.tar.gz", [f"vllm-0.{n}.tar.gz" for n in range(20)], "0.12 and 12 more"),
    ],
)  # fmt: skip
def test_what_there_is_instead(wanted: str, there: list[str], words: str) -> None:
    told = instead(wanted, there)
    assert words in told
    assert bool(told) == bool(words)


def test_progress_counts_bytes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm121.progress.QUIET_INTERVAL", 0.0)
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / NAME).write_bytes(CONTENT)
    store = Store(tmp_path / "store")
    store.part(pin()).parent.mkdir(parents=True)
    store.part(pin()).write_bytes(CONTENT[:500_000])
    progress = quiet()
    fetch([pin()], tmp_path / "store", mirror=tmp_path / "mirror", progress=progress)
    assert "3.0 MB of 3.0 MB" in spoken(progress).splitlines()[-1]


@pytest.mark.network
def test_a_real_file(tmp_path: Path) -> None:
    """The smallest pinned thing there is, from the index that this machine is configured for."""
    real = Pin(
        "cuda-toolkit", "13.0.3.0", "cuda_toolkit-13.0.3.0-py2.py3-none-any.whl", 2512,
        Sha256("d693caaa261214ddd7dbb60d68e71cbed884e68c2be7509778f3051da0b91c3f"),
    )  # fmt: skip
    found = fetch([real], tmp_path, progress=quiet())
    assert Sha256.of_file(found[real.filename]) == real.sha256
    wrong = replace(real, sha256=Sha256("0" * 64))
    with pytest.raises(DigestError, match=real.sha256.hex):
        fetch([wrong], tmp_path, progress=quiet())
    absent = replace(real, filename="cuda_toolkit-0.0.1-py2.py3-none-any.whl")
    with pytest.raises(FetchError, match=r"no wheel of version 0\.0\.1, but of"):
        fetch([absent], tmp_path / "other", progress=quiet())
