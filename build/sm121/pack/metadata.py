"""The texts of a wheel that name its version: METADATA, `_version.py`, WHEEL, RECORD.

Each is rewritten by what it means, and read back afterwards. A text of a shape that is not known is refused: a
rewrite that matches nothing would ship upstream's version under our name.
"""

from __future__ import annotations

import ast
import base64
import csv
import io
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from sm121 import __version__
from sm121.errors import PackError
from sm121.pack.stamp import version_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.pack.stamp import Stamp
    from sm121.values import Sha256

_TEXT_NAMES = ("__version__", "version")
_TUPLE_NAMES = ("__version_tuple__", "version_tuple")
GENERATOR = f"sm121 ({__version__})"


def stamped_metadata(data: bytes, stamp: Stamp) -> bytes:
    """METADATA with our version; nothing else changes."""
    head, blank, body = data.partition(b"\n\n")
    lines = head.split(b"\n")
    found = [index for index, line in enumerate(lines) if line.lower().startswith(b"version:")]
    raw, _ = parse_email(data)
    name, version = raw.get("name", ""), raw.get("version", "")
    if len(found) != 1 or version != str(stamp.base) or name.lower() != stamp.project.lower():
        raise PackError(
            f"METADATA should be of {stamp.project} {stamp.base} with one Version line, found "
            f"{name or 'no name'} {version or 'no version'} with {len(found)} Version lines.",
            do="take the official wheel of the pinned version.",
        )
    lines[found[0]] = f"Version: {stamp.version}".encode()
    result = b"\n".join(lines) + blank + body
    assert parse_email(result)[0].get("version") == stamp.version
    return result


def stamped_version_module(source: bytes, stamp: Stamp, name: str) -> bytes:
    """The module `name` with our version text and tuple; the commit id and everything else stay.

    Known are assignments at the top level, each of one literal to one or several names, as setuptools-scm and
    vcs-versioning write them.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise PackError(f"{name} is no Python module: {error}.") from error
    fields = version_fields(stamp.base)
    wanted: dict[str, tuple[object, object]] = {
        **dict.fromkeys(_TEXT_NAMES, (str(stamp.base), stamp.version)),
        **dict.fromkeys(_TUPLE_NAMES, (fields, (*fields, stamp.local))),
    }
    values: list[tuple[ast.expr, object]] = []
    known: set[int] = set()
    bound: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is None:
            known.add(id(statement.target))
        if not isinstance(statement, ast.Assign) or not all(
            isinstance(each, ast.Name) for each in statement.targets
        ):
            continue
        names = [each.id for each in statement.targets if isinstance(each, ast.Name)]
        if not set(names) & wanted.keys() or len({wanted.get(each) for each in names}) != 1:
            continue
        was, becomes = wanted[names[0]]
        if _literal(statement.value) == was:
            values.append((statement.value, becomes))
            known |= {id(each) for each in statement.targets}
            bound += names
    strange = [
        f"line {node.lineno} sets {node.id} in a way that is not known"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in wanted
        and id(node) not in known
    ]
    if "__version__" not in bound:
        strange.append(f"no line sets __version__ to {str(stamp.base)!r}")
    strange += [f"{each} is set {bound.count(each)} times" for each in wanted if bound.count(each) > 1]
    if strange:
        raise PackError(
            [f"{name} cannot be stamped with {stamp.version}: {each}." for each in strange],
            do="look at the module; a new way of writing it must be taught first.",
        )
    return _replaced(source, values)


def _literal(node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        return None
    return value


def _replaced(source: bytes, values: Iterable[tuple[ast.expr, object]]) -> bytes:
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    result = source
    for node, value in sorted(values, key=lambda pair: pair[0].lineno, reverse=True):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        result = result[:begin] + repr(value).encode() + result[end:]
    return result


def wheel_text(tags: Iterable[str]) -> bytes:
    """The WHEEL file of a platform wheel with these tags."""
    lines = ["Wheel-Version: 1.0", f"Generator: {GENERATOR}", "Root-Is-Purelib: false"]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in sorted(tags)), ""]).encode()


def record_text(rows: Iterable[tuple[str, Sha256, int]], record: str) -> bytes:
    """RECORD over all members (path, digest, size in bytes), sorted; its own line is last and has no digest."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for path, digest, size in sorted(rows):
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digest.hex)).rstrip(b"=").decode()
        writer.writerow((path, f"sha256={encoded}", size))
    writer.writerow((record, "", ""))
    return out.getvalue().encode()
