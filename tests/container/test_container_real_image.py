"""The official wheel of vLLM in an arm64 image: built by the engine, inspected, pushed, run, promoted, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_container_engine import ROOT, published

from made_images import lock_file, wheel_file
from sm121 import cli, pins
from sm121.artifact import ImageReference
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.image.remote import Repository
from sm121.pins.images import load_images
from sm121.progress import Progress
from sm121.sources.fetch import fetch
from sm121.values import Sha256

if TYPE_CHECKING:
    from engine_fixture import EngineProcess
    from registry_fixture import RegistryProcess

    from sm121.engine.client import Engine

pytestmark = [pytest.mark.container, pytest.mark.network]
QUIET = Progress(quiet=True)


def sm121(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    status = cli.run([str(word) for word in words])
    told = capsys.readouterr()
    assert status == 0, told.err[-3000:]
    value: dict[str, Any] = json.loads(told.out)
    return value


def official(cache: Path, store: Path) -> Path:
    """The pinned official wheel; the tests of the inspector keep it too."""
    pin = pins.load(ROOT / "pins").vllm("0.33.0").official("aarch64")
    kept = cache / pin.filename
    mirror = cache if kept.is_file() and Sha256.of_file(kept) == pin.sha256 else None
    return fetch([pin], store, mirror=mirror, progress=QUIET)[pin.filename]


def test_a_real_image(
    engine: Engine, engine_process: EngineProcess, engine_registry: RegistryProcess, arm64: None, base: ImageReference,
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    loaded = pins.load(ROOT / "pins")
    wheel = official(Path(request.config.cache.mkdir("official-wheels")), tmp_path / "official")
    published(wheel, "0.33.0")
    mirror = tmp_path / "mirror"
    parts = [part for part in loaded.line("cu130").runtime_toolkit.parts if part.name == "nvidia-cuda-runtime"]
    wanted = [parts[0].file("aarch64"), load_images(ROOT / "pins").installer.files[0]]
    runtime = [fetch(wanted, mirror, progress=QUIET)[wanted[0].filename]]
    # torch itself would be gigabytes; what is asked here needs its name and version.
    runtime.append(
        wheel_file(mirror, "torch", "2.14.0", {"torch/__init__.py": b"__version__ = '2.14.0+cu130'\n"})
    )
    lock = lock_file(tmp_path / "cu130.txt", runtime, python="3.11")
    repository = f"{engine_registry.host}/team/vllm"
    order = [
        "image", "--line", "cu130", "--vllm", "0.33.0", "--wheel", wheel, "--lock", lock, "--mirror", mirror,
        "--base", base, "--packages", "", "--repository", repository, "--json", "-q",
    ]  # fmt: skip
    made = sm121(capsys, *order)
    reference = made["reference"]
    assert made["verdict"] in {"info", "warn"}
    digest = reference.partition("@")[2]
    assert made["name"] == f"{repository}:0.33.0-cu130-sm121-{digest.removeprefix('sha256:')[:12]}"

    told = engine_process.docker(
        "run", "--rm", "--network", "none", "--platform", str(LINUX_ARM64), "--entrypoint", "python3", reference, "-c",
        "import importlib.metadata as m, platform; "
        "print(platform.machine(), m.version('vllm'), len(m.files('vllm')) > 5000)",
    )  # fmt: skip
    assert told.split() == ["aarch64", "0.33.0", "True"]

    report = tmp_path / "report.json"
    again = ["inspect", reference, "--wheel", wheel, "--base", base, "--no-kernels", "--json", report]
    assert cli.run([str(word) for word in again]) == 0
    checks = {f["check"]: f["verdict"] for f in json.loads(report.read_text())["findings"]}
    assert checks["image.base"] == checks["image.reference"] == "pass"

    assert cli.run(["promote", f"{repository}:cu130", reference]) == 0
    capsys.readouterr()
    assert cli.run(["resolve", f"{repository}:cu130"]) == 0
    assert digest in capsys.readouterr().out
    assert cli.run(["verify", reference]) == 0, capsys.readouterr()
    with Repository(ImageReference.parse(repository)) as there:
        assert "cu130" in there.tags()
        # What is built already is kept: a second run moves no layer.
    second = sm121(capsys, *order)
    assert second["reference"] == reference
    assert second["sent"] == 0
