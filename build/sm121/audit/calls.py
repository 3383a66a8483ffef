"""Calls of vLLM's selection functions, with the arguments that a checkpoint's layers give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.audit.schemes import Number, Scheme
from sm121.audit.static.objects import construct, fields, find_in_class, members
from sm121.audit.static.paths import StuckError
from sm121.audit.static.values import Bound, ClassValue, Function, Instance, Symbol, Unknown, Value, shown

if TYPE_CHECKING:
    from sm121.audit.checkpoint import Checkpoint
    from sm121.audit.static import Machine

_LINEAR = "vllm.model_executor.kernels.linear"
_ORACLE = "vllm.model_executor.layers.fused_moe.oracle"
_KEYS = "vllm.model_executor.layers.quantization.utils.quant_utils"
_MOE_CONFIG = "vllm.model_executor.layers.fused_moe.config"
_BF16 = Symbol("torch.bfloat16")


def dense_call(machine: Machine, scheme: Scheme, checkpoint: Checkpoint | None) -> tuple[str, Value]:
    """Call the selection for linear layers; the answer is the function's name and what it returns."""
    hidden = checkpoint.hidden_size if checkpoint and checkpoint.hidden_size else 4096
    shape = (hidden, hidden)
    weight, activation = _keys(machine, scheme)
    pool: dict[str, Value] = {
        "activation_quant_key": activation, "weight_quant_key": weight, "input_dtype": _BF16, "out_dtype": _BF16,
        "weight_shape": shape, "use_a16": scheme.weight_only, "module_name": None,
    }  # fmt: skip
    match scheme.weights:
        case Number.NVFP4:
            name = "init_nvfp4_linear_kernel"
            function = _function(machine, _LINEAR, name)
            if scheme.weight_only and "use_a16" not in _parameters(function):
                # Before the parameter existed, the weight-only method called Marlin without asking.
                return "(fixed in the quantization method)", _class(machine, _LINEAR, "MarlinNvFp4LinearKernel")
        case Number.MXFP4:
            name = "init_mxfp4_linear_kernel"
        case Number.MXFP8:
            name = "init_mxfp8_linear_kernel"
        case Number.FP8:
            name = "init_wfp8_a16_linear_kernel" if scheme.weight_only else "init_fp8_linear_kernel"
        case Number.INT4 | Number.INT8 if scheme.weight_only:
            name = "choose_mp_linear_kernel"
            pool = {"config": _mixed_config(machine, scheme, shape)}
        case _:
            raise StuckError(f"{scheme.name} has no selection that is followed here")
    return _called(machine, _LINEAR, name, pool)


def experts_call(machine: Machine, scheme: Scheme, checkpoint: Checkpoint | None) -> tuple[str, Value]:
    """Call the selection for MoE experts."""
    weight, activation = _keys(machine, scheme)
    config = moe_config(machine, checkpoint)
    pool: dict[str, Value] = {
        "config": config, "moe_config": config, "weight_key": weight, "activation_key": activation,
        "allow_vllm_cutlass": bool(checkpoint and checkpoint.quantization.method == "compressed-tensors"),
        "weight_bits": 4, "may_have_zp": not scheme.symmetric, "may_have_bias": False, "allow_tile_padding": True,
        "quant_config": Unknown("the quantization method", some=True),
    }  # fmt: skip
    match scheme.weights:
        case Number.NVFP4:
            module, name = "nvfp4", "select_nvfp4_moe_backend"
        case Number.MXFP4:
            module, name = "mxfp4", "select_mxfp4_moe_backend"
            pool["activation_key"] = None if scheme.weight_only else activation
        case Number.FP8:
            module, name = "fp8", "select_fp8_moe_backend"
        case Number.MXFP8:
            module, name = "mxfp8", "select_mxfp8_moe_backend"
        case Number.INT4:
            module, name = "int_wna16", "select_wna16_moe_backend"
            pool["weight_key"] = _key(machine, "kInt4Static")
        case Number.FULL:
            module, name = "unquantized", "select_unquantized_moe_backend"
        case _:
            raise StuckError(f"{scheme.name} has no selection that is followed here")
    return _called(machine, f"{_ORACLE}.{module}", name, pool)


def attention_call(machine: Machine, checkpoint: Checkpoint | None, *, chosen: str) -> tuple[str, Value]:
    """Call the platform's selection of an attention backend."""
    platform = machine.member("vllm.platforms", "current_platform")
    kv = checkpoint.kv if checkpoint else None
    latent = bool(kv and kv.latent)
    cache = machine.facts.settings.get("cache_config.cache_dtype", "auto")
    config = _record(machine, "vllm.v1.attention.selector", "AttentionSelectorConfig", {
        "head_size": (kv.latent if latent else kv.width) if kv else 128, "dtype": _BF16,
        "kv_cache_dtype": cache, "block_size": None, "use_mla": latent,
        "has_sink": bool(checkpoint and checkpoint.model_type == "gpt_oss"),
        "has_sliding_window": bool(checkpoint and checkpoint.layers.sliding),
    })  # fmt: skip
    selected = None
    if chosen:
        registry = _class(machine, "vllm.v1.attention.backends.registry", "AttentionBackendEnum")
        known = {item.attributes["name"]: item for item in members(machine, registry)}
        if chosen not in known:
            raise StuckError(f"no attention backend is called {chosen}; there are {', '.join(sorted(known))}")
        selected = known[chosen]
    method = machine.attribute(platform, "get_attn_backend_cls")
    pool: dict[str, Value] = {
        "selected_backend": selected, "attn_selector_config": config,
        "num_heads": Unknown("the number of heads", some=True),
    }  # fmt: skip
    accepted = {name: value for name, value in pool.items() if name in _parameters(method)}
    return "vllm.platforms.cuda:get_attn_backend_cls", machine.call(method, [], accepted)


def call_gate(machine: Machine, kernel: ClassValue, keys: tuple[Value, Value] | None = None) -> tuple[bool, str]:
    """Ask a kernel's own support check about the chip; the answer and upstream's reason."""
    for name in ("is_supported_config", "validate_configuration", "is_supported", "get_min_capability"):
        method = machine.attribute(kernel, name) if find_in_class(machine, kernel, name) else None
        if not isinstance(method, Bound | Function):
            continue
        number = machine.facts.capability.number
        if name == "get_min_capability":
            least = machine.call(method, [])
            if not isinstance(least, int) or least > number:
                return False, f"it needs compute capability {shown(least)}"
            config = _mixed_config(machine, Scheme(Number.INT4, block=(128,)), (4096, 4096))
            return _verdict(machine, machine.call(machine.attribute(kernel, "can_implement"), [config]))
        if name == "is_supported_config":
            config = moe_config(machine, None)
            form = machine.member(
                "vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEActivationFormat"
            )
            standard = machine.attribute(form, "Standard")
            first = [kernel] if isinstance(method, Function) else []
            return _verdict(machine, machine.call(method, [*first, config, *(keys or (None, None)), standard]))
        if name == "validate_configuration":
            reasons = machine.call(method, [], _attention_arguments(machine, method))
            return _verdict(machine, (not reasons, ", ".join(shown(item) for item in reasons or ())))
        return _verdict(
            machine, machine.call(method, [number] if "compute_capability" in _parameters(method) else [])
        )
    raise StuckError(f"{kernel.name} has no support check that is known here")


def _verdict(machine: Machine, result: Value) -> tuple[bool, str]:
    first, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    return machine.truth(first), "" if reason is None else shown(reason)


def _attention_arguments(machine: Machine, method: Bound | Function) -> dict[str, Value]:
    platform = machine.member("vllm.platforms", "current_platform")
    latent = machine.truth(machine.call(machine.attribute(_receiver(method), "is_mla"), []))
    pool: dict[str, Value] = {
        "device_capability": machine.call(machine.attribute(platform, "get_device_capability"), []),
        "head_size": 576 if latent else 128, "dtype": _BF16, "kv_cache_dtype": "auto", "block_size": None,
        "use_mla": latent, "has_sink": False, "use_sparse": False, "use_mm_prefix": False,
        "use_per_head_quant_scales": False, "attn_type": "decoder",
    }  # fmt: skip
    return {name: value for name, value in pool.items() if name in _parameters(method)}


def _receiver(method: Bound | Function) -> Value:
    return method.receiver if isinstance(method, Bound) else method.owner


def call_ranking(machine: Machine, module: str, name: str, scheme: Scheme) -> Value:
    """Call a function that ranks MoE backends."""
    weight, activation = experts_keys(machine, scheme)
    config = moe_config(machine, None)
    pool: dict[str, Value] = {
        "moe_config": config, "config": config, "weight_key": weight, "activation_key": activation,
    }  # fmt: skip
    return _called(machine, module, name, pool)[1]


def experts_keys(machine: Machine, scheme: Scheme) -> tuple[Value, Value]:
    """Upstream's names for the scheme of experts' weights and activations."""
    if scheme.weights is Number.INT4:
        return _key(machine, "kInt4Static"), None
    return _keys(machine, scheme)


# -- arguments -----------------------------------------------------------------------------------------------


def _keys(machine: Machine, scheme: Scheme) -> tuple[Value, Value]:
    """Upstream's names for the scheme's weights and activations."""
    match scheme.weights:
        case Number.NVFP4:
            weight, activation = "kNvfp4Static", "kNvfp4Dynamic"
        case Number.MXFP4:
            weight, activation = "kMxfp4Static", "kMxfp4Dynamic"
        case Number.MXFP8:
            weight, activation = "kMxfp8Static", "kMxfp8Dynamic"
        case Number.FP8 if scheme.scaling == "block":
            weight, activation = "kFp8Static128BlockSym", "kFp8Dynamic128Sym"
        case Number.FP8 if scheme.scaling == "channel":
            weight, activation = "kFp8StaticChannelSym", "kFp8DynamicTokenSym"
        case Number.FP8:
            static = scheme.activation_scaling == "static-tensor"
            weight, activation = "kFp8StaticTensorSym", "kFp8StaticTensorSym" if static else "kFp8DynamicTokenSym"
        case _:
            return None, None
    return _key(machine, weight), None if scheme.weight_only else _key(machine, activation)


def _key(machine: Machine, name: str) -> Value:
    value = machine.member(_KEYS, name)
    return value if value is not None else Unknown(f"the quantization key {name}", some=True)


def moe_config(machine: Machine, checkpoint: Checkpoint | None) -> Value:
    """A `FusedMoEConfig` of one GPU, with the checkpoint's sizes where they are known."""
    mixture = checkpoint.mixture if checkpoint else None
    hidden = (checkpoint.hidden_size if checkpoint else None) or 4096
    width = (mixture.width if mixture else None) or 1024
    experts = mixture.experts if mixture else 128
    parallel = _record(machine, _MOE_CONFIG, "FusedMoEParallelConfig", {
        **{f"{kind}_size": 1 for kind in ("tp", "pcp", "dp", "ep", "sp")},
        **{f"{kind}_rank": 0 for kind in ("tp", "pcp", "dp", "ep")},
        "use_ep": False, "all2all_backend": "allgather_reducescatter", "enable_eplb": False,
    })  # fmt: skip
    activation = _activation(machine, checkpoint)
    gated = not (isinstance(activation, Instance) and str(activation.attributes["value"]).endswith("_no_mul"))
    return _record(machine, _MOE_CONFIG, "FusedMoEConfig", {
        "num_experts": experts, "num_local_experts": experts, "num_logical_experts": experts,
        "experts_per_token": (mixture.chosen if mixture else None) or 8, "hidden_dim": hidden,
        "intermediate_size": width, "intermediate_size_per_partition": width,
        "hidden_dim_unpadded": hidden, "intermediate_size_per_partition_unpadded": width,
        "activation": activation, "device": "cuda", "in_dtype": _BF16, "router_logits_dtype": _BF16,
        "routing_method": _routing(machine, checkpoint), "moe_parallel_config": parallel,
        "moe_backend": machine.facts.settings.get("kernel_config.moe_backend", "auto"), "is_act_and_mul": gated,
        "swiglu_limit": mixture.limit if mixture else None, "max_num_tokens": 8192,
        "has_bias": bool(checkpoint and checkpoint.model_type == "gpt_oss"),
    })  # fmt: skip


_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu2": "relu2_no_mul",
}  # fmt: skip


def _activation(machine: Machine, checkpoint: Checkpoint | None) -> Value:
    name = checkpoint.activation if checkpoint else "silu"
    wanted = "swigluoai" if checkpoint and checkpoint.model_type == "gpt_oss" else _ACTIVATIONS.get(name, name)
    cls = machine.member("vllm.model_executor.layers.fused_moe.activation", "MoEActivation")
    found = members(machine, cls) if isinstance(cls, ClassValue) else []
    unknown = Unknown(f"the activation {wanted}", some=True)
    return next((item for item in found if item.attributes.get("value") == wanted), unknown)


def _routing(machine: Machine, checkpoint: Checkpoint | None) -> Value:
    family = checkpoint.model_type if checkpoint else ""
    wanted = "DeepSeekV3" if family.startswith(("deepseek", "nemotron_h", "glm4_moe", "kimi")) else "Renormalize"
    cls = machine.member(_MOE_CONFIG, "RoutingMethodType")
    found = members(machine, cls) if isinstance(cls, ClassValue) else []
    unknown = Unknown("the routing method", some=True)
    return next((item for item in found if item.attributes.get("name") == wanted), unknown)


def _mixed_config(machine: Machine, scheme: Scheme, shape: tuple[int, int]) -> Value:
    types = {(Number.INT4, True): "uint4b8", (Number.INT4, False): "uint4", (Number.INT8, True): "uint8b128"}
    name = types.get((scheme.weights, scheme.symmetric), "uint8")
    holder = machine.member("vllm.scalar_type", "scalar_types")
    return _record(machine, f"{_LINEAR}.mixed_precision.MPLinearKernel", "MPLinearLayerConfig", {
        "full_weight_shape": shape, "partition_weight_shape": shape, "weight_type": machine.attribute(holder, name),
        "act_type": _BF16, "group_size": scheme.block[0] if scheme.block else -1, "zero_points": not scheme.symmetric,
        "has_g_idx": scheme.note == "act-order", "out_type": _BF16,
    })  # fmt: skip


# -- calling -------------------------------------------------------------------------------------------------


def _record(machine: Machine, module: str, name: str, pool: dict[str, Value]) -> Value:
    """Make an object of a dataclass from what its version of the class has; the rest is default or Unknown."""
    cls = _class(machine, module, name)
    given: dict[str, Value] = {}
    for field, default, _ in fields(cls):
        if field in pool:
            given[field] = pool[field]
        elif default is None:
            given[field] = Unknown(f"{name}.{field}", some=True)
    return construct(machine, cls, [], given)


def _class(machine: Machine, module: str, name: str) -> ClassValue:
    value = machine.member(module, name)
    if not isinstance(value, ClassValue):
        raise StuckError(f"{module} has no class {name} that can be read")
    return value


def _function(machine: Machine, module: str, name: str) -> Function:
    value = machine.member(module, name)
    if not isinstance(value, Function):
        raise StuckError(f"{module} has no function {name} that can be read")
    return value


def _parameters(function: Function | Bound) -> set[str]:
    spec = (function.function if isinstance(function, Bound) else function).node.args
    return {item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}


def _called(machine: Machine, module: str, name: str, pool: dict[str, Value]) -> tuple[str, Value]:
    function = _function(machine, module, name)
    spec = function.node.args
    names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
    needed = set(names[: len(names) - len(spec.defaults)])
    given: dict[str, Value] = {}
    for parameter in _parameters(function):
        if parameter in pool:
            given[parameter] = pool[parameter]
        elif parameter in needed:
            given[parameter] = Unknown(f"the argument {parameter}", some=True)
    return f"{module}:{name}", machine.call(function, [], given)
