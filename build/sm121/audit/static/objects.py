"""Classes and their objects: lookup along bases, members of enumerations, fields of dataclasses."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from sm121.audit.static.paths import UpstreamError
from sm121.audit.static.values import Builtin, ClassValue, Frame, Function, Instance, Unknown, Value, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.audit.static.machine import Machine


def class_value(machine: Machine, node: ast.ClassDef, frame: Frame) -> ClassValue:
    """Make a class; bases that cannot be read are kept by name."""
    bases: list[ClassValue] = []
    external: list[str] = []
    for base in node.bases:
        target = base.value if isinstance(base, ast.Subscript) else base
        try:
            value = machine.value_of(target, frame)
        except UpstreamError:
            value = Unknown(ast.unparse(target))
        if isinstance(value, ClassValue):
            bases.append(value)
        else:
            external.append(shown(value).rsplit(".", 1)[-1])
    return ClassValue(node, frame, tuple(bases), tuple(external))


def find_in_class(
    machine: Machine, cls: ClassValue, name: str, *, after: ClassValue | None = None
) -> tuple[Value] | None:
    """A class attribute, in a tuple of one so that None can be told from absent; `after` starts behind a class."""
    lineage = cls.lineage()
    if after is not None and after in lineage:
        lineage = lineage[lineage.index(after) + 1 :]
    for item in lineage:
        if name in item.extra:
            return (item.extra[name],)
        found = _own(machine, item, name)
        if found is not None:
            item.extra[name] = found[0]
            return found
    return None


def _own(machine: Machine, cls: ClassValue, name: str) -> tuple[Value] | None:
    for statement in reversed(cls.node.body):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == name:
                return (Function(statement, cls.frame, cls),)
            case ast.ClassDef() if statement.name == name:
                return (class_value(machine, statement, cls.frame),)
            case ast.Assign() | ast.AnnAssign() if statement.value is not None and name in _targets(statement):
                scope = Frame(cls.frame.module, _Lazy(machine, cls, name), cls.frame)
                value = machine.value_of(statement.value, scope)
                if isinstance(statement, ast.Assign) and cls.enumeration and not name.startswith("_"):
                    return (_member(machine, cls, name, value),)
                return (value,)
            case _:
                pass
    return None


class _Lazy(dict[str, Value]):
    """Names that a class body may use: its own attributes, evaluated when asked for."""

    def __init__(self, machine: Machine, cls: ClassValue, without: str) -> None:
        super().__init__()
        self._machine, self._cls, self._without = machine, cls, without

    def __contains__(self, name: object) -> bool:
        own = any(name in _targets(item) for item in self._cls.node.body)
        return own and name != self._without

    def __getitem__(self, name: str) -> Value:
        found = _own(self._machine, self._cls, name)
        return found[0] if found else Unknown(f"{self._cls.name}.{name}")


def _targets(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Assign():
            return [target.id for target in statement.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
            return [statement.name]
    return []


def _member(machine: Machine, cls: ClassValue, name: str, value: Value) -> Instance:
    """A member; one whose value an earlier member has is that member (an alias)."""
    for statement in cls.node.body:
        for other in _targets(statement) if isinstance(statement, ast.Assign) else ():
            if other == name:
                return Instance(cls, {"name": name, "value": value, "_value_": value})
            earlier = find_in_class(machine, cls, other)
            if earlier and isinstance(earlier[0], Instance) and _same(earlier[0].attributes.get("value"), value):
                return earlier[0]
    return Instance(cls, {"name": name, "value": value, "_value_": value})


def _same(one: Value, other: Value) -> bool:
    return not isinstance(one, Unknown) and not isinstance(other, Unknown) and bool(one == other)


def members(machine: Machine, cls: ClassValue) -> list[Instance]:
    """The members of an enumeration in order, aliases left out."""
    found: list[Instance] = []
    for item in reversed(cls.lineage()):
        for statement in item.node.body:
            for name in _targets(statement) if isinstance(statement, ast.Assign) else ():
                value = find_in_class(machine, cls, name)
                if value and isinstance(value[0], Instance) and value[0] not in found:
                    found.append(value[0])
    return found


def construct(  # noqa: PLR0911 -- one answer a kind
    machine: Machine, cls: ClassValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a class."""
    if cls.enumeration:
        wanted = args[0] if args else None
        if isinstance(wanted, Instance) and wanted.cls.node is cls.node:
            return wanted
        for item in members(machine, cls):
            if _same(item.attributes.get("value"), wanted):
                return item
        if isinstance(wanted, Unknown):
            return Unknown(f"{cls.name}({wanted.text})", some=True)
        raise UpstreamError("ValueError", f"{shown(wanted)} is not a valid {cls.name}")
    made = Instance(cls)
    if cls.name.endswith(machine.facts.bare):
        return made
    if find_in_class(machine, cls, "__init__") is not None:
        machine.call(machine.attribute(made, "__init__"), args, kwargs)
        return made
    if cls.record:
        _fill(machine, made, args, kwargs)
        if find_in_class(machine, cls, "__post_init__") is not None:
            machine.call(machine.attribute(made, "__post_init__"), [], {})
        return made
    if cls.external:
        made.attributes["*"] = True
    return made


def fields(cls: ClassValue) -> Iterator[tuple[str, ast.expr | None, Frame]]:
    """Fields of a dataclass or named tuple, bases first: name, default, where the default is evaluated."""
    order: dict[str, tuple[ast.expr | None, Frame]] = {}
    for item in reversed(cls.lineage()):
        for statement in item.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.unparse(
                    kind
                ):
                    order[name] = (statement.value, item.frame)
    for name, (default, frame) in order.items():
        yield name, default, frame


def _fill(machine: Machine, made: Instance, args: list[Value], kwargs: dict[str, Value]) -> None:
    given = list(args)
    for name, default, frame in fields(made.cls):
        options = _field_options(default)
        if options is not None and _constant(options.get("init")) is False:
            made.attributes[name] = field_default(machine, default, frame)
        elif given:
            made.attributes[name] = given.pop(0)
        elif name in kwargs:
            made.attributes[name] = kwargs[name]
        elif default is None:
            raise UpstreamError("TypeError", f"{made.cls.name} misses the argument {name}")
        else:
            made.attributes[name] = field_default(machine, default, frame)
    unknown = set(kwargs) - set(made.attributes)
    if unknown or given:
        raise UpstreamError("TypeError", f"{made.cls.name} knows no argument {', '.join(sorted(unknown))}")


def field_default(machine: Machine, default: ast.expr | None, frame: Frame) -> Value:
    """The value of a field that was not given."""
    options = _field_options(default)
    if options is None or default is None:
        return machine.value_of(default, frame) if default is not None else Unknown("a field without default")
    if "default" in options:
        return machine.value_of(options["default"], frame)
    if "default_factory" in options:
        factory = machine.value_of(options["default_factory"], frame)
        return (
            machine.call(factory, [], {})
            if isinstance(factory, Builtin | Function | ClassValue)
            else Unknown("a default")
        )
    first = default.args[0] if isinstance(default, ast.Call) and default.args else None
    return machine.value_of(first, frame) if first is not None else Unknown("a field without default")


def _field_options(default: ast.expr | None) -> dict[str, ast.expr] | None:
    if not isinstance(default, ast.Call):
        return None
    name = default.func.attr if isinstance(default.func, ast.Attribute) else getattr(default.func, "id", "")
    if name not in {"field", "Field"}:
        return None
    return {item.arg: item.value for item in default.keywords if item.arg}


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
