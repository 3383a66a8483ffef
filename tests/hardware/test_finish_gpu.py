"""On a GPU: a finished FlashAttention 2 library computes right with the driver's PTX compiler switched off.

SM121_FA2_LIBRARY names the library (all units finished for this GPU), SM121_PYTHON the Python that has torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hardware

CASES = Path(__file__).parent / "fa2_cases.py"
LIBRARY = os.environ.get("SM121_FA2_LIBRARY", "")
TOLERANCE = {"bfloat16": 4e-3, "float16": 6e-4}


def test_every_case_is_right_without_the_driver_compiling(tmp_path: Path) -> None:
    if not LIBRARY:
        pytest.skip("SM121_FA2_LIBRARY names no library")
    result = tmp_path / "result.json"
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "CUDA_DISABLE_PTX_JIT": "1"}
    done = subprocess.run(
        [os.environ.get("SM121_PYTHON", sys.executable), CASES, LIBRARY, result], env=environment,
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert result.exists(), f"the cases ended with {done.returncode}:\n{done.stderr[-3000:]}"
    cases = json.loads(result.read_text())["cases"]
    assert len(cases) == 36
    wrong = {
        name: case
        for name, case in cases.items()
        if "failed" in case or not case["error"] <= TOLERANCE[name.split(",")[0]]
    }
    assert not wrong
