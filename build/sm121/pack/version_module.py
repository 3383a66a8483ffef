"""The module that tells a package its version at run time: `vllm/_version.py`.

Assignments are found by what they are, not by how they look. Known are those at the top level that give one
literal to one or several names, as setuptools-scm and vcs-versioning write them; anything else that sets one of
the names is refused, since a rewrite that matches nothing would ship upstream's version under our name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.errors import PackError
from sm121.pack.stamp import version_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sm121.pack.stamp import Stamp

_TEXT_NAMES = ("__version__", "version")
_TUPLE_NAMES = ("__version_tuple__", "version_tuple")


@dataclass(frozen=True, slots=True)
class _Value:
    """What a name holds in upstream's module, and what it holds in ours."""

    was: object
    becomes: object


@dataclass(frozen=True, slots=True)
class _Assignment:
    """`names = literal`, with the literal's place in the source."""

    names: tuple[str, ...]
    literal: ast.expr
    value: _Value


def stamped_version_module(source: bytes, stamp: Stamp, name: str) -> bytes:
    """The module `name` with our version text and tuple; the commit id and everything else stay.

    Raises PackError that names each line of a shape that is not known.
    """
    return restamped_version_module(source, stamp.base, Version(stamp.version), name)


def restamped_version_module(source: bytes, was: Version, becomes: Version, name: str) -> bytes:
    """The module `name` with the version `becomes` in place of `was`. Raises like `stamped_version_module`."""
    text = _Value(str(was), str(becomes))
    numbers = _Value(version_fields(was), version_fields(becomes))
    wanted = {**dict.fromkeys(_TEXT_NAMES, text), **dict.fromkeys(_TUPLE_NAMES, numbers)}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise PackError(f"{name} is no Python module: {error}.") from error
    found = list(_assignments(tree, wanted))
    bound = [each for assignment in found for each in assignment.names]
    problems = [
        f"line {line} sets {each} in a way that is not known"
        for line, each in _bindings(tree)
        if each in wanted and (line, each) not in {(a.literal.lineno, n) for a in found for n in a.names}
    ]
    problems += [f"{each} is set {bound.count(each)} times" for each in wanted if bound.count(each) > 1]
    if "__version__" not in bound:
        problems.append(f"no line sets __version__ to {str(was)!r}")
    if problems:
        raise PackError(
            [f"{name} cannot be stamped with {becomes}: {each}." for each in problems],
            do="look at the module; a new way of writing it must be taught first.",
        )
    return _rewritten(source, found)


def _assignments(tree: ast.Module, wanted: Mapping[str, _Value]) -> Iterator[_Assignment]:
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or statement.lineno != statement.value.lineno:
            continue
        names = tuple(each.id for each in statement.targets if isinstance(each, ast.Name))
        values = {wanted.get(each) for each in names}
        value = values.pop() if len(values) == 1 and len(names) == len(statement.targets) else None
        if value is not None and _literal(statement.value) == value.was:
            yield _Assignment(names, statement.value, value)


def _bindings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything that gives a name a value, at any depth; a bare annotation gives none."""
    bare = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and node.value is None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in bare:
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name


def _literal(node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        return None
    return value


def _rewritten(source: bytes, assignments: Sequence[_Assignment]) -> bytes:
    """Put the new literals in place, the last one first, so that the places before it stay true."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for each in sorted(assignments, key=lambda each: each.literal.lineno, reverse=True):
        assert each.literal.end_lineno is not None
        assert each.literal.end_col_offset is not None
        begin = starts[each.literal.lineno - 1] + each.literal.col_offset
        end = starts[each.literal.end_lineno - 1] + each.literal.end_col_offset
        source = source[:begin] + repr(each.value.becomes).encode() + source[end:]
    return source
