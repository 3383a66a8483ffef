"""The program `vllm` of a wheel that is made by tests: writes a log as vLLM does, and serves or misbehaves.

FAKE_BEHAVIOUR is JSON: for each rung (by its backend, `auto` without one) the fields of a Behaviour, and besides
  boot     up (as if not given), die, fault, hang, stubborn
  log      lines more
  die_after   completions after which the process ends
FAKE_TESTS is the folder of the fault server, FAKE_SOURCE that of the package under test, FAKE_PIDS a file to which each
process of the server adds its number.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """The console script."""
    words = sys.argv[2:]
    options = dict(zip(words[1::2], words[2::2], strict=False))
    backend = options.get("--linear-backend") or options.get("--moe-backend") or "auto"
    chosen = json.loads(os.environ.get("FAKE_BEHAVIOUR", "{}")).get(backend, {})
    boot, after = chosen.pop("boot", "up"), chosen.pop("die_after", 0)
    lines = chosen.pop("log", ["Using FlashInferKernel for NVFP4 GEMM"])
    _note(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)"], start_new_session=True)
    _note(child.pid)
    if boot == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _say(f"version {chosen.get('version', '9.9.9')}")
    _say(f"non-default args: {{'model': {words[0]!r}, 'words': {words!r}}}")
    for line in ["Using FLASH_ATTN attention backend out of potential backends: [].", *lines]:
        _say(line)
    _say("Available KV cache memory: 6.78 GiB")
    _say("GPU KV cache size: 584,000 tokens")
    if boot == "die":
        _say("RuntimeError: CUDA error: no kernel image is available for execution on the device")
        sys.exit(3)
    if boot == "fault":
        _say("RuntimeError: CUDA error: no kernel image is available for execution on the device")
    if boot in {"hang", "fault"}:
        time.sleep(3000)
    sys.path[:0] = [os.environ["FAKE_TESTS"], os.environ["FAKE_SOURCE"]]
    from fault_server import Behaviour, FaultServer  # noqa: PLC0415

    chosen.setdefault("version", "9.9.9")
    with FaultServer(Behaviour(**chosen), int(options["--port"]), options["--host"]) as server:
        _say("Application startup complete.")
        while not after or server.asked < after:
            threading.Event().wait(0.02)
    os._exit(5)


def _say(text: str) -> None:
    print(f"(APIServer pid={os.getpid()}) INFO 11-30 10:00:00 [x.py:1] {text}", flush=True)


def _note(number: int) -> None:
    if place := os.environ.get("FAKE_PIDS"):
        with Path(place).open("a") as file:
            file.write(f"{number}\n")


if __name__ == "__main__":
    main()
