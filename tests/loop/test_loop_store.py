"""Objects by what they were made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_made import unit

from sm121.loop import store as stores
from sm121.loop.store import Store

FIXTURES = Path(__file__).parent.parent / "device" / "fixtures"
A = unit()
FILES = {"csrc/a.cu": "1", "csrc/x.cuh": "2", "csrc/other.cuh": "3"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kept")


def made(tmp_path: Path, name: str = "k_120f.o") -> Path:
    path = tmp_path / "made.o"
    path.write_bytes((FIXTURES / name).read_bytes())
    return path


def test_an_object_is_found_by_its_sources_and_its_command(store: Store, tmp_path: Path) -> None:
    kept = store.keep(A, made(tmp_path), {"csrc/a.cu", "csrc/x.cuh"}, FILES)
    assert store.find(A, FILES) == kept
    assert store.find(A, {**FILES, "csrc/other.cuh": "9"}) == kept
    assert store.find(A, {**FILES, "csrc/x.cuh": "9"}) is None
    assert store.find(A, {"csrc/a.cu": "1"}) is None
    assert store.find(unit(FLAGS="-O2"), FILES) is None
    assert store.find(unit("_C/csrc/b.cu"), FILES) is None


def test_the_code_is_read_once_and_kept(store: Store, tmp_path: Path) -> None:
    kept = store.keep(A, made(tmp_path), {"csrc/a.cu"}, FILES)
    assert [*kept.code.kernels] == ["_Z1kPf"]
    (again,) = store.history(A.name)
    kept.object.with_suffix(".code.json").write_text("{ torn")
    assert again.code == kept.code
    (other,) = store.history(A.name)
    assert other.code == kept.code


def test_other_bytes_of_the_same_sources_replace_what_was_read(store: Store, tmp_path: Path) -> None:
    assert store.keep(A, made(tmp_path), {"csrc/a.cu"}, FILES).code.image is not None
    kept = store.keep(A, made(tmp_path, "k_120a.o"), {"csrc/a.cu"}, FILES)
    assert kept.code.image is None
    assert [one.target for one in kept.code.images] == ["sm_120a"]


def test_history_is_the_developers_own(store: Store, tmp_path: Path) -> None:
    first, second, third = ({**FILES, "csrc/a.cu": text} for text in ("1", "2", "3"))
    for files in (first, second):
        store.keep(A, made(tmp_path), {"csrc/a.cu"}, files)
    store.keep(A, made(tmp_path), {"csrc/a.cu"}, third, newest=False)
    assert [kept.reads["csrc/a.cu"] for kept in store.history(A.name)] == ["1", "2"]
    assert store.find(A, third) is not None
    store.keep(A, made(tmp_path), {"csrc/a.cu"}, first)
    assert [kept.reads["csrc/a.cu"] for kept in store.history(A.name)] == ["2", "1"]


def test_the_oldest_go(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "KEPT", 3)
    for number in range(6):
        store.keep(A, made(tmp_path), {"csrc/a.cu"}, {"csrc/a.cu": str(number)})
    assert len([*store.folder.rglob("*.o")]) == 3
    assert [kept.reads["csrc/a.cu"] for kept in store.history(A.name)] == ["3", "4", "5"]
    assert store.find(A, {"csrc/a.cu": "0"}) is None


def test_damaged_records_are_as_if_they_were_not_there(store: Store, tmp_path: Path) -> None:
    kept = store.keep(A, made(tmp_path), {"csrc/a.cu"}, FILES)
    kept.object.with_suffix(".json").write_text('{"command": 1')
    assert store.history(A.name) == []
    assert store.find(A, FILES) is None
