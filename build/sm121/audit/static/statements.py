"""Statements."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from sm121.audit.static.expressions import arithmetic, assign, iterate, value_of
from sm121.audit.static.objects import class_value
from sm121.audit.static.paths import StuckError, UpstreamError
from sm121.audit.static.values import Frame, Function, Unknown, Value, clip, shown

if TYPE_CHECKING:
    from sm121.audit.static.machine import Machine

_PARENTS = {
    "ModuleNotFoundError": ("ImportError",), "KeyError": ("LookupError",), "IndexError": ("LookupError",),
    "NotImplementedError": ("RuntimeError",), "FileNotFoundError": ("OSError",), "ZeroDivisionError": ("ArithmeticError",),
    "PackageNotFoundError": ("ModuleNotFoundError", "ImportError"),
}  # fmt: skip
_MOST_ROUNDS = 2000


class _Return(Exception):  # noqa: N818 -- control flow of the evaluated code, no error
    def __init__(self, value: Value) -> None:
        self.value = value


class _Break(Exception):  # noqa: N818
    pass


class _Continue(Exception):  # noqa: N818
    pass


def run_body(machine: Machine, body: list[ast.stmt], frame: Frame) -> Value:
    """Run a function's body; the value is what it returns."""
    try:
        for statement in body:
            execute(machine, statement, frame)
    except _Return as result:
        return result.value
    return None


def yields(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether calling it gives a generator or a coroutine."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    return any(isinstance(item, ast.Yield | ast.YieldFrom) for item in ast.walk(node))


def bindings(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """For each name, the top-level statements that bind it or set an attribute of it, in order."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _bound(statement):
            found.setdefault(name, []).append(statement)
    return found


def star_imports(tree: ast.Module) -> list[ast.ImportFrom]:
    """Imports of everything that a module has, at the top level."""
    found = [item for item in tree.body if isinstance(item, ast.ImportFrom)]
    return [item for item in found if any(name.name == "*" for name in item.names)]


def filled_by_code(tree: ast.Module) -> bool:
    """Whether a module hands its namespace to a function, so that what it will hold does not stand in it."""
    calls = (item.value for item in tree.body if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call))
    return any(ast.unparse(argument) == "globals()" for call in calls for argument in call.args)


def declared(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Statements for type checkers alone that bind a name: how modules that are filled by code say what they hold."""
    blocks = [item for item in tree.body if isinstance(item, ast.If) and _typing_only(item)]
    return [statement for block in blocks for statement in block.body if name in _bound(statement)]


def _bound(statement: ast.stmt) -> set[str]:  # noqa: PLR0911 -- one answer a kind
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Import():
            return {item.asname or item.name.split(".", 1)[0] for item in statement.names}
        case ast.ImportFrom():
            return {item.asname or item.name for item in statement.names}
        case ast.Assign():
            return {found for target in statement.targets for found in _names(target)}
        case ast.AnnAssign():
            return _names(statement.target) if statement.value is not None else set()
        case ast.AugAssign():
            return _names(statement.target)
        case ast.If():
            if _typing_only(statement):
                return _all(statement.orelse)
            return _all([*statement.body, *statement.orelse])
        case ast.Try():
            inner = [item for handler in statement.handlers for item in handler.body]
            return _all([*statement.body, *inner, *statement.orelse, *statement.finalbody])
        case ast.With() | ast.For():
            return _all(statement.body)
    return set()


def _all(body: list[ast.stmt]) -> set[str]:
    return {name for statement in body for name in _bound(statement)}


def _names(target: ast.expr) -> set[str]:
    match target:
        case ast.Name():
            return {target.id}
        case ast.Tuple() | ast.List():
            return {name for item in target.elts for name in _names(item)}
        case ast.Attribute(value=ast.Name(id=name)):
            return {name}
    return set()


def _typing_only(statement: ast.If) -> bool:
    return (isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING") or (
        isinstance(statement.test, ast.Attribute) and statement.test.attr == "TYPE_CHECKING"
    )


def execute(machine: Machine, node: ast.stmt, frame: Frame) -> None:  # noqa: PLR0912 -- one case a kind
    """Run one statement. Returns, loops and exceptions travel as exceptions."""
    machine.tick()
    match node:
        case ast.Expr():
            value_of(machine, node.value, frame)
        case ast.Return():
            raise _Return(value_of(machine, node.value, frame) if node.value else None)
        case ast.Assign():
            value = value_of(machine, node.value, frame)
            for target in node.targets:
                assign(machine, target, value, frame)
        case ast.AnnAssign():
            if node.value is not None:
                assign(machine, node.target, value_of(machine, node.value, frame), frame)
        case ast.AugAssign():
            old = value_of(machine, node.target, frame)
            assign(machine, node.target, arithmetic(old, node.op, value_of(machine, node.value, frame)), frame)
        case ast.If():
            wanted = not _typing_only(node) and machine.truth(value_of(machine, node.test, frame))
            _block(machine, node.body if wanted else node.orelse, frame)
        case ast.For():
            _for(machine, node, frame)
        case ast.While():
            _while(machine, node, frame)
        case ast.Try():
            _try(machine, node, frame)
        case ast.With():
            _with(machine, node, frame)
        case ast.Raise():
            _raise(machine, node, frame)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            frame.variables[node.name] = Function(node, frame)
        case ast.ClassDef():
            frame.variables[node.name] = class_value(machine, node, frame)
        case ast.Import() | ast.ImportFrom():
            _import(machine, node, frame)
        case ast.Assert():
            value = value_of(machine, node.test, frame)
            if not isinstance(value, Unknown) and not machine.truth(value):
                raise UpstreamError("AssertionError", clip(ast.unparse(node.test)))
        case ast.Break():
            raise _Break
        case ast.Continue():
            raise _Continue
        case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.Delete():
            pass
        case _:
            raise StuckError(f"a statement that is not followed: {clip(ast.unparse(node))}")


def _block(machine: Machine, body: list[ast.stmt], frame: Frame) -> None:
    for statement in body:
        execute(machine, statement, frame)


def _for(machine: Machine, node: ast.For, frame: Frame) -> None:
    for item in iterate(machine, value_of(machine, node.iter, frame)):
        assign(machine, node.target, item, frame)
        try:
            _block(machine, node.body, frame)
        except _Continue:
            continue
        except _Break:
            return
    _block(machine, node.orelse, frame)


def _while(machine: Machine, node: ast.While, frame: Frame) -> None:
    for _ in range(_MOST_ROUNDS):
        if not machine.truth(value_of(machine, node.test, frame)):
            _block(machine, node.orelse, frame)
            return
        try:
            _block(machine, node.body, frame)
        except _Continue:
            continue
        except _Break:
            return
    raise StuckError(f"a loop of more than {_MOST_ROUNDS} rounds")


def _try(machine: Machine, node: ast.Try, frame: Frame) -> None:
    try:
        try:
            _block(machine, node.body, frame)
        except UpstreamError as error:
            handler = next((item for item in node.handlers if _catches(item.type, error.kind)), None)
            if handler is None:
                raise
            if handler.name:
                frame.variables[handler.name] = Unknown(error.text or error.kind, some=True)
            _reraising(machine, handler, frame, error)
        else:
            _block(machine, node.orelse, frame)
    finally:
        _block(machine, node.finalbody, frame)


def _reraising(machine: Machine, handler: ast.ExceptHandler, frame: Frame, error: UpstreamError) -> None:
    before = frame.variables.get("*raised")
    frame.variables["*raised"] = error
    try:
        _block(machine, handler.body, frame)
    finally:
        frame.variables["*raised"] = before


def _catches(kind: ast.expr | None, raised: str) -> bool:
    if kind is None:
        return True
    nodes = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    names = {item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", "") for item in nodes}
    return bool(names & {raised, "Exception", "BaseException", *_PARENTS.get(raised, ())})


def _with(machine: Machine, node: ast.With, frame: Frame) -> None:
    suppressed: list[ast.expr] = []
    for item in node.items:
        call = item.context_expr
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if isinstance(call, ast.Call) and name.rsplit(".", 1)[-1] == "suppress":
            suppressed.extend(call.args)
        elif item.optional_vars is not None:
            assign(machine, item.optional_vars, value_of(machine, call, frame), frame)
    try:
        _block(machine, node.body, frame)
    except UpstreamError as error:
        if not any(_catches(kind, error.kind) for kind in suppressed):
            raise


def _raise(machine: Machine, node: ast.Raise, frame: Frame) -> None:
    if node.exc is None:
        place = frame.find("*raised")
        raised = place.variables["*raised"] if place else None
        raise raised if isinstance(raised, UpstreamError) else UpstreamError("Exception")
    target = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    kind = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "Exception")
    text = ""
    if isinstance(node.exc, ast.Call) and node.exc.args:
        text = shown(value_of(machine, node.exc.args[0], frame))
    raise UpstreamError(kind, " ".join(text.split()))


def _import(machine: Machine, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
    if isinstance(node, ast.Import):
        for item in node.names:
            value = machine.module(item.name)
            name = item.asname or item.name.split(".", 1)[0]
            frame.variables[name] = value if item.asname else machine.module(name)
        return
    source = import_source(machine, node, frame)
    if node.module == "__future__":
        return
    module = machine.module(source)
    for item in node.names:
        try:
            frame.variables[item.asname or item.name] = machine.attribute(module, item.name)
        except UpstreamError as error:
            if error.kind != "AttributeError":
                raise
            raise UpstreamError("ImportError", f"cannot import name {item.name!r} from {source!r}") from error


def import_source(machine: Machine, node: ast.ImportFrom, frame: Frame) -> str:
    """The absolute name of the module that an import takes names from."""
    if not node.level:
        return node.module or ""
    parts = frame.module.split(".")
    keep = len(parts) - node.level + (1 if machine.tree.is_package(frame.module) else 0)
    base = ".".join(parts[: max(keep, 0)])
    return f"{base}.{node.module}" if node.module else base
