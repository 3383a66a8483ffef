"""The patches that a wheel says it was made with."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from sm121.artifact.distribution import Distribution
from sm121.artifact.metadata import Ledger
from sm121.errors import ArtifactError
from sm121.findings import Verdict
from sm121.inspector.judge.ledger import CHECK, judge_ledger

PATCH = {"name": "0001-thing.patch", "sha256": "ab" * 32, "state": "APPLIES"}
METADATA = b"Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0+cu130.sm121\n"


def distribution(ledger: object) -> Distribution:
    documents = {"METADATA": METADATA, **({} if ledger is None else {"sm121.json": json.dumps(ledger).encode()})}
    return Distribution.read("vllm-0.33.0+cu130.sm121.dist-info", documents)


def test_patches_are_named_by_hash() -> None:
    ledger = {"tool": "sm121 0.1.0", "source_tree": "cd" * 32, "patches": [PATCH]}
    (finding,) = judge_ledger(distribution(ledger))
    assert (finding.check, finding.verdict) == (CHECK, Verdict.PASS)
    assert finding.subject == "vllm 0.33.0+cu130.sm121"
    for part in ("sm121 0.1.0", "cdcdcdcdcdcd", "1 patch: 0001-thing.patch (sha256 abababababab, applies)"):
        assert part in finding.got


def test_without_a_ledger_nothing_is_said_and_without_patches_that() -> None:
    assert [*judge_ledger(distribution(None))] == []
    (finding,) = judge_ledger(distribution({"tool": "sm121 0.1.0", "patches": []}))
    assert finding.got == "was made by sm121 0.1.0 without patches"


def test_a_patch_that_was_left_out_is_a_warning() -> None:
    (finding,) = judge_ledger(distribution({"tool": "t", "patches": [PATCH, {**PATCH, "state": "CONFLICT"}]}))
    assert finding.verdict is Verdict.WARN
    assert "conflict" in finding.got


@pytest.mark.parametrize(
    "ledger", ["text", [], {"patches": "x"}, {"patches": [1]}, {"tool": 1}, {"patches": [{"name": 3}]}]
)
def test_damage_is_a_finding_of_the_metadata(ledger: object) -> None:
    with pytest.raises(ArtifactError):
        Ledger.parse(json.dumps(ledger).encode())
    damaged = distribution(ledger)
    assert damaged.ledger is None
    assert [problem.verdict for problem in damaged.problems] == [Verdict.FAIL]


def test_a_hostile_ledger_stays_short() -> None:
    row = {**PATCH, "name": "\x1b[31m" + "x" * 10_000}
    (finding,) = judge_ledger(distribution({"tool": "\x1b" + "t" * 10_000, "patches": [row] * 5_000}))
    assert len(finding.got) < 10_000
    assert "\x1b" not in finding.got
    Console(file=io.StringIO()).print(finding.got, markup=False)
