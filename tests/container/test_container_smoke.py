"""An image validated by a real engine: every rung in a container of its own, and no container left, whatever ends it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_fixture import _BASE, CACHE, EngineProcess, _require

import sm121
from sm121 import cli
from sm121.audit.smoke.container import LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.engine.client import Engine

pytestmark = pytest.mark.container

AUDIT = Path(__file__).parents[1] / "audit"
SOURCE = Path(sm121.__file__).parents[1]
PATIENCE = 120.0
SHORT = (
    "--requests",
    "8",
    "--deadline",
    "10",
    "--warm-up",
    "20",
    "--start-seconds",
    "90",
    "--soak-seconds",
    "60",
)
PACKAGES = "usr/local/lib/python3.11/dist-packages"


@pytest.fixture(scope="module")
def image(engine_process: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian with Python for this machine, with the small vLLM of the tests installed."""
    sys.path.insert(0, str(AUDIT))
    from fake_wheel import make_wheel  # noqa: PLC0415

    _require("mmdebstrap")
    folder = tmp_path_factory.mktemp("image")
    shutil.copyfile(_rootfs(), folder / "rootfs.tar")
    root = folder / "root"
    with zipfile.ZipFile(make_wheel(folder)) as wheel:
        wheel.extractall(root / PACKAGES)
    for name in ("fault_server.py", "tiny_answers.py"):
        shutil.copyfile(AUDIT / name, _made(root / "tests") / name)
    for name in ("__init__.py", "audit/__init__.py", "audit/smoke/__init__.py", "audit/smoke/prompts.py"):
        target = root / "source" / "sm121" / name
        _made(target.parent)
        shutil.copyfile(SOURCE / "sm121" / name, target)
    program = _made(root / "usr/local/bin") / "vllm"
    program.write_text("#!/usr/bin/python3\nfrom vllm.fake_serving import main\nmain()\n")
    program.chmod(0o755)
    (folder / "Dockerfile").write_text(
        "FROM scratch\nADD rootfs.tar /\nCOPY root /\nENV FAKE_TESTS=/tests FAKE_SOURCE=/source\n"
    )
    engine_process.docker("build", "-q", "--network", "none", "-t", "sm121-test/smoke:1", str(folder))
    return "sm121-test/smoke:1"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _rootfs() -> Path:
    """The base's files for this machine's CPU; made once and kept in the scratch folder."""
    cpu = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    words = [word.replace("arm64", cpu) for word in _BASE]
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]
    kept = CACHE / f"{cpu}-base-{key}.tar"
    if not kept.is_file():
        part = _made(kept.parent) / f"{kept.name}.part"
        done = subprocess.run(
            [*words, str(part)], env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no base could be made from Debian's packages: {done.stderr[-300:]}")
        part.replace(kept)
    return kept


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = _made(tmp_path / "model")
    shutil.copyfile(AUDIT / "checkpoints" / "dense-mixed.json", folder / "config.json")
    return folder


@pytest.fixture(autouse=True)
def _nothing_left(engine: Engine) -> Iterator[None]:
    yield
    assert not containers(engine)


def containers(engine: Engine) -> list[str]:
    """Containers of smoke's, running or not."""
    return [str(item.name) for item in engine.client.containers.list(all=True, filters={"label": LABEL})]


def words(image: str, checkpoint: Path, results: Path, behaviour: dict[str, Any], *more: str) -> list[str]:
    return [
        "smoke", "--image", image, "--gpus", "none", "--checkpoint", str(checkpoint), "--results", str(results), "-q",
        "--json", *SHORT, "--env", f"FAKE_BEHAVIOUR={json.dumps(behaviour)}", "--no-explain", *more,
    ]  # fmt: skip


def test_the_whole_ladder_of_an_image(engine: Engine, image: str, checkpoint: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    behaviour = {"auto": {"pause": 0.01}, "b12x": {"pause": 0.001}, "marlin": {"pause": 0.02}}
    assert cli.run(words(image, checkpoint, results, behaviour)) == 0
    data = json.loads((results / "smoke.json").read_text())
    assert [arm["name"] for arm in data["arms"]] == ["auto", "b12x", "marlin"]
    assert data["adopted"] == "b12x"
    assert all(arm["vllm"] == "9.9.9" and arm["soak"]["sent"] == 8 for arm in data["arms"])
    assert "Application startup complete" in (results / "marlin.log").read_text()
    assert "'/model'" in (results / "auto.log").read_text()


def test_a_server_that_dies_in_its_container(
    engine: Engine, image: str, checkpoint: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    assert cli.run(words(image, checkpoint, results, {"auto": {"boot": "die"}}, "--rungs", "auto")) == 31
    found = (results / "smoke.json").read_text()
    assert "it ended with 3 before it was up" in found
    assert "bootlog.no-kernel-image" in found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_ended_no_container_is_left(
    number: signal.Signals, engine: Engine, image: str, checkpoint: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    command = words(image, checkpoint, results, {"auto": {"pause": 0.2}}, "--rungs", "auto", "--requests", "400")
    smoke = subprocess.Popen(
        [sys.executable, "-m", "sm121", *command], env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    log = results / "auto.log"
    ends = time.monotonic() + PATIENCE
    while not (log.exists() and "startup complete" in log.read_text()) and time.monotonic() < ends:
        time.sleep(0.1)
    assert containers(engine)
    smoke.send_signal(number)
    _, said = smoke.communicate(timeout=PATIENCE)
    assert b"Traceback" not in said
    ends = time.monotonic() + PATIENCE
    while containers(engine) and time.monotonic() < ends:
        time.sleep(0.2)


def test_a_gpu_that_the_engine_cannot_give(
    engine: Engine, image: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if any("nvidia" in str(name) for name in engine.client.info().get("Runtimes", {})):
        pytest.skip("this engine gives GPUs")
    results = tmp_path / "results"
    asked = [
        word if word != "none" else "all" for word in words(image, checkpoint, results, {}, "--rungs", "auto")
    ]
    assert cli.run(asked) == 31
    assert "--gpus none" in (results / "smoke.json").read_text()


def test_images_that_cannot_be_had_or_hold_no_vllm(
    engine: Engine, engine_process: EngineProcess, checkpoint: Path, tmp_path: Path, image: str
) -> None:
    assert cli.run(words("127.0.0.1:9/none/none:1", checkpoint, tmp_path / "a", {})) == 24
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nENTRYPOINT []\n")
    bare = "FROM scratch\nCOPY Dockerfile /\n"
    (tmp_path / "Dockerfile").write_text(bare)
    engine_process.docker("build", "-q", "--network", "none", "-t", "sm121-test/bare:1", str(tmp_path))
    assert cli.run(words("sm121-test/bare:1", checkpoint, tmp_path / "b", {})) == 24
