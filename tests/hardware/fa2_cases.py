"""Runs FlashAttention 2 of one library against a float64 reference; a program of its own that needs torch alone.

`python fa2_cases.py LIBRARY RESULT.json [--heads 64,128,256] [--types bfloat16,float16] [--absent 96]` writes one entry
per case: the relative error, the seconds of the first call and of a later one, or what went wrong. Head sizes under
`--absent` have no code in the library; that they are refused cleanly is recorded too.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

LENGTHS = ((512, 512), (300, 777), (1, 1000))
"""Queries and keys of the sequences in one call: square, more keys than queries, one token of a decode."""
HEADS, KV_HEADS = 8, 2
PAGES = (16, 256)


def main() -> None:
    arguments = _arguments()
    import torch  # noqa: PLC0415 -- its libraries must be loaded first

    torch.manual_seed(121)
    begin = time.perf_counter()
    torch.ops.load_library(arguments.library)
    result: dict[str, Any] = {
        "library": Path(arguments.library).name,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "load seconds": time.perf_counter() - begin,
        "cases": {},
    }
    for name, size, causal, page in product(arguments.types, arguments.heads, (False, True), (0, *PAGES)):
        kind = f"pages of {page}" if page else "contiguous"
        title = f"{name}, head size {size}, {'causal' if causal else 'full'}, {kind}"
        result["cases"][title] = _case(torch, getattr(torch, name), size, causal=causal, page=page)
    for size in arguments.absent:
        result["cases"][f"head size {size}, not in the library"] = _case(
            torch, torch.bfloat16, size, causal=False, page=0
        )
    Path(arguments.result).write_text(json.dumps(result, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("result")
    parser.add_argument("--heads", type=_numbers, default=[64, 128, 256])
    parser.add_argument("--types", type=lambda text: text.split(","), default=["bfloat16", "float16"])
    parser.add_argument("--absent", type=_numbers, default=[])
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _case(torch: Any, dtype: Any, size: int, *, causal: bool, page: int) -> dict[str, Any]:
    try:
        q, keys, values = _inputs(torch, dtype, size)
        call = _call(torch, q, keys, values, causal=causal, page=page)
        found, first = _timed(torch, call)
        _, later = _timed(torch, call)
        wanted = _reference(torch, q, keys, values, causal=causal)
        error = ((found.double() - wanted).norm() / wanted.norm()).item()
    except RuntimeError as failure:
        return {"failed": str(failure).splitlines()[0]}
    return {"error": error, "first seconds": first, "later seconds": later}


def _inputs(torch: Any, dtype: Any, size: int) -> tuple[Any, list[Any], list[Any]]:
    queries = sum(count for count, _ in LENGTHS)
    q = torch.randn(queries, HEADS, size, device="cuda", dtype=dtype)
    keys, values = (
        [torch.randn(count, KV_HEADS, size, device="cuda", dtype=dtype) for _, count in LENGTHS] for _ in range(2)
    )
    return q, keys, values


def _call(torch: Any, q: Any, keys: list[Any], values: list[Any], *, causal: bool, page: int) -> Any:
    """The call as vLLM makes it, with its arguments found by name."""
    used = torch.tensor([count for _, count in LENGTHS], device="cuda", dtype=torch.int32)
    given: dict[str, Any] = {
        "q": q,
        "cu_seqlens_q": _starts(torch, [count for count, _ in LENGTHS]),
        "max_seqlen_q": max(count for count, _ in LENGTHS),
        "max_seqlen_k": max(count for _, count in LENGTHS),
        "p_dropout": 0.0,
        "softmax_scale": q.shape[-1] ** -0.5,
        "zero_tensors": False,
        "is_causal": causal,
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
        "return_softmax": False,
        "num_splits": 0,
    }
    if page:
        given["k"], table = _paged(torch, keys, page)
        given["v"], _ = _paged(torch, values, page)
        given |= {
            "seqused_k": used,
            "block_table": table,
            "cu_seqlens_k": torch.zeros_like(given["cu_seqlens_q"]),
        }
    else:
        given |= {"k": torch.cat(keys), "v": torch.cat(values)}
        given["cu_seqlens_k"] = _starts(torch, [count for _, count in LENGTHS])
    operator = torch.ops._vllm_fa2_C.varlen_fwd.default
    names = [argument.name for argument in operator._schema.arguments]
    unknown = given.keys() - set(names)
    if unknown:
        raise RuntimeError(f"the operator has no argument {', '.join(sorted(unknown))}")
    return lambda: operator(*(given.get(name) for name in names))[0]


def _starts(torch: Any, counts: list[int]) -> Any:
    return torch.tensor([0, *counts], device="cuda").cumsum(0).to(torch.int32)


def _paged(torch: Any, parts: list[Any], page: int) -> tuple[Any, Any]:
    """The parts in pages that lie in another order, and each sequence's table of pages."""
    needed = [-(-len(part) // page) for part in parts]
    order = list(reversed(range(sum(needed))))
    cache = torch.zeros(sum(needed), page, *parts[0].shape[1:], device="cuda", dtype=parts[0].dtype)
    table = torch.zeros(len(parts), max(needed), device="cuda", dtype=torch.int32)
    for row, part in enumerate(parts):
        for index, chunk in enumerate(part.split(page)):
            place = order.pop(0)
            cache[place, : len(chunk)] = chunk
            table[row, index] = place
    return cache, table


def _timed(torch: Any, call: Any) -> tuple[Any, float]:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    found = call()
    torch.cuda.synchronize()
    return found, time.perf_counter() - begin


def _reference(torch: Any, q: Any, keys: list[Any], values: list[Any], *, causal: bool) -> Any:
    """Attention in float64; the mask of a causal one is aligned to the last key."""
    parts = []
    for queries, k, v in zip(q.split([count for count, _ in LENGTHS]), keys, values, strict=True):
        spread_k, spread_v = (
            each.double().repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(0, 1) for each in (k, v)
        )
        scores = queries.double().transpose(0, 1) @ spread_k.transpose(1, 2) * q.shape[-1] ** -0.5
        if causal:
            rows, columns = scores.shape[1:]
            hidden = torch.ones(rows, columns, device="cuda", dtype=torch.bool).triu(columns - rows + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        parts.append((scores.softmax(-1) @ spread_v).transpose(0, 1))
    return torch.cat(parts)


if __name__ == "__main__":
    main()
