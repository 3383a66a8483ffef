"""The real indexes: what is pinned is there, fits, and is what upstream says."""

from __future__ import annotations

import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

from sm121 import index
from sm121.errors import PinsError
from sm121.findings import Verdict, overall
from sm121.pins import Cpu, Role, load
from sm121.pins.audit import check, judge
from sm121.pins.edit import Edits
from sm121.pins.environment import Environment
from sm121.pins.facts import gather
from sm121.pins.knowledge import known, toolkit_releases
from sm121.pins.resolve import resolve
from sm121.pins.update import add_release, toolkit_table
from sm121.progress import Progress
from sm121.values import CudaVersion

pytestmark = pytest.mark.network

PINS_FOLDER = Path(__file__).parents[2] / "pins"
PINS = load(PINS_FOLDER)


@pytest.mark.parametrize(("line", "version"), [("cu130", "0.33.0"), ("cu130", "0.26.0")])
def test_the_pinned_sets_pass(line: str, version: str) -> None:
    chosen, release = PINS.line(line), PINS.vllm(version)
    facts = gather(chosen, release, Cpu.AARCH64)
    findings = check(chosen, release, Cpu.AARCH64, facts)
    assert not facts.missing
    assert overall(findings) in {Verdict.PASS, Verdict.INFO}, [finding.message for finding in findings]
    assert {finding.check for finding in findings} >= {
        "pins.demand",
        "pins.resolution",
        "pins.cuda-txt",
        "pins.index",
    }


def test_an_update_to_the_pinned_release_changes_nothing(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PINS_FOLDER, tmp_path / "pins"))
    edits = Edits.of(folder)
    add_release(edits, load(folder), "0.33.0", Progress(quiet=True))
    after = edits.after()
    for name in ("vllm.toml", "torch.toml", "flashinfer.toml"):
        assert after[name] == edits.before[name]


def test_the_table_of_toolkits_is_what_the_index_says() -> None:
    fresh = tomllib.loads(toolkit_table())["release"]
    for release, parts in toolkit_releases().items():
        assert fresh[release] == {name: str(wanted) for name, wanted in parts.items()}


def test_headers_are_the_same_for_every_cpu() -> None:
    """Why one wheel is enough for headers: every file below include/ has the same checksum in both."""
    for kit in PINS.toolkits:
        for part in (part for part in kit.parts if Role.HEADERS in part.roles):
            sums = []
            for pin in part.files:
                file = index.find(pin.name, pin.filename)
                with index.session() as session, index.remote(session, file) as handle:
                    entries = zipfile.ZipFile(handle).infolist()
                sums.append({entry.filename: entry.CRC for entry in entries if "/include/" in entry.filename})
            assert len(sums) == 2
            assert sums[0]
            assert sums[0] == sums[1], part.name


def test_a_plain_installation_mixes_toolkits_and_is_caught() -> None:
    """Without our limits a resolver takes the newest nvcc beside the headers that torch pins."""
    versions = resolve(["vllm==0.33.0"], ["cuda-python>=13"], Cpu.AARCH64).versions
    findings = judge(Environment(versions, Cpu.AARCH64, CudaVersion(13, 0), from_index=True))
    if versions["nvidia-cuda-nvcc"].startswith("13.0."):
        pytest.skip("upstream limits nvcc by now")
    assert "nvidia-cuda-nvcc" in {f.subject.split()[0] for f in findings if f.verdict is Verdict.FAIL}


def test_a_conflict_names_both_owners() -> None:
    with pytest.raises(PinsError) as caught:
        resolve(["vllm==0.33.0", "flashinfer-python[b12x]==0.7.2.post1"], [], Cpu.AARCH64)
    assert "nvidia-cutlass-dsl==4.7.1" in str(caught.value)
    assert "nvidia-cutlass-dsl[cu13]==4.8.0" in str(caught.value)


@pytest.mark.parametrize("version", ["2.9.1", "2.11.0"])
def test_torch_builds_are_what_the_wheels_say(version: str) -> None:
    """The table against torch/version.py inside the wheel of the index."""
    build = next(build for build in known().torch if build.cpu == Cpu.AARCH64 and version in build.versions)
    file = next(
        file
        for file in index.project_files("torch")
        if file.version == version
        and "cp312-cp312-" in file.filename
        and "manylinux_2_28_aarch64" in file.filename
    )
    text = index.member(file, "torch/version.py").decode()
    suffix = "cpu" if build.build == "cpu" else f"cu{build.build.replace('.', '')}"
    assert f"__version__ = '{version}+{suffix}'" in text
