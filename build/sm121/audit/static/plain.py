"""Python's own functions, and methods of its own types, as far as selection code uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.audit.static.expressions import contains, iterate, text_of
from sm121.audit.static.natives import DeviceCapability, Environment
from sm121.audit.static.paths import UpstreamError
from sm121.audit.static.values import Bound, Builtin, ClassValue, Function, Instance, Unknown, Value, clip, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm121.audit.static.machine import Machine

_TYPES: dict[str, type] = {
    "int": int, "str": str, "float": float, "bool": bool, "list": list, "tuple": tuple, "dict": dict, "set": set,
    "bytes": bytes, "frozenset": frozenset,
}  # fmt: skip
# Methods that are called as they are: none of them can make something large out of something small.
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (list, frozenset({"append", "extend", "insert", "remove", "index", "pop", "copy", "count", "reverse", "clear"})),
    (dict, frozenset({"get", "items", "keys", "values", "setdefault", "update", "pop", "copy"})),
    ((set, frozenset), frozenset({"add", "update", "union", "discard", "remove", "copy", "issubset", "difference"})),
    (tuple, frozenset({"index", "count"})),
    (str, frozenset({
        "lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "removeprefix",
        "removesuffix", "isdigit", "partition", "rpartition", "splitlines", "find", "title", "capitalize", "count",
        "index",
    })),
)  # fmt: skip
_OF_VERSION = frozenset({"public", "major", "minor", "micro", "release", "base_version", "local"})


def method(machine: Machine, value: Value, name: str) -> Value:
    """An attribute of a plain Python value. Raises UpstreamError("AttributeError") where there is none."""
    if isinstance(value, DeviceCapability | Environment | Version):
        return _of_stand_in(value, name)
    own: dict[str, Callable[..., Value]] = {"__contains__": lambda item: contains(machine, value, item)}
    if isinstance(value, str):
        own["join"] = lambda items: _join(machine, value, items)
        own["format"] = lambda *_args, **_kwargs: value
        own["replace"] = lambda old, new, *_count: _replaced(value, old, new)
    if isinstance(value, list):
        own["sort"] = lambda **kwargs: value.sort(key=_key(machine, kwargs.get("key")))
    if name in own:
        return _builtin(name, own[name])
    if any(isinstance(value, kind) and name in names for kind, names in _METHODS):
        return Builtin(name, lambda args, kwargs: _plain(value, name, args, kwargs))
    if value is None or isinstance(value, int | float | str | list | dict | tuple | set):
        raise UpstreamError("AttributeError", f"{type(value).__name__} has no attribute {name!r}")
    return Unknown(clip(f"{shown(value)}.{name}"))


def _of_stand_in(value: DeviceCapability | Environment | Version, name: str) -> Value:
    if isinstance(value, Version):
        return getattr(value, name) if name in _OF_VERSION else Unknown(f"{value}.{name}")
    if isinstance(value, Environment):
        known: dict[str, Value] = {
            "get": _builtin(name, lambda key, default=None: value.variables.get(key, default)),
            "copy": _builtin(name, lambda: dict(value.variables)),
        }
        return known.get(name, Unknown(f"os.environ.{name}"))
    known = {
        "major": value.major, "minor": value.minor,
        "to_int": _builtin(name, lambda: value.major * 10 + value.minor),
        "as_version_str": _builtin(name, lambda: f"{value.major}.{value.minor}"),
    }  # fmt: skip
    return known.get(name, Unknown(f"the capability's {name}"))


def _plain(value: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    unknown = next((item for item in args if isinstance(item, Unknown)), None)
    if unknown is not None and (isinstance(value, str) or name == "get"):
        return Unknown(clip(f"{shown(value)}.{name}({unknown.text})"))
    try:
        return getattr(value, name)(*args, **kwargs)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise UpstreamError(type(error).__name__, str(error)) from error


def _join(machine: Machine, value: str, items: Value) -> Value:
    if isinstance(items, Unknown):
        return Unknown(clip(f"{value!r}.join({items.text})"))
    return value.join(shown(item) for item in iterate(machine, items))


def _replaced(value: str, old: Value, new: Value) -> Value:
    if isinstance(old, str) and old and isinstance(new, str) and len(value) * max(len(new), 1) < 1 << 20:
        return value.replace(old, new)
    return Unknown(clip(f"{value!r}.replace({shown(old)}, {shown(new)})"))


def builtins(machine: Machine) -> dict[str, Value]:
    """Python's own functions by name."""

    def items(value: Value) -> list[Value]:
        return iterate(machine, value)

    actions: dict[str, Callable[..., Value]] = {
        "len": lambda value: value.of(" (length)") if isinstance(value, Unknown) else len(items(value)),
        "isinstance": _isinstance,
        "issubclass": _issubclass,
        "hasattr": lambda value, name: _hasattr(machine, value, shown(name)),
        "getattr": lambda value, name, *default: _getattr(machine, value, shown(name), default),
        "setattr": _setattr,
        "callable": _callable,
        "any": lambda value: any(machine.truth(item) for item in items(value)),
        "all": lambda value: all(machine.truth(item) for item in items(value)),
        "bool": lambda value=False: machine.truth(value),
        "str": lambda value="": text_of(machine, value),
        "repr": shown,
        "int": lambda value=0, *_base: _number(int, value),
        "float": lambda value=0.0: _number(float, value),
        "list": lambda value=(): list(items(value)),
        "tuple": lambda value=(): tuple(items(value)),
        "set": lambda value=(): set(items(value)),
        "frozenset": lambda value=(): frozenset(items(value)),
        "dict": lambda value=None, **kwargs: {**(value if isinstance(value, dict) else {}), **kwargs},
        "enumerate": lambda value, start=0: list(enumerate(items(value), start)),
        "zip": lambda *values, **_strict: list(zip(*(items(value) for value in values), strict=False)),
        "range": lambda *ends: range(*ends) if all(isinstance(end, int) for end in ends) else Unknown("a range"),
        "reversed": lambda value: list(reversed(items(value))),
        "sorted": lambda value, key=None, reverse=False: sorted(
            items(value), key=_key(machine, key), reverse=reverse
        ),
        "min": lambda *values, **kwargs: _extreme(machine, min, values, kwargs),
        "max": lambda *values, **kwargs: _extreme(machine, max, values, kwargs),
        "sum": lambda value: sum(items(value)),
        "abs": lambda value: abs(value) if isinstance(value, int | float) else Unknown("an absolute value"),
        "next": lambda value, *default: _next(machine, value, default),
        "iter": lambda value: value,
        "type": lambda value: (
            value.cls if isinstance(value, Instance) else Unknown(f"type({shown(value)})", some=True)
        ),
        "map": lambda function, value: [machine.call(function, [item]) for item in items(value)],
        "filter": lambda function, value: [
            item for item in items(value) if machine.truth(machine.call(function, [item]))
        ],
        "print": lambda *_args, **_kwargs: None,
        "cast": lambda _kind, value: value,
        "object": lambda: Unknown("an object", some=True),
    }
    return {"TYPE_CHECKING": False, **{name: _builtin(name, action) for name, action in actions.items()}}


def _builtin(name: str, action: Callable[..., Value]) -> Builtin:
    def call(args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            return action(*args, **kwargs)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise UpstreamError(type(error).__name__, str(error)) from error

    return Builtin(name, call)


def _key(machine: Machine, function: Value) -> Callable[[Value], Value]:
    return (lambda item: item) if function is None else lambda item: machine.call(function, [item])


def _extreme(
    machine: Machine, pick: Callable[..., Value], values: tuple[Value, ...], kwargs: dict[str, Value]
) -> Value:
    found = iterate(machine, values[0]) if len(values) == 1 else list(values)
    unknown = next((item for item in found if isinstance(item, Unknown)), None)
    if unknown is not None:
        return Unknown(f"{pick.__name__} of {unknown.text}")
    if not found and "default" in kwargs:
        return kwargs["default"]
    return pick(found, key=_key(machine, kwargs.get("key")))


def _next(machine: Machine, value: Value, default: tuple[Value, ...]) -> Value:
    found = iterate(machine, value)
    if found:
        return found[0]
    if default:
        return default[0]
    raise UpstreamError("StopIteration")


def _number(kind: type[int] | type[float], value: Value) -> Value:
    if isinstance(value, Unknown):
        return Unknown(f"{kind.__name__}({value.text})")
    if isinstance(value, str) and len(value) > 400:
        raise UpstreamError("ValueError", "a number of too many digits")
    return kind(value)


def _any_of(results: list[Value]) -> Value:
    """True if one is, else the first that is not known, else False."""
    if any(result is True for result in results):
        return True
    return next((result for result in results if isinstance(result, Unknown)), False)


def _isinstance(value: Value, wanted: Value) -> Value:
    if isinstance(wanted, tuple | list):
        return _any_of([_isinstance(value, item) for item in wanted])
    question = Unknown(clip(f"{shown(value)} is a {shown(wanted)}"))
    name = shown(wanted).rsplit(".", 1)[-1]
    if isinstance(value, Unknown):
        return question
    if isinstance(wanted, ClassValue):
        return isinstance(value, Instance) and any(item.node is wanted.node for item in value.cls.lineage())
    if name in {"Enum", "DeviceCapability", *_TYPES}:
        members = isinstance(value, Instance) and value.cls.enumeration
        kinds = {"Enum": members, "DeviceCapability": isinstance(value, DeviceCapability)}
        return kinds[name] if name in kinds else isinstance(value, _TYPES[name])
    return False if value is None or isinstance(value, str | int | float | list | dict | tuple) else question


def _issubclass(value: Value, wanted: Value) -> Value:
    if isinstance(wanted, tuple):
        return _any_of([_issubclass(value, item) for item in wanted])
    if isinstance(value, ClassValue) and isinstance(wanted, ClassValue):
        return any(item.node is wanted.node for item in value.lineage())
    return Unknown(clip(f"{shown(value)} derives from {shown(wanted)}"))


def _hasattr(machine: Machine, value: Value, name: str) -> bool:
    if isinstance(value, Unknown):
        return machine.decide(f"{value.text} has {name}")
    try:
        machine.attribute(value, name)
    except UpstreamError as error:
        if error.kind == "AttributeError":
            return False
        raise
    return True


def _getattr(machine: Machine, value: Value, name: str, default: tuple[Value, ...]) -> Value:
    if not default:
        return machine.attribute(value, name)
    if isinstance(value, Unknown) and f"{value.text}.{name}" not in machine.library:
        there = machine.decide(f"{value.text} has {name}")
        return Unknown(clip(f"{value.text}.{name}"), some=True) if there else default[0]
    try:
        return machine.attribute(value, name)
    except UpstreamError as error:
        if error.kind != "AttributeError":
            raise
        return default[0]


def _setattr(holder: Value, name: Value, value: Value) -> None:
    if isinstance(holder, Instance):
        holder.attributes[shown(name)] = value


def _callable(value: Value) -> Value:
    if isinstance(value, Unknown):
        return True if value.some else Unknown(clip(f"{value.text} is callable"))
    return isinstance(value, Function | Bound | Builtin | ClassValue)
