from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121 import preflight, process
from sm121.errors import PreflightError
from sm121.plan.model import Host
from sm121.progress import Progress
from sm121.resources import GIB, Machine

if TYPE_CHECKING:
    from pathlib import Path
import os
import sysconfig

QUIET = Progress(Console(quiet=True), quiet=True)


def host(compiler: str = "aarch64-linux-gnu-g++ 12.2.0", cpu: str = "x86_64") -> Host:
    machine = Machine(cpus=2, memory_total=24 * GIB, memory_available=20 * GIB)
    return Host(cpu=cpu, machine=machine, python="3.11.7", compiler=compiler)  # type: ignore[arg-type]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with nothing on it."""
    monkeypatch.setattr(process, "find", lambda *_a, **_k: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))


@pytest.mark.usefixtures("bare")
def test_all_that_is_missing_comes_at_once_with_the_command() -> None:
    with pytest.raises(PreflightError) as caught:
        preflight.ensure_packages(host(compiler=""), "aarch64", QUIET, install=False)
    assert len(caught.value.problems) == 4
    for word in (
        "apt-get install",
        "g++-aarch64-linux-gnu",
        "python3-dev",
        "qemu-user-static",
        "git",
        "--install-missing",
    ):
        assert word in caught.value.do


@pytest.mark.usefixtures("bare")
def test_a_native_build_asks_for_no_cross_compiler() -> None:
    packages = {lack.package for lack in preflight.lacks(host(compiler="", cpu="aarch64"), "aarch64")}
    assert packages == {"g++", "python3-dev", "git"}


def test_nothing_missing_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").write_text("")
    monkeypatch.setattr(process, "find", lambda name, **_k: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    known = host()
    assert preflight.ensure_packages(known, "aarch64", QUIET, install=True) is known


@pytest.mark.usefixtures("bare")
def test_installing_is_refused_where_it_is_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_os_release", lambda: 'ID="fedora"\n')
    with pytest.raises(PreflightError, match="Debian and Ubuntu"):
        preflight.ensure_packages(host(compiler=""), "aarch64", QUIET, install=True)


@pytest.mark.usefixtures("bare")
def test_installing_without_the_right_to_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_os_release", lambda: "ID=debian\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreflightError, match="root"):
        preflight.ensure_packages(host(compiler=""), "aarch64", QUIET, install=True)


@pytest.mark.usefixtures("bare")
def test_packages_that_did_not_help_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        preflight, "_install", lambda packages, _command, _progress: asked.append(tuple(packages))
    )
    monkeypatch.setattr(preflight, "read_host", lambda _cpu: host(compiler=""))
    with pytest.raises(PreflightError, match="is missing"):
        preflight.ensure_packages(host(compiler=""), "aarch64", QUIET, install=True)
    assert asked == [("g++-aarch64-linux-gnu", "git", "python3-dev", "qemu-user-static")]
