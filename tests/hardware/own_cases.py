"""Runs the operators of a library that `carry_own.py` made; a program of its own that needs torch alone.

`python own_cases.py FOLDER RESULT.json` loads each library, for each case in a process of its own, with the driver's
compute cache switched off; the finished ones also without the driver's PTX compiler, the unfinished one with and
without.
Repacked weights must be the same bits everywhere and hold the same values as before, only moved; the Hadamard
transform is compared with the matrix in float64. Exit status 0: every expectation held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NO_JIT = {"CUDA_DISABLE_PTX_JIT": "1"}
VARIANTS = {
    "compact": ("compact", NO_JIT),
    "in-place": ("in-place", NO_JIT),
    "unfinished, no PTX compiler": ("unfinished", NO_JIT),
    "unfinished": ("unfinished", {}),
}
TOLERANCE = {"bfloat16": 4e-3, "float16": 6e-4}
NO_CODE = ("no kernel image", "device kernel image is invalid", "PTX JIT")
SIZE_K, SIZE_N = 256, 512
PROCESSES = 8
"""At a time: each spends seconds on importing torch before its milliseconds on the GPU."""


def main() -> int:
    if len(sys.argv) == 5:
        return _one(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    with ThreadPoolExecutor(PROCESSES) as pool:
        running = {
            title: {case: pool.submit(_run, folder / f"{library}.so", case, environment) for case in CASES}
            for title, (library, environment) in VARIANTS.items()
        }
    results = {title: {case: run.result() for case, run in cases.items()} for title, cases in running.items()}
    problems = _problems(results)
    out.write_text(json.dumps({**results, "problems": problems}, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    print("\n".join(problems) or "every expectation held")
    return 1 if problems else 0


def _run(library: Path, case: str, environment: dict[str, str]) -> dict[str, Any]:
    """A process for each case: a kernel that traps takes its whole process with it."""
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "result.json"
        done = subprocess.run(
            [sys.executable, __file__, "case", library, case, result],
            env={**os.environ, "CUDA_CACHE_DISABLE": "1", **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        found: dict[str, Any] = (
            json.loads(result.read_text()) if result.exists() else {"failed": f"ended: {done.stderr[-600:]}"}
        )
        return found


def _one(library: Path, case: str, out: Path) -> int:
    import torch  # noqa: PLC0415 -- its libraries must be loaded first

    torch.ops.load_library(library)
    out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), **_case(torch, CASES[case])}))
    return 0


def _case(torch: Any, case: tuple[Any, ...]) -> dict[str, Any]:
    torch.manual_seed(121)
    begun = time.perf_counter()
    try:
        found = case[0](torch, *case[1:])
        torch.cuda.synchronize()
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0][:300]}
    return {**found, "first seconds": time.perf_counter() - begun}


def _packed(torch: Any, shape: tuple[int, int]) -> Any:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device="cuda")


def _gptq(torch: Any, bits: int) -> dict[str, Any]:
    weights = _packed(torch, (SIZE_K * bits // 32, SIZE_N))
    return _moved(torch, weights, torch.ops._C.gptq_marlin_repack(weights, SIZE_K, SIZE_N, bits, False), bits)


def _awq(torch: Any, bits: int) -> dict[str, Any]:
    weights = _packed(torch, (SIZE_K, SIZE_N * bits // 32))
    return _moved(torch, weights, torch.ops._C.awq_marlin_repack(weights, SIZE_K, SIZE_N, bits, False), bits)


def _moved(torch: Any, before: Any, after: Any, bits: int) -> dict[str, Any]:
    """What is left of the order is a sum with weights of its own; the values themselves must be the same ones."""
    counts = [
        torch.bincount(
            torch.stack(
                [(data.flatten().long() >> shift) & (2**bits - 1) for shift in range(0, 32, bits)]
            ).flatten()
        )
        for data in (before, after)
    ]
    flat = after.flatten().cpu().tolist()
    return {
        "same values": bool(torch.equal(*counts)),
        "digest": sum(n * v for n, v in enumerate(flat, 1)) % (1 << 61),
    }


def _hadamard(torch: Any, name: str, size: int) -> dict[str, Any]:
    values = torch.randn(64, size, dtype=getattr(torch, name), device="cuda")
    matrix = torch.ones(1, 1, dtype=torch.float64, device="cuda")
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    wanted = values.double() @ matrix / size**0.5
    got = torch.ops._C.hadacore_transform(values.clone(), False).double()
    return {"error": float((got - wanted).norm() / wanted.norm())}


CASES: dict[str, tuple[Any, ...]] = {
    **{f"gptq repack, {bits} bits": (_gptq, bits) for bits in (4, 8)},
    **{f"awq repack, {bits} bits": (_awq, bits) for bits in (4, 8)},
    **{f"hadamard, {name}, {size}": (_hadamard, name, size) for name in TOLERANCE for size in (128, 1024, 4096)},
}


def _problems(results: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    level = results["unfinished"]
    for title, cases in results.items():
        for name, case in cases.items():
            failed = case.get("failed", "")
            if title == "unfinished, no PTX compiler":
                if not any(text in failed for text in NO_CODE):
                    found.append(f"{title}, {name}: it should have failed for want of code, found {case}")
            elif failed:
                found.append(f"{title}, {name}: {failed}")
            elif "error" in case:
                if not case["error"] <= min(TOLERANCE[name.split(", ")[1]], 1.05 * level[name].get("error", 0)):
                    found.append(f"{title}, {name}: the error is {case['error']:.2e}, before {level[name]}")
            elif not case["same values"] or case["digest"] != level[name].get("digest"):
                found.append(f"{title}, {name}: {case}, before {level[name]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
