"""A ptxas for tests that start no program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finish_files import RecordedPtxas

from sm121 import process
from sm121.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedPtxas:
    recorded = RecordedPtxas(tmp_path)
    monkeypatch.setattr(process, "run", recorded.run)
    monkeypatch.setattr(process, "measure", recorded.measure)
    return recorded


@pytest.fixture
def quiet() -> Progress:
    return Progress(quiet=True)
