"""Stand-ins for the packages that FlashInfer imports while it writes down its build commands.

FlashInfer's scripts import torch and tvm_ffi, and ask them for names of data types, a few versions and two
folders. The real torch takes 3 GB of libraries, and for another CPU it cannot be imported at all. What is asked
is answered here; whatever else is asked of a stand-in is an error that names it, never a guess.

Runs in an interpreter of its own (`generate.py`), so it imports the standard library only.
"""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip
"""Bytes of each data type of torch that a kernel can be made for."""


@dataclass(frozen=True, slots=True)
class DType:
    """A data type: compared and printed as torch's own."""

    name: str
    itemsize: int

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class TorchVersion(str):
    """torch's version, compared by its numbers as torch does."""

    __slots__ = ()

    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", self.partition("+")[0])[:3])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self._numbers() == TorchVersion(other)._numbers()

    # A string has all comparisons of its own: each one is replaced.
    def __lt__(self, other: str) -> bool:
        return self._numbers() < TorchVersion(other)._numbers()

    def __le__(self, other: str) -> bool:
        return self._numbers() <= TorchVersion(other)._numbers()

    def __gt__(self, other: str) -> bool:
        return self._numbers() > TorchVersion(other)._numbers()

    def __ge__(self, other: str) -> bool:
        return self._numbers() >= TorchVersion(other)._numbers()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._numbers())


class ProgramStarted(Exception):  # noqa: N818 -- named after what happened
    """Upstream's scripts wanted to start a program that is not known to be needless."""


class _Process:
    """A program that was not started: it printed nothing and ended well."""

    returncode = 0

    def communicate(self, *_arguments: object) -> tuple[bytes, bytes]:
        return b"", b""


def programs(cuda: str) -> types.ModuleType:
    """A stand-in for subprocess: writing down build commands starts no program.

    Upstream asks nvcc for its release, which is known. For FMHA v2 it compiles and runs a program on the build
    machine, with whatever nvcc it finds, to fill a header that no source includes (`fmha_cubin.h`); that one is
    left empty.
    """

    def words(command: object) -> list[str]:
        return [command] if isinstance(command, str) else [str(word) for word in command]  # type: ignore[attr-defined]

    def check_output(command: object, **_options: object) -> str:
        if words(command)[0].endswith("/nvcc") and words(command)[1:] == ["--version"]:
            return f"Cuda compilation tools, release {cuda}, V{cuda}"
        raise ProgramStarted(" ".join(words(command)))

    def popen(command: object, **_options: object) -> _Process:
        if words(command)[-1].rpartition("/")[2] in {"print_kernel_traits.cu", "print_traits.exe"}:
            return _Process()
        raise ProgramStarted(" ".join(words(command)))

    def run(command: object, **_options: object) -> types.SimpleNamespace:
        if words(command)[1:] == ["--list-gpu-arch"]:
            return types.SimpleNamespace(
                returncode=0, stdout=""
            )  # asked for the sake of 10.7, which is no target of ours
        raise ProgramStarted(" ".join(words(command)))

    module = types.ModuleType("subprocess")
    for name, value in {
        "check_output": check_output, "Popen": popen, "run": run, "PIPE": -1, "STDOUT": -2, "DEVNULL": -3,
        "CalledProcessError": RuntimeError, "TimeoutExpired": TimeoutError,
        "CompletedProcess": types.SimpleNamespace,
    }.items():  # fmt: skip
        setattr(module, name, value)
    return module


class _FileLock:
    """filelock.FileLock where one process writes: nothing to wait for."""

    def __init__(self, path: object, **_options: object) -> None:
        self.path = path

    def __enter__(self) -> _FileLock:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


class _Placeholder:
    """A class that annotations and decorators name and no generator makes an object of."""

    def __class_getitem__(cls, _item: object) -> type[_Placeholder]:
        return cls


def _torch_folders(**_options: object) -> list[str]:
    return [TORCH_FOLDER]


def _no_device() -> int:
    return 0


def _decorator(*arguments: Any, **_options: Any) -> Any:
    """A decorator of functions that run on a GPU: it leaves them as they are."""
    if len(arguments) == 1 and callable(arguments[0]):
        return arguments[0]
    return lambda function: function


def install(*, torch: str, cuda: str, cuda_home: str, tvm_ffi: Path) -> None:
    """Put the stand-ins into `sys.modules`.

    `torch` and `cuda` are the versions that code will meet when it runs, `tvm_ffi` the unpacked package of the target.
    """
    numbers: dict[str, object] = {name: DType(name, size) for name, size in _SIZES.items()}
    graph = type(
        "CUDAGraph", (_Placeholder,), dict.fromkeys(("capture_begin", "capture_end", "replay"), _decorator)
    )
    _module(
        "torch",
        {
            **numbers, "dtype": DType, "Tensor": _Placeholder, "device": _Placeholder, "Generator": _Placeholder,
            "__version__": torch, "compile": _decorator, "no_grad": _decorator, "inference_mode": _decorator,
        },
    )  # fmt: skip
    _module(
        "torch.cuda",
        {
            "CUDAGraph": graph, "Stream": _Placeholder, "Event": _Placeholder, "device_count": _no_device,
            "is_available": lambda: False,
        },
    )  # fmt: skip
    _module("torch._C", {"_GLIBCXX_USE_CXX11_ABI": True})
    _module("torch.version", {"cuda": cuda, "__version__": torch})
    _module("torch.torch_version", {"TorchVersion": TorchVersion, "__version__": torch})
    _module("torch.nn", {"Module": _Placeholder})
    _module("torch.library", {"custom_op": _decorator, "register_fake": _decorator})
    _module("torch.utils", {})
    _module(
        "torch.utils.cpp_extension",
        {
            "CUDA_HOME": cuda_home, "get_cxx_compiler": lambda: "c++",
            "include_paths": _torch_folders, "library_paths": _torch_folders,
            "check_compiler_is_gcc": lambda compiler: "g++" in str(compiler) or "gcc" in str(compiler),
        },
    )  # fmt: skip
    _module("tvm_ffi", {"Module": _Placeholder, "Function": _Placeholder, "register_global_func": _decorator})
    _module("tvm_ffi.cpp", {"ToolchainConfig": _Placeholder})
    _module(
        "tvm_ffi.libinfo",
        {
            "find_include_path": lambda: str(tvm_ffi / "include"),
            "find_dlpack_include_path": lambda: str(tvm_ffi / "include"),
        },
    )  # fmt: skip
    _module("filelock", {"FileLock": _FileLock})
    for absent in ("requests", "pynvml", "tqdm", "numpy", "triton"):
        _module(absent, {})


def _module(name: str, content: Mapping[str, object]) -> None:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(content)
    module.__dict__["__getattr__"] = _refusal(name)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def _refusal(module: str) -> Callable[[str], object]:
    def refuse(name: str) -> object:
        if not name.startswith("__"):
            ASKED.append(f"{module}.{name}")
        raise AttributeError(f"FlashInfer asks for {module}.{name}, which no stand-in answers")

    return refuse


TORCH_FOLDER = "/torch"
"""Where a module that links torch would look for it. Such a module is tied to one build of torch and is not
compiled here."""

ASKED: list[str] = []
"""What was asked of a stand-in and had no answer; FlashInfer may have caught the error."""
