"""What pip makes of our wheels: a small one made here, and the official one with its parts exchanged."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_wheels import FILENAME, INFO, MADE_WITH, MAIN, METADATA, MOE, RUST, STAMP, VERSION_MODULE, write_wheel

from sm121 import pins, process
from sm121.errors import FetchError
from sm121.findings import Verdict, overall
from sm121.pack.checks import SPARK, judge_wheel
from sm121.pack.ledger import Origin
from sm121.pack.platform_tag import find_platform_tag
from sm121.pack.stamp import Stamp
from sm121.pack.wheel import Assembled, assemble
from sm121.progress import Progress
from sm121.sources.fetch import fetch
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = """
extern int puts(const char *);
int %(call)s(void *);
int PyInit_%(name)s(void) { return puts("") + %(call)s(0); }
"""


def library(folder: Path, name: str, *, call: str = "free") -> Path:
    """A library as an extension module looks from outside, for this machine's CPU."""
    source = folder / f"{name}.c"
    source.write_text(SOURCE % {"name": name, "call": call})
    path = folder / f"{name}.so"
    process.run(["gcc", "-shared", "-fPIC", "-nostartfiles", "-o", path, source])
    return path


def install(wheel: Path, into: Path, *, platform_tag: str = "") -> None:
    """Install as a user does, without an index."""
    foreign = ["--platform", platform_tag, "--only-binary", ":all:"] if platform_tag else []
    process.run(
        [sys.executable, "-I", "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--target", into,
         *foreign, wheel]
    )  # fmt: skip


def faults_of_record(folder: Path, made: Assembled) -> Iterator[str]:
    """Members that are not installed as the RECORD says that pip left; scripts are pip's own."""
    (found,) = importlib.metadata.distributions(path=[str(folder)])
    assert found.version == made.stamp.version
    recorded = {str(file): file for file in found.files or ()}
    for member in made.members:
        if ".data/" in member.path or member.path.endswith("/RECORD"):
            continue
        file = recorded.get(member.path)
        if file is None or file.hash is None or file.size != member.size:
            yield f"{member.path} is not recorded"
            continue
        digest = hashlib.sha256(Path(file.locate()).read_bytes())
        if file.hash.value != base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode():
            yield f"{member.path} is not what RECORD says"
        if digest.hexdigest() != member.sha256.hex:
            yield f"{member.path} is not what was assembled"


@pytest.mark.programs
def test_pip_installs_what_we_assemble(tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="the test group installs pip")
    cpu = platform.machine()
    assert cpu in {"x86_64", "aarch64"}
    theirs = library(tmp_path, "_C").read_bytes()
    official = write_wheel(
        tmp_path / FILENAME.replace("aarch64", cpu),
        {
            MAIN: theirs, MOE: theirs, RUST: theirs, "vllm/__init__.py": b"from ._version import version\n",
            "vllm/_version.py": VERSION_MODULE.encode(), f"{INFO}/METADATA": METADATA.encode(),
            f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nTag: cp38-abi3-linux_{cpu}\n".encode(),
        },
    )  # fmt: skip
    ours = {MAIN: library(tmp_path, "ours", call="malloc")}
    tag = find_platform_tag(official, ours, {MOE}, cpu, scratch=tmp_path)
    made = assemble(official, ours, {MOE}, {}, STAMP, tag, tmp_path / "with spaces", made_with=MADE_WITH)
    install(made.path, tmp_path / "site")
    assert list(faults_of_record(tmp_path / "site", made)) == []
    assert (tmp_path / "site" / MAIN).read_bytes() == ours[MAIN].read_bytes()
    assert not (tmp_path / "site" / MOE).exists()
    assert (tmp_path / "site" / RUST).stat().st_mode & 0o100
    said = process.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import vllm; print(vllm.version)",
        ]
    )
    assert said.stdout.strip() == "0.33.0+cu130.sm121"


@pytest.fixture(scope="module")
def official_wheel() -> Path:
    """The pinned official wheel, kept in the scratch folder so that a build finds it there."""
    pin = pins.load(ROOT / "pins").vllm("0.33.0").official("aarch64")
    try:
        return fetch([pin], ROOT / "work" / "files", progress=Progress(quiet=True))[pin.filename]
    except FetchError as error:
        pytest.skip(str(error))


@pytest.mark.network
def test_the_official_wheel_with_parts_exchanged(official_wheel: Path, tmp_path: Path) -> None:
    """As a build does it, with upstream's own libraries in the place of ours; twice, in two folders."""
    pytest.importorskip("pip", reason="the test group installs pip")
    names = ("vllm/_flashkda_C.abi3.so", "vllm/spinloop.abi3.so")
    left_out = {"vllm/_deepselect_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"}
    install(official_wheel, tmp_path / "official", platform_tag="manylinux_2_28_aarch64")
    replaced = {name: tmp_path / "official" / name for name in names}
    stamp = Stamp.of("vllm", "0.33.0", "cu130", GB10)
    tag = find_platform_tag(official_wheel, replaced, left_out, "aarch64", scratch=tmp_path / "scratch")
    assert tag.tag == "manylinux_2_28_aarch64"
    assert [need.path for need in tag.decided_by] == ["vllm/vllm-rs"]
    one, other = (
        assemble(official_wheel, replaced, left_out, {}, stamp, tag, tmp_path / folder, made_with=MADE_WITH)
        for folder in ("one", "an other")
    )
    assert one.sha256 == other.sha256
    assert overall(judge_wheel(one.path, channel="github-release", place=SPARK)) is Verdict.PASS
    origins = [library.origin for library in one.libraries]
    assert {origin: origins.count(origin) for origin in set(origins)} == {
        Origin.SOURCE: 2, Origin.LEFT_OUT: 2, Origin.OFFICIAL: 10,
    }  # fmt: skip
    install(one.path, tmp_path / "ours", platform_tag=tag.tag)
    assert list(faults_of_record(tmp_path / "ours", one)) == []


@pytest.mark.network
def test_the_reduced_wheel_gets_the_tag_of_the_whole(official_wheel: Path, tmp_path: Path) -> None:
    """auditwheel over all of the official wheel finds the same as over its ELF members alone."""
    from auditwheel.architecture import Architecture  # noqa: PLC0415 -- slow to import, and for this test only

    from sm121.pack import platform_tag  # noqa: PLC0415

    whole = platform_tag._analyse(official_wheel, Architecture.aarch64, tmp_path)
    needs = platform_tag._reduce(official_wheel, {}, (), tmp_path)
    reduced = platform_tag._analyse(tmp_path / official_wheel.name, Architecture.aarch64, tmp_path)
    assert whole.overall_policy == reduced.overall_policy
    assert whole.versioned_symbols == reduced.versioned_symbols
    assert whole.external_refs == reduced.external_refs
    assert {str(path) for path in whole.full_external_refs} == set(needs)
    for policy in ("sym_policy", "ref_policy", "blacklist_policy", "machine_policy"):
        assert getattr(whole, policy) == getattr(reduced, policy)
