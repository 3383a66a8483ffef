"""Layer kinds and sizes out of a model's configuration: attention, linear attention, experts, MTP heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm121.audit.loose import Loose

_MOST_LAYERS = 10_000
_WIDEST = 1 << 20
"""Heads of a layer, or elements of a head: far above every model."""


@dataclass(frozen=True, slots=True)
class Layers:
    """How many layers there are and of what kind. `sliding` are among `attention`."""

    total: int
    attention: int
    sliding: int = 0
    recurrent: int = 0
    """Mamba, gated delta net and other layers with a state of fixed size."""
    window: int | None = None
    """Tokens that a sliding layer keeps."""
    predictors: int = 0
    """MTP (next-token prediction) layers stored behind the model's own."""

    @property
    def hybrid(self) -> bool:
        return self.recurrent > 0


@dataclass(frozen=True, slots=True)
class Mixture:
    """Routed experts. `width` is one expert's intermediate size."""

    experts: int
    chosen: int | None
    width: int | None
    shared: int
    dense_layers: int
    """Layers whose MLP is an ordinary one."""
    limit: float | None = None
    """`swiglu_limit`: the activation is clamped."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one attention layer keeps for one token, in elements.

    `latent` is the compressed width of multi-head latent attention (MLA), where keys and values share one vector.
    """

    heads: int
    width: int
    value_width: int
    latent: int | None = None

    @property
    def elements(self) -> int:
        return self.latent if self.latent is not None else self.heads * (self.width + self.value_width)


def read_layers(text: Loose) -> Layers:
    """Count layers of each kind."""
    total = text.count("num_hidden_layers", "n_layer", "num_layers", most=_MOST_LAYERS) or 0
    predictors = text.count("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers") or 0
    window = text.count("sliding_window", "sliding_window_size")
    if text.flag("use_sliding_window") is False:
        window = None
    kinds = [kind.lower() for kind in text.names("layer_types", "layers_block_type")]
    pattern = text.text("hybrid_override_pattern")
    named = len(kinds) or len(pattern or "")
    if named and total and named != total:
        text.problems.append(
            f"{text.where}: the kinds of {named} layers are named, num_hidden_layers says {total}"
        )
    if kinds:
        attention = sum(_is_attention(kind) for kind in kinds)
        sliding = sum("sliding" in kind or "chunked" in kind or kind == "local" for kind in kinds)
        recurrent = sum(_is_recurrent(kind) for kind in kinds)
        return Layers(total or len(kinds), attention, min(sliding, attention), recurrent, window, predictors)
    if pattern:
        # Nemotron-H: M is Mamba, * attention, - an MLP, E experts.
        return Layers(
            total or len(pattern), pattern.count("*"), recurrent=pattern.count("M"), window=window,
            predictors=predictors,
        )  # fmt: skip
    attention = _spread(text, total)
    recurrent = total - attention
    sliding = attention if window and text.flag("use_sliding_window") is not False and _all_slide(text) else 0
    return Layers(total, attention, sliding, recurrent, window, predictors)


def _is_attention(kind: str) -> bool:
    return ("attention" in kind and "linear" not in kind) or kind in {"hybrid", "local", "global"}


def _is_recurrent(kind: str) -> bool:
    return kind in {"mamba", "mamba2", "recurrent", "conv", "hybrid"} or "linear" in kind or "mamba" in kind


def _spread(text: Loose, total: int) -> int:
    """Attention layers among `total`, where a period or a list of places says so."""
    places = text.counts("attn_layer_indices")
    if places:
        beyond = [place for place in places if place >= total]
        if beyond:
            text.problems.append(f"{text.where}: attn_layer_indices names layer {beyond[0]} of {total}")
        return len({place for place in places if place < total})
    interval = text.count("full_attention_interval")
    if interval:
        return total // interval
    period, offset = text.count("attn_layer_period"), text.count("attn_layer_offset") or 0
    if period:
        return len(range(offset, total, period))
    pure = (text.text("model_type") or "").lower() in {"mamba", "mamba2", "falcon_mamba", "rwkv"}
    return 0 if pure else total


def _all_slide(text: Loose) -> bool:
    return (text.text("model_type") or "").lower() in {"mistral", "mixtral", "phi3", "starcoder2"}


def read_mixture(text: Loose) -> Mixture | None:
    """The experts, None for a model without any."""
    experts = text.count("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 0
    if experts < 2:
        return None
    layers = text.count("num_hidden_layers", "num_layers", most=_MOST_LAYERS) or 0
    shared = text.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
    if not shared and (text.count("shared_expert_intermediate_size") or 0) > 0:
        shared = 1
    limit = text.members.get("swiglu_limit")
    return Mixture(
        experts=experts,
        chosen=text.count("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k", "top_k_experts"),
        width=text.count(
            "moe_intermediate_size", "expert_hidden_size", "expert_ffn_hidden_size", "intermediate_size"
        ),
        shared=shared,
        dense_layers=_dense_layers(text, layers),
        limit=float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) else None,
    )


def _dense_layers(text: Loose, layers: int) -> int:
    pattern = text.text("hybrid_override_pattern")
    if pattern:
        return pattern.count("-")
    first = text.count("first_k_dense_replace", "moe_layer_start_index") or 0
    step = (
        text.count("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", "expert_layer_period")
        or 1
    )
    named = len(set(text.counts("mlp_only_layers")))
    return min(layers, max(first, named) + (layers - layers // step if step > 1 else 0))


def read_kv_shape(text: Loose) -> KvShape | None:
    """The shape of one layer's cache, None if the configuration does not tell."""
    latent = text.count("kv_lora_rank", most=_WIDEST)
    if latent:
        rope = text.count("qk_rope_head_dim", most=_WIDEST) or 0
        return KvShape(1, latent + rope, latent, latent + rope)
    heads = text.count("num_attention_heads", "n_head", most=_WIDEST)
    width = text.count("head_dim", "attention_head_dim", most=_WIDEST) or _head_width(text, heads)
    kv = text.count("num_key_value_heads", "multi_query_group_num", "num_kv_heads", most=_WIDEST) or heads
    if not width or not kv:
        return None
    if heads and heads % kv:
        text.problems.append(f"{text.where}: {heads} attention heads cannot share {kv} heads of keys and values")
    return KvShape(kv, width, text.count("v_head_dim", most=_WIDEST) or width)


def _head_width(text: Loose, heads: int | None) -> int | None:
    hidden = text.count("hidden_size", "n_embd", "d_model", most=_WIDEST)
    if not heads or not hidden:
        return None
    if hidden % heads:
        text.problems.append(f"{text.where}: a hidden size of {hidden} is no multiple of {heads} attention heads")
        return None
    return hidden // heads
