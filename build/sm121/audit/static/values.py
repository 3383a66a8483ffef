"""Values that the evaluation works with, besides Python's own numbers, texts and containers."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Value = Any
"""A plain Python object, or one of the classes below. Typed loosely: it is whatever upstream's code made."""

_LONGEST = 160


def clip(text: str) -> str:
    """Texts shown to a user stay short."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that cannot be known here; `text` says what it is, as one would ask for it.

    `some` says that it is certainly not None (an imported module, an object just made).
    """

    text: str
    some: bool = False

    def of(self, suffix: str) -> Unknown:
        """What is reached from it."""
        return Unknown(clip(self.text + suffix))


@dataclass(frozen=True, slots=True)
class Symbol:
    """An object of an external library that is only ever compared, such as `torch.bfloat16`."""

    name: str


@dataclass(frozen=True, slots=True)
class ModuleValue:
    """A module whose source can be read."""

    name: str


@dataclass(eq=False, slots=True)
class Frame:
    """Variables of a running function (or of a class body or module), and those around it."""

    module: str
    variables: dict[str, Value] = field(default_factory=dict)
    outer: Frame | None = None
    owner: ClassValue | None = None
    """The class whose method runs, for `super()`."""
    receiver: Value = None

    def find(self, name: str) -> Frame | None:
        """The nearest frame that has the variable."""
        frame: Frame | None = self
        while frame is not None and name not in frame.variables:
            frame = frame.outer
        return frame


@dataclass(eq=False, slots=True)
class Function:
    """A function of upstream's, with the variables around it and the class it was found in."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    owner: ClassValue | None = None

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def decorators(self) -> set[str]:
        """Last parts of the decorators' names: `classmethod`, `cache`."""
        if isinstance(self.node, ast.Lambda):
            return set()
        nodes = [item.func if isinstance(item, ast.Call) else item for item in self.node.decorator_list]
        return {item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", "") for item in nodes}


@dataclass(eq=False, slots=True)
class ClassValue:
    """A class of upstream's. `bases` are those whose source can be read; `external` names the others."""

    node: ast.ClassDef
    frame: Frame
    bases: tuple[ClassValue, ...] = ()
    external: tuple[str, ...] = ()
    extra: dict[str, Value] = field(default_factory=dict)
    """Attributes set from outside the class body, or computed before."""

    @property
    def name(self) -> str:
        return self.node.name

    def lineage(self) -> list[ClassValue]:
        """The class and its bases, nearest first, each once."""
        found: list[ClassValue] = [self]
        for base in self.bases:
            found.extend(item for item in base.lineage() if item not in found)
        return found

    def derives(self, *names: str) -> bool:
        """Whether a base outside the readable source has one of these names (`Enum`, `NamedTuple`)."""
        return any(name in item.external for item in self.lineage() for name in names)

    @property
    def enumeration(self) -> bool:
        return self.derives("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")

    @property
    def record(self) -> bool:
        """A dataclass or named tuple: two of them are equal if their fields are."""
        decorated = any(_decorated(item.node) for item in self.lineage())
        return decorated or self.derives("NamedTuple")


def _decorated(node: ast.ClassDef) -> bool:
    for item in node.decorator_list:
        name = item.func if isinstance(item, ast.Call) else item
        last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        if last in {"dataclass", "config"}:
            return True
    return False


@dataclass(eq=False, slots=True)
class Instance:
    """An object of one of upstream's classes. Members of enumerations have `name` and `value`."""

    cls: ClassValue
    attributes: dict[str, Value] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Instance) or other.cls.node is not self.cls.node:
            return False
        if self.cls.enumeration:
            return bool(self.attributes.get("name") == other.attributes.get("name"))
        return self.cls.record and self.attributes == other.attributes

    def __hash__(self) -> int:
        return hash((self.cls.name, str(self.attributes.get("name"))))

    @property
    def label(self) -> str:
        """`NvFp4MoeBackend.MARLIN`, or the class's name."""
        name = self.attributes.get("name") if self.cls.enumeration else None
        return f"{self.cls.name}.{name}" if name else self.cls.name


@dataclass(frozen=True, slots=True)
class Bound:
    """A function together with the object or class that it is called on."""

    function: Function
    receiver: Value


@dataclass(frozen=True, slots=True)
class Builtin:
    """A function modelled here."""

    name: str
    call: Callable[[list[Value], dict[str, Value]], Value]


@dataclass(eq=False, slots=True)
class Bag:
    """An object of which only some attributes are known; the others are Unknown."""

    name: str
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoggerValue:
    """vLLM's logger: what is said through it is kept, for it is what a boot log will show."""


def shown(value: Value) -> str:  # noqa: PLR0911 -- one text a kind
    """A value as a short text, for a reason or a question."""
    match value:
        case Unknown():
            return value.text
        case Symbol() | ModuleValue():
            return value.name
        case Instance():
            return value.label
        case ClassValue() | Function():
            return value.name
        case Bound():
            return value.function.name
        case Builtin() | Bag():
            return value.name
        case list() | tuple() | set() | frozenset():
            inner = ", ".join(shown(item) for item in list(value)[:12])
            if isinstance(value, list):
                return clip(f"[{inner}]")
            return clip(f"({inner})" if isinstance(value, tuple) else f"{{{inner}}}")
        case dict():
            return clip(
                "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in list(value.items())[:6]) + "}"
            )
        case str():
            return clip(value)
        case _:
            return clip(repr(value)) if isinstance(value, int | float | bool | None) else type(value).__name__


def formatted(text: Value, args: list[Value]) -> str:
    """`text % args` for a log line or message; widths are ignored."""
    values = iter(args)

    def one(match: re.Match[str]) -> str:
        return "%" if match[0] == "%%" else shown(next(values, Unknown(match[0])))

    return re.sub(r"%%|%(?:\(\w+\))?[#0\- +]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa]", one, shown(text))
