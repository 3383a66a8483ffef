"""Runs the installed vLLM's kernels once each against references in higher precision; a program of its own.

`python kernel_cases.py RESULT.json` writes one entry per case: passed, failed, or not for this chip. It is started
with the driver's compute cache and PTX compiler switched off, so that code which is not in the wheel shows.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
from nvfp4_reference import BLOCK, E2M1, scale_place

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCE = 0.02
"""Of the relative error in the Euclidean norm: products of bfloat16 results stay well below."""


class NotForThisChipError(Exception):
    """The chip lacks the instructions; the text says which it has."""


def extensions() -> dict[str, dict[str, str]]:
    """Load every compiled library of the package: `error` ("" if it loads) and `sha256`, by path as in a wheel."""
    import torch  # noqa: F401, PLC0415 -- its libraries must be loaded first
    import vllm  # noqa: PLC0415

    folder = Path(next(iter(vllm.__path__)))
    own = f".{sys.implementation.cache_tag}"
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.rglob("*.so")):
        if ".cpython-" in path.name and own not in path.name:
            continue
        error = ""
        try:
            ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        except OSError as failure:
            error = str(failure)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[str(path.relative_to(folder.parent))] = {"error": error, "sha256": digest}
    return found


def _capability() -> tuple[int, int]:
    import torch  # noqa: PLC0415

    return tuple(torch.cuda.get_device_capability())


def _need_12() -> None:
    if _capability()[0] != 12:
        raise NotForThisChipError(
            f"it needs compute capability 12.x, this is {'.'.join(map(str, _capability()))}"
        )


def _random(rows: int, columns: int, seed: int) -> Any:
    import torch  # noqa: PLC0415

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(rows, columns, device="cuda", dtype=torch.float32, generator=generator)


def _dequantized(packed: Any, scales: Any, rows: int, columns: int, global_scale: Any) -> Any:
    """Float64 values of an NVFP4 tensor with swizzled scales."""
    import torch  # noqa: PLC0415

    table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64, device="cuda")
    low, high = table[(packed & 15).long()], table[(packed >> 4).long()]
    values = torch.stack((low, high), dim=-1).reshape(rows, columns)
    blocks = columns // BLOCK
    places = [scale_place(row, block, blocks) for row in range(rows) for block in range(blocks)]
    flat = scales.reshape(-1).view(torch.float8_e4m3fn).to(torch.float64)
    linear = flat[torch.tensor(places, device="cuda")].reshape(rows, blocks)
    return values * linear.repeat_interleave(BLOCK, dim=1) / global_scale.to(torch.float64)


def _error(got: Any, wanted: Any) -> float:
    import torch  # noqa: PLC0415

    got, wanted = got.to(torch.float64), wanted.to(torch.float64)
    if not torch.isfinite(got).all():
        return float("inf")
    return float((got - wanted).norm() / wanted.norm())


def _bytes(join: Callable[[list[Any]], Any], scales: list[Any]) -> Any:
    """Join 8-bit floating scales as bytes: not every torch joins the type itself."""
    import torch  # noqa: PLC0415

    return join([item.view(torch.uint8) for item in scales]).view(torch.float8_e4m3fn)


def _quantized(values: Any) -> tuple[Any, Any, Any]:
    import torch  # noqa: PLC0415
    from vllm import _custom_ops as ops  # noqa: PLC0415

    scale = (448.0 * 6.0 / values.abs().max()).to(torch.float32).reshape(1)
    packed, scales = ops.scaled_fp4_quant(values.to(torch.bfloat16), scale)
    return packed, scales, scale


def nvfp4_gemm() -> float:
    """One NVFP4 matrix product (CUTLASS, 12.x)."""
    _need_12()
    import torch  # noqa: PLC0415
    from vllm import _custom_ops as ops  # noqa: PLC0415

    m, n, k = 256, 512, 1024
    a, a_scales, a_global = _quantized(_random(m, k, 1))
    b, b_scales, b_global = _quantized(_random(n, k, 2))
    alpha = (1.0 / (a_global * b_global)).to(torch.float32)
    got = ops.cutlass_scaled_fp4_mm(a, b, a_scales, b_scales, alpha, torch.bfloat16)
    wanted = _dequantized(a, a_scales, m, k, a_global) @ _dequantized(b, b_scales, n, k, b_global).T
    return _error(got, wanted)


def nvfp4_moe() -> float:
    """One NVFP4 grouped matrix product, four experts of 128 rows."""
    _need_12()
    import torch  # noqa: PLC0415
    from vllm import _custom_ops as ops  # noqa: PLC0415

    experts, m, n, k = 4, 128, 256, 512
    a = [_quantized(_random(m, k, 10 + number)) for number in range(experts)]
    b = [_quantized(_random(n, k, 20 + number)) for number in range(experts)]
    pairs = list(zip(a, b, strict=True))
    alphas = torch.cat([1.0 / (one[2] * other[2]) for one, other in pairs]).to(torch.float32)
    rows = torch.arange(0, (experts + 1) * m, m, dtype=torch.int32, device="cuda")
    sizes = torch.tensor([[m, n, k]] * experts, dtype=torch.int32, device="cuda")
    got = torch.empty((experts * m, n), dtype=torch.bfloat16, device="cuda")
    ops.cutlass_fp4_moe_mm(
        got, torch.cat([item[0] for item in a]), torch.stack([item[0] for item in b]),
        _bytes(torch.cat, [item[1] for item in a]), _bytes(torch.stack, [item[1] for item in b]), alphas, sizes,
        rows[:-1], rows[:-1],
    )  # fmt: skip
    wanted = torch.cat([
        _dequantized(one[0], one[1], m, k, one[2]) @ _dequantized(other[0], other[1], n, k, other[2]).T
        for one, other in pairs
    ])  # fmt: skip
    return _error(got, wanted)


def fp8_gemm() -> float:
    """One FP8 matrix product with a scale for each tensor."""
    import torch  # noqa: PLC0415
    from vllm import _custom_ops as ops  # noqa: PLC0415

    m, n, k = 256, 512, 1024
    a, b = _random(m, k, 3), _random(n, k, 4)
    a_scale, b_scale = (value.abs().max().reshape(1, 1) / 448.0 for value in (a, b))
    a8, b8 = (a / a_scale).to(torch.float8_e4m3fn), (b / b_scale).to(torch.float8_e4m3fn)
    got = ops.cutlass_scaled_mm(a8, b8.t(), a_scale, b_scale, torch.bfloat16)
    wanted = (a8.to(torch.float64) * a_scale.to(torch.float64)) @ (
        b8.to(torch.float64) * b_scale.to(torch.float64)
    ).T
    return _error(got, wanted)


def marlin() -> float:
    """One product of 16-bit activations with NVFP4 weights through Marlin."""
    import torch  # noqa: PLC0415
    from vllm.model_executor.layers.quantization.utils import marlin_utils_fp4 as fp4  # noqa: PLC0415
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new  # noqa: PLC0415

    m, n, k = 64, 512, 1024
    weight = _random(n, k, 5).to(torch.bfloat16) / 20
    reference, packed, scales, global_scale = fp4.rand_marlin_weight_nvfp4_like(weight, 16)
    values = _random(m, k, 6).to(torch.bfloat16)
    got = fp4.apply_fp4_marlin_linear(
        input=values, weight=packed, weight_scale=scales, weight_global_scale=global_scale,
        workspace=marlin_make_workspace_new(values.device), size_n=n, size_k=k,
    )  # fmt: skip
    return _error(got, values.to(torch.float64) @ reference.to(torch.float64))


CASES: dict[str, Callable[[], float]] = {
    "nvfp4_gemm": nvfp4_gemm, "nvfp4_moe": nvfp4_moe, "fp8_gemm": fp8_gemm, "marlin": marlin,
}  # fmt: skip


def main(target: Path) -> None:
    """Run everything and write the result."""
    import torch  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    result: dict[str, Any] = {
        "version": 1, "vllm": vllm.__version__, "torch": torch.__version__, "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(), "capability": list(_capability()), "extensions": extensions(), "cases": {},
    }  # fmt: skip
    for name, case in CASES.items():
        try:
            error = case()
            torch.cuda.synchronize()
            state = "passed" if error <= TOLERANCE else "failed"
            result["cases"][name] = {"state": state, "relative_error": error}
        except NotForThisChipError as reason:
            result["cases"][name] = {"state": "not for this chip", "reason": str(reason)}
        except Exception as error:  # noqa: BLE001 -- a case that raises has failed, and the others still run
            result["cases"][name] = {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
