"""A unit test cannot start a program or reach a network by accident."""

from __future__ import annotations

import socket
import subprocess
from typing import NoReturn

import pytest

_FREE = {"network", "real", "container", "hardware", "programs"}


def _refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    raise AssertionError("a unit test tried to start a program or reach the network; mark it or give it a fake")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also the tests that compile for many minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="compiles for many minutes: --long runs it"))


@pytest.fixture(autouse=True)
def _no_accidents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _FREE & {mark.name for mark in request.node.iter_markers()}:
        monkeypatch.setattr(subprocess, "run", _refuse)
        monkeypatch.setattr(subprocess, "Popen", _refuse)
        monkeypatch.setattr(socket.socket, "connect", _refuse)
    return
