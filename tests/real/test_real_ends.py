"""A real build that is killed or has too little memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_real_cache import OBJECTS, ground, made, place

from sm121.compile.build import build
from sm121.errors import OutOfMemoryError
from sm121.plan.cache import CompilerCache

pytestmark = [pytest.mark.real, pytest.mark.network]
__all__ = ["ground"]

PATIENCE = 60.0


def test_cicc_without_memory(tmp_path: Path, ground: Path) -> None:
    """What the device compiler says when an allocation fails, for one unit of vLLM."""
    made_build = made(place(ground, tmp_path / "work"), CompilerCache.parse("none"))
    made_build.run(until="tools")
    prepared = made_build.prepare()
    ninja = prepared.tree / "tools" / "bin" / "ninja"
    with pytest.raises(OutOfMemoryError) as caught:
        build(
            prepared.tree, ["sh", "-c", f"ulimit -v 300000; exec '{ninja}' {OBJECTS[1]}"], prepared.env,
            made_build.work.log("compile"), schedule=prepared.schedule, progress=made_build.progress,
        )  # fmt: skip
    assert "catastrophic error: out of memory" in str(caught.value)
    assert "gptq_marlin_repack.cu" in str(caught.value)


def below(folder: Path) -> list[int]:
    """Processes that run in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_ninja_and_compilers_end_with_a_killed_sm121(tmp_path: Path, ground: Path) -> None:
    work = place(ground, tmp_path / "work")
    made(work, CompilerCache.parse("none")).run(until="tools")
    root = Path(__file__).resolve().parents[2]
    verb = subprocess.Popen(
        [sys.executable, "-m", "sm121", "build", "--only", "vllm", "--no-cache", "--work", str(work),
         "--dist", str(work / "dist")],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root / "build")}, stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    obj = work / "trees" / "vllm-0.33.0-cu130-aarch64" / "obj"
    ends = time.monotonic() + 300
    while not (obj / "costs.jsonl").exists() and verb.poll() is None and time.monotonic() < ends:
        time.sleep(0.2)
    assert (obj / "costs.jsonl").exists()
    time.sleep(2)
    running = below(obj)
    assert len(running) > 4  # ninja, launchers, nvcc, cicc
    os.kill(verb.pid, signal.SIGKILL)
    verb.wait()
    ends = time.monotonic() + PATIENCE
    while below(obj) and time.monotonic() < ends:
        time.sleep(0.2)
    assert below(obj) == []
