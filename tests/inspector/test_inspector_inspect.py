"""Whole artifacts: read, judged, every fault reported at once, and nothing that raises."""

from __future__ import annotations

import os
import random
import sys
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from made_facts import FIXTURES, fixture, write_wheel

from sm121.artifact import open_artifact
from sm121.errors import ArtifactError, UsageError
from sm121.findings import Finding, Verdict
from sm121.inspector import Options, Promise, inspect_artifact
from sm121.inspector import pool as pool_module
from sm121.inspector.judge.tags import Interpreter
from sm121.target import LoadsAs
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.inspector import Report

SOURCE = b"__version__ = version = '0.33.0'\n__commit_id__ = commit_id = 'g4ba787ec9'\n"


def inspect(path: Path, **options: Any) -> Report:
    with open_artifact(path) as artifact:
        return inspect_artifact(artifact, Options(**{"jobs": 1, **options}))


def found(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


def verdict(report: Report, check: str) -> Verdict:
    return max((finding.verdict for finding in found(report, check)), key=lambda item: item.rank)


def libraries() -> dict[str, bytes]:
    return {
        "vllm/_version.py": SOURCE,
        "vllm/_C_stable_libtorch.abi3.so": fixture("aarch64.so"),
        "vllm/_moe_C_stable_libtorch.abi3.so": fixture("aarch64.so"),
        "vllm/spinloop.abi3.so": fixture("host_aarch64.so"),
    }


def test_a_wheel_is_read_and_judged(tmp_path: Path) -> None:
    report = inspect(write_wheel(tmp_path, libraries()))
    assert report.artifact.kind == "wheel"
    assert len(report.artifact.sha256) == 64
    (dist,) = report.distributions
    assert (dist.name, dist.version, dist.commit) == ("vllm", "0.33.0", "g4ba787ec9")
    assert [library.path for library in report.libraries] == sorted(set(libraries()) - {"vllm/_version.py"})
    assert verdict(report, "wheel.record") is Verdict.PASS
    assert verdict(report, "stamp.chain") is Verdict.PASS
    assert verdict(report, "wheel.machine") is Verdict.PASS
    assert verdict(report, "expected.library") is Verdict.PASS
    # These libraries hold none of vLLM's kernels, and each missing family is named.
    assert len([item for item in found(report, "expected.family") if item.verdict is Verdict.FAIL]) > 8


def test_all_faults_at_once(tmp_path: Path) -> None:
    files = {
        **libraries(),
        "vllm/_version.py": SOURCE.replace(b"0.33.0", b"0.1.dev7"),
        "vllm/_C.abi3.so": fixture("k_120a.o"),
        "vllm/broken.so": fixture("k_120f.o")[:3000],
        "vllm/text.so": b"hi\n",
        "vllm.libs/libcudart-1a2b3c4d.so.13": fixture("hostonly.so"),
    }
    report = inspect(
        write_wheel(tmp_path, files, tag="cp38-abi3-manylinux_2_28_aarch64", requires=()),
        version="0.34.0",
        channel="pypi",
    )
    for check in (
        "stamp.chain", "stamp.dev", "stamp.expected", "device.damage", "device.arch-specific", "line.graft",
        "wheel.machine", "expected.library",
    ):  # fmt: skip
        assert verdict(report, check) is Verdict.FAIL, check
    assert verdict(report, "wheel.size") is Verdict.PASS
    assert report.verdict is Verdict.FAIL


def test_a_false_record_is_found(tmp_path: Path) -> None:
    report = inspect(write_wheel(tmp_path, libraries(), record=b"vllm/gone.py,sha256=AA,3\n"))
    assert verdict(report, "wheel.record") is Verdict.FAIL


def test_headers_only_is_enough_for_targets(tmp_path: Path) -> None:
    report = inspect(write_wheel(tmp_path, libraries()), kernels=False)
    assert report.kernels == ()
    assert not report.question.kernels
    assert report.artifact.sha256 == ""
    assert report.libraries[0].images
    assert not found(report, "expected.family")
    assert not found(report, "wheel.record")


def test_processes_give_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_wheel(tmp_path, libraries())
    alone = inspect(path)
    monkeypatch.setattr(pool_module, "WORTH_IT", 1)
    assert inspect(path, jobs=2) == alone
    folder = tmp_path / "unpacked"
    for name, data in libraries().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    monkeypatch.setattr(pool_module, "WORTH_IT", 1 << 40)
    serial = inspect(folder)
    monkeypatch.setattr(pool_module, "WORTH_IT", 1)
    assert inspect(folder, jobs=3) == serial


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the worker must be forked to see the change")
def test_a_lost_process_is_an_open_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if threading.active_count() > 1:
        pytest.skip("another test left a thread, so that workers are not forked")
    monkeypatch.setattr(pool_module, "WORTH_IT", 1)
    monkeypatch.setattr(pool_module, "read_library", lambda *_: os._exit(9))
    report = inspect(write_wheel(tmp_path, libraries()), jobs=2)
    assert verdict(report, "read.failed") is Verdict.UNKNOWN
    assert all(not library.images for library in report.libraries)


def test_an_environment_is_judged_by_its_packages(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    info = site / "vllm-0.33.0+cu130.dist-info"
    files = {
        **{f"vllm/{name.rpartition('/')[2]}": data for name, data in libraries().items()},
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": fixture("k_120a.o"),
        "other/_lib.so": fixture("k_120a.o"),
    }
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0+cu130\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files if name.startswith("vllm")))
    for version in ("1.0", "2.0"):
        twin = site / f"twin-{version}.dist-info"
        twin.mkdir()
        (twin / "METADATA").write_text(f"Metadata-Version: 2.4\nName: twin\nVersion: {version}\n")
    report = inspect(tmp_path, version="0.33.0")
    assert verdict(report, "stamp.expected") is Verdict.PASS
    assert verdict(report, "set.version") is Verdict.FAIL
    loads = {finding.subject.rpartition("/")[2]: finding.verdict for finding in found(report, "device.loads")}
    assert loads["_vllm_fa3_C.abi3.so"] is Verdict.INFO
    assert loads["_lib.so"] is Verdict.WARN


def test_wheels_are_staged_in_folders_not_in_packages(tmp_path: Path) -> None:
    inside = tmp_path / "lib" / "python3.12" / "site-packages" / "virtualenv" / "embed"
    for folder, versions in ((inside, ("1", "2")), (tmp_path / "a", ("1",)), (tmp_path / "b", ("2",))):
        folder.mkdir(parents=True)
        for version in versions:
            (folder / f"pip-{version}-py3-none-any.whl").write_bytes(b"")
    assert verdict(inspect(tmp_path), "set.version") is Verdict.PASS
    (tmp_path / "a" / "pip-3-py3-none-any.whl").write_bytes(b"")
    assert verdict(inspect(tmp_path), "set.version") is Verdict.FAIL


def test_bare_cubins_are_one_row(tmp_path: Path) -> None:
    folder = tmp_path / "flashinfer_cubin" / "cubins"
    folder.mkdir(parents=True)
    for index in range(5):
        (folder / f"k{index}.cubin").write_bytes(fixture("cuda12_90a.cubin"))
    report = inspect(tmp_path)
    (library,) = report.libraries
    assert (library.path, library.files, library.loads_as) == ("flashinfer_cubin/*.cubin", 5, LoadsAs.NO)
    assert library.images == {"sm_90a": 5}
    assert verdict(report, "device.loads") is Verdict.INFO


def test_a_promise_is_compared_with_the_bytes(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, libraries())
    name = "vllm/_C_stable_libtorch.abi3.so"
    targets = {step.library: step.delivered for step in inspect(path, promise=Promise()).delivery.steps}[name]
    assert targets
    kept = Promise.of({"libraries": {name: dict(targets)}, "vllm_commit": "4ba787ec9"})
    assert verdict(inspect(path, promise=kept), "promise.kept") is Verdict.PASS
    broken = Promise.of(
        {
            "promise": {
                "version": "0.33.0",
                "requested": ["12.1a"],
                "configured": {"gated": ["12.0f", "12.9z", "12.3f"]},
                "gencodes": {name: {**targets, "sm_120f": 9}},
                "libraries": {"vllm/lost.so": {"sm_120f": 1}, name: {"sm_120": 1}},
                "families": ["Marlin dense", "other"],
                "left_out": ["spinloop.abi3.so"],
            },
            "flashinfer_commit": "unknown",
        }
    )
    report = inspect(path, promise=broken)
    for check in (
        "promise.library",
        "promise.targets",
        "promise.left-out",
        "promise.family",
        "promise.gencode",
        "record.commit",
    ):
        assert verdict(report, check) is Verdict.FAIL, check
    assert verdict(report, "promise.configured") is Verdict.UNKNOWN
    assert verdict(report, "stamp.expected") is Verdict.PASS
    assert not found(report, "promise.kept")
    steps = {step.library: step for step in report.delivery.steps}
    assert "sm_120f" in steps[name].lost
    assert steps["vllm/lost.so"].delivered == {}


def test_a_manifest_is_compared_by_its_digests(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, libraries())
    report = inspect(path)
    rows = [
        {"path": item.path, "origin": "source", "sha256": item.sha256, "size": item.size}
        for item in report.libraries
    ]
    manifest: dict[str, Any] = {
        "version": 1,
        "subject": {"version": "0.33.0"},
        "libraries": rows,
        "outputs": [{"name": path.name, "sha256": report.artifact.sha256, "size": 1}],
    }
    kept = inspect(path, promise=Promise.of(manifest))
    assert verdict(kept, "promise.digest") is Verdict.PASS
    assert verdict(kept, "stamp.expected") is Verdict.PASS
    manifest["libraries"] = [
        {**rows[0], "sha256": "00" * 32}, {**rows[1], "origin": "left-out"}, {**rows[2], "path": "vllm/gone.so"},
    ]  # fmt: skip
    manifest["outputs"][0]["sha256"] = "11" * 32
    broken = inspect(path, promise=Promise.of(manifest))
    assert len(found(broken, "promise.digest")) == 3
    assert verdict(broken, "promise.left-out") is Verdict.FAIL


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"subject": {"version": "1"}, "libraries": [{"path": 1}], "outputs": []}, "libraries: wanted objects"),
        ({"subject": {"version": "1"}}, "outputs: wanted a list"),
        ([], "JSON object"),
        ({"promise": 3}, "JSON object"),
        ({"requested": "12.1"}, "requested: wanted a list"),
        ({"configured": {"generic": "12.0"}}, "generic: wanted a list"),
        ({"libraries": {"a": ["sm_120"]}}, "libraries: wanted an object"),
        ({"version": ["1"]}, "version: wanted a string"),
    ],
)
def test_a_promise_must_be_one(document: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Promise.of(document)


def test_a_promise_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with pytest.raises(UsageError, match="cannot be read"):
        Promise.load(path)
    path.write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        Promise.load(path)
    path.write_text('{"version": 1, "libraries": [{"path": "x"}], "requested": ["12.1"]}')
    assert Promise.load(path).requested == ("12.1",)


def test_a_wheel_is_judged_for_a_place(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, libraries(), tag="cp38-abi3-manylinux_2_28_aarch64", version="0.33.0+cu129")
    report = inspect(
        path,
        interpreter=Interpreter.parse("3.13t", "2.39"),
        torch="2.14.0+cu130",
        line=CudaVersion(12, 9),
        driver=CudaVersion(12, 9),
    )
    assert verdict(report, "wheel.installs") is Verdict.FAIL


def test_a_version_is_asked_of_a_file_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_121a.o"))
    assert verdict(inspect(path, version="0.33.0"), "stamp.expected") is Verdict.UNKNOWN


def test_nothing_inspected_is_nothing_known(tmp_path: Path) -> None:
    report = inspect(tmp_path)
    assert report.verdict is Verdict.UNKNOWN
    assert report.libraries == ()


@pytest.mark.parametrize("seed", range(40))
def test_hostile_bytes_become_findings(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    names = sorted(
        path.name for path in FIXTURES.iterdir() if path.suffix in {".so", ".o", ".a", ".cubin", ".fatbin"}
    )
    files = {}
    for number in range(4):
        data = bytearray(fixture(rng.choice(names)))
        for _ in range(rng.randrange(30)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        files[f"vllm/lib{number}.so"] = bytes(data[: rng.randrange(1, len(data) + 1)])
    path = write_wheel(tmp_path, files)
    if seed % 2:
        whole = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 20)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        path.write_bytes(whole)
    try:
        report = inspect(path)
    except ArtifactError:
        return
    assert report.verdict is Verdict.FAIL


def test_a_place_without_device_code_is_no_success(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    assert inspect(place).verdict is Verdict.UNKNOWN
    for name in ("a.so", "b.so"):
        (place / name).write_bytes(fixture("host_aarch64.so"))
    report = inspect(place)
    assert report.verdict is Verdict.UNKNOWN
    (finding,) = [item for item in found(report, "device.loads") if item.verdict is Verdict.UNKNOWN]
    assert finding.got == "holds no device code; 2 files of host code alone"
    assert "Check the path" in finding.advice
    assert inspect(place / "a.so").verdict is Verdict.PASS  # one library of host code is what was meant
    (place / "c.so").write_bytes(fixture("aarch64.so"))
    assert verdict(inspect(place), "device.loads") is Verdict.PASS


def test_packages_without_device_code_are_told(tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    with zipfile.ZipFile(write_wheel(tmp_path, {"thing/x.so": fixture("host_aarch64.so")})) as wheel:
        wheel.extractall(site)
    report = inspect(tmp_path / "env")
    assert [item.verdict for item in found(report, "device.loads") if "no device code;" in item.got] == [
        Verdict.INFO
    ]
