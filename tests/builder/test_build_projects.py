"""Which projects `sm121 build` plans, and which modules of FlashInfer: the command line's part of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sm121 import build_commands
from sm121.cli import run
from sm121.errors import UsageError
from sm121.plan.model import Host
from sm121.resources import GIB, Machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that needs no program to be read."""
    host = Host(
        cpu="x86_64", machine=Machine(cpus=8, memory_total=64 * GIB, memory_available=60 * GIB), python="3.12.1",
        compiler="aarch64-linux-gnu-g++ 12.2.0",
    )  # fmt: skip
    monkeypatch.setattr(build_commands, "read_host", lambda cpu: host)


def planned(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """The projects of a dry run, each with how many libraries are compiled."""
    assert run(["build", "--dry-run", "--json", *options]) == 0
    return [
        f"{plan['project']['name']} {sum(e['origin'] == 'source' for e in plan['extensions'])}"
        for plan in json.loads(capsys.readouterr().out)
    ]


@pytest.mark.parametrize(
    ("options", "projects"),
    [
        ((), ["vllm", "flashinfer"]),
        (("--only", "vllm"), ["vllm"]),
        (("--only", "flashinfer"), ["flashinfer"]),
        (("--only", "flashinfer,vllm"), ["vllm", "flashinfer"]),
        (("--only", "flashinfer", "--only", "vllm"), ["vllm", "flashinfer"]),
        (("--ext", "spinloop"), ["vllm"]),
        (("--modules", "page"), ["flashinfer"]),
        (("--modules", "page", "--ext", "spinloop"), ["vllm", "flashinfer"]),
    ],
)
def test_projects(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], projects: list[str]) -> None:
    assert [each.split()[0] for each in planned(capsys, *options)] == projects


@pytest.mark.parametrize(
    ("modules", "count"),
    [
        (["page"], 1),
        (["page,norm"], 2),
        (["page", "norm", "rope"], 3),
        (["serving"], 368),
        (["all"], 565),
        ([r"xqa_input_bf16.*page_size_(16|32)_head_dim_128_.*"], 32),
        ([r"(norm|page),rope"], 3),
        ([r"xqa_mla_.*_page_size_\d{2,3}_.*"], 4),
    ],
)
def test_modules(capsys: pytest.CaptureFixture[str], modules: list[str], count: int) -> None:
    options = [word for value in modules for word in ("--modules", value)]
    assert planned(capsys, *options) == [f"flashinfer {count}"]


def test_modules_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("# what this server needs\npage\n\nnorm  # and norms\nbatch_mla_.*\n")
    assert planned(capsys, "--modules", str(file), "--modules", "rope") == ["flashinfer 5"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "flashinfr"], "there is no project 'flashinfr'"),
        (["--only", "vllm", "--modules", "page"], "--only leaves FlashInfer out"),
        (["--only", "flashinfer", "--ext", "spinloop"], "--only leaves vLLM out"),
        (["--modules", "./absent.txt"], "cannot be read"),
        (["--modules", ""], "no module is named"),
        (["--modules", "pages"], "matches no module"),
        (["--modules", "page("], "no regular expression"),
        (["--only", "flashinfer", "--until", "finish"], "no step 'finish' in the plan for flashinfer"),
        (["--until", "torch"], "no step 'torch' in the plan for flashinfer"),
    ],
)
def test_refused_with_what_to_do(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert run(["build", "--dry-run", *options]) == UsageError.exit_code
    error = capsys.readouterr().err
    assert said in error
    assert "what to do:" in error


def test_a_list_that_is_no_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xff\xfe\x00")
    assert run(["build", "--dry-run", "--modules", str(file)]) == UsageError.exit_code
    assert "cannot be read" in capsys.readouterr().err


def test_a_folder_in_place_of_a_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["build", "--dry-run", "--modules", str(tmp_path)]) == UsageError.exit_code
    assert "cannot be read" in capsys.readouterr().err


def test_wheels_that_prove_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    absent = tmp_path / "flashinfer_jit_cache-0.7.2.post1-py3-none-any.whl"
    assert run(["prove", str(absent), "odd.whl", "--python", "python3"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert f"{absent} does not exist" in said.replace("\n", "")
    assert "no wheel of flashinfer-python" in said
    assert "odd.whl" in said
