"""A folder of pins to spoil, and an index in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
from pins_world import SIMPLE, World

from sm121 import index

if TYPE_CHECKING:
    from sm121.index import Settings

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the repository's own pins."""
    return Path(shutil.copytree(REPOSITORY / "pins", tmp_path / "pins"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """An index in memory that stands in for the configured ones."""
    made = World()

    def session(_chosen: Settings | None = None) -> requests.Session:
        opened = requests.Session()
        opened.mount("https://", made)
        return opened

    monkeypatch.setattr(index, "session", session)
    monkeypatch.setattr(index, "settings", lambda: index.Settings((SIMPLE,)))
    return made
