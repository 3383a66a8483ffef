"""The locked set: read strictly, and its wheels found by hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from made_images import World, base_files, base_layout, elf
from sm121 import index
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.errors import FetchError, PinsError
from sm121.image import runtime_set
from sm121.image.base import read_base, take_base
from sm121.image.runtime_set import RuntimeSet, wheels_of
from sm121.image.store import BlobStore
from sm121.index import IndexFile
from sm121.progress import Progress
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sm121.pins.model import FilePin

QUIET = Progress(quiet=True)
HEAD = """\
# Runtime environment of line cu130 for vLLM 0.33.0: 2 wheels, 1 bytes.
# Linux aarch64, glibc 2.34 or newer, Python 3.13. vLLM itself is left out:
# install the wheel that was built, with --no-deps.
"""
A, B = Sha256("a" * 64), Sha256("b" * 64)
LOCK = (
    f"{HEAD}Torch==2.14.0 \\\n    --hash=sha256:{A.hex}  # via vllm\n"
    f"six==1.17.0 --hash=sha256:{B.hex} --hash=sha256:{A.hex}\n"
)


def test_a_lock_is_read() -> None:
    found = RuntimeSet.parse(LOCK, "lock")
    assert (found.line, found.vllm, found.cpu, found.python, found.libc) == (
        "cu130",
        "0.33.0",
        "aarch64",
        (3, 13),
        (2, 34),
    )
    assert [(each.name, each.version) for each in found.packages] == [("six", "1.17.0"), ("torch", "2.14.0")]
    assert found.packages[0].hashes == {A, B}
    assert found.digest == Sha256.of_bytes(LOCK.encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "locks nothing"), (f"{LOCK}torch==2.0 --hash=sha256:{B.hex}\n", "torch stands there twice"),
        (f"{HEAD}torch==2.14.0\n", "no NAME==VERSION with a sha256"), (f"{HEAD}-r other.txt\n", "no NAME==VERSION"),
        (f"{HEAD}torch==2.14.0 --hash=sha256:abc\n", "no NAME==VERSION"),
        (f"{HEAD}torch==2.14.0 --hash=md5:{A.hex}\n", "no NAME==VERSION"),
        (LOCK.replace("aarch64", "riscv64"), "'riscv64' is no CPU"), (LOCK.removeprefix(HEAD), "lines that say line"),
    ],
)  # fmt: skip
def test_locks_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(PinsError, match=said):
        RuntimeSet.parse(text, "lock")


def listed(name: str, *files: tuple[str, Sha256 | None, int | None]) -> list[IndexFile]:
    return [IndexFile(name, "1", filename, "", size, digest) for filename, digest, size in files]


TORCH = "torch-2.14.0-cp313-cp313-manylinux_2_28_aarch64.whl"
SIX = "six-1.17.0-py2.py3-none-any.whl"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    pages: dict[str, Any] = {"torch": listed("torch", (TORCH, A, 5)), "six": listed("six", (SIX, B, 6))}

    def asked(name: str) -> list[IndexFile]:
        if isinstance(pages[name], Exception):
            raise pages[name]
        found: list[IndexFile] = pages[name]
        return found

    def fetched(pins: Iterable[FilePin], into: Path, **_: Any) -> dict[str, Path]:
        return {pin.filename: into / pin.sha256.hex / pin.filename for pin in pins}

    monkeypatch.setattr(index, "project_files", asked)
    monkeypatch.setattr(runtime_set, "fetch", fetched)
    return pages


def test_wheels_are_found_by_their_hash(pages: dict[str, Any], tmp_path: Path) -> None:
    pages["torch"] += listed("torch", ("torch-2.14.0-cp312-cp312-manylinux_2_28_aarch64.whl", B, 5))
    paths = wheels_of(RuntimeSet.parse(LOCK, "lock"), tmp_path, QUIET)
    assert [path.name for path in paths] == [SIX, TORCH]
    assert [path.parent.name for path in paths] == [B.hex, A.hex]


def test_what_the_store_has_is_not_asked_for(pages: dict[str, Any], tmp_path: Path) -> None:
    for digest, name in ((A, TORCH), (B, SIX)):
        (tmp_path / digest.hex).mkdir()
        (tmp_path / digest.hex / name).write_bytes(b"x")
    pages.clear()
    assert len(wheels_of(RuntimeSet.parse(LOCK, "lock"), tmp_path, QUIET)) == 2


def test_everything_that_is_missing_is_named_at_once(pages: dict[str, Any], tmp_path: Path) -> None:
    pages["torch"] = listed("torch", (TORCH, B, 5))
    pages["six"] = listed("six", ("six-1.17.0.tar.gz", B, 5))
    with pytest.raises(PinsError) as caught:
        wheels_of(RuntimeSet.parse(LOCK, "lock"), tmp_path, QUIET)
    assert len(caught.value.problems) == 2
    assert "it lists six-1.17.0.tar.gz" in "\n".join(caught.value.problems)


def test_a_wheel_of_another_python_is_not_taken(pages: dict[str, Any], tmp_path: Path) -> None:
    pages["torch"] = listed("torch", (TORCH.replace("313", "312"), A, 5))
    with pytest.raises(PinsError, match="no wheel of the index that fits"):
        wheels_of(RuntimeSet.parse(LOCK, "lock"), tmp_path, QUIET)


def test_an_index_that_says_too_little_or_nothing(pages: dict[str, Any], tmp_path: Path) -> None:
    pages["torch"] = listed("torch", (TORCH, A, None))
    with pytest.raises(PinsError, match="gives no size"):
        wheels_of(RuntimeSet.parse(LOCK, "lock"), tmp_path, QUIET)
    pages["torch"] = FetchError("no index answers")
    with pytest.raises(FetchError, match="no index answers"):
        wheels_of(RuntimeSet.parse(LOCK, "lock"), tmp_path, QUIET)


@pytest.mark.parametrize(
    ("files", "env", "home"),
    [
        (base_files(), [], "/usr/bin"),
        ({**base_files(), "usr/local/bin/python3.12": elf(), "usr/local/lib/python3.12/os.py": b""}, [], "/usr/local/bin"),
        (
            {**base_files("3.11"), "opt/py/bin/python3.12": elf(), "opt/py/lib/python3.12/os.py": b""},
            ["PATH=/opt/py/bin:/usr/bin"], "/opt/py/bin",
        ),
        (
            {**base_files("3.11"), "usr/bin/python3.12": "/opt/py/bin/python3.12", "opt/py/bin/python3.12": elf(),
             "opt/py/lib/python3.12/os.py": b""}, [], "/usr/bin",
        ),
    ],
)  # fmt: skip
def test_where_python_is(tmp_path: Path, files: dict[str, bytes | str], env: list[str], home: str) -> None:
    digest = base_layout(tmp_path / "base", files, run={"Env": env})
    store = BlobStore(tmp_path / "store")
    base = take_base(f"oci:{tmp_path / 'base'}@{digest}", LINUX_ARM64, store, QUIET)
    facts = read_base(base, store, "3.12")
    assert (facts.python_home, facts.libc) == (home, (2, 41))


def test_a_mirror_must_have_all_of_it(tmp_path: Path) -> None:
    world = World.make(tmp_path / "w")
    found = wheels_of(RuntimeSet.read(world.lock), tmp_path / "store", QUIET, world.mirror)
    assert [path.name for path in found] == ["one-1.0-py3-none-any.whl", "two_parts-2.0-py3-none-any.whl"]
    next(world.mirror.glob("one*")).unlink()
    with pytest.raises(PinsError, match=r"one 1\.0 with the locked hash is not in"):
        wheels_of(RuntimeSet.read(world.lock), tmp_path / "other", QUIET, world.mirror)


def test_a_password_in_a_lock_is_not_repeated() -> None:
    more = "--index-url https://me:geheim@index.example/simple\nfoo @ https://me:geheim@index.example/foo.whl\n"
    with pytest.raises(PinsError) as caught:
        RuntimeSet.parse(LOCK + "\n" + more, "lock")
    assert len(caught.value.problems) == 2
    assert "geheim" not in str(caught.value)
