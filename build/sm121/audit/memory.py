"""Unified memory: what the KV cache costs, what fits, and what is left to the host.

On this machine host and GPU share one memory; what `--gpu-memory-utilization` reserves cannot be swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.audit.checkpoint import Checkpoint

GIB = 1 << 30
TOTAL = 128_000_000_000
"""Bytes of memory of a GB10; the kernel and firmware keep some of them."""
HOST_RESERVE = 15 * GIB
_BYTES = {
    "": 2, "auto": 2, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1, "fp4": 0.5625, "nvfp4": 0.5625,
}  # fmt: skip
"""Bytes of one element of the cache, by `--kv-cache-dtype` or by the model's own type; nvfp4 with its scales."""


@dataclass(frozen=True, slots=True)
class CacheCost:
    """What a model keeps per token of context.

    `per_token` is bytes over all layers that keep every token. `per_sequence` is bytes that one sequence costs
    whatever its length: sliding windows. Both None if the configuration does not tell.
    """

    per_token: float | None
    per_sequence: float | None
    basis: str
    left_out: tuple[str, ...] = ()


def cache_cost(checkpoint: Checkpoint, kv_cache: str = "auto") -> CacheCost:
    """Compute the cost from a configuration. `kv_cache` is the value of `--kv-cache-dtype`."""
    kind = checkpoint.quantization.kv_cache if kv_cache == "auto" else kv_cache
    width = _BYTES.get(kind or checkpoint.dtype)
    layers, kv = checkpoint.layers, checkpoint.kv
    if width is None:
        return CacheCost(
            None, None, f"the size of an element of type {kind or checkpoint.dtype!r} is not known here"
        )
    if kv is None or not layers.attention:
        why = f" ({'; '.join(checkpoint.doubts)})" if checkpoint.doubts else ""
        return CacheCost(None, None, f"the configuration has no usable sizes of attention layers{why}")
    full = layers.attention - (layers.sliding if layers.window else 0)
    per_layer = kv.elements * width
    sliding = layers.sliding * per_layer * layers.window if layers.window and layers.sliding else 0
    left_out = []
    if layers.recurrent:
        left_out.append(f"the state of {layers.recurrent} linear-attention layers (fixed for each sequence)")
    if layers.predictors:
        left_out.append(f"{layers.predictors} MTP layers, if speculation is on")
    element = kind or checkpoint.dtype or "16-bit"
    basis = f"{full} layers x {kv.elements} elements x {width:g} bytes ({element})"
    return CacheCost(full * per_layer, sliding, basis, tuple(left_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A set-up to be judged; all sizes in bytes, `weights` with activations and graphs where they are known."""

    per_token: float
    per_sequence: float = 0
    total: int = TOTAL
    utilization: float = 0.9
    weights: float | None = None
    """None if nobody said; then they count as 0, and what follows is not known."""
    overhead: float = 3 * GIB
    """Activations, CUDA graphs and the context, inside the reservation."""
    sequences: int = 0
    length: int = 0
    host: float = HOST_RESERVE

    @property
    def reserved(self) -> float:
        return self.total * self.utilization

    @property
    def pool(self) -> float:
        """What is left for the cache."""
        return max(self.reserved - self._fixed, 0)

    @property
    def _fixed(self) -> float:
        return (self.weights or 0) + self.overhead

    @property
    def tokens(self) -> int:
        """Tokens of context that fit beside the fixed part of the wanted sequences."""
        free = self.pool - self.sequences * self.per_sequence
        return max(int(free / self.per_token), 0) if self.per_token else 0

    @property
    def needed(self) -> float:
        """What the wanted sequences take if all are full."""
        return self.sequences * (self.length * self.per_token + self.per_sequence)

    @property
    def headroom(self) -> float:
        """What the host keeps."""
        return self.total - self.reserved

    @property
    def enough(self) -> float | None:
        """The smallest utilization for which the wanted sequences fit; None if nothing is wanted."""
        if not self.sequences or not self.length:
            return None
        return (self._fixed + self.needed) / self.total


def judge_memory(plan: Plan) -> Iterator[Finding]:
    """Judge a set-up: does the cache fit, and does the host keep enough?"""
    short = plan.headroom < plan.host
    most = (plan.total - plan.host) / plan.total
    yield Finding(
        "memory.host",
        f"utilization {plan.utilization:g}",
        Verdict.WARN if short else Verdict.PASS,
        f"the host keeps {plan.headroom / GIB:.1f} GiB",
        f"{plan.host / GIB:.0f} GiB",
        f"Lower it to {most:.2f}; the reservation cannot be swapped." if short else "",
    )
    if plan.weights is None:
        yield Finding(
            "memory.weights", "weights", Verdict.UNKNOWN, "their size is not known and counts as 0", "a size",
            "Give --weights-gib, the folder that holds the weights, or a boot log.",
        )  # fmt: skip
    elif plan.weights + plan.overhead >= plan.reserved:
        yield Finding(
            "memory.weights", "weights", Verdict.FAIL,
            f"weights and overhead take {(plan.weights + plan.overhead) / GIB:.1f} GiB",
            f"less than the {plan.reserved / GIB:.1f} GiB reserved", "Take a smaller checkpoint, or reserve more.",
        )  # fmt: skip
        return
    if plan.enough is None:
        return
    fits = plan.needed <= plan.pool
    possible = plan.enough <= (plan.total - plan.host) / plan.total
    advice = f"Utilization {plan.enough:.2f} is enough." if possible else (
        "Not even the whole memory less the host's part is enough: lower --max-num-seqs or --max-model-len, or take an "
        "fp8 cache."
    )  # fmt: skip
    yield Finding(
        "memory.cache", f"{plan.sequences} sequences of {plan.length} tokens", Verdict.PASS if fits else Verdict.WARN,
        f"the cache would need {plan.needed / GIB:.1f} GiB", f"at most {plan.pool / GIB:.1f} GiB", advice,
    )  # fmt: skip
