"""A unit test cannot start a program or reach a network by accident."""

from __future__ import annotations

import socket
import subprocess
from typing import NoReturn

import pytest

_FREE = {"network", "real", "container", "hardware", "programs"}


def _refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    raise AssertionError("a unit test tried to start a program or reach the network; mark it or give it a fake")


@pytest.fixture(autouse=True)
def _no_accidents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _FREE & {mark.name for mark in request.node.iter_markers()}:
        monkeypatch.setattr(subprocess, "run", _refuse)
        monkeypatch.setattr(subprocess, "Popen", _refuse)
        monkeypatch.setattr(socket.socket, "connect", _refuse)
    return
