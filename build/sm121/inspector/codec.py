"""Records to JSON data and back, strictly: a missing, surplus or wrongly typed word names its place."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Json = Any


def encode(value: object) -> Json:
    """JSON data of a record made of records, tuples, mappings, enumerations and plain values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in sorted(value.items())}
    return value


def decode(kind: type[Record], data: Json, where: str = "") -> Record:
    """The record that `data` describes; ValueError names the first place that is wrong."""
    value: Record = _decode(kind, data, where)
    return value


def _decode(kind: Any, data: Json, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        (inner,) = (item for item in arguments if item is not type(None))
        return None if data is None else _decode(inner, data, where)
    if origin is tuple:
        return _tuple(arguments, _of(list, data, where), where)
    if origin is Mapping:
        return {
            key: _decode(arguments[1], item, f"{where}.{key}") for key, item in _of(dict, data, where).items()
        }
    return _record(kind, data, where) if dataclasses.is_dataclass(kind) else _plain(kind, data, where)


def _plain(kind: Any, data: Json, where: str) -> Any:
    if issubclass(kind, StrEnum):
        try:
            return kind(_of(str, data, where))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return _of(kind, data, where)


def _record(kind: Any, data: Json, where: str) -> Any:
    found = _of(dict, data, where)
    hints = get_type_hints(kind)
    names = {item.name for item in dataclasses.fields(kind)}
    if odd := sorted(found.keys() ^ names):
        state = "is missing" if odd[0] in names else "is not known"
        raise ValueError(f"{where}.{odd[0]} {state}".lstrip("."))
    return kind(**{name: _decode(hints[name], found[name], f"{where}.{name}".lstrip(".")) for name in names})


def _tuple(arguments: tuple[Any, ...], data: list[Json], where: str) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if len(arguments) != len(data):
        raise ValueError(f"{where}: wanted {len(arguments)} items, found {len(data)}")
    return tuple(
        _decode(kind, item, f"{where}[{index}]")
        for index, (kind, item) in enumerate(zip(arguments, data, strict=True))
    )


def _of(kind: type, data: Json, where: str) -> Any:
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise ValueError(f"{where or 'document'}: wanted {kind.__name__}, found {type(data).__name__}")
    return data
