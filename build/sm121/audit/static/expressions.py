"""Expressions."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING

from sm121.audit.static.objects import find_in_class, members
from sm121.audit.static.paths import StuckError, UpstreamError
from sm121.audit.static.values import (
    Bound,
    ClassValue,
    Frame,
    Function,
    Instance,
    Unknown,
    Value,
    clip,
    formatted,
    shown,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sm121.audit.static.machine import Machine

_MOST_ITEMS = 20_000
_AS_REPR = ord("r")
_ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor, ast.RShift: operator.rshift,
}  # fmt: skip
_ORDER: dict[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ORDER_METHODS = {ast.Lt: "__lt__", ast.LtE: "__le__", ast.Gt: "__gt__", ast.GtE: "__ge__"}


def value_of(machine: Machine, node: ast.expr, frame: Frame) -> Value:  # noqa: PLR0911, PLR0912 -- one case a kind
    """Evaluate an expression; what is not modelled becomes Unknown, under its own text."""
    machine.tick()
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return machine.name(node.id, frame)
        case ast.Attribute():
            return machine.attribute(value_of(machine, node.value, frame), node.attr)
        case ast.Call():
            return _call(machine, node, frame)
        case ast.BoolOp():
            return _bool(machine, node, frame)
        case ast.Compare():
            return _compare(machine, node, frame)
        case ast.UnaryOp():
            return _unary(machine, node, frame)
        case ast.BinOp():
            return arithmetic(value_of(machine, node.left, frame), node.op, value_of(machine, node.right, frame))
        case ast.IfExp():
            chosen = node.body if machine.truth(value_of(machine, node.test, frame)) else node.orelse
            return value_of(machine, chosen, frame)
        case ast.Tuple() | ast.List() | ast.Set():
            items = list(_items(machine, node.elts, frame))
            return (
                tuple(items)
                if isinstance(node, ast.Tuple)
                else items
                if isinstance(node, ast.List)
                else _set(items)
            )
        case ast.Dict():
            return _dict(machine, node, frame)
        case ast.Subscript():
            return subscript(machine, value_of(machine, node.value, frame), _index(machine, node.slice, frame))
        case ast.JoinedStr():
            return "".join(shown(value_of(machine, part, frame)) for part in node.values)
        case ast.FormattedValue():
            value = value_of(machine, node.value, frame)
            return (
                repr(value) if node.conversion == _AS_REPR and isinstance(value, str) else text_of(machine, value)
            )
        case ast.Lambda():
            return Function(node, frame)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            found = [value_of(machine, node.elt, inner) for inner in _loops(machine, node.generators, frame)]
            return _set(found) if isinstance(node, ast.SetComp) else found
        case ast.DictComp():
            return {
                value_of(machine, node.key, inner): value_of(machine, node.value, inner)
                for inner in _loops(machine, node.generators, frame)
            }
        case ast.NamedExpr():
            value = value_of(machine, node.value, frame)
            target = frame
            while target.variables.get("*comprehension") and target.outer is not None:
                target = target.outer
            target.variables[node.target.id] = value
            return value
        case ast.Starred():
            return value_of(machine, node.value, frame)
    return Unknown(clip(ast.unparse(node)))


def text_of(machine: Machine, value: Value) -> str:
    """`str(value)`, with upstream's own `__str__` where it has one."""
    if isinstance(value, Instance) and find_in_class(machine, value.cls, "__str__") is not None:
        try:
            return shown(machine.call(machine.attribute(value, "__str__"), []))
        except (UpstreamError, StuckError):
            return value.label
    return shown(value)


def _items(machine: Machine, nodes: list[ast.expr], frame: Frame) -> Iterator[Value]:
    for node in nodes:
        value = value_of(machine, node, frame)
        if isinstance(node, ast.Starred):
            yield from iterate(machine, value)
        else:
            yield value


def _set(items: list[Value]) -> Value:
    try:
        return set(items)
    except TypeError:
        return Unknown("a set of " + shown(items))


def _dict(machine: Machine, node: ast.Dict, frame: Frame) -> Value:
    made: dict[Value, Value] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            inner = value_of(machine, value, frame)
            if not isinstance(inner, dict):
                return Unknown(clip(ast.unparse(node)), some=True)
            made.update(inner)
            continue
        name = value_of(machine, key, frame)
        try:
            made[name] = value_of(machine, value, frame)
        except TypeError:
            return Unknown(clip(ast.unparse(node)), some=True)
    return made


def iterate(machine: Machine, value: Value) -> list[Value]:
    """The items of a container. Raises StuckError for what is not known."""
    if isinstance(value, ClassValue) and value.enumeration:
        return list(members(machine, value))
    if isinstance(value, Instance) and value.cls.derives("NamedTuple"):
        return list(value.attributes.values())
    if isinstance(value, list | tuple | set | frozenset | dict | range | str):
        if len(value) > _MOST_ITEMS:
            raise StuckError(f"a loop over {len(value)} items")
        return list(value)
    if type(value).__name__ in {"dict_items", "dict_keys", "dict_values"}:
        return list(value)
    raise StuckError(f"a loop over {shown(value)}")


def _loops(machine: Machine, generators: list[ast.comprehension], frame: Frame) -> Iterator[Frame]:
    if not generators:
        yield frame
        return
    first, *rest = generators
    for item in iterate(machine, value_of(machine, first.iter, frame)):
        inner = Frame(frame.module, {"*comprehension": True}, frame, frame.owner, frame.receiver)
        assign(machine, first.target, item, inner)
        if all(machine.truth(value_of(machine, test, inner)) for test in first.ifs):
            yield from _loops(machine, rest, inner)


def assign(machine: Machine, target: ast.expr, value: Value, frame: Frame) -> None:
    """Bind a target."""
    match target:
        case ast.Name():
            frame.variables[target.id] = value
        case ast.Tuple() | ast.List():
            _unpack(machine, target.elts, value, frame)
        case ast.Starred():
            assign(machine, target.value, value, frame)
        case ast.Attribute():
            holder = value_of(machine, target.value, frame)
            if isinstance(holder, Instance):
                holder.attributes[target.attr] = value
            elif isinstance(holder, ClassValue):
                holder.extra[target.attr] = value
        case ast.Subscript():
            holder = value_of(machine, target.value, frame)
            index = _index(machine, target.slice, frame)
            if isinstance(holder, dict | list) and not isinstance(index, Unknown):
                try:
                    holder[index] = value
                except (TypeError, IndexError, ValueError) as error:
                    raise UpstreamError(type(error).__name__, str(error)) from error


def _unpack(machine: Machine, targets: list[ast.expr], value: Value, frame: Frame) -> None:
    if isinstance(value, Unknown):
        for place, target in enumerate(targets):
            assign(machine, target, value.of(f"[{place}]"), frame)
        return
    items = iterate(machine, value)
    star = next((place for place, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
    if star is not None:
        behind = len(targets) - star - 1
        items = [*items[:star], items[star : len(items) - behind], *items[len(items) - behind :]]
    if len(items) != len(targets):
        raise UpstreamError("ValueError", f"{len(items)} values for {len(targets)} names")
    for target, item in zip(targets, items, strict=True):
        assign(machine, target, item, frame)


def _call(machine: Machine, node: ast.Call, frame: Frame) -> Value:
    if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
        return _super(frame)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        inner = node.func.value
        if isinstance(inner.func, ast.Name) and inner.func.id == "super":
            return _call_super(machine, node, node.func.attr, frame)
    target = value_of(machine, node.func, frame)
    return machine.call(target, *_arguments(machine, node, frame))


def _arguments(machine: Machine, node: ast.Call, frame: Frame) -> tuple[list[Value], dict[str, Value]]:
    args = list(_items(machine, node.args, frame))
    kwargs: dict[str, Value] = {}
    for item in node.keywords:
        value = value_of(machine, item.value, frame)
        if item.arg is not None:
            kwargs[item.arg] = value
        elif isinstance(value, dict):
            kwargs.update({str(key): inner for key, inner in value.items()})
        else:
            raise StuckError(f"the arguments **{shown(value)}")
    return args, kwargs


def _super(frame: Frame) -> Value:
    running = frame
    while running.owner is None and running.outer is not None:
        running = running.outer
    return Unknown(f"super({running.owner.name if running.owner else ''})", some=True)


def _call_super(machine: Machine, node: ast.Call, name: str, frame: Frame) -> Value:
    running = frame
    while running.owner is None and running.outer is not None:
        running = running.outer
    owner, receiver = running.owner, running.receiver
    args, kwargs = _arguments(machine, node, frame)
    start = receiver.cls if isinstance(receiver, Instance) else receiver
    if owner is None or not isinstance(start, ClassValue):
        return Unknown(clip(ast.unparse(node)))
    found = find_in_class(machine, start, name, after=owner)
    if found is None or not isinstance(found[0], Function):
        return None if name in {"__init__", "__post_init__"} else Unknown(clip(ast.unparse(node)))
    if "staticmethod" in found[0].decorators:
        return machine.call(found[0], args, kwargs)
    return machine.call(Bound(found[0], receiver), args, kwargs)


def _bool(machine: Machine, node: ast.BoolOp, frame: Frame) -> Value:
    value: Value = None
    for part in node.values:
        value = value_of(machine, part, frame)
        if machine.truth(value) is isinstance(node.op, ast.Or):
            return value
    return value


def _unary(machine: Machine, node: ast.UnaryOp, frame: Frame) -> Value:
    value = value_of(machine, node.operand, frame)
    if isinstance(node.op, ast.Not):
        return not machine.truth(value)
    if isinstance(value, bool | int | float):
        return {ast.USub: operator.neg, ast.UAdd: operator.pos}.get(type(node.op), operator.invert)(value)  # type: ignore[operator]
    return Unknown(clip(ast.unparse(node)))


def arithmetic(left: Value, sign: ast.operator, right: Value) -> Value:
    """A binary operation on plain values, bounded in what it may make."""
    text = clip(f"{shown(left)} {_SIGNS.get(type(sign), '?')} {shown(right)}")
    if isinstance(sign, ast.Mod) and isinstance(left, str):
        return formatted(left, list(right) if isinstance(right, tuple) else [right])
    if isinstance(left, Unknown | Instance | ClassValue) or isinstance(right, Unknown | Instance | ClassValue):
        return Unknown(text)
    action = _ARITHMETIC.get(type(sign))
    if action is None or not _small(left) or not _small(right):
        return Unknown(text)
    if isinstance(sign, ast.Mult) and not (isinstance(left, int | float) and isinstance(right, int | float)):
        return Unknown(text)
    try:
        return action(left, right)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise UpstreamError(type(error).__name__, str(error)) from error


_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.BitOr: "|",
    ast.BitAnd: "&", ast.BitXor: "^", ast.RShift: ">>", ast.LShift: "<<", ast.Pow: "**",
}  # fmt: skip


def _small(value: Value) -> bool:
    if isinstance(value, bool | float):
        return True
    if isinstance(value, int):
        return abs(value) < 1 << 256
    return isinstance(value, str | bytes | list | tuple | set | frozenset | dict) and len(value) < _MOST_ITEMS


def _compare(machine: Machine, node: ast.Compare, frame: Frame) -> Value:
    left = value_of(machine, node.left, frame)
    result: Value = True
    for sign, part in zip(node.ops, node.comparators, strict=True):
        right = value_of(machine, part, frame)
        result = _one(machine, left, sign, right)
        if len(node.ops) > 1 and not machine.truth(result):
            return False
        left = right
    return result


def _one(machine: Machine, left: Value, sign: ast.cmpop, right: Value) -> Value:  # noqa: PLR0911
    match sign:
        case ast.Is() | ast.IsNot():
            found = _identical(left, right)
            return found if isinstance(found, Unknown) or isinstance(sign, ast.Is) else not found
        case ast.Eq():
            return equal(left, right)
        case ast.NotEq():
            found = equal(left, right)
            return Unknown(f"{shown(left)} != {shown(right)}") if isinstance(found, Unknown) else not found
        case ast.In() | ast.NotIn():
            found = contains(machine, right, left)
            if isinstance(found, Unknown):
                return found if isinstance(sign, ast.In) else not machine.truth(found)
            return found is isinstance(sign, ast.In)
    question = (
        f"{shown(left)} {({ast.Lt: '<', ast.LtE: '<=', ast.Gt: '>', ast.GtE: '>='})[type(sign)]} {shown(right)}"
    )
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return Unknown(clip(question))
    if isinstance(left, Instance):
        method = find_in_class(machine, left.cls, _ORDER_METHODS[type(sign)])
        if method is not None:
            return machine.call(Bound(method[0], left), [right])
        if left.cls.derives("NamedTuple"):
            left = tuple(left.attributes.values())
            right = tuple(right.attributes.values()) if isinstance(right, Instance) else right
    try:
        return _ORDER[type(sign)](left, right)
    except TypeError as error:
        raise UpstreamError("TypeError", str(error)) from error


def _identical(left: Value, right: Value) -> Value:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Unknown):
            if other is None and one.some:
                return False
            return Unknown(f"{one.text} is {shown(other)}")
    if isinstance(left, ClassValue) and isinstance(right, ClassValue):
        return left.node is right.node
    if isinstance(left, Instance) and left.cls.enumeration:
        return left == right
    if isinstance(left, bool | None) or isinstance(right, bool | None):
        return left is right
    return left is right or (type(left) is type(right) and isinstance(left, str | int) and left == right)


def equal(left: Value, right: Value) -> Value:  # noqa: PLR0911 -- one answer a kind
    """`left == right`: true, false or Unknown."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        if isinstance(left, Unknown) and isinstance(right, Unknown) and left.text == right.text:
            return True
        if (left is None and right.some) or (right is None and left.some):
            return False
        return Unknown(clip(f"{shown(left)} == {shown(right)}"))
    if isinstance(left, ClassValue) and isinstance(right, ClassValue):
        return left.node is right.node
    if isinstance(left, tuple | list) and isinstance(right, tuple | list) and type(left) is type(right):
        if len(left) != len(right):
            return False
        results = [equal(one, other) for one, other in zip(left, right, strict=True)]
        if any(result is False for result in results):
            return False
        return next((result for result in results if isinstance(result, Unknown)), True)
    if isinstance(right, Instance) and not isinstance(left, Instance):
        left, right = right, left
    if (
        isinstance(left, Instance)
        and left.cls.derives("str", "StrEnum", "IntEnum", "int")
        and not isinstance(right, Instance)
    ):
        return bool(left.attributes.get("value") == right)
    if (
        isinstance(left, Instance)
        and isinstance(right, Instance)
        and left.cls.node is right.cls.node
        and left.cls.record
    ):
        names = sorted(set(left.attributes) | set(right.attributes))
        return equal(
            tuple(left.attributes.get(name) for name in names),
            tuple(right.attributes.get(name) for name in names),
        )
    return bool(left == right)


def contains(machine: Machine, holder: Value, item: Value) -> Value:
    """`item in holder`: true, false or Unknown."""
    question = Unknown(clip(f"{shown(item)} in {shown(holder)}"))
    if isinstance(holder, Unknown):
        return Unknown(clip(f"{shown(item)} in {holder.text}"))
    if isinstance(holder, str):
        return item in holder if isinstance(item, str) else question
    if type(holder).__name__ == "Environment":
        return holder.has(item) if isinstance(item, str) else question
    if not isinstance(holder, Unknown) and isinstance(
        holder, ClassValue | list | tuple | set | frozenset | dict | range
    ):
        results = [equal(other, item) for other in iterate(machine, holder)]
        if any(result is True for result in results):
            return True
        return question if any(isinstance(result, Unknown) for result in results) else False
    return question


def _index(machine: Machine, node: ast.expr, frame: Frame) -> Value:
    if isinstance(node, ast.Slice):
        parts = [value_of(machine, part, frame) if part else None for part in (node.lower, node.upper, node.step)]
        if any(not isinstance(part, int | None) for part in parts):
            return Unknown(clip(ast.unparse(node)))
        return slice(*parts)
    return value_of(machine, node, frame)


def subscript(machine: Machine, holder: Value, index: Value) -> Value:
    """`holder[index]`."""
    if isinstance(holder, ClassValue):
        if holder.enumeration and isinstance(index, str):
            found = next((item for item in members(machine, holder) if item.attributes["name"] == index), None)
            if found is None:
                raise UpstreamError("KeyError", index)
            return found
        return holder
    if isinstance(holder, Instance) and holder.cls.derives("NamedTuple"):
        holder = tuple(holder.attributes.values())
    if isinstance(holder, Unknown) or isinstance(index, Unknown):
        return Unknown(clip(f"{shown(holder)}[{shown(index)}]"))
    try:
        return holder[index]
    except (KeyError, IndexError) as error:
        raise UpstreamError(type(error).__name__, shown(index)) from error
    except TypeError:
        return Unknown(clip(f"{shown(holder)}[{shown(index)}]"))
