"""What the end of a build says: every file's name, and a command to go on with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sm121 import build_commands, cli
from sm121.pack.publish import Published
from sm121.plan.model import Host
from sm121.resources import GIB, Machine
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sm121.plan.model import Plan
    from sm121.steps import Context

HOST = Host(
    cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=20 * GIB), python="3.11.7",
    compiler="aarch64-linux-gnu-g++ 12.2.0",
)  # fmt: skip


class Done:
    """In place of a build: what it would have published is there."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan, self.dist = plan, context.dist

    def run(self, *, until: str) -> Sequence[Published] | Path:
        if until != "publish":
            return self.dist / until
        self.dist.mkdir(exist_ok=True)
        made = []
        for name in self.plan.distributions:
            wheel = self.dist / f"{name.replace('-', '_')}-{self.plan.stamped}-py3-none-any.whl"
            wheel.with_name(f"{wheel.name}.report.html").write_text("")
            made.append(Published(wheel, Sha256.of_bytes(b""), self.dist / "by-digest" / wheel.name))
        return made


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_commands, "read_host", lambda _cpu: HOST)
    monkeypatch.setattr(build_commands, "ensure_packages", lambda host, *_, **__: host)
    monkeypatch.setattr(build_commands, "ensure_disk", lambda *_: None)
    monkeypatch.setattr(build_commands, "Build", Done)


def built(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    places = ("--work", str(folder / "work"), "--dist", str(folder / "my dist"))
    assert cli.run(["build", "--quiet", *places, *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_everything_ends_with_reports_installing_and_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = built(tmp_path, capsys)
    assert [line.split()[0] for line in said] == [
        *["wheel", "sha256", "manifest", "exact", "report"] * 3, "next", "next", "then", "or"
    ]  # fmt: skip
    wheel = said[0].split("wheel  ")[1]
    assert said[4].endswith(f"{wheel}.report.html")
    assert said[15].endswith(f"on aarch64: pip install '{wheel}'")
    assert "install both wheels beside flashinfer-python 0.7.2.post1" in said[16]
    assert said[16].count(".whl'") == 2
    assert "sm121 prove" in said[17]
    assert said[18].endswith(f"nox -s image-cu130 -- --dist '{tmp_path / 'my dist'}'")


@pytest.mark.parametrize(
    ("options", "last"),
    [
        (("--only", "vllm"), ["report", "next"]),
        (("--ext", "spinloop", "--modules", "page"), ["next", "next", "then"]),
        (("--modules", "page"), ["report", "next", "then"]),
        (("--only", "vllm", "--until", "wheel"), ["step", "folder"]),
    ],
)
def test_an_image_is_offered_of_whole_wheels_of_both_alone(
    options: tuple[str, ...], last: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [line.split()[0] for line in built(tmp_path, capsys, *options)][-len(last) :] == last


def test_programs_are_told_the_results_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads("\n".join(built(tmp_path, capsys, "--json")))
    assert [[*row] for row in rows] == [["wheel", "sha256", "manifest", "exact"]] * 3


def test_a_report_that_is_not_there_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Published, "page", tmp_path / "absent")
    assert "report" not in [line.split()[0] for line in built(tmp_path, capsys, "--only", "vllm")]
