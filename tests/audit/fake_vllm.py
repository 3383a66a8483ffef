"""A very small package that is laid out and behaves like vLLM's selection code; written for these tests."""

from __future__ import annotations

from textwrap import dedent

from sm121.audit.source import SourceTree

FILES = {
    "vllm": "",
    "vllm.platforms": "",
    "vllm.platforms.interface": """
        from enum import Enum, auto
        class PlatformEnum(Enum):
            CUDA = auto()
            CPU = auto()
        class Platform:
            _enum: PlatformEnum
            device_name: str = "unknown"
            def is_cuda(self): return self._enum == PlatformEnum.CUDA
            @classmethod
            def get_device_capability(cls): return None
            @classmethod
            def has_device_capability(cls, number):
                found = cls.get_device_capability()
                return found is not None and found.to_int() >= number
            @classmethod
            def is_device_capability_family(cls, number):
                return cls.get_device_capability().to_int() // 10 == number // 10
    """,
    "vllm.platforms.cuda": """
        from functools import cache
        from .interface import Platform, PlatformEnum
        from vllm.logger import init_logger
        from vllm.v1.attention.backends.registry import AttentionBackendEnum
        logger = init_logger(__name__)
        @cache
        def _get_backend_priorities(use_mla, device_capability):
            if use_mla:
                return [AttentionBackendEnum.MLA]
            if device_capability.major == 10:
                return [AttentionBackendEnum.FLASHINFER, AttentionBackendEnum.FLASH_ATTN]
            return [AttentionBackendEnum.FLASH_ATTN, AttentionBackendEnum.FLASHINFER]
        class CudaPlatformBase(Platform):
            _enum = PlatformEnum.CUDA
            device_name = "cuda"
            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config):
                capability = cls.get_device_capability()
                for backend in _get_backend_priorities(attn_selector_config.use_mla, capability):
                    kernel = backend.get_class()
                    if not kernel.validate_configuration(capability, attn_selector_config.head_size):
                        logger.info_once("Using %s attention backend out of potential backends: %s.", backend.name, [])
                        return backend.value
                raise ValueError("none")
    """,
    "vllm.utils.flashinfer": """
        import functools, importlib.util, shutil
        import vllm.envs as envs
        from vllm.logger import init_logger
        logger = init_logger(__name__)
        @functools.cache
        def has_flashinfer():
            if importlib.util.find_spec("flashinfer") is None:
                return False
            if envs.VLLM_HAS_CUBIN or shutil.which("nvcc"):
                return True
            logger.warning_once("FlashInfer is off")
            return False
    """,
    "vllm.utils.import_utils": """
        import importlib
        def resolve_obj_by_qualname(name):
            module, _, last = name.rpartition(".")
            return getattr(importlib.import_module(module), last)
    """,
    "vllm.logger": "def init_logger(name): ...",
    "vllm.envs": """
        import os
        environment_variables = {
            "VLLM_HAS_CUBIN": lambda: bool(int(os.getenv("VLLM_HAS_CUBIN", "0"))),
            "VLLM_DISABLED_KERNELS": lambda: [] if "VLLM_DISABLED_KERNELS" not in os.environ
                else os.environ["VLLM_DISABLED_KERNELS"].split(","),
        }
        def __getattr__(name):
            if name in environment_variables:
                return environment_variables[name]()
            raise AttributeError(name)
    """,
    "vllm.config.kernel": """
        from typing import Literal
        MoEBackend = Literal["auto", "cutlass", "marlin"]
        LinearBackend = Literal["auto", "marlin"]
        class KernelConfig:
            linear_backend: LinearBackend = "auto"
    """,
    "vllm.model_executor.layers.quantization.utils.quant_utils": """
        from dataclasses import dataclass
        import torch
        @dataclass(frozen=True)
        class QuantKey:
            dtype: torch.dtype
            static: bool
        kNvfp4Static = QuantKey(torch.uint8, True)
        kNvfp4Dynamic = QuantKey(torch.uint8, False)
    """,
    "vllm.model_executor.kernels.linear": """
        import torch
        import vllm.envs as envs
        from vllm.logger import init_logger
        from vllm.platforms import current_platform
        from vllm.platforms.interface import PlatformEnum
        from vllm.utils.flashinfer import has_flashinfer
        logger = init_logger(__name__)
        class Base:
            def __init__(self, config):
                assert self.can_implement(config)[0]
            @classmethod
            def can_implement(cls, config): return True, None
        class BlackwellKernel(Base):
            @classmethod
            def is_supported(cls, compute_capability=None):
                if not current_platform.is_device_capability_family(100):
                    return False, "requires sm_10x"
                return True, None
        class FlashInferKernel(Base):
            @classmethod
            def is_supported(cls, compute_capability=None):
                if current_platform.has_device_capability(100) and has_flashinfer():
                    return True, None
                return False, "FlashInfer required"
        class CutlassNvFp4LinearKernel(Base):
            @classmethod
            def is_supported(cls, compute_capability=None):
                if torch.ops._C.cutlass_scaled_mm_supports_fp4(121):
                    return True, None
                return False, "not compiled in"
        class MarlinNvFp4LinearKernel(Base):
            @classmethod
            def is_supported(cls, compute_capability=None): return True, None
        _POSSIBLE_NVFP4_KERNELS = {
            PlatformEnum.CUDA: [BlackwellKernel, FlashInferKernel, CutlassNvFp4LinearKernel, MarlinNvFp4LinearKernel],
            PlatformEnum.CPU: [],
        }
        def init_nvfp4_linear_kernel(use_a16=False):
            kernels = list(_POSSIBLE_NVFP4_KERNELS.get(current_platform._enum, []))
            if use_a16:
                kernels = [MarlinNvFp4LinearKernel]
            reasons = []
            for kernel in kernels:
                if kernel.__name__ in envs.VLLM_DISABLED_KERNELS:
                    reasons.append(f"{kernel.__name__} disabled")
                    continue
                supported, reason = kernel.is_supported()
                if not supported:
                    reasons.append(f"{kernel.__name__}: {reason}")
                    continue
                logger.info_once("Using %s for NVFP4 GEMM", kernel.__name__)
                return kernel({})
            raise ValueError("none: " + "; ".join(reasons))
    """,
    "vllm.model_executor.layers.fused_moe.activation": """
        from enum import Enum
        class MoEActivation(Enum):
            SILU = "silu"
            RELU2_NO_MUL = "relu2_no_mul"
    """,
    "vllm.model_executor.layers.fused_moe.config": """
        from dataclasses import dataclass, field
        from enum import IntEnum
        class RoutingMethodType(IntEnum):
            Renormalize = 1
            DeepSeekV3 = 2
        @dataclass
        class FusedMoEParallelConfig:
            tp_size: int
            use_ep: bool
        @dataclass
        class FusedMoEConfig:
            num_experts: int
            hidden_dim: int
            activation: object
            moe_parallel_config: FusedMoEParallelConfig
            new_in_this_version: int
            moe_backend: str = "auto"
            swiglu_limit: float | None = None
            history: list = field(default_factory=list)
            half: int = field(default=-1, init=False)
            def __post_init__(self):
                self.half = self.hidden_dim // 2
    """,
    "vllm.model_executor.layers.fused_moe.modular_kernel": """
        from enum import Enum
        from vllm.platforms import current_platform
        class FusedMoEActivationFormat(Enum):
            Standard = ("standard",)
        class FusedMoEExperts:
            @staticmethod
            def is_supported_config(cls, moe_config, weight_key, activation_key, activation_format):
                if not cls._supports_current_device():
                    return False, f"kernel does not support current device {current_platform.device_name}"
                if not cls._supports_quant_scheme(weight_key, activation_key):
                    return False, f"kernel does not support {weight_key}x{activation_key}"
                return True, None
    """,
    "vllm.model_executor.layers.fused_moe.oracle": "",
    "vllm.model_executor.layers.fused_moe.oracle.nvfp4": """
        from enum import Enum
        import vllm.model_executor.layers.fused_moe.modular_kernel as mk
        from vllm.logger import init_logger
        from vllm.model_executor.layers.quantization.utils.quant_utils import kNvfp4Dynamic, kNvfp4Static
        from vllm.platforms import current_platform
        from vllm.utils.flashinfer import has_flashinfer
        logger = init_logger(__name__)
        class NvFp4MoeBackend(Enum):
            FLASHINFER_CUTLASS = "FLASHINFER_CUTLASS"
            VLLM_CUTLASS = "VLLM_CUTLASS"
            MARLIN = "MARLIN"
            B12X = "B12X"
        class FlashInferExperts(mk.FusedMoEExperts):
            @staticmethod
            def _supports_current_device():
                return current_platform.is_device_capability_family(120) and has_flashinfer()
            @staticmethod
            def _supports_quant_scheme(weight_key, activation_key):
                return (weight_key, activation_key) == (kNvfp4Static, kNvfp4Dynamic)
        class CutlassExpertsFp4(FlashInferExperts):
            @staticmethod
            def _supports_current_device(): return True
        class MarlinExperts(CutlassExpertsFp4):
            @staticmethod
            def _supports_quant_scheme(weight_key, activation_key):
                return weight_key in [kNvfp4Static] and activation_key is None
        class B12xExperts(CutlassExpertsFp4):
            @staticmethod
            def _supports_current_device():
                try:
                    import b12x
                except ImportError:
                    return False
                return b12x.is_supported()
        def backend_to_kernel_cls(backend):
            if backend == NvFp4MoeBackend.FLASHINFER_CUTLASS:
                return [FlashInferExperts]
            elif backend == NvFp4MoeBackend.VLLM_CUTLASS:
                return [CutlassExpertsFp4]
            elif backend == NvFp4MoeBackend.B12X:
                return [B12xExperts]
            return [MarlinExperts]
        def select_nvfp4_moe_backend(config, weight_key, activation_key):
            AVAILABLE_BACKENDS = [
                NvFp4MoeBackend.FLASHINFER_CUTLASS,
                NvFp4MoeBackend.VLLM_CUTLASS,
                NvFp4MoeBackend.MARLIN,
            ]
            def attempt(backend):
                for k_cls in backend_to_kernel_cls(backend):
                    supported, reason = k_cls.is_supported_config(
                        k_cls, config, weight_key, activation_key, mk.FusedMoEActivationFormat.Standard
                    )
                    if supported:
                        values = [b.value for b in AVAILABLE_BACKENDS]
                        logger.info_once(f"Using '{backend.value}' NvFp4 MoE backend out of potential backends: {values}.")
                        return backend, k_cls
                return None
            if config.moe_backend != "auto":
                mapping = {"b12x": NvFp4MoeBackend.B12X, "marlin": NvFp4MoeBackend.MARLIN}
                if backend := mapping.get(config.moe_backend):
                    if found := attempt(backend):
                        return found
                    raise ValueError(f"{backend.value} does not serve")
                raise ValueError(f"moe_backend={config.moe_backend!r} is not supported")
            for backend in AVAILABLE_BACKENDS:
                if found := attempt(backend):
                    return found
            raise NotImplementedError("No NvFp4 MoE backend")
    """,
    "vllm.v1.attention.selector": """
        from typing import NamedTuple
        class AttentionSelectorConfig(NamedTuple):
            head_size: int
            dtype: object
            use_mla: bool = False
    """,
    "vllm.v1.attention.backends.registry": """
        from enum import Enum
        from vllm.utils.import_utils import resolve_obj_by_qualname
        class AttentionBackendEnum(Enum):
            FLASH_ATTN = "vllm.v1.attention.backends.all.FlashAttentionBackend"
            FLASHINFER = "vllm.v1.attention.backends.all.FlashInferBackend"
            MLA = "vllm.v1.attention.backends.all.MlaBackend"
            def get_class(self): return resolve_obj_by_qualname(self.value)
    """,
    "vllm.v1.attention.backends.all": """
        class Backend:
            @classmethod
            def is_mla(cls): return False
            @classmethod
            def supports(cls, capability): return capability.major >= 8
            @classmethod
            def validate_configuration(cls, device_capability, head_size):
                reasons = []
                if not cls.supports(device_capability):
                    reasons.append("compute capability not supported")
                if head_size % 8:
                    reasons.append("head_size not supported")
                return reasons
        class FlashAttentionBackend(Backend): pass
        class FlashInferBackend(Backend): pass
        class MlaBackend(Backend):
            @classmethod
            def is_mla(cls): return True
            @classmethod
            def supports(cls, capability): return capability >= (10, 0) and capability.to_int() < 120
    """,
}


def fake_tree(
    changes: dict[str, str] | None = None, *, version: str = "9.9.9", required: dict[str, str] | None = None,
    complete: bool = False, packages: tuple[str, ...] = (),
) -> SourceTree:  # fmt: skip
    """The package, with some modules replaced."""
    files = {**FILES, **(changes or {})}
    return SourceTree(
        ("fake",),
        {name: dedent(text).encode() for name, text in files.items()},
        {"vllm": version},
        {"flashinfer-python": "==0.7.2"} if required is None else required,
        frozenset({"vllm", *packages}),
        complete,
    )


def module_tree(**modules: str) -> SourceTree:
    """A tree of a few modules below `vllm`, without the rest."""
    return SourceTree(("fake",), {f"vllm.{name}": dedent(text).encode() for name, text in modules.items()})
