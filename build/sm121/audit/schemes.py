"""Quantization formats: what a checkpoint's `quantization_config` declares, group by group.

Formats read: compressed-tensors (https://github.com/vllm-project/compressed-tensors, `QuantizationScheme`),
NVIDIA ModelOpt (`hf_quant_config.json` and its form inside `config.json`), MXFP4 as GPT-OSS ships it,
fine-grained FP8, fbgemm FP8, AWQ and GPTQ. Other methods are named and left undecided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sm121.expressions import compiled

if TYPE_CHECKING:
    from sm121.audit.loose import Loose


class Number(StrEnum):
    """A number format of weights or activations. FULL is the model's own 16 or 32 bits."""

    NVFP4 = "NVFP4"
    """4-bit e2m1, blocks of 16 with e4m3 scales and one fp32 scale for the tensor."""
    MXFP4 = "MXFP4"
    """4-bit e2m1, blocks of 32 with e8m0 scales."""
    MXFP8 = "MXFP8"
    FP8 = "FP8"
    INT8 = "INT8"
    INT4 = "INT4"
    FULL = "16-bit"
    UNKNOWN = "unknown"

    @property
    def bits(self) -> int | None:
        """Bits of one element, None if unknown."""
        return {"4": 4, "8": 8, "t": 16}.get(self.value[-1])


class Matching(StrEnum):
    """How a method compares names of modules with its patterns."""

    REGEX = "regex"
    """compressed-tensors: `re:` starts a regular expression, all else is the whole name or a class."""
    GLOB = "glob"
    """ModelOpt: shell wildcards, and parts of a name."""
    PART = "part"
    """FP8, AWQ, GPTQ: the whole name or a part of it."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one group of layers is stored.

    `scaling` is the granularity of the weight scales: tensor, channel, block, group or "". `block` is the group
    size, or the two sides of a block. `activation_scaling` is static-tensor, dynamic-tensor, dynamic-token,
    static-group, dynamic-group or "".
    """

    weights: Number
    activations: Number = Number.FULL
    scaling: str = ""
    block: tuple[int, ...] = ()
    activation_scaling: str = ""
    symmetric: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """`NVFP4 W4A4`, `NVFP4 W4A16`, `FP8 W8A8 block 128x128`."""
        if self.weights is Number.FULL:
            return "16-bit"
        if self.weights is Number.UNKNOWN:
            return self.note or "unknown"
        acts = self.activations.bits
        short = f"W{self.weights.bits}A{acts if acts is not None else '?'}"
        detail = f" {self.scaling}" if self.weights is Number.FP8 and self.scaling else ""
        block = f" {'x'.join(map(str, self.block))}" if self.scaling == "block" and self.block else ""
        return f"{self.weights} {short}{detail}{block}"

    @property
    def weight_only(self) -> bool:
        return self.weights is not Number.FULL and self.activations is Number.FULL


FULL = Scheme(Number.FULL)


@dataclass(frozen=True, slots=True)
class Group:
    """A scheme and the modules it is for: names, patterns, or a class such as `Linear`."""

    scheme: Scheme
    targets: tuple[str, ...] = ("Linear",)


@dataclass(frozen=True, slots=True)
class Quantization:
    """All that the configuration says about quantization."""

    method: str
    groups: tuple[Group, ...] = ()
    ignored: tuple[str, ...] = ()
    matching: Matching = Matching.PART
    kv_cache: str = ""
    head_quantized: bool | None = None
    """Stated outright (GPTQ's `lm_head`); None where targets and ignore list decide."""
    experts_only: bool = False
    """MXFP4 of GPT-OSS: only expert weights are quantized."""

    def ignores(self, name: str) -> bool:
        """Whether the ignore list names the module."""
        return any(_matches(pattern, name, self.matching) for pattern in self.ignored)

    def scheme_of(self, name: str) -> Scheme:
        """How the linear layer with this module name is stored."""
        if self.ignores(name):
            return FULL
        if self.experts_only and "experts" not in name:
            return FULL
        best = None
        for group in self.groups:
            if any(target != "Linear" and _matches(target, name, self.matching) for target in group.targets):
                return group.scheme
            if "Linear" in group.targets and best is None:
                best = group.scheme
        return best or FULL


NONE = Quantization("none")


def _matches(pattern: str, name: str, matching: Matching) -> bool:
    if pattern == name:
        return True
    if matching is Matching.REGEX:
        expression = compiled(pattern[3:]) if pattern.startswith("re:") else None
        return bool(expression and expression.match(name))
    if matching is Matching.GLOB and fnmatchcase(name, pattern):
        return True
    plain = pattern.rstrip("*").rstrip(".")
    return bool(plain) and "*" not in plain and (plain in name)


def read_quantization(config: Loose) -> Quantization:
    """Read a `quantization_config` (or ModelOpt's `hf_quant_config.json`); never raises."""
    inner = config.table("quantization")
    method = (config.text("quant_method") or "").lower()
    if not method and inner is not None:
        method = "modelopt"
    if not method and config.has("config_groups"):
        method = "compressed-tensors"
    if method.startswith("modelopt"):
        return _modelopt(inner or config, method)
    reader = {
        "compressed-tensors": _compressed, "mxfp4": _mxfp4, "gpt_oss_mxfp4": _mxfp4,
        "fp8": _fp8, "fbgemm_fp8": _fbgemm, "awq": _int4, "awq_marlin": _int4, "auto_awq": _int4,
        "gptq": _int4, "gptq_marlin": _int4,
    }.get(method)  # fmt: skip
    if reader is None:
        named = method or "no quant_method"
        config.problems.append(f"{config.where}: the method {named!r} is not one that is read here")
        unknown = Scheme(Number.UNKNOWN, Number.UNKNOWN, note=f"{named} (not read)")
        return Quantization(
            method or "unknown", (Group(unknown),), config.names("ignore", "modules_to_not_convert")
        )
    return reader(config, method)


def _compressed(config: Loose, method: str) -> Quantization:
    default = config.text("format") or ""
    groups = []
    for _, group in _members(config.table("config_groups")):
        weights, activations = group.table("weights"), group.table("input_activations")
        scheme = _tensors(weights, activations, group.text("format") or default)
        groups.append(Group(scheme, group.names("targets") or ("Linear",)))
    if not groups:
        config.problems.append(
            f"{config.where}: config_groups is empty or missing, nothing says what is quantized"
        )
    cache = config.table("kv_cache_scheme")
    kind = "fp8" if cache is not None and cache.count("num_bits") == 8 else ""
    return Quantization(method, tuple(groups), config.names("ignore"), Matching.REGEX, kind)


def _tensors(weights: Loose | None, activations: Loose | None, form: str) -> Scheme:
    if weights is None:
        return FULL
    number = _number(weights, form)
    scheme = Scheme(
        number, Number.FULL if activations is None else _number(activations, form),
        scaling=_scaling(weights), block=weights.counts("block_structure") or _group_size(weights),
        symmetric=weights.flag("symmetric") is not False,
    )  # fmt: skip
    if activations is None:
        return scheme
    dynamic = bool(activations.members.get("dynamic"))
    granularity = {"tensor_group": "group"}.get(_scaling(activations), _scaling(activations)) or "tensor"
    return replace(scheme, activation_scaling=f"{'dynamic' if dynamic else 'static'}-{granularity}")


def _group_size(table: Loose) -> tuple[int, ...]:
    if table.members.get("group_size") == -1:
        return ()
    size = table.count("group_size")
    return (size,) if size else ()


def _scaling(table: Loose) -> str:
    return (table.text("strategy") or "").lower().replace("tensor_group", "group")


def _number(table: Loose, form: str) -> Number:
    bits, kind = table.count("num_bits"), (table.text("type") or "int").lower()
    scale = (table.text("scale_dtype") or "").lower()
    size = (_group_size(table) or (0,))[0]
    if kind == "float" and bits == 4:
        if form.startswith("nvfp4") or size == 16:
            return Number.NVFP4
        return Number.MXFP4 if form.startswith("mxfp4") or size == 32 else Number.UNKNOWN
    if kind == "float" and bits == 8:
        return Number.MXFP8 if form.startswith("mxfp8") or (size == 32 and "uint8" in scale) else Number.FP8
    return {4: Number.INT4, 8: Number.INT8}.get(bits or 0, Number.UNKNOWN) if kind == "int" else Number.UNKNOWN


# https://github.com/NVIDIA/Model-Optimizer: names of `quant_algo`.
_ALGORITHMS = {
    "NVFP4": Scheme(Number.NVFP4, Number.NVFP4, "group", (16,), "static-group"),
    "NVFP4_AWQ": Scheme(Number.NVFP4, Number.NVFP4, "group", (16,), "static-group"),
    "W4A16_NVFP4": Scheme(Number.NVFP4, Number.FULL, "group", (16,)),
    "FP8": Scheme(Number.FP8, Number.FP8, "tensor", (), "static-tensor"),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(Number.FP8, Number.FP8, "channel", (), "dynamic-token"),
    "FP8_PB_WO": Scheme(Number.FP8, Number.FP8, "block", (128, 128), "dynamic-group"),
    "FP8_BLOCK_SCALES": Scheme(Number.FP8, Number.FP8, "block", (128, 128), "dynamic-group"),
    "MXFP8": Scheme(Number.MXFP8, Number.MXFP8, "group", (32,), "dynamic-group"),
    "W4A16_AWQ": Scheme(Number.INT4, Number.FULL, "group", (128,)),
    "W4A8_AWQ": Scheme(Number.INT4, Number.FP8, "group", (128,), "static-tensor"),
}


def _algorithm(table: Loose) -> Scheme:
    name = (table.text("quant_algo") or "").upper()
    known = _ALGORITHMS.get(name)
    if known is None:
        table.problems.append(f"{table.where}: quant_algo {name or '(missing)'} is not one that is read here")
        return Scheme(Number.UNKNOWN, Number.UNKNOWN, note=f"ModelOpt {name or 'without quant_algo'}")
    size = table.count("group_size")
    return replace(known, block=(size,)) if size and known.scaling == "group" else known


def _modelopt(table: Loose, method: str) -> Quantization:
    layers = table.table("quantized_layers")
    if layers is not None:
        by_scheme: dict[Scheme, list[str]] = {}
        for name, layer in layers.tables():
            by_scheme.setdefault(_algorithm(layer), []).append(name)
        groups = tuple(Group(scheme, tuple(names)) for scheme, names in by_scheme.items())
    elif table.has("config_groups") and not table.has("quant_algo"):
        groups = _compressed(table, method).groups
    else:
        scheme = _algorithm(table)
        for _, group in _members(table.table("config_groups")):
            # ModelOpt writes the algorithm NVFP4 for weight-only exports too; only the groups tell them apart.
            if scheme.weights is Number.NVFP4 and group.has("weights") and not group.has("input_activations"):
                scheme = replace(scheme, activations=Number.FULL, activation_scaling="")
        groups = (Group(scheme),)
    cache = (table.text("kv_cache_quant_algo") or "").lower()
    if not cache and (stored := table.table("kv_cache_scheme")) is not None and stored.count("num_bits") == 8:
        cache = "fp8"
    ignored = table.names("exclude_modules", "ignore", "modules_to_not_convert")
    return Quantization(method, groups, ignored, Matching.GLOB, cache)


def _mxfp4(config: Loose, method: str) -> Quantization:
    scheme = Scheme(Number.MXFP4, Number.FULL, "group", (32,))
    return Quantization(method, (Group(scheme),), config.names("modules_to_not_convert"), experts_only=True)


def _fp8(config: Loose, method: str) -> Quantization:
    block = config.counts("weight_block_size")
    static = (config.text("activation_scheme") or "dynamic").lower() == "static"
    if block:
        scheme = Scheme(Number.FP8, Number.FP8, "block", block, "dynamic-group")
    else:
        scheme = Scheme(Number.FP8, Number.FP8, "tensor", (), "static-tensor" if static else "dynamic-token")
    return Quantization(
        method, (Group(scheme),), config.names("ignored_layers", "modules_to_not_convert", "ignore")
    )


def _fbgemm(config: Loose, method: str) -> Quantization:
    scheme = Scheme(Number.FP8, Number.FP8, "channel", (), "dynamic-token")
    return Quantization(method, (Group(scheme),), config.names("modules_to_not_convert"))


def _int4(config: Loose, method: str) -> Quantization:
    bits = config.count("bits", "w_bit")
    number = {4: Number.INT4, 8: Number.INT8}.get(bits or 4, Number.UNKNOWN)
    if number is Number.UNKNOWN:
        config.problems.append(f"{config.where}: {bits} bits are not read here")
    awq = "awq" in method
    symmetric = config.flag("zero_point") is False if awq else config.flag("sym") is not False
    size = config.members.get("group_size", config.members.get("q_group_size", 128))
    block = (size,) if isinstance(size, int) and not isinstance(size, bool) and size > 0 else ()
    scheme = Scheme(
        number, Number.FULL, "group" if block else "channel", block, symmetric=symmetric,
        note="act-order" if config.flag("desc_act") else "",
    )  # fmt: skip
    head = config.flag("lm_head")
    ignored = config.names("modules_to_not_convert")
    return Quantization(method, (Group(scheme),), ignored, head_quantized=bool(head))


def _members(table: Loose | None) -> tuple[tuple[str, Loose], ...]:
    return () if table is None else tuple(table.tables())
