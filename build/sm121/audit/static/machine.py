"""The state of one walk: what is known of the outside, and how names, attributes and calls are resolved."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.audit.static import expressions, natives, plain, statements
from sm121.audit.static.objects import construct, find_in_class, members
from sm121.audit.static.paths import Path, Step, StuckError, UpstreamError
from sm121.audit.static.values import (
    Bag,
    Bound,
    Builtin,
    ClassValue,
    Frame,
    Function,
    Instance,
    LoggerValue,
    ModuleValue,
    Symbol,
    Unknown,
    Value,
    clip,
    formatted,
    shown,
)  # fmt: skip
from sm121.target import GB10, Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sm121.audit.source import SourceTree
    from sm121.values import CudaVersion

_MOST_STEPS = 400_000
_DEEPEST = 90
GATES = frozenset(
    {"is_supported_config", "is_supported", "can_implement", "validate_configuration", "_supports_quant_scheme"}
)


@dataclass(frozen=True)
class Facts:
    """What is known of the machine and the request.

    `environment` holds the variables that are set; others are taken as not set. `answers` maps questions (in the
    words in which they are reported) to answers, `native` answers calls of compiled code by their text.
    """

    capability: Capability = GB10
    environment: Mapping[str, str] = field(default_factory=dict)
    cuda: CudaVersion | None = None
    answers: Mapping[str, bool] = field(default_factory=dict)
    native: Callable[[str], bool | None] = lambda _text: None
    bare: tuple[str, ...] = ("Kernel",)
    """Ends of names of classes whose objects are made without running their `__init__`: they touch tensors."""
    settings: Mapping[str, Value] = field(default_factory=dict)
    """Dotted paths in vLLM's configuration, such as `kernel_config.linear_backend`."""


@dataclass
class Machine:
    """Evaluates upstream's code on one path."""

    tree: SourceTree
    facts: Facts
    path: Path = field(default_factory=lambda: Path([]))
    library: dict[str, Value] = field(default_factory=dict)
    """Parts of external libraries that are modelled, by dotted name."""
    builtins: dict[str, Value] = field(default_factory=dict)
    _modules: dict[str, Frame] = field(default_factory=dict)
    _running: set[tuple[str, str]] = field(default_factory=set)
    _steps: int = 0
    _depth: int = 0
    _inside_gate: bool = False

    def __post_init__(self) -> None:
        self.library = natives.library(self)
        self.builtins = plain.builtins(self)

    # -- names ---------------------------------------------------------------------------------------------------

    def name(self, name: str, frame: Frame) -> Value:
        """A variable: local, enclosing, of the module, or built in."""
        found = frame.find(name)
        if found is not None:
            return found.variables[name]
        value = self.member(frame.module, name)
        if value is not None or name in self._modules[frame.module].variables:
            return value
        return self.builtins.get(name, Unknown(name, some=True))

    def member(self, module: str, name: str) -> Value:
        """A name of a module, evaluated when it is first asked for; None if the module does not bind it."""
        frame = self._modules.setdefault(module, Frame(module))
        if name in frame.variables:
            return frame.variables[name]
        special = natives.special(self, module, name)
        if special is not None:
            frame.variables[name] = special
            return special
        key = (module, name)
        if key in self._running:
            raise StuckError(f"{module}.{name} depends on itself")
        tree = self.tree.module(module)
        if tree is None:
            return None
        self._running.add(key)
        try:
            for statement in self._index(module, tree).get(name, ()):
                statements.execute(self, statement, frame)
            if name not in frame.variables:
                self._elsewhere(tree, name, frame)
        finally:
            self._running.discard(key)
        return frame.variables.get(name)

    def _elsewhere(self, tree: ast.Module, name: str, frame: Frame) -> None:
        """Bind a name that a star import brings, or that the module is filled with while it is imported."""
        for statement in statements.star_imports(tree):
            source = statements.import_source(self, statement, frame)
            if self.tree.module(source) is not None and not name.startswith("_"):
                value = self.member(source, name)
                if value is not None or name in self._modules[source].variables:
                    frame.variables[name] = value
                    return
        if statements.filled_by_code(tree) and not name.startswith("__"):
            for binding in statements.declared(tree, name):
                statements.execute(self, binding, frame)
            frame.variables.setdefault(name, Unknown(f"{frame.module}.{name}"))

    def _index(self, module: str, tree: ast.Module) -> dict[str, list[ast.stmt]]:
        found = self.tree.bindings.get(module)
        if found is None:
            found = self.tree.bindings[module] = statements.bindings(tree)
        return found

    def module(self, name: str) -> Value:
        """A module as a value; raises ModuleNotFoundError on paths where it is not there."""
        top = name.split(".", 1)[0]
        if self.tree.module(name) is not None:
            return ModuleValue(name)
        if natives.known_outside(top):
            return Unknown(name, some=True)
        installed, _ = self.tree.installed(top)
        if installed is None:
            installed = self.decide(f"{top} can be imported")
        readable = any(other == top or other.startswith(f"{top}.") for other in self.tree.files)
        if not installed or (readable and not self.tree.is_package(name)):
            raise UpstreamError("ModuleNotFoundError", f"No module named {name!r}")
        return Unknown(name, some=True)

    # -- truth ---------------------------------------------------------------------------------------------------

    def decide(self, question: str) -> bool:
        """Answer a question from the facts, or take one of both ways."""
        known = self.facts.answers.get(question)
        if known is None:
            known = self.facts.native(question)
        if known is None and self._pinned(question):
            self.path.steps.append(Step("assumed", question, answer=True))
            return True
        return self.path.decide(question) if known is None else known

    def _pinned(self, question: str) -> bool:
        """Whether it asks for something in a package that vLLM requires in exactly one version."""
        found = re.match(r"(\w+)[\w.]* has \w+$", question)
        return bool(found) and self.tree.pinned(str(found and found[1]))

    def truth(self, value: Value) -> bool:
        """Whether a value counts as true."""
        if isinstance(value, Unknown):
            return value.some or self.decide(value.text)
        if (
            isinstance(value, list | tuple | dict | set | frozenset | str | bytes | int | float | range)
            or value is None
        ):
            return bool(value)
        return True

    # -- attributes ----------------------------------------------------------------------------------------------

    def attribute(self, value: Value, name: str) -> Value:  # noqa: PLR0911 -- one answer a kind
        """`value.name`. Raises UpstreamError("AttributeError") where it is certainly missing."""
        match value:
            case Unknown():
                return natives.outside(self, value, name)
            case ModuleValue():
                return self._of_module(value.name, name)
            case Instance():
                return self._of_instance(value, name)
            case ClassValue():
                return self._of_class(value, name)
            case Bag():
                return natives.setting(self, value, name)
            case Function() | Bound():
                return (
                    value.name
                    if isinstance(value, Function) and name == "__name__"
                    else Unknown(f"{shown(value)}.{name}")
                )
            case Symbol():
                return Unknown(f"{value.name}.{name}")
            case LoggerValue():
                return Builtin(name, lambda args, _kwargs: self._log(name, args))
        return plain.method(self, value, name)

    def _of_module(self, module: str, name: str) -> Value:
        value = self.member(module, name)
        if value is not None or name in self._modules[module].variables:
            return value
        if self.tree.module(f"{module}.{name}") is not None:
            return ModuleValue(f"{module}.{name}")
        if name == "__name__":
            return module
        hook = self.member(module, "__getattr__")
        if isinstance(hook, Function):
            return self.call(hook, [name])
        raise UpstreamError("AttributeError", f"module {module!r} has no attribute {name!r}")

    def _of_instance(self, value: Instance, name: str) -> Value:  # noqa: PLR0911
        if name in value.attributes:
            return value.attributes[name]
        if name == "__class__":
            return value.cls
        found = find_in_class(self, value.cls, name)
        if found is None:
            if value.cls.derives("NamedTuple") and name == "_asdict":
                return Builtin(name, lambda _args, _kwargs: dict(value.attributes))
            if value.attributes.get("*") is not None or value.cls.external:
                return Unknown(f"{value.cls.name}.{name}")
            raise UpstreamError("AttributeError", f"{value.cls.name} has no attribute {name!r}")
        item = found[0]
        if not isinstance(item, Function):
            return item
        marks = item.decorators
        if marks & {"property", "cached_property"}:
            return self.call(item, [value])
        if "staticmethod" in marks:
            return item
        return Bound(item, value.cls if "classmethod" in marks else value)

    def _of_class(self, value: ClassValue, name: str) -> Value:
        if name in {"__name__", "__qualname__"}:
            return value.name
        if name == "__members__" and value.enumeration:
            return {item.attributes["name"]: item for item in members(self, value)}
        if name == "__module__":
            return value.frame.module
        found = find_in_class(self, value, name)
        if found is None:
            if all(base in {"ABC", "Generic", "Protocol", "object", "Enum"} for base in _externals(value)):
                raise UpstreamError("AttributeError", f"{value.name} has no attribute {name!r}")
            return Unknown(f"{value.name}.{name}")
        item = found[0]
        if isinstance(item, Function) and "classmethod" in item.decorators:
            return Bound(item, value)
        return item

    def _log(self, level: str, args: list[Value]) -> None:
        if args and level != "debug" and not level.startswith("debug"):
            text = formatted(args[0], args[1:])
            self.path.steps.append(Step("log", level, detail=text))

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(  # noqa: PLR0911 -- one answer a kind
        self, target: Value, args: list[Value], kwargs: dict[str, Value] | None = None
    ) -> Value:
        """Call a value. What cannot be called here gives Unknown."""
        keywords = kwargs or {}
        self.tick()
        match target:
            case Builtin():
                return target.call(args, keywords)
            case Bound():
                return self._run(target.function, [target.receiver, *args], keywords, target.receiver)
            case Function():
                return self._run(target, args, keywords, args[0] if args else None)
            case ClassValue():
                return construct(self, target, args, keywords)
            case Unknown():
                return natives.called(target, args, keywords)
            case Instance():
                return self.call(self.attribute(target, "__call__"), args, keywords)
        return Unknown(clip(f"{shown(target)}({', '.join(shown(item) for item in args)})"))

    def _run(self, function: Function, args: list[Value], kwargs: dict[str, Value], receiver: Value) -> Value:
        node = function.node
        frame = Frame(function.frame.module, outer=function.frame, owner=function.owner, receiver=receiver)
        frame.variables.update(self._bind(function, args, kwargs))
        gate = self._enter(function, args, receiver)
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise StuckError(f"{function.name} is called too deep")
            if isinstance(node, ast.Lambda):
                return self.value_of(node.body, frame)
            if statements.yields(node):
                return Unknown(f"{function.name}()", some=True)
            result = statements.run_body(self, node.body, frame)
        finally:
            self._depth -= 1
            if gate:
                self._inside_gate = False
        if gate:
            self._record(function, receiver, result)
        return result

    def _enter(self, function: Function, args: list[Value], receiver: Value) -> bool:
        if function.name == "backend_to_kernel_cls" and args and not self._inside_gate:
            named = next((item for item in args if isinstance(item, Instance) and item.cls.enumeration), args[-1])
            self.path.steps.append(Step("backend", _value_name(named)))
        if function.name not in GATES or self._inside_gate or not isinstance(receiver, ClassValue):
            return False
        self._inside_gate = True
        return True

    def _record(self, function: Function, receiver: Value, result: Value) -> None:
        first, reason = result, ""
        if function.name == "validate_configuration" and isinstance(result, list):
            first, reason = not result, ", ".join(shown(item) for item in result)
        elif isinstance(result, tuple) and len(result) == 2:
            first, reason = result[0], "" if result[1] is None else shown(result[1])
        if isinstance(first, Unknown):
            first = self.truth(first)
        self.path.steps.append(Step("gate", shown(receiver), bool(first), reason or function.name))

    def _bind(self, function: Function, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
        spec = function.node.args
        names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
        bound: dict[str, Value] = dict(zip(names, args, strict=False))
        if spec.vararg:
            bound[spec.vararg.arg] = tuple(args[len(names) :])
        elif len(args) > len(names):
            raise UpstreamError(
                "TypeError", f"{function.name} takes {len(names)} arguments, {len(args)} are given"
            )
        rest = dict(kwargs)
        only = [item.arg for item in spec.kwonlyargs]
        for name in (*names, *only):
            if name in rest:
                bound[name] = rest.pop(name)
        if spec.kwarg:
            bound[spec.kwarg.arg] = rest
        elif rest:
            raise UpstreamError("TypeError", f"{function.name} knows no argument {', '.join(sorted(rest))}")
        defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults.update(
            (name, node) for name, node in zip(only, spec.kw_defaults, strict=True) if node is not None
        )
        for name in (*names, *only):
            if name not in bound:
                if name not in defaults:
                    raise UpstreamError("TypeError", f"{function.name} misses the argument {name}")
                bound[name] = self.value_of(defaults[name], function.frame)
        return bound

    def tick(self) -> None:
        """Count a step; raises StuckError when there were too many."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise StuckError(f"the code takes more than {_MOST_STEPS} steps")

    def value_of(self, node: ast.expr, frame: Frame) -> Value:
        """Evaluate an expression."""
        return expressions.value_of(self, node, frame)


def _externals(value: ClassValue) -> list[str]:
    return [name for item in value.lineage() for name in item.external]


def _value_name(value: Value) -> str:
    if isinstance(value, Instance) and "value" in value.attributes:
        return shown(value.attributes["value"])
    return shown(value)
