"""Searching among artifacts, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sm121.cli import run
from sm121.errors import ArtifactError, UsageError

pytestmark = pytest.mark.programs

FIXTURES = Path(__file__).parent.parent / "device" / "fixtures"


@pytest.fixture
def row(tmp_path: Path) -> list[str]:
    """Five builds of one kernel: for the family three times, then for another chip alone."""
    paths = []
    for number, name in enumerate(["k_120f.o", "k_120f.o", "k_121a.o", "k_120a.o", "k_120a.o"]):
        paths.append(tmp_path / f"{number}.o")
        shutil.copy(FIXTURES / name, paths[-1])
    return [str(path) for path in paths]


def found(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, object]:
    capsys.readouterr()
    assert run(["bisect", *words, "--json", "-q"]) == status
    data: dict[str, object] = json.loads(capsys.readouterr().out)
    return data


def test_lost_and_changed_are_two_questions(row: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lost = found(capsys, "artifacts", *row, "--question", "lost")
    assert lost["first_bad"] == row[3]
    assert lost["differences"] == [
        {
            "name": "_Z1kPf",
            "before": {"state": "family", "code": "", "target": ""},
            "after": {"state": "no", "code": "", "target": ""},
        }
    ]
    changed = found(capsys, "artifacts", *row)
    assert changed["first_bad"] == row[2], "another target is another code"


def test_nothing_found_is_an_answer_of_its_own(row: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert found(capsys, "artifacts", *row[:2], status=1)["first_bad"] is None
    assert run(["bisect", "artifacts", *row[:2], "-q"]) == 1
    assert "nothing changed" in capsys.readouterr().out


def test_the_text_names_good_and_bad(row: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", "artifacts", *row, "--question", "lost", "-q"]) == 0
    said = capsys.readouterr().out
    assert f"first bad: {row[3]}" in said
    assert "k(float*): family -> no" in said
    assert f"good  {row[0]}" in said


def test_what_cannot_be_searched(row: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", "artifacts", row[0], "-q"]) == UsageError.exit_code
    assert run(["bisect", "artifacts", *row, "--kernel", "(", "-q"]) == UsageError.exit_code
    assert run(["bisect", "artifacts", row[0], "/nowhere.whl", "-q"]) == ArtifactError.exit_code
    assert run(["bisect", "artifacts", *row, "--library", "*.so", "-q"]) == ArtifactError.exit_code
    assert run(["bisect", "artifacts", *row, "--kernel", "no_such_kernel", "-q"]) == UsageError.exit_code
    assert run(["bisect", "artifacts", *row[3:], "--question", "lost", "-q"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "no kernel matches" in said
    assert "nothing could be lost" in said
    assert "two or more" in said
    assert "no regular expression" in said
    assert "has no library *.so" in said
