"""A chip's report becomes an attachment of exactly one build's manifest."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from sm121.audit.commands import add_audit_commands
from sm121.errors import ArtifactError, PackError
from sm121.findings import Verdict
from sm121.manifest import Host, Inspection, Manifest, Output, Subject
from sm121.pack.ledger import Library, Origin
from sm121.values import Sha256

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = Sha256.of_bytes(b"library")
VERSION = "0.33.0+cu130.sm121"
MANIFEST = Manifest(
    subject=Subject("vllm", VERSION, "0.33.0", "cu130", "12.1", "aarch64", "manylinux_2_34_aarch64"),
    plan=Sha256.of_bytes(b"plan"), inputs=(), patches=(), tools=(), host=Host("Linux", "x86_64", 2, 1, "3.11"),
    commands=(), libraries=(Library("vllm/_C.abi3.so", Origin.SOURCE, LIBRARY, 7),),
    outputs=(Output("vllm.whl", Sha256.of_bytes(b"wheel"), 5),),
    inspection=Inspection(Verdict.PASS, Sha256.of_bytes(b"report")),
)  # fmt: skip


def report() -> dict[str, Any]:
    passed = {"state": "passed", "relative_error": 0.0017}
    return {
        "version": 1, "vllm": VERSION, "torch": "2.14.0", "cuda": "13.0", "device": "NVIDIA GB10", "capability": [12, 1],
        "extensions": {
            "vllm/_C.abi3.so": {"error": "", "sha256": LIBRARY.hex},
            "vllm/spinloop.so": {"error": "", "sha256": "0" * 64},
        },
        "cases": {name: dict(passed) for name in ("nvfp4_gemm", "nvfp4_moe", "fp8_gemm", "marlin")}, "compiled": [],
    }  # fmt: skip


def attach(folder: Path, found: object, manifest: bytes | None = None, *more: str) -> int:
    """Run the verb over both files."""
    (folder / "wheel.manifest.json").write_bytes(MANIFEST.to_json() if manifest is None else manifest)
    (folder / "report.json").write_text(json.dumps(found))
    top = argparse.ArgumentParser()
    add_audit_commands(top.add_subparsers())
    words = ["hardware", str(folder / "report.json"), "--manifest", str(folder / "wheel.manifest.json"), *more]
    arguments = top.parse_args(words)
    status: int = arguments.run(arguments)
    return status


def test_a_report_of_this_build_is_attached_by_digest(tmp_path: Path) -> None:
    assert attach(tmp_path, report()) == 0
    attached = json.loads((tmp_path / "wheel.manifest.hardware.json").read_text())
    assert attached["manifest"]["sha256"] == Sha256.of_bytes(MANIFEST.to_json()).hex
    assert attached["report"] == report()
    assert attached["verdict"] == "pass"
    assert {item["subject"]: item["got"] for item in attached["findings"]}[
        "marlin"
    ] == "passed: relative error 0.0017"


@pytest.mark.parametrize(
    ("place", "value", "status"),
    [
        (("vllm",), "0.33.0", 31),
        (("capability",), [12, 0], 31),
        (("extensions", "vllm/_C.abi3.so", "sha256"), "0" * 64, 31),
        (("extensions", "vllm/_C.abi3.so", "error"), "undefined symbol: x", 31),
        (("extensions",), {"vllm/other.so": {"error": "", "sha256": ""}}, 31),
        (("extensions",), {}, 31),
        (("cases", "nvfp4_moe"), {"state": "failed", "relative_error": 0.7}, 31),
        (("cases", "marlin"), {"state": "not for this chip", "reason": "x"}, 32),
        (("cases", "fp8_gemm"), {"state": "brilliant"}, 32),
        (("cases",), {}, 32),
        (("compiled",), ["cuda/index"], 31),
    ],
)
def test_what_is_not_as_it_should_be_is_attached_and_told(
    place: tuple[str, ...], value: object, status: int, tmp_path: Path
) -> None:
    found = report()
    table = found
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    assert attach(tmp_path, found) == status
    assert json.loads((tmp_path / "wheel.manifest.hardware.json").read_text())["verdict"] in {"fail", "unknown"}


@pytest.mark.parametrize(
    "found",
    [
        [], 3, None, {}, {"version": 2}, {**report(), "version": 2}, {**report(), "extensions": []},
        {**report(), "cases": {"marlin": 3}}, {**report(), "capability": "12.1"}, {**report(), "compiled": None},
        {**report(), "compiled": [1]}, {**report(), "vllm": 33},
    ],
)  # fmt: skip
def test_a_report_of_another_shape_is_refused_and_nothing_is_written(found: object, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        attach(tmp_path, found)
    assert not (tmp_path / "wheel.manifest.hardware.json").exists()


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError):
        attach(tmp_path, report(), b"{}")


def test_it_can_be_written_elsewhere(tmp_path: Path) -> None:
    attach(tmp_path, report(), None, "-o", str(tmp_path / "a" / "b.json"))
    assert (tmp_path / "a" / "b.json").exists()
