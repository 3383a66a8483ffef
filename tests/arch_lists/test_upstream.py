"""Our reading of vLLM's rules against vLLM's own CMake code, run with `cmake -P`.

Sources and cmake are the pinned ones, fetched by hash. SM121_VLLM_SOURCE names an unpacked source package to prove instead;
its version is read from its PKG-INFO.
"""

from __future__ import annotations

import os
import random
import re
from email.parser import Parser
from itertools import product
from pathlib import Path

import pytest

from pinned_wheels import HOST, PINS, fetched, unpacked
from sm121 import process
from sm121.arch_lists import effective, loose_intersection
from sm121.arch_lists.data import VllmRelease, vllm_release
from sm121.sources.unpack import unpack
from sm121.values import ArchSpec, CudaVersion

pytestmark = pytest.mark.network

CUDAS = ["12.8", "12.9", "13.0", "13.2", "13.4"]
LISTS = [
    "12.0", "12.0a", "12.0f", "12.1", "12.1a", "12.1f", "12.0;12.1", "12.0;12.1a", "12.0a;12.1a", "12.0f;12.1a",
    "12.0a;12.0f", "12.1;12.1a", "8.0;12.0", "11.0", "8.0;8.7;8.9;9.0;10.0;11.0;12.0",
    "7.5;8.0;8.6;8.9;9.0;10.0;12.0", "8.0;8.7;8.9;9.0;10.0;12.0", "9.0a;10.0f;10.3a;10.7", "10.7f;10.0f", "7.0",
]  # fmt: skip
SCRIPT = """cmake_minimum_required(VERSION 3.18)
include("{utils}")
function(sm121_show)
  list(POP_FRONT ARGN number src tgt)
  string(REPLACE "|" ";" src "${{src}}")
  string(REPLACE "|" ";" tgt "${{tgt}}")
  cuda_archs_loose_intersection(found "${{src}}" "${{tgt}}")
  message(STATUS "answer ${{number}} ${{found}}")
endfunction()
"""


def releases() -> list[str]:
    return ["given"] if os.environ.get("SM121_VLLM_SOURCE") else [each.version for each in PINS.releases]


@pytest.fixture(scope="module", params=releases())
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked source package: what CMake reads of it."""
    version: str = request.param
    if version == "given":
        return Path(os.environ["SM121_VLLM_SOURCE"])
    sdist = PINS.vllm(version).sdist
    into = tmp_path_factory.mktemp("source") / version
    unpack(
        fetched(sdist)[sdist.filename],
        into,
        strip=1,
        members=lambda name: "/cmake/" in name or name.count("/") == 1,
    )
    return into


@pytest.fixture(scope="module")
def cmake(tmp_path_factory: pytest.TempPathFactory) -> str:
    wheel = next(tool for tool in PINS.line().tools(HOST) if tool.name == "cmake")
    return str(next(unpacked(tmp_path_factory.mktemp("cmake"), wheel).rglob("bin/cmake")))


@pytest.fixture(scope="module")
def release(source: Path) -> VllmRelease:
    metadata = Parser().parsestr((source / "PKG-INFO").read_text(encoding="utf-8"))
    found, exact = vllm_release(metadata["Version"])
    assert exact, f"vllm.toml does not know {metadata['Version']}"
    return found


def ask(cmake: str, source: Path, folder: Path, questions: list[tuple[str, str]]) -> list[str]:
    """Let upstream's function intersect every (offered, wanted) pair."""
    script = SCRIPT.format(utils=source / "cmake" / "utils.cmake")
    for number, (offered, wanted) in enumerate(questions):
        script += f'sm121_show({number} "{offered.replace(";", "|")}" "{wanted.replace(";", "|")}")\n'
    path = folder / "questions.cmake"
    path.write_text(script)
    said = process.run([cmake, "-P", path]).stdout
    answers = dict(re.findall(r"answer (\d+) (.*)", said))
    assert len(answers) == len(questions)
    return [answers[str(number)].strip() for number in range(len(questions))]


def archs(text: str) -> list[ArchSpec]:
    return [ArchSpec.parse(word) for word in text.split(";") if word]


def joined(targets: tuple[ArchSpec, ...]) -> str:
    return ";".join(str(target) for target in targets)


def test_every_list_of_the_table_at_every_toolkit(
    cmake: str, source: Path, release: VllmRelease, tmp_path: Path
) -> None:
    version = str(release.versions[0])
    requests = [(CudaVersion.parse(cuda), text) for cuda, text in product(CUDAS, LISTS)]
    ours = [effective("vllm", version, cuda, text) for cuda, text in requests]
    questions = [
        (joined(release.supported.at(cuda)), joined(tuple(sorted(archs(text))))) for cuda, text in requests
    ]
    generic = ask(cmake, source, tmp_path, questions)
    assert [joined(targets.generic) for targets in ours] == generic
    gates = [
        (joined(release.gates[name].at(cuda)), joined(targets.generic), name)
        for (cuda, _), targets in zip(requests, ours, strict=True)
        for name in release.gates
    ]
    passed = ask(cmake, source, tmp_path, [(offered, wanted) for offered, wanted, _ in gates])
    for (offered, wanted, name), upstream in zip(gates, passed, strict=True):
        found = loose_intersection(archs(offered), archs(wanted), release.matching)
        assert joined(found.targets) == upstream, f"gate {name}: {offered} for {wanted}"
    summary = [
        joined(loose_intersection(archs(offered), archs(wanted), release.matching).targets)
        for offered, wanted, name in gates
        if name == release.sm12x
    ]
    assert summary == [joined(targets.gated) for targets in ours]


def test_random_lists(cmake: str, source: Path, release: VllmRelease, tmp_path: Path) -> None:
    dice = random.Random(121)
    numbers = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.1", "10.3", "10.7", "11.0", "12.0", "12.1"]

    def some(*, ptx: bool) -> str:
        words = {
            dice.choice(numbers)
            + dice.choice(["", "", "a", "f"])
            + (dice.choice(["", "", "+PTX"]) if ptx else "")
            for _ in range(dice.randint(1, 7))
        }
        return ";".join(dice.sample(sorted(words), len(words)))

    questions = [(some(ptx=True), some(ptx=False)) for _ in range(1500)]
    for (offered, wanted), upstream in zip(questions, ask(cmake, source, tmp_path, questions), strict=True):
        found = loose_intersection(archs(offered), archs(wanted), release.matching)
        assert joined(found.targets) == upstream, f"{offered} for {wanted}"


def test_the_lists_in_the_data_are_upstreams(source: Path, release: VllmRelease) -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in [
            source / "CMakeLists.txt",
            source / "cmake" / "utils.cmake",
            *sorted((source / "cmake" / "external_projects").glob("*.cmake")),
        ]
    )
    supported = re.findall(r'set\(CUDA_SUPPORTED_ARCHS "([^"]+)"', text)
    assert {joined(archs_) for _, archs_ in release.supported.bands} == set(supported)
    called = re.findall(r'cuda_archs_loose_intersection\(\s*\w+\s+"([^"$]+)"', text)
    upstream = {frozenset(archs(words)) for words in called}
    ours = {frozenset(archs_) for banded in release.gates.values() for _, archs_ in banded.bands}
    assert upstream - ours == set(), "upstream has lists that the data lacks"
    # FlashKDA, FlashMLA and DeepSelect append to a variable; FlashAttention's list lies in its own repository.
    appended = {"flashkda", "flashmla", "deepselect", "fa2", "fa3"}
    named = {
        frozenset(archs_)
        for name, banded in release.gates.items()
        if name not in appended
        for _, archs_ in banded.bands
    }
    assert named - upstream == set(), "the data has lists that upstream lacks"


@pytest.mark.parametrize("name", [line.name for line in PINS.lines])
def test_every_lines_own_list(name: str, cmake: str, source: Path, release: VllmRelease, tmp_path: Path) -> None:
    """What the line asks for, with the toolkit that compiles it, becomes what its plan says."""
    line = PINS.line(name)
    ours = effective("vllm", str(release.versions[0]), line.compiler, line.vllm_arch_list)
    offered = joined(release.supported.at(line.compiler))
    (generic,) = ask(cmake, source, tmp_path, [(offered, joined(line.vllm_archs))])
    (gated,) = ask(cmake, source, tmp_path, [(joined(release.gates[release.sm12x].at(line.compiler)), generic)])
    assert (generic, gated) == (joined(ours.generic), joined(ours.gated))
    assert {"cu130": "12.0f", "cu135": "12.0f"}.get(name, "12.1a") == gated
