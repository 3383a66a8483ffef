"""A short run of the fuzzer over whole inspections, and proof that it notices what it looks for."""

from __future__ import annotations

import errno
import mmap
import random
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import fuzz_reports
from sm121.artifact import open_artifact
from sm121.inspector import inspect_artifact

if TYPE_CHECKING:
    import pytest


def test_damaged_artifacts_get_a_verdict_and_every_report(tmp_path: Path) -> None:
    kinds = set()
    for name, data in islice(fuzz_reports.inputs(random.Random(121)), 60):
        path = tmp_path / name
        path.write_bytes(data)
        assert fuzz_reports.fault_of(path) == ""
        kinds.add(path.suffix)
    assert kinds == {".so", ".whl", ".tar"}


def test_the_fuzzer_notices_a_report_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input.so"
    path.write_bytes(Path(__file__).parents[1].joinpath("device", "fixtures", "aarch64.so").read_bytes())
    monkeypatch.setattr(fuzz_reports, "report_html", lambda _report: "<html>")
    assert "AssertionError" in fuzz_reports.fault_of(path)


def test_a_member_that_memory_cannot_hold_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by fuzzing: a lying size of gigabytes where the process may not have them."""
    name, data = next(item for item in fuzz_reports.inputs(random.Random(0)) if item[0].endswith(".whl"))
    path = tmp_path / name
    path.write_bytes(data)

    mapped = mmap.mmap

    def full(file: int, size: int, **how: int) -> mmap.mmap:
        if file < 0:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return mapped(file, size, **how)

    for room in "artifact.member", "inspector.forward":
        patched = SimpleNamespace(**{**vars(mmap), "mmap": full})
        monkeypatch.setattr(f"sm121.{room}.mmap", patched)
    with open_artifact(path) as artifact:
        report = inspect_artifact(artifact)
    assert any("Cannot allocate memory" in finding.message for finding in report.findings)
