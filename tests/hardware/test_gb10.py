"""On a GB10: the installed vLLM's libraries load, its kernels compute right, and nothing is compiled on the way.

Elsewhere every test here is skipped with the reason. The kernels run in a process of their own, where the driver may
neither compile PTX nor use its cache. SM121_PYTHON names the Python that has vLLM (default: the one that runs the
tests), SM121_HARDWARE_REPORT the file for the report, which `sm121 hardware` attaches to a build's manifest.
SM121_HARDWARE_CHIP allows another chip than 12.1, as `9.0`; cases that cannot run there are then skipped by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hardware

HERE = Path(__file__).parent
PYTHON = os.environ.get("SM121_PYTHON", sys.executable)
CHIP = os.environ.get("SM121_HARDWARE_CHIP", "12.1")
PROBE = (
    "import torch, vllm\n"
    "print('.'.join(map(str, torch.cuda.get_device_capability())) if torch.cuda.is_available() else 'none')"
)
LEAST_EXTENSIONS = 3
ONLY_CODE = {"cuda", "triton", "flashinfer"}
"""Caches that hold nothing but what was compiled; the others also keep notes."""
CODE = {".so", ".cubin", ".ptx", ".o", ".fatbin"}


@pytest.fixture(scope="session")
def chip() -> str:
    """The compute capability of this machine's GPU; skips where it is not the one that is wanted."""
    try:
        done = subprocess.run([PYTHON, "-c", PROBE], capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{PYTHON} cannot be asked for its GPU: {error}")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        pytest.skip(
            f"{PYTHON} has no torch and vLLM that can be used: {lines[-1] if lines else 'it says nothing'}"
        )
    found = done.stdout.strip().splitlines()[-1]
    if found != CHIP:
        pytest.skip(f"the GPU is {found}, wanted {CHIP}")
    return found


@pytest.fixture(scope="session")
def report(chip: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cases gave, with everything that was compiled meanwhile."""
    folder = tmp_path_factory.mktemp("hardware")
    caches = {name: folder / name for name in ("triton", "flashinfer", "torch", "vllm", "cuda")}
    environment = {
        **os.environ,
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_DISABLE_PTX_JIT": "1",
        "CUDA_CACHE_PATH": str(caches["cuda"]),
        "FLASHINFER_DISABLE_JIT": "1",
        "FLASHINFER_WORKSPACE_BASE": str(caches["flashinfer"]),
        "TRITON_CACHE_DIR": str(caches["triton"]),
        "TORCHINDUCTOR_CACHE_DIR": str(caches["torch"]),
        "VLLM_CACHE_ROOT": str(caches["vllm"]),
    }
    target = folder / "result.json"
    done = subprocess.run(
        [PYTHON, HERE / "kernel_cases.py", target], env=environment, capture_output=True, text=True, timeout=1800,
        check=False,
    )  # fmt: skip
    assert target.exists(), f"the cases ended with {done.returncode}:\n{done.stderr[-3000:]}"
    result: dict[str, Any] = json.loads(target.read_text())
    result["compiled"] = sorted(
        str(path.relative_to(folder))
        for name, cache in caches.items()
        for path in cache.rglob("*")
        if path.is_file() and (name in ONLY_CODE or path.suffix in CODE)
    )
    place = os.environ.get("SM121_HARDWARE_REPORT")
    if place:
        Path(place).write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return result


def test_every_extension_loads(report: dict[str, Any]) -> None:
    assert len(report["extensions"]) >= LEAST_EXTENSIONS
    assert not {name: item["error"] for name, item in report["extensions"].items() if item["error"]}


@pytest.mark.parametrize("name", ["nvfp4_gemm", "nvfp4_moe", "fp8_gemm", "marlin"])
def test_a_kernel_computes_what_its_reference_computes(report: dict[str, Any], name: str) -> None:
    case = report["cases"][name]
    if case["state"] == "not for this chip":
        assert report["capability"][0] != 12
        pytest.skip(case["reason"])
    assert case["state"] == "passed", case


def test_nothing_was_compiled_on_the_way(report: dict[str, Any]) -> None:
    assert report["compiled"] == []
