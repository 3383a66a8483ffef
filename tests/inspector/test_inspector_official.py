"""The official aarch64 wheels on the package index, against what was measured of them: exactly."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import parse_wheel_filename
from pypi_simple import PyPISimple

from sm121.artifact import open_artifact
from sm121.findings import Verdict, overall
from sm121.inspector import Options, Report, inspect_artifact
from sm121.target import LoadsAs
from sm121.values import Sha256

EXPECTED: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "official_wheels.toml").read_text(encoding="utf-8")
)["wheel"]
CUOBJDUMP_NAME = "nvidia_cuda_cuobjdump-13.5.37-py3-none-manylinux2014_{machine}.manylinux_2_17_{machine}.whl"
CUOBJDUMP = {
    "x86_64": "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58",
    "aarch64": "f48e3148535365161a268547b285fd01d92c80e4b457275375933825b5fc26b2",
}
WORDS = {**{str(how): "native" for how in LoadsAs if how.machine_code}, "no": "none"}

pytestmark = pytest.mark.network


def fetched(filename: str, sha256: str, folder: Path) -> Path:
    """The file of that name with that digest, from the index, kept between runs."""
    path = folder / filename
    if not path.is_file() or Sha256.of_file(path).hex != sha256:
        project, *_ = parse_wheel_filename(filename)
        with PyPISimple() as index:
            page = index.get_project_page(project)
            (package,) = [item for item in page.packages if item.filename == filename]
            index.download_package(package, path)
    assert Sha256.of_file(path).hex == sha256
    return path


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    path = request.config.cache.mkdir("official-wheels")
    return Path(path)


def state(word: str, body: str) -> str:
    """The word of the tables: a body that is only small counted as a stub there."""
    return "stub" if body == "small" else WORDS.get(word, word)


def units(report: Report, path: str) -> dict[str, int]:
    (library,) = [item for item in report.libraries if item.path == path]
    kinds = {True: "native", False: "jit"}
    return dict(
        Counter(
            "none" if unit.loads_as is LoadsAs.NO else f"{kinds[unit.loads_as.machine_code]}:{unit.target}"
            for unit in library.details
        )
    )


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda wheel: str(wheel["version"]))
def test_the_tables_are_reproduced(expected: dict[str, Any], folder: Path) -> None:
    with open_artifact(fetched(expected["file"], expected["sha256"], folder)) as artifact:
        report = inspect_artifact(artifact, Options(version=expected["version"]))
    assert report.artifact.size == expected["bytes"]
    assert report.artifact.sha256 == expected["sha256"]
    images = Counter[str]()
    libraries = {library.path: library for library in report.libraries if library.path.endswith(".so")}
    assert sorted(libraries) == [row["file"] for row in expected["library"]]
    for row in expected["library"]:
        library = libraries[row["file"]]
        images.update(library.images)
        assert library.size == row["bytes"]
        assert dict(library.images) == row["entries"]
        assert len(library.details) == row["containers"]
        if "units" in row:
            assert units(report, row["file"]) == row["units"]
            number = report.libraries.index(library)
            kernels = Counter(state(item.state, item.body) for item in report.kernels if item.library == number)
            assert dict(kernels) == row["kernels"]
    assert dict(images) == expected["entries"]
    families: dict[str, Counter[str]] = {}
    for kernel in report.kernels:
        families.setdefault(kernel.family, Counter())[state(kernel.state, kernel.body)] += 1
    assert {name: dict(counts) for name, counts in families.items()} == expected["families"]
    toolkits = {
        image.toolkit
        for library in report.libraries
        for unit in library.details
        for image in unit.images
        if image.target.startswith("sm_")
    }
    assert toolkits == {expected["toolkit"]}
    # Their one fault: FlashAttention 2 is left to the driver's compiler.
    assert report.verdict is Verdict.WARN
    assert {finding.check for finding in report.at_least(Verdict.WARN)} == {"jit.cost"}


@pytest.fixture(scope="module")
def cuobjdump(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cuobjdump for this machine, from its wheel."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in CUOBJDUMP:
        pytest.skip(f"no cuobjdump for {sys.platform} {machine}")
    wheel = fetched(CUOBJDUMP_NAME.format(machine=machine), CUOBJDUMP[machine], folder)
    program = tmp_path_factory.mktemp("cuobjdump") / "cuobjdump"
    with open_artifact(wheel) as artifact:
        (member,) = artifact.members(lambda path: path.endswith("bin/cuobjdump"))
        program.write_bytes(member.read())
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda wheel: str(wheel["version"]))
def test_cuobjdump_finds_the_same(expected: dict[str, Any], folder: Path, cuobjdump: str) -> None:
    with open_artifact(fetched(expected["file"], expected["sha256"], folder)) as artifact:
        report = inspect_artifact(artifact, Options(cross_check=True, cuobjdump=cuobjdump))
    findings = [finding for finding in report.findings if finding.check == "cross-check.cuobjdump"]
    assert overall(findings) is Verdict.PASS, [
        finding.message for finding in findings if finding.verdict.rank > 1
    ]
    counted = sum(
        int(match[1]) for finding in findings if (match := re.search(r"the same (\d+) image", finding.got))
    )
    assert counted == sum(expected["entries"].values())
