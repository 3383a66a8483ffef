"""Whole wheels finished: RECORD, ledger, stamp and name follow, everything else stays."""

from __future__ import annotations

import argparse
import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from finish_files import FIXTURES, fixture

from pack.made_wheels import FILENAME, MAIN, MOE, NEW_INFO, PLAIN_SO, RUST, members, write_wheel
from sm121 import cli
from sm121.device import read_device_code
from sm121.device.mark import read_mark
from sm121.errors import ArtifactError, FinishError, PackError, UsageError
from sm121.finish_commands import add_arguments, run
from sm121.pack.finished import finish_wheel, plan_wheel
from sm121.pack.official import OfficialWheel
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from finish_files import RecordedPtxas

    from sm121.progress import Progress

DEVICE = FIXTURES.parents[1] / "device" / "fixtures"
NEW_NAME = "vllm-0.33.0+cu130.sm121-cp38-abi3-manylinux_2_17_aarch64.whl"


def official(folder: Path, **more: bytes) -> Path:
    """A wheel with a library to compile, one to slim, and others without device code."""
    content = {**members(), MAIN: fixture("aarch64.so"), MOE: (DEVICE / "aarch64.so").read_bytes(), **more}
    return write_wheel(folder / FILENAME, content)


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def ledger(files: Mapping[str, bytes]) -> dict[str, Any]:
    return dict(json.loads(files[f"{NEW_INFO}/sm121.json"]))


def checked(wheel: Path) -> None:
    """Compare every member with the wheel's own RECORD."""
    with OfficialWheel.open(wheel) as opened:
        for name in opened.infos:
            opened.content(name)


def test_an_official_wheel_becomes_a_stamped_one(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    wheel = official(tmp_path)
    result = finish_wheel(wheel, tmp_path / "out", ptxas.settings(tmp_path), quiet)
    assert result.path == tmp_path / "out" / NEW_NAME
    assert [*(tmp_path / "out").iterdir()] == [result.path]
    assert (result.sha256, result.size) == (Sha256.of_file(result.path), result.path.stat().st_size)
    checked(result.path)
    files = content(result.path)
    assert b"Version: 0.33.0+cu130.sm121" in files[f"{NEW_INFO}/METADATA"]
    assert b"0.33.0+cu130.sm121" in files["vllm/_version.py"]
    assert files[RUST] == PLAIN_SO + b"\0rust"
    for path in MAIN, MOE:
        assert Sha256.of_bytes(files[path]) == result.libraries[path].after.sha256
        assert {image.target for image in read_device_code(files[path]).images} <= {"sm_121", "sm_120f"}
    assert len(read_mark(files[MAIN])) == 2
    assert {*result.libraries} == {MAIN, MOE}


def test_the_ledger_says_what_was_done(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    wheel = official(tmp_path)
    result = finish_wheel(wheel, tmp_path / "out", ptxas.settings(tmp_path), quiet)
    told = ledger(content(result.path))
    origins = {each["path"]: each["origin"] for each in told["libraries"]}
    assert origins[MAIN] == origins[MOE] == "finished"
    assert origins[RUST] == "official"
    assert told["official"] == {"filename": FILENAME, "sha256": Sha256.of_file(wheel).hex}
    assert told["toolkit"] == "ptxas 13.0.88"
    first, second = told["notes"]
    assert first.startswith(
        f"{MAIN} was finished for 12.1 by ptxas 13.0.88, sha256 {Sha256.of_file(ptxas.path).hex}: "
    )
    assert "2 units compiled for sm_121, 1 slimmed, 1 emptied, layout compact" in first
    assert first.endswith(f"sha256 before {Sha256.of_bytes(fixture('aarch64.so')).hex}")
    assert "0 units compiled" in second


def test_a_wheel_of_ours_keeps_its_name_and_is_not_changed_twice(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    settings = ptxas.settings(tmp_path)
    first = finish_wheel(official(tmp_path), tmp_path / "one", settings, quiet)
    again = finish_wheel(first.path, tmp_path / "two", settings, quiet)
    assert again.path == tmp_path / "two" / NEW_NAME
    assert again.path.read_bytes() == first.path.read_bytes()
    over = finish_wheel(first.path, tmp_path / "one", settings, quiet)
    assert over.path.read_bytes() == again.path.read_bytes()


def test_a_wheel_of_ours_that_was_not_finished_is_written_again(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    first = finish_wheel(official(tmp_path), tmp_path / "one", ptxas.settings(tmp_path), quiet)
    files = content(first.path)
    told = ledger(files)
    for library in told["libraries"]:
        if library["path"] == MAIN:
            library["origin"] = "source"
        elif library["path"] == MOE:
            library["origin"] = "official"
    unfinished = {
        **{name: data for name, data in files.items() if not name.endswith("/RECORD")},
        MAIN: fixture("aarch64.so"), MOE: (DEVICE / "aarch64.so").read_bytes(),
        f"{NEW_INFO}/sm121.json": json.dumps(told).encode(),
    }  # fmt: skip
    wheel = write_wheel(tmp_path / NEW_NAME, unfinished)
    result = finish_wheel(wheel, tmp_path / "two", ptxas.settings(tmp_path), quiet)
    assert result.path.name == NEW_NAME
    checked(result.path)
    after = content(result.path)
    assert after[MAIN] == files[MAIN]
    libraries = {each["path"]: each for each in ledger(after)["libraries"]}
    assert (libraries[MAIN]["origin"], libraries[MOE]["origin"]) == ("source", "finished")
    assert libraries[MAIN]["sha256"] == Sha256.of_bytes(after[MAIN]).hex
    assert libraries[MAIN]["size"] == len(after[MAIN])
    assert len(ledger(after)["notes"]) == len(told["notes"]) + 2
    changed = {name for name in after if after[name] != unfinished.get(name)}
    assert changed == {MAIN, MOE, f"{NEW_INFO}/sm121.json", f"{NEW_INFO}/RECORD"}


@pytest.mark.parametrize("damage", ["no json", "a list", "another version", "other libraries"])
def test_a_ledger_that_does_not_fit_is_refused(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path, damage: str
) -> None:
    first = finish_wheel(official(tmp_path), tmp_path / "one", ptxas.settings(tmp_path), quiet)
    files = {name: data for name, data in content(first.path).items() if not name.endswith("/RECORD")}
    told = ledger(files)
    match damage:
        case "no json":
            text = b"{"
        case "a list":
            text = b"[]"
        case "another version":
            text = json.dumps({**told, "version": 2}).encode()
        case _:
            text = json.dumps({**told, "libraries": []}).encode()
    wheel = write_wheel(
        tmp_path / NEW_NAME, {**files, MAIN: fixture("aarch64.so"), f"{NEW_INFO}/sm121.json": text}
    )
    with pytest.raises(PackError):
        finish_wheel(wheel, tmp_path / "two", ptxas.settings(tmp_path), quiet)
    assert not [*(tmp_path / "two").iterdir()]


def test_a_library_that_must_not_be_rewritten_stops_the_wheel(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    wheel = official(tmp_path, **{"vllm/_cut.abi3.so": fixture("aarch64.so")[:9000]})
    with pytest.raises(FinishError, match=r"vllm/_cut\.abi3\.so"):
        finish_wheel(wheel, tmp_path / "out", ptxas.settings(tmp_path), quiet)
    assert not [*(tmp_path / "out").iterdir()]
    assert ptxas.compiled == []


def test_a_wheel_without_device_code_is_refused(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="found none"):
        finish_wheel(write_wheel(tmp_path / FILENAME), tmp_path / "out", ptxas.settings(tmp_path), quiet)


def test_another_local_version_is_refused(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    files = {
        name.replace("0.33.0", "0.33.0+cu129"): data.replace(b"0.33.0", b"0.33.0+cu129")
        if name.endswith("METADATA")
        else data
        for name, data in {**members(), MAIN: fixture("aarch64.so")}.items()
    }
    wheel = write_wheel(tmp_path / FILENAME.replace("0.33.0", "0.33.0+cu129"), files)
    with pytest.raises(PackError, match="has a local version already"):
        finish_wheel(wheel, tmp_path / "out", ptxas.settings(tmp_path), quiet)


def test_a_plan_of_a_wheel_writes_nothing(ptxas: RecordedPtxas, tmp_path: Path) -> None:
    wheel = official(tmp_path)
    before = sorted(tmp_path.iterdir())
    plan = plan_wheel(wheel, ptxas.settings(tmp_path))
    assert {name: [str(unit.deed) for unit in units] for name, units in plan.items()} == {
        MAIN: ["compiled", "slimmed", "emptied", "compiled"],
        MOE: ["slimmed", "unchanged"],
    }
    assert sorted(tmp_path.iterdir()) == before


def command(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def here(ptxas: RecordedPtxas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_verb_finishes_a_library(
    here: Path, ptxas: RecordedPtxas, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(FIXTURES / "x86_64.so", "--ptxas", ptxas.path, "-q") == 0
    made = here / "finished" / "x86_64.so"
    assert len(read_mark(made.read_bytes())) == 2
    text = capsys.readouterr().out
    assert "x86_64.so: 1 slimmed, 2 compiled, 1 emptied; 42.7 kB -> 34.6 kB, compact" in text
    assert Sha256.of_file(made).hex in text
    assert command(FIXTURES / "x86_64.so", "--ptxas", ptxas.path, "-q", "-o", "one.so", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["library"] == "one.so"
    assert told["libraries"][0]["counts"]["compiled"] == 2
    assert (here / "one.so").read_bytes() == made.read_bytes()
    assert (here / "work" / "cache" / "ptxas").is_dir()


def test_the_verb_finishes_a_folder_and_leaves_other_files(here: Path, ptxas: RecordedPtxas) -> None:
    folder = here / "site" / "vllm"
    folder.mkdir(parents=True)
    (folder / "_C.abi3.so").write_bytes(fixture("x86_64.so"))
    (folder / "plain.so").write_bytes(PLAIN_SO)
    (folder / "script.so").write_text("INPUT(x)")
    (folder / "empty.so").touch()
    (folder / "link.so").symlink_to("_C.abi3.so")
    assert command(here / "site", "--ptxas", ptxas.path, "-q", "-o", "out") == 0
    assert [path.relative_to(here / "out").as_posix() for path in (here / "out").rglob("*.so")] == [
        "vllm/_C.abi3.so"
    ]
    assert (folder / "_C.abi3.so").read_bytes() == fixture("x86_64.so")
    assert command(here / "site", "--ptxas", ptxas.path, "-q", "-o", "site") == 0
    assert (folder / "_C.abi3.so").read_bytes() == (here / "out" / "vllm" / "_C.abi3.so").read_bytes()
    with pytest.raises(FinishError, match="no shared library with device code"):
        command(here / "work", "--ptxas", ptxas.path, "-q")


def test_a_dry_run_of_the_verb_writes_nothing(
    here: Path, ptxas: RecordedPtxas, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.iterdir())
    assert command(FIXTURES / "x86_64.so", "--ptxas", ptxas.path, "--dry-run") == 0
    assert "4 units, 1 slimmed, 2 compiled, 1 emptied; 16.9 kB of PTX" in capsys.readouterr().out
    assert command(FIXTURES / "x86_64.so", "--ptxas", ptxas.path, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["x86_64.so"]["compiled"] == 2
    assert sorted(here.iterdir()) == before


def test_the_verb_finishes_for_another_capability(here: Path, ptxas: RecordedPtxas) -> None:
    with pytest.raises(FinishError, match="was never seen"):
        command(FIXTURES / "x86_64.so", "--ptxas", ptxas.path, "-q", "--target", "9.0")
    with pytest.raises(SystemExit):
        command(FIXTURES / "x86_64.so", "--target", "12.1a")


def test_a_wrong_use_of_the_verb_is_told(
    here: Path, ptxas: RecordedPtxas, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        command("nothing.so", "--ptxas", ptxas.path)
    for name, content, said in (
        ("README.md", b"# sm121\n", "neither a wheel nor an ELF file"),
        ("empty.so", b"", "no file with content"),
    ):
        (here / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=said) as wrong:
            command(name, "--ptxas", ptxas.path)
        assert "name a wheel, a library" in wrong.value.do
    with pytest.raises(UsageError, match="--jobs should be at least 1"):
        command(FIXTURES / "x86_64.so", "--ptxas", ptxas.path, "--jobs", "0")
    monkeypatch.setattr("sm121.process.find", lambda program: None)
    monkeypatch.setattr("sm121.finish_commands._TOOLKITS", ())
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    with pytest.raises(UsageError, match="there is no ptxas on PATH"):
        command(FIXTURES / "x86_64.so")
    monkeypatch.setenv("CUDA_HOME", str(here))
    (here / "bin").mkdir()
    (here / "bin" / "ptxas").write_bytes(ptxas.path.read_bytes())
    assert command(FIXTURES / "x86_64.so", "--dry-run") == 0


def test_the_command_line_knows_the_verb(here: Path, ptxas: RecordedPtxas) -> None:
    assert (
        cli.run(["finish", str(FIXTURES / "ptx_90a.o"), "--ptxas", str(ptxas.path), "-q"])
        == FinishError.exit_code
    )
    assert cli.run(["finish", str(FIXTURES / "x86_64.so"), "--ptxas", str(ptxas.path), "-q"]) == 0
