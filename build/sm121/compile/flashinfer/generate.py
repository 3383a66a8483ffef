"""Writes down how FlashInfer would compile its modules, with its own scripts, without compiling anything.

Run by `python -I -S -B generate.py REQUEST.json` in the build tree, in an interpreter of its own: it puts
stand-ins in the places of torch and subprocess. The request names folders of the tree:

    {"wheel": "...", "python": "...", "tvm_ffi": "...", "cuda_home": "...", "python_headers": "...", "out": "...",
     "cuda": "13.0", "torch": "2.14.0", "arch_list": "12.1a",
     "extra": ["flashinfer.jit.fp4_quantization:gen_fp4_quantization_sm120f_module"], "modules": ["page", ...]}

`wheel` is the unpacked flashinfer-python wheel, `python` holds jinja2 and packaging. `out` gets `modules.json`,
every module of upstream's ahead-of-time set for the list and those of the generators in `extra`, generated
sources, and one `build.ninja` per module of `modules`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

_CONFIG = (
    "f16_dtype", "f8_dtype", "fa2_head_dim", "fa3_head_dim", "use_sliding_window", "use_logits_soft_cap",
    "sm_capabilities",
    "add_comm", "add_gemma", "add_oai_oss", "add_moe", "add_act", "add_misc", "add_xqa",
)  # fmt: skip
"""Parameters of upstream's gen_all_modules, in their order."""


def main(request: dict[str, Any]) -> None:
    """Do what `request` says. Any fault is an exception: the caller reads its text."""
    here = str(Path(__file__).resolve().parent)
    out = Path(request["out"])
    sys.path[:0] = [here, request["python"], request["wheel"]]
    os.environ.update(
        FLASHINFER_CUDA_ARCH_LIST=request["arch_list"], FLASHINFER_WORKSPACE_BASE=str(out / "workspace"),
        CUDA_HOME=request["cuda_home"], CUDA_PATH=request["cuda_home"],
    )  # fmt: skip
    standins = importlib.import_module("standins")
    standins.install(
        torch=request["torch"],
        cuda=request["cuda"],
        cuda_home=request["cuda_home"],
        tvm_ffi=Path(request["tvm_ffi"]),
    )
    sys.modules["subprocess"] = standins.programs(request["cuda"])
    headers = str(request["python_headers"])
    setattr(sysconfig, "get_path", lambda _name: headers)  # noqa: B010 -- a function of the standard library
    # Only the scripts that make modules are imported: the package's own __init__ imports all that runs on a GPU.
    package = types.ModuleType("flashinfer")
    package.__path__ = [str(Path(request["wheel"]) / "flashinfer")]
    sys.modules["flashinfer"] = package
    environment = importlib.import_module("flashinfer.jit.env")
    for name, folder in (
        ("FLASHINFER_WORKSPACE_DIR", out), ("FLASHINFER_JIT_DIR", out / "modules"),
        ("FLASHINFER_GEN_SRC_DIR", out / "generated"),
    ):  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        setattr(environment, name, folder)
    specs = {spec.name: spec for spec in _all_modules(request["extra"])}
    for name in request["modules"]:
        if name in specs:
            specs[name].write_ninja()
    rows = [_described(spec) for spec in specs.values()]
    (out / "modules.json").write_text(
        json.dumps({"modules": rows, "unanswered": sorted(set(standins.ASKED))}, indent=0)
    )


def _all_modules(extra: list[str]) -> list[Any]:
    aot = importlib.import_module("flashinfer.aot")
    config = {**aot.get_default_config(), "sm_capabilities": aot.detect_sm_capabilities()}
    code = aot.gen_all_modules.__code__
    wanted = tuple(name.removesuffix("_") for name in code.co_varnames[: code.co_argcount])
    if wanted != _CONFIG:
        raise SystemExit(f"gen_all_modules takes {', '.join(wanted)}; known is {', '.join(_CONFIG)}")
    before = Path.cwd()
    try:
        specs = list(aot.gen_all_modules(*(config[name] for name in _CONFIG)))
    finally:
        os.chdir(before)  # upstream's FMHA generator leaves it
    for generator in extra:
        module, _, function = generator.partition(":")
        specs.append(getattr(importlib.import_module(module), function)())
    return specs


def _described(spec: Any) -> dict[str, Any]:
    return {
        "name": spec.name,
        "sources": [source.name for source in spec.sources],
        "libraries": [str(flag) for flag in spec.extra_ldflags or ()],
    }


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
