"""inspect, diff and matrix on the command line: statuses, documents, and messages instead of tracebacks."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest
from made_facts import fixture, write_wheel

from sm121.errors import ArtifactError, StorageError, UsageError
from sm121.inspector.commands import add_inspect_commands
from sm121.inspector.report import load_report

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: object) -> int:
    top = argparse.ArgumentParser()
    add_inspect_commands(top.add_subparsers(required=True))
    arguments = top.parse_args([str(word) for word in words])
    status: int = arguments.run(arguments)
    return status


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o"))
    return path


def made(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.write_bytes(fixture(name))
    return path


@pytest.mark.parametrize(
    ("name", "words", "status"),
    [
        ("k_121a.o", (), 0),
        ("k_120a.o", (), 31),
        ("ptx_120.o", (), 0),
        ("ptx_120.o", ("--driver-cuda", "12.8"), 31),
        ("k_121a.o", ("--target", "12.0"), 31),
        ("k_120a.o", ("--target", "12.0"), 0),
        ("k_121a.o", ("--expect-version", "1.0"), 32),
        ("hostonly.so", ("--strict",), 0),
    ],
)
def test_the_status_is_the_verdict(
    name: str, words: tuple[str, ...], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", made(tmp_path, name), *words) == status
    assert capsys.readouterr().out.split()[0] in {"PASS", "INFO", "WARN", "FAIL", "UNKNOWN"}


def test_warnings_count_with_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"pkg/k.so": fixture("aarch64.so")}
    wheel = write_wheel(tmp_path, files, name="pkg", version="1.0.dev2", requires=("torch==2.14.0",))
    assert run("inspect", wheel) == 0
    assert run("inspect", wheel, "--strict") == 30
    assert "stamp.dev" in capsys.readouterr().out


def test_documents_are_written(kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / f"report.{name}" for name in ("json", "html", "sarif", "junit")}
    assert run("inspect", kernel, *(word for name, path in paths.items() for word in (f"--{name}", path))) == 0
    report = load_report(paths["json"].read_text(encoding="utf-8"))
    assert report.kernels[0].name == "_Z1kPf"
    assert paths["html"].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(paths["sarif"].read_text(encoding="utf-8"))["version"] == "2.1.0"
    assert paths["junit"].read_text(encoding="utf-8").startswith("<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "k.o",
        *sorted(f"report.{name}" for name in paths),
    ]
    assert capsys.readouterr().out.startswith("PASS  k.o")


def test_json_on_standard_output_stands_alone(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", kernel, "--json", "-") == 0
    out, err = capsys.readouterr()
    assert load_report(out).artifact.name == "k.o"
    assert "PASS  k.o" in err


def test_two_documents_do_not_share_standard_output(kernel: Path) -> None:
    with pytest.raises(UsageError, match="two documents"):
        run("inspect", kernel, "--json", "-", "--sarif", "-")


def test_colour_and_width_are_the_users(
    kernel: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    run("inspect", kernel, "-v")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    table = out.split("\n\n")[1].splitlines()
    assert max(len(line) for line in table) <= 60


def test_what_cannot_be_done_is_said(kernel: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        run("inspect", tmp_path / "nothing.whl")
    with pytest.raises(StorageError, match="cannot be written"):
        run("inspect", kernel, "--json", tmp_path / "no" / "folder" / "r.json")
    with pytest.raises(UsageError, match="without --python"):
        run("inspect", kernel, "--glibc", "2.39")
    with pytest.raises(UsageError, match="looks like"):
        run("inspect", kernel, "--python", "snake")
    with pytest.raises(UsageError, match="cannot be read"):
        run("inspect", kernel, "--manifest", tmp_path / "none.json")


@pytest.mark.parametrize(
    "words", [("--target", "12.1a"), ("--target", "gb10"), ("--driver-cuda", "thirteen"), ("--channel", "ftp")]
)
def test_bad_values_are_refused(words: tuple[str, str], kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("inspect", kernel, *words)
    assert caught.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_diff_of_artifacts_and_of_reports(
    kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made(tmp_path, "k_121a.o")
    assert run("diff", kernel, kernel) == 0
    assert run("diff", kernel, other) == 1
    assert "sm_121a 1" in capsys.readouterr().out
    for path in (kernel, other):
        run("inspect", path, "--json", f"{path}.json")
    capsys.readouterr()
    assert run("diff", f"{kernel}.json", other, "--json", "-") == 1
    assert json.loads(capsys.readouterr().out)["after"] == "k_121a.o"


def test_matrix(kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "m.json"
    assert run("matrix", kernel, made(tmp_path, "k_120a.o"), "--json", target) == 0
    assert json.loads(target.read_text(encoding="utf-8"))["columns"] == ["k.o", "k_120a.o"]
    assert "1 of 1" in capsys.readouterr().out


def test_a_broken_report_is_refused(tmp_path: Path, kernel: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match="no report"):
        run("diff", path, kernel)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        run("matrix", path)


def test_everything_that_is_missing_is_named_before_anything_is_read(tmp_path: Path, kernel: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    absent = [tmp_path / "a.whl", tmp_path / "b.so"]
    with pytest.raises(ArtifactError) as caught:
        run("matrix", absent[0], kernel, absent[1], tmp_path / "r.json")
    for name in ("a.whl", "b.so", "r.json"):
        assert name in " ".join(caught.value.problems)
    assert caught.value.do
    with pytest.raises(ArtifactError) as caught:
        run("diff", *absent)
    assert len(caught.value.problems) == 2


def test_json_without_a_file_is_standard_output(
    kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", kernel, "--json") == 0
    assert load_report(capsys.readouterr().out, "standard output").artifact.name.endswith(kernel.name)
    run("matrix", kernel, "--json")
    assert json.loads(capsys.readouterr().out)["version"] == 1
    run("diff", kernel, kernel, "--json", tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text())["changes"] == []
