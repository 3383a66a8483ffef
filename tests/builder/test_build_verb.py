"""`sm121 build` on the command line: what is refused before anything runs, and where its documents go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sm121 import build_commands, cli
from sm121.errors import PlanError, UsageError
from sm121.plan.model import Host
from sm121.resources import GIB, Machine

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host(
    cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=20 * GIB), python="3.11.7",
    compiler="aarch64-linux-gnu-g++ 12.2.0",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_commands, "read_host", lambda _cpu: HOST)


def parsed(*words: str) -> int:
    """Run, and return the status also where the parser ends it."""
    try:
        return cli.run([*words])
    except SystemExit as end:
        return int(str(end.code))


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("build", "--help") == 0
    said = capsys.readouterr().out
    for code in (0, 2, 11, 12, 13, 14, 16, 17, 31, 32, 130):
        assert f"\n{code:>5}  " in said, code


@pytest.mark.parametrize("option", ["--line", "--vllm"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_name_is_not_the_default(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("build", option, value, "--dry-run") == UsageError.exit_code
    assert f"argument {option}" in capsys.readouterr().err


def test_json_goes_to_a_file_or_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ("build", "--dry-run", "--only", "vllm", "--json")
    assert parsed(*plan) == 0
    printed = capsys.readouterr().out
    assert parsed(*plan, "-") == 0
    assert capsys.readouterr().out == printed
    assert parsed(*plan, str(tmp_path / "plan.json")) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "plan.json").read_text() == printed
    (told,) = json.loads(printed)
    assert (told["line"], told["project"]["part"]) == ("cu130", "")


def test_an_extension_that_is_misspelt_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("build", "--dry-run", "--ext", "_C_stabel_libtorch") == PlanError.exit_code
    assert "did you mean _C_stable_libtorch?" in capsys.readouterr().err


def test_two_toolkits_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("build", "--dry-run", "--cuda-home", "/usr/local/cuda", "--cuda-image", "oci:image")
    assert parsed(*arguments) == UsageError.exit_code
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["cu129", "cu128"])
def test_a_line_without_its_toolkit_can_be_planned(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("build", "--line", line, "--dry-run", "--only", "vllm") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "yours: the CUDA 12.9 toolkit, not named yet (--cuda-home DIR)" in said
    assert f"torch 2.14.0+{line}" in said


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(("name", "found"), [("absent", "does not exist"), ("file", "is not a folder")])
def test_all_that_is_wrong_is_told_at_once(
    name: str, found: str, dry: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no mirror")
    places = (
        "--work",
        str(tmp_path / "work"),
        "--dist",
        str(tmp_path / "dist"),
        "--mirror",
        str(tmp_path / name),
    )
    wrong = ("--jobs", "0", "--ext", "_C_stabel_libtorch", "--modules", "pages", "--line", "cu130")
    assert parsed("build", *places, *wrong, *(["--dry-run"] if dry else [])) == UsageError.exit_code
    said = capsys.readouterr().err
    assert f"the mirror {tmp_path / name} {found}." in said
    for problem in ("--jobs 0", "did you mean _C_stable_libtorch?", "matches no module"):
        assert said.count(problem) == 1, problem
    assert said.count("what to do:") == 1
    assert "leave --mirror out" in said
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("verb", [("kernels", "topk.cu", "--dry-run"), ("kernels", "topk.cu")])
def test_verbs_that_compile_by_a_plan_want_the_mirror_too(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        parsed(*verb, "--work", str(tmp_path / "work"), "--mirror", str(tmp_path / "no")) == UsageError.exit_code
    )
    assert "the mirror" in capsys.readouterr().err


def test_a_fault_of_both_projects_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("build", "--dry-run", "--line", "cu13") == UsageError.exit_code
    assert capsys.readouterr().err.count("there is no line 'cu13'") == 1
