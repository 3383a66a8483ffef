"""The world outside upstream's source: the device, the configuration, the environment, installed packages, torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from sm121.audit.static.objects import field_default, fields
from sm121.audit.static.paths import UpstreamError
from sm121.audit.static.values import (
    Bag,
    Builtin,
    ClassValue,
    Instance,
    LoggerValue,
    Symbol,
    Unknown,
    Value,
    clip,
    shown,
)  # fmt: skip
from sm121.expressions import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sm121.audit.static.machine import Machine

_OUTSIDE = frozenset({
    "abc", "ast", "asyncio", "atexit", "base64", "builtins", "collections", "contextlib", "copy", "dataclasses",
    "datetime", "enum", "functools", "hashlib", "importlib", "inspect", "io", "itertools", "json", "logging", "math",
    "multiprocessing", "numpy", "operator", "os", "packaging", "pathlib", "platform", "pydantic", "random", "re",
    "requests", "shutil", "socket", "subprocess", "sys", "tempfile", "textwrap", "threading", "time", "torch",
    "traceback", "transformers", "triton", "types", "typing", "typing_extensions", "uuid", "warnings", "weakref",
    "compressed_tensors", "regex", "psutil", "huggingface_hub", "cloudpickle", "msgspec", "yaml",
})  # fmt: skip
_DTYPE = re.compile(r"(?:b?float|u?int|complex|q?u?int)\d\w*|bool|half|double|strided")
_SHORT = {
    "bfloat16": "bf16", "float16": "f16", "float32": "f32", "uint8": "u8", "int8": "i8", "int32": "i32",
    "float8_e4m3fn": "f8e4m3fn", "float8_e8m0fnu": "f8e8m0", "float4_e2m1fn_x2": "f4e2m1fnx2",
}  # fmt: skip


class DeviceCapability(NamedTuple):
    """Stands in for `vllm.platforms.interface.DeviceCapability`."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Environment:
    """`os.environ`: the variables that are set; all others are taken as not set."""

    variables: Mapping[str, str]

    def has(self, name: str) -> bool:
        return name in self.variables

    def __getitem__(self, name: str) -> str:
        return self.variables[name]


def known_outside(top: str) -> bool:
    """Whether a top-level module is surely there, though its source is not read."""
    return top in _OUTSIDE


# -- what vLLM's modules hold that is not to be evaluated -----------------------------------------------------


def special(machine: Machine, module: str, name: str) -> Value:
    """Objects of vLLM that stand for the device, the configuration and the log; None for all others."""
    if name == "current_platform" and module == "vllm.platforms":
        return _platform(machine)
    if name == "init_logger" and module.startswith("vllm."):
        return Builtin(name, lambda _args, _kwargs: LoggerValue())
    if name in {"get_current_vllm_config", "get_current_vllm_config_or_none"}:
        return Builtin(name, lambda _args, _kwargs: _config(machine))
    if name == "DeviceCapability" and module == "vllm.platforms.interface":
        return Builtin(name, lambda args, kwargs: DeviceCapability(*args, **kwargs))
    if name == "import_pynvml":
        return Builtin(name, lambda _args, _kwargs: Unknown("pynvml", some=True))
    return None


def _platform(machine: Machine) -> Value:
    for name in ("NvmlCudaPlatform", "CudaPlatformBase"):
        cls = machine.member("vllm.platforms.cuda", name)
        if isinstance(cls, ClassValue):
            break
    else:
        return Unknown("the CUDA platform", some=True)
    capability = DeviceCapability(machine.facts.capability.major, machine.facts.capability.minor)
    # Calls on the object and on its class ask the same device.
    for item in cls.lineage():
        item.extra["get_device_capability"] = Builtin("get_device_capability", lambda _args, _kwargs: capability)
    return Instance(cls)


def _config(machine: Machine) -> Bag:
    return Bag("vllm_config", dict(machine.facts.settings))


def setting(machine: Machine, bag: Bag, name: str) -> Value:
    """An attribute of vLLM's configuration: as given, else the default that its class states, else Unknown."""
    if name in bag.attributes:
        return bag.attributes[name]
    inner = {key[len(name) + 1 :]: value for key, value in bag.attributes.items() if key.startswith(f"{name}.")}
    full = f"{bag.name}.{name}"
    if inner or name.endswith("_config"):
        return Bag(full, inner)
    part = bag.name.rpartition(".")[2].removesuffix("_config")
    cls = machine.member(f"vllm.config.{part}", f"{part.title().replace('_', '')}Config")
    if isinstance(cls, ClassValue):
        for field, default, frame in fields(cls):
            if field == name and default is not None:
                return field_default(machine, default, frame)
    return Unknown(full)


# -- attributes and calls of what lies outside ----------------------------------------------------------------


def outside(machine: Machine, value: Unknown, name: str) -> Value:
    """An attribute of a module or object whose source is not read."""
    full = f"{value.text}.{name}"
    modelled = machine.library.get(full)
    if modelled is not None:
        return modelled
    if value.text == "torch" and _DTYPE.fullmatch(name):
        return Symbol(full)
    if value.text in _OUTSIDE or value.text.split(".", 1)[0] in _OUTSIDE:
        return Unknown(full, some=True)
    return Unknown(clip(full))


def called(target: Unknown, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of something whose source is not read."""
    inner = ", ".join(
        [*(shown(item) for item in args), *(f"{name}={shown(item)}" for name, item in kwargs.items())]
    )
    if target.text.rsplit(".", 1)[-1] in {"cast", "TypeVar", "ParamSpec"} and args:
        return args[-1]
    return Unknown(clip(f"{target.text}({inner})"))


def library(machine: Machine) -> dict[str, Value]:
    """What is modelled of the standard library and of torch, by dotted name."""
    facts = machine.facts
    made: dict[str, Value] = {
        "os.environ": Environment(facts.environment),
        "os.getenv": _function(lambda name, default=None: facts.environment.get(name, default)),
        "os.path.join": _function(_joined),
        "os.path.dirname": _function(lambda path: path.rpartition("/")[0] if isinstance(path, str) else path),
        "os.path.exists": _function(lambda path: machine.decide(f"the path {shown(path)} exists")),
        "shutil.which": _function(lambda name: _which(machine, name)),
        "importlib.util.find_spec": _function(lambda name: _spec(machine, name)),
        "importlib.import_module": _function(lambda name: _imported(machine, name)),
        "importlib.metadata.version": _function(lambda name: _version_of(machine, name)),
        "packaging.version.Version": _function(_version),
        "packaging.version.parse": _function(_version),
        "math.gcd": _function(_gcd),
        "enum.auto": _function(lambda: Unknown("auto()", some=True)),
        "platform.machine": _function(lambda: "aarch64"),
        "platform.uname": _function(lambda: ("Linux", "host", "6", "", "aarch64", "")),
        "re.findall": _function(_findall),
        "torch.device": _function(
            lambda *which: Bag("torch.device", {"type": shown(which[0]).partition(":")[0]})
        ),
        "requests.get": _function(lambda address, **_options: _asked(machine, address)),
        "sys.platform": "linux",
        "typing.TYPE_CHECKING": False,
        "torch.version.hip": None,
        "torch.cuda.is_available": _function(lambda: True),
        "torch.cuda.device_count": _function(lambda: 1),
        "torch.cuda.current_device": _function(lambda: 0),
        "torch.cuda.get_device_capability": _function(
            lambda *_device, **_named: (facts.capability.major, facts.capability.minor)
        ),
        "torch.compiler.is_compiling": _function(lambda: False),
        "torch.fx.graph.dtype_abbrs": {Symbol(f"torch.{name}"): short for name, short in _SHORT.items()},
    }
    if facts.cuda is not None:
        made["torch.version.cuda"] = str(facts.cuda.release)
    return made


def _function(action: Callable[..., Value]) -> Builtin:
    def call(args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            return action(*args, **kwargs)
        except TypeError as error:
            raise UpstreamError("TypeError", str(error)) from error

    return Builtin("a library function", call)


def _findall(pattern: Value, text: Value, *_flags: Value) -> Value:
    expression = compiled(pattern) if isinstance(pattern, str) else None
    if expression is None or not isinstance(text, str) or len(text) > 10_000:
        return Unknown(clip(f"re.findall({shown(pattern)}, {shown(text)})"))
    return expression.findall(text)


def _asked(machine: Machine, address: Value) -> Value:
    """Some versions choose by whether a server of NVIDIA's answers."""
    host = shown(address).removeprefix("https://").partition("/")[0]
    if machine.decide(f"{host} can be reached from the machine"):
        return Bag("the response", {"status_code": 200, "ok": True})
    raise UpstreamError("ConnectionError", host)


def _gcd(*numbers: Value) -> Value:
    return math.gcd(*numbers) if all(isinstance(item, int) for item in numbers) else Unknown("a common divisor")


def _joined(*parts: Value) -> Value:
    known = all(isinstance(item, str) for item in parts)
    return "/".join(parts) if known else Unknown("/".join(shown(item) for item in parts), some=True)


def _which(machine: Machine, name: Value) -> Value:
    program = shown(name).rpartition("/")[2]
    if program in machine.tree.programs:
        return f"/usr/local/bin/{program}"
    question = f"the program {program} is on the machine"
    if machine.tree.complete and question not in machine.facts.answers:
        return None
    return f"/usr/local/bin/{program}" if machine.decide(question) else None


def _spec(machine: Machine, name: Value) -> Value:
    try:
        found = _imported(machine, name)
    except UpstreamError:
        return None
    return Unknown(f"the spec of {shown(found)}", some=True)


def _imported(machine: Machine, name: Value) -> Value:
    if not isinstance(name, str):
        return Unknown(f"the module {shown(name)}", some=True)
    return machine.module(name)


def _version_of(machine: Machine, name: Value) -> Value:
    distribution = re.sub(r"[-_.]+", "-", shown(name)).lower()
    known = machine.tree.distributions.get(distribution)
    if known:
        return known
    required = machine.tree.required.get(distribution, "")
    if required.startswith("==") and "," not in required:
        return required[2:]
    if machine.tree.complete:
        raise UpstreamError("PackageNotFoundError", distribution)
    return Unknown(f"the version of {distribution}", some=True)


def _version(text: Value) -> Value:
    if not isinstance(text, str):
        return Unknown(f"the version {shown(text)}", some=True)
    try:
        return Version(text)
    except ValueError as error:
        raise UpstreamError("InvalidVersion", text) from error
