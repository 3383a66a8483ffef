"""The wheels that FlashInfer finds: names, records, bytes, and what FlashInfer asks of them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from sm121.errors import PackError
from sm121.findings import Verdict
from sm121.pack.cache_wheel import CacheWheel, assemble_finder, assemble_modules
from sm121.pack.checks import judge_wheel
from sm121.pack.ledger import MadeWith
from sm121.pack.stamp import Stamp
from sm121.target import GB10
from sm121.values import Sha256

FIXTURES = Path(__file__).parent / "fixtures"
AARCH64, X86_64 = FIXTURES / "plain.so", FIXTURES / "plain_x86_64.so"
PROVIDER, FINDER = "flashinfer-jit-cache-sm121a", "flashinfer-jit-cache"
VERSION = "0.7.2.post1+cu130.sm121"
MADE = MadeWith(pins=Sha256("1" * 64), toolkit="nvcc 13.0.88 (wheels), g++ 12.2.0", notes=("a note",))


def stamp(name: str, version: str = "0.7.2.post1", part: str = "") -> Stamp:
    return Stamp.of(name, version, "cu130", GB10, part=part)


def modules_wheel(
    into: Path, *, architecture: str = "sm121a", library: Path = AARCH64, cpu: str = "aarch64"
) -> CacheWheel:
    into.mkdir(parents=True, exist_ok=True)
    source = into / "flashinfer_python-0.7.2.post1-py3-none-any.whl"
    source.write_bytes(b"sources")
    named = stamp(PROVIDER if architecture else FINDER)
    return assemble_modules(
        {"page": library, "norm": library}, named, architecture, cpu, into, source=source, made_with=MADE,
        licences={"LICENSE": b"Apache-2.0\n"},
    )  # fmt: skip


def test_the_wheel_of_modules(tmp_path: Path) -> None:
    made = modules_wheel(tmp_path)
    assert made.path.name.startswith(f"flashinfer_jit_cache_sm121a-{VERSION}-cp39-abi3-manylinux_2_")
    assert made.path.name.endswith("_aarch64.whl")
    assert made.sha256 == Sha256.of_file(made.path)
    assert all(f.verdict is Verdict.PASS for f in judge_wheel(made.path))
    with zipfile.ZipFile(made.path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        info = f"flashinfer_jit_cache_sm121a-{VERSION}.dist-info"
        assert archive.read("flashinfer_jit_cache_sm121a/jit_cache/page/page.so") == AARCH64.read_bytes()
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
        ledger = json.loads(archive.read(f"{info}/sm121.json"))
        points = archive.read(f"{info}/entry_points.txt").decode()
        modes = {item.filename: item.external_attr >> 16 & 0o777 for item in archive.infolist()}
    assert names[-1] == f"{info}/RECORD"
    assert (metadata["Name"], metadata["Version"]) == (PROVIDER, VERSION)
    assert metadata.get_all("Requires-Dist") == ["flashinfer-python==0.7.2.post1", "torch"]
    assert [row["path"].rpartition("/")[2] for row in ledger["libraries"]] == ["norm.so", "page.so"]
    assert {row["origin"] for row in ledger["libraries"]} == {"source"}
    assert points == ("[flashinfer.jit_cache.providers]\nsm121a = flashinfer_jit_cache_sm121a:get_provider\n")
    assert modes["flashinfer_jit_cache_sm121a/jit_cache/page/page.so"] == 0o755
    assert modes["flashinfer_jit_cache_sm121a/__init__.py"] == 0o644


def test_the_finder_asks_for_providers_of_its_own_version_and_nothing_else(tmp_path: Path) -> None:
    made = assemble_finder(stamp(FINDER), [PROVIDER], tmp_path)
    assert made.path.name == f"flashinfer_jit_cache-{VERSION}-py3-none-any.whl"
    assert all(f.verdict is Verdict.PASS for f in judge_wheel(made.path))
    with zipfile.ZipFile(made.path) as archive:
        info = f"flashinfer_jit_cache-{VERSION}.dist-info"
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
        assert b"Root-Is-Purelib: true" in archive.read(f"{info}/WHEEL")
    assert metadata.get_all("Requires-Dist") == [f"{PROVIDER}=={VERSION}"]


def test_same_input_same_bytes(tmp_path: Path) -> None:
    one, other = modules_wheel(tmp_path / "one"), modules_wheel(tmp_path / "another folder")
    assert one.path.read_bytes() == other.path.read_bytes()
    finders = [assemble_finder(stamp(FINDER), [PROVIDER], tmp_path / name) for name in ("one", "two")]
    assert finders[0].sha256 == finders[1].sha256


@pytest.mark.parametrize(
    ("libraries", "said"),
    [
        ({"page": X86_64}, "should be a library for aarch64, found x86_64"),
        ({"page": FIXTURES / "RECIPE.md"}, "should be a library for aarch64"),
        ({"page": FIXTURES / "absent.so"}, "nothing that can be read"),
        ({}, "there is none"),
    ],
)
def test_what_is_no_library_for_the_cpu_is_refused_and_nothing_is_written(
    tmp_path: Path, libraries: dict[str, Path], said: str
) -> None:
    with pytest.raises(PackError, match=said):
        assemble_modules(
            libraries, stamp(PROVIDER), "sm121a", "aarch64", tmp_path, source=X86_64, made_with=MADE, licences={}
        )
    assert not list(tmp_path.iterdir())


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(PackError) as caught:
        assemble_modules(
            {"page": X86_64, "norm": X86_64}, stamp(PROVIDER), "sm121a", "aarch64", tmp_path, source=X86_64,
            made_with=MADE, licences={},
        )  # fmt: skip
    assert len(caught.value.problems) == 2


def test_a_set_is_in_the_version(tmp_path: Path) -> None:
    assert stamp(PROVIDER, part="all").version == "0.7.2.post1+cu130.sm121.all"
    assert assemble_finder(stamp(FINDER, part="partial"), [PROVIDER], tmp_path).path.name == (
        f"flashinfer_jit_cache-{VERSION}.partial-py3-none-any.whl"
    )


ASK = """
import json, sys
sys.path[:0] = sys.argv[1:]
import flashinfer_jit_cache as cache
print(json.dumps([[p.provider_id, p.distribution, p.version, str(p.jit_cache_dir), sorted(p.cuda_architectures),
                   sorted(p.modules)] for p in cache.get_jit_cache_providers()]))
print(cache.__version__)
"""


def unpacked(wheel: CacheWheel, into: Path) -> Path:
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(into)
    return into


def ask(script: str, *folders: Path) -> list[str]:
    argv = [sys.executable, "-I", "-c", script, *map(str, folders)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.programs
def test_the_finder_tells_what_flashinfer_asks(tmp_path: Path) -> None:
    """The attributes that flashinfer/jit/env.py of 0.7.2.post1 reads, by an interpreter that has the wheels on its path."""
    provider = unpacked(modules_wheel(tmp_path / "made"), tmp_path / "provider")
    finder = unpacked(assemble_finder(stamp(FINDER), [PROVIDER], tmp_path / "made"), tmp_path / "finder")
    rows, version = ask(ASK, provider, finder)
    folder = str(provider / "flashinfer_jit_cache_sm121a" / "jit_cache")
    assert json.loads(rows) == [["sm121a", PROVIDER, VERSION, folder, ["sm121a"], ["norm", "page"]]]
    assert version == VERSION
    assert ask(ASK, finder)[0] == "[]"


@pytest.mark.programs
def test_the_older_kind_tells_its_folder(tmp_path: Path) -> None:
    """flashinfer/jit/env.py of 0.6.14 asks for get_jit_cache_dir() and __version__ alone."""
    made = modules_wheel(tmp_path / "made", architecture="")
    assert made.path.name.startswith(f"flashinfer_jit_cache-{VERSION}-cp39-abi3-manylinux")
    folder = unpacked(made, tmp_path / "cache")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; import flashinfer_jit_cache as c; print(c.get_jit_cache_dir())"
    )
    (told,) = ask(script, folder)
    assert (Path(told) / "page" / "page.so").read_bytes() == AARCH64.read_bytes()
