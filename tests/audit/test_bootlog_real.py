"""Logs of a real server, whole and piece by piece."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from test_audit_commands import run

from sm121.audit.bootlog import BootLog
from sm121.findings import Verdict

LOGS = Path(__file__).parent / "logs"


def read(name: str) -> BootLog:
    return BootLog().read((LOGS / f"cpu-0.32.0-{name}.log").read_text(encoding="utf-8").splitlines())


def test_a_server_that_served() -> None:
    log = read("served")
    assert log.version == "0.32.0"
    assert log.ready
    assert log.starts == 1
    assert log.numbers["cache_tokens"] == 232960
    assert log.numbers["longest_request"] == 4096
    # 3 layers x 3 heads x (64 + 64) elements x 4 bytes: what the model's configuration gives.
    assert log.bytes_per_token is not None
    assert round(log.bytes_per_token) in range(4606, 4612)
    assert "'enforce_eager': True" in log.arguments
    assert not log.findings
    assert log.verdict is Verdict.PASS


def test_a_server_whose_worker_crashed() -> None:
    log = read("crashed")
    assert log.ready, "it was up, and fell at the first request"
    assert {item.check for item in log.findings} == {"bootlog.worker-died", "bootlog.engine-died"}
    assert log.verdict is Verdict.FAIL


@pytest.mark.parametrize(("name", "status"), [("served", 0), ("crashed", 31)])
def test_as_a_stream(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (LOGS / f"cpu-0.32.0-{name}.log").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run("bootlog", "-", "--json") == status
    assert json.loads(capsys.readouterr().out)["vllm"] == "0.32.0"


def test_what_is_cut_anywhere_never_hurts() -> None:
    text = (LOGS / "cpu-0.32.0-crashed.log").read_text(encoding="utf-8")
    for size in (7, 80, 997):
        log = BootLog().read(text[start : start + size] for start in range(0, len(text), size))
        assert log.lines == -(-len(text) // size)
