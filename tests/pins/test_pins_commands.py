"""`sm121 pins`: what is printed, what is written, which status is returned."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement
from pins_world import World, wheel

from sm121.errors import (
    ArtifactError,
    PinsError,
    StorageError,
    UsageError,
    VerdictFail,
    VerdictUnknown,
    VerdictWarning,
)
from sm121.index import IndexFile
from sm121.pins import Cpu, commands, load, lock
from sm121.pins import facts as facts_module
from sm121.pins.explain import explain
from sm121.pins.facts import Facts
from sm121.pins.resolve import Resolution
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.pins.edit import Edits

PINS = load(Path(__file__).parents[2] / "pins")
LINE, RELEASE = PINS.line(), PINS.vllm()


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    commands.add_arguments(parser)
    return commands.run(parser.parse_args([str(word) for word in words]))


def freeze(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "freeze.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_check_offline_is_never_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "--offline") == VerdictUnknown.exit_code
    told = capsys.readouterr().out
    assert told.startswith("UNKNOWN pins.upstream")
    assert told.splitlines()[-1].startswith("UNKNOWN: ")


def test_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run("check", "--offline", "--json", "--line", "cu129")
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["verdict"]) == (1, "unknown")
    keys = {"check", "subject", "verdict", "got", "wanted", "advice", "source"}
    assert all(set(finding) == keys for finding in told["findings"])
    assert any(finding["check"] == "pins.torch-build" for finding in told["findings"])


@pytest.mark.parametrize(
    ("lines", "words", "status"),
    [
        (["torch==2.14.0+cu130", "triton==3.8.0"], [], 0),
        (["torch==2.14.0+cu129", "triton==3.8.0"], [], VerdictFail.exit_code),
        (["nvidia-cutlass-dsl==4.5.0"], [], VerdictFail.exit_code),
        (["torch==2.14.0"], [], VerdictUnknown.exit_code),
        (["flashinfer-python==0.7.2", "flashinfer-cubin==0.6.13"], [], 0),
        (["flashinfer-python==0.7.2", "flashinfer-cubin==0.6.13"], ["--strict"], VerdictWarning.exit_code),
    ],
)  # fmt: skip
def test_judging_a_frozen_environment(tmp_path: Path, lines: list[str], words: list[str], status: int) -> None:
    assert run("check", "--freeze", freeze(tmp_path, *lines), "--cuda", "13.0", *words) == status


def test_advice_comes_with_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("check", "--freeze", freeze(tmp_path, "triton==3.5.1"))
    assert "https://github.com/triton-lang/triton/issues/8539" in capsys.readouterr().out


def test_input_that_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read as a list of versions"):
        run("check", "--freeze", tmp_path / "nowhere.txt")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(ArtifactError):
        run("check", "--freeze", binary)
    with pytest.raises(UsageError, match="--cuda: a CUDA version looks like"):
        run("check", "--freeze", freeze(tmp_path, "torch==2.14.0"), "--cuda", "cu130")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--line", "cu131"], "no line 'cu131'"),
        (["--vllm", "0.1"], "vLLM 0.1 is not pinned"),
        (["--with", "b12x = 1"], "is no requirement"),
    ],
)
def test_what_does_not_exist(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        run("check", "--offline", *words)


def test_with_a_package_that_collides(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "--offline", "--with", "b12x==1.5.1") == VerdictFail.exit_code
    assert "b12x/__init__.py" in capsys.readouterr().out


def test_explain_names_pin_demand_and_knowledge(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "nvidia_cutlass_dsl", "--offline") == 0
    told = capsys.readouterr().out
    assert "4.8.0  shares the environment" in told
    assert "vllm: nvidia-cutlass-dsl[cu13]==4.8.0" in told
    assert "https://github.com/NVIDIA/cutlass/issues/3227" in told


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run("explain", "torch", "--offline", "--json")
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"version", "name", "pinned", "demanded", "known", "since", "newest"}
    assert told["pinned"][0]["files"][0]["file"] == LINE.torch(RELEASE, "aarch64").filename
    assert told["demanded"] == ["vllm: torch==2.14.0"]


def test_questions_to_the_index_are_told_beside_the_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.add(wheel("torch", "2.14.0"))
    monkeypatch.setattr(facts_module, "resolve", lambda *_, **__: Resolution({}, {}))
    monkeypatch.setattr("sm121.progress.QUIET_INTERVAL", 0)
    for words in (["check"], ["explain", "torch"]):
        run(*words, "--json")
        told = capsys.readouterr()
        assert json.loads(told.out)["version"] == 1
        first, *between, last = told.err.splitlines()
        assert first == "> ask upstream about line cu130, vLLM 0.33.0, aarch64"
        assert re.fullmatch(r"  ask the package index: 1 of \d+ questions, [\d.]+ s  \S+", between[0])
        assert any(line.endswith("the complete set") for line in between)
        assert last.startswith("  done in ")


def test_explain_an_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"nothing is pinned or known about 'torhc', did you mean torch\?"):
        run("explain", "torhc", "--offline")
    with pytest.raises(UsageError, match=r"nothing is pinned or known about 'nosuch'\.$"):
        run("explain", "nosuch", "--offline")


def test_explain_a_shared_toolkit_once() -> None:
    told = explain("nvidia-nvvm", LINE, RELEASE, Cpu.AARCH64, None)
    assert [place.role for place in told.places] == ["toolkit that compiles, release 13.0.3.0, host"]
    assert "part of CUDA toolkits 13.0.0 to" in told.known[-1]


def test_explain_with_an_index() -> None:
    facts = Facts(
        metadata={"vllm": (Requirement("torch==2.14.0"),), "quack-kernels": (Requirement("torch"),)},
        resolution=Resolution({"torch": "2.14.0"}, {"torch": ("vllm", "xgrammar")}),
    )
    listing = [
        IndexFile("torch", version, f"torch-{version}.whl", "", 1, None, uploaded=day, yanked=bad)
        for version, day, bad in (
            ("2.14.0", "2026-09-03", False), ("2.14.0", "2026-09-02", False), ("2.15.0", "2026-10-28", False),
            ("2.16.0rc1", "2026-11-20", False), ("2.17.0", "2026-11-21", True),
        )
    ]  # fmt: skip
    told = explain("torch", LINE, RELEASE, Cpu.AARCH64, facts, listing)
    assert (told.since, told.newest) == ("2026-09-02", "2.15.0")
    assert sorted(told.demanded) == ["quack-kernels: torch", "vllm: torch==2.14.0", "xgrammar: some version"]


@pytest.fixture
def small(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """An environment of two wheels."""
    world.add(
        wheel("one", "1.0", files={"one/__init__.py": "1"}), wheel("two", "2.0", files={"two/__init__.py": "2"})
    )
    versions = {"vllm": RELEASE.version, "one": "1.0", "two": "2.0"}
    monkeypatch.setattr(
        lock, "resolve", lambda *_, **__: Resolution(versions, {"one": ("vllm",), "two": ("one",)})
    )
    return world


@pytest.mark.usefixtures("small")
def test_lock_names_one_wheel_each_by_hash(tmp_path: Path) -> None:
    output = tmp_path / "lock.txt"
    assert run("lock", "--output", output) == 0
    text = output.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "==" in line] == ["one==1.0 \\", "two==2.0 \\"]
    assert text.count("--hash=sha256:") == 2
    assert text.count("  # via ") == 2
    assert text.startswith("# Runtime environment of line cu130 for vLLM 0.33.0: 2 wheels, ")
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.usefixtures("small")
def test_lock_to_standard_output_twice_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    run("lock")
    first = capsys.readouterr().out
    run("lock")
    assert capsys.readouterr().out == first


@pytest.mark.usefixtures("small")
def test_lock_for_another_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", "--python", "3.13") == 0
    assert "glibc 2.34 or newer, Python 3.13. vLLM" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run("lock", "--python", "2.7")


def test_lock_refuses_files_with_two_owners(small: World) -> None:
    small.projects["two"].clear()
    small.add(wheel("two", "2.0", files={"one/__init__.py": "not one's"}))
    with pytest.raises(PinsError, match=r"one/__init__\.py: owned by one and by two"):
        run("lock")


def test_lock_refuses_a_set_that_fails(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    small.add(wheel("triton", "3.5.1"))
    monkeypatch.setattr(lock, "resolve", lambda *_, **__: Resolution({"triton": "3.5.1"}, {}))
    with pytest.raises(PinsError, match=r"triton 3\.5\.1 carries only ptxas 12\.8\.93"):
        run("lock")


def test_lock_of_a_line_without_torch() -> None:
    with pytest.raises(PinsError, match=r"needs torch 2\.14\.0\+cu129"):
        run("lock", "--line", "cu129")


@pytest.mark.usefixtures("small")
def test_lock_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        run("lock", "--output", tmp_path / "nowhere" / "lock.txt")


def test_lock_without_hashes() -> None:
    files = {"one": IndexFile("one", "1.0", "one-1.0-py3-none-any.whl", "", None, None)}
    with pytest.raises(PinsError, match="gives no sha256 for one-1"):
        lock.locked(LINE, RELEASE, Cpu.AARCH64, Resolution({"one": "1.0"}, {}), files)
    files["one"] = IndexFile("one", "1.0", "one-1.0-py3-none-any.whl", "", None, Sha256("a" * 64))
    assert "# via asked for" in lock.locked(LINE, RELEASE, Cpu.AARCH64, Resolution({"one": "1.0"}, {}), files)


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """update's work replaced: the python range of 0.33.0 changes; what was verified is kept."""
    asked: list[str] = []

    def change(edits: Edits, _pins: object, version: str, _progress: object) -> None:
        edits.put(edits.table("vllm.toml", "vllm", version), "python", ">=3.12,<3.15")

    def verify(_edits: Edits, version: str, *_: object) -> Sequence[Any]:
        asked.append(version)
        return []

    monkeypatch.setattr(commands, "add_release", change)
    monkeypatch.setattr(commands, "verify", verify)
    return asked


def test_update_shows_verifies_and_writes(
    folder: Path, proposed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("update", "--vllm", "v0.33.0", "--pins", folder, "--default") == 0
    assert '+python = ">=3.12,<3.15"' in capsys.readouterr().out
    assert proposed == ["0.33.0"]
    assert load(folder).vllm("0.33.0").python == ">=3.12,<3.15"
    capsys.readouterr()
    assert run("update", "--vllm", "0.33.0", "--pins", folder) == 0
    assert "nothing to change" in capsys.readouterr().err


def test_update_can_leave_everything(folder: Path, proposed: list[str]) -> None:
    before = (folder / "vllm.toml").read_bytes()
    assert run("update", "--vllm", "0.33.0", "--pins", folder, "--dry-run") == 0
    assert (folder / "vllm.toml").read_bytes() == before
    assert proposed == ["0.33.0"]


def test_update_that_is_refused_writes_nothing(
    folder: Path, proposed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PinsError("does not fit.")

    monkeypatch.setattr(commands, "verify", refuse)
    before = (folder / "vllm.toml").read_bytes()
    with pytest.raises(PinsError, match="does not fit"):
        run("update", "--vllm", "0.33.0", "--pins", folder)
    assert (folder / "vllm.toml").read_bytes() == before


def test_update_takes_the_newest(folder: Path, proposed: list[str], world: World) -> None:
    world.add(wheel("vllm", "0.33.0"), wheel("vllm", "0.34.0rc1"), wheel("vllm", "0.26.0"))
    assert run("update", "--pins", folder) == 0
    assert proposed == ["0.33.0"]


def test_the_table_is_shown_without_writing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.add(wheel("cuda-toolkit", "13.7.0", requires=["nvidia-nvvm==13.7.9.*; extra == 'all'"]))
    assert run("update", "--toolkit-table", "--dry-run") == 0
    assert tomllib.loads(capsys.readouterr().out)["release"] == {"13.7.0": {"nvidia-nvvm": "==13.7.9.*"}}


@pytest.mark.parametrize("text", ["a = " + "9" * 6000, "a = " + "[" * 100_000, "", "\n".join(["[runtime]"] * 2)])
def test_check_reads_what_images_are_made_of(folder: Path, text: str) -> None:
    (folder / "images.toml").write_text(text)
    with pytest.raises(PinsError, match=r"images\.toml"):
        run("check", "--offline", "--pins", folder)


@pytest.mark.parametrize("name", ["companions.toml", "toolkits.toml", "tools.toml"])
def test_versions_of_too_many_digits_are_faults(folder: Path, name: str) -> None:
    path = folder / name
    path.write_text(re.sub(r'version = "[\d.]+"', f'version = "{"9" * 5000}"', path.read_text()))
    with pytest.raises(PinsError, match=name):
        run("check", "--offline", "--pins", folder)
