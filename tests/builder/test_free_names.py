"""A name that another build has: a dry run tells of it, a real one is refused before its work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sm121 import build_commands, cli
from sm121.errors import PackError
from sm121.findings import Verdict
from sm121.manifest import Command, Host, Inspection, Manifest, Output, Subject, Tool
from sm121.plan import model
from sm121.resources import GIB, Machine
from sm121.values import Sha256

if TYPE_CHECKING:
    from pathlib import Path

WHEEL = "vllm-0.33.0+cu130.sm121.partial-cp38-abi3-manylinux_2_34_aarch64.whl"
OTHER = "flashinfer_jit_cache_sm121a-0.7.2.post1+cu130.sm121.partial-cp39-abi3-manylinux_2_31_aarch64.whl"
ASKED = ("--ext", "spinloop", "--modules", "page")


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    host = model.Host(
        cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=20 * GIB), python="3.11.7",
        compiler="aarch64-linux-gnu-g++ 12.2.0",
    )  # fmt: skip
    monkeypatch.setattr(build_commands, "read_host", lambda _cpu: host)
    monkeypatch.setattr(build_commands, "ensure_packages", lambda host, *_, **__: host)


def publish(dist: Path, wheel: str, plan: Sha256) -> None:
    """Write a manifest as a build of `plan` leaves it."""
    project, version = wheel.split("-")[:2]
    manifest = Manifest(
        subject=Subject(project, version, version.partition("+")[0], "cu130", "12.1", "aarch64", "any"), plan=plan,
        inputs=(), patches=(), tools=(Tool("nvcc", "13.0.88"),), host=Host("Linux", "x86_64", 2, 1, "3.11"),
        commands=(Command("libraries", ("ninja",)),), libraries=(), outputs=(Output(wheel, plan, 10),),
        inspection=Inspection(Verdict.PASS, plan),
    )  # fmt: skip
    dist.mkdir(exist_ok=True)
    (dist / f"{wheel}.manifest.json").write_bytes(manifest.to_json())


def dry(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.run(["build", "--dry-run", *ASKED, "--dist", str(tmp_path / "dist"), *options]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_it_is_told_and_then_refused_for_all_projects_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wheel in (WHEEL, OTHER):
        publish(tmp_path / "dist", wheel, Sha256.of_bytes(b"another"))
    said = dry(tmp_path, capsys)
    for wheel in (WHEEL, OTHER):
        assert f"holds{wheel},madebyanotherplan" in said.replace(" ", "")
    assert "give --replace" in said
    words = ["build", *ASKED, "--quiet", "--dist", str(tmp_path / "dist"), "--work", str(tmp_path / "work")]
    assert cli.run(words) == PackError.exit_code
    refused = capsys.readouterr().err
    for wheel in (WHEEL, OTHER):
        assert f"holds {wheel}, made by another plan" in refused
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("options", [("--replace",), ("--until", "wheel"), ("--shard", "1/2")])
def test_what_takes_no_name_is_not_warned_of(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path / "dist", WHEEL, Sha256.of_bytes(b"another"))
    assert "another plan" not in dry(tmp_path, capsys, *options)


def test_the_same_plan_keeps_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["build", "--dry-run", *ASKED, "--json"]) == 0
    (vllm, _) = json.loads(capsys.readouterr().out)
    publish(tmp_path / "dist", WHEEL, Sha256(vllm["digest"].removeprefix("sha256:")))
    assert "another plan" not in dry(tmp_path, capsys)
