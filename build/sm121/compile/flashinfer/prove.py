"""Asks FlashInfer itself whether its modules are there compiled ahead of time, with compiling forbidden.

Run by `PYTHON -B prove.py REQUEST.json` with an interpreter that has torch; the request is

    {"paths": [...], "modules": [...], "calls": ["flashinfer.page:get_page_module()"]}

`paths` are folders for `sys.path`: flashinfer-python, the wheels of modules, and what they import. Every module
must be reported as compiled ahead of time and must open; every call is what FlashInfer runs when it is first
used on 12.1, and must find its module. No GPU is needed. Writes the answer to the path that follows the
request's, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Do what `request` says; faults are part of the answer."""
    sys.path[:0] = request["paths"]
    environment = importlib.import_module("flashinfer.jit.env")
    core = importlib.import_module("flashinfer.jit.core")
    torch = importlib.import_module("torch")
    answer: dict[str, Any] = {
        "torch": str(torch.__version__), "cuda": str(torch.version.cuda),
        "gpu": bool(torch.cuda.is_available()), "targets": sorted(core.current_compilation_context.TARGET_CUDA_ARCHS),
        "prebuilt": 0, "opened": 0, "served": 0, "faults": [],
    }  # fmt: skip
    answer["providers"] = [
        [provider.distribution, provider.version, sorted(provider.cuda_architectures)]
        for provider in getattr(environment, "FLASHINFER_AOT_PROVIDERS", ())
    ]
    for name in request["modules"]:
        _open(name, core, answer)
    for call in request["calls"]:
        module, _, expression = call.partition(":")
        try:
            eval(expression, {**vars(importlib.import_module(module)), "torch": torch})  # noqa: S307 -- our own data
            answer["served"] += 1
        except Exception as error:  # noqa: BLE001 -- whatever FlashInfer raises is the answer
            missing = getattr(getattr(error, "spec", None), "name", "")
            reason = f"the module {missing} would be compiled" if missing else f"{type(error).__name__}: {error}"
            answer["faults"].append(f"{call}: {reason}"[:400])
    return answer


def _open(name: str, core: Any, answer: dict[str, Any]) -> None:
    kind = getattr(core, "JitSpecNvcc", None) or core.JitSpec  # 0.7, 0.6
    specification = kind(
        name=name,
        sources=[],
        extra_cflags=None,
        extra_cuda_cflags=None,
        extra_ldflags=None,
        extra_include_dirs=None,
    )
    if not specification.is_aot:
        answer["faults"].append(f"{name} is not reported as compiled ahead of time")
        return
    answer["prebuilt"] += 1
    try:
        specification.build_and_load()
        answer["opened"] += 1
    except Exception as error:  # noqa: BLE001 -- whatever FlashInfer raises is the answer
        answer["faults"].append(f"{name} does not open: {type(error).__name__}: {error}"[:400])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text())), indent=1))
