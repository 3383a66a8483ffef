"""Prints what an artifact's vLLM can choose from: ordered lists, support checks for one chip, variables and flags."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from sm121.audit.calls import call_gate, call_ranking, experts_keys
from sm121.audit.conditions import Condition, merge
from sm121.audit.schemes import Number, Scheme
from sm121.audit.static import Answer, Facts, Machine, explore
from sm121.audit.static.expressions import iterate
from sm121.audit.static.objects import members
from sm121.audit.static.paths import Path, StuckError, UpstreamError
from sm121.audit.static.values import ClassValue, Frame, Function, Instance, Value, shown
from sm121.audit.switches import read_deprecated, read_flags, read_variables, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sm121.audit.source import SourceTree

_LINEAR = "vllm.model_executor.kernels.linear"
_ORACLE = "vllm.model_executor.layers.fused_moe.oracle"


class Serves(StrEnum):
    """Whether a backend's own checks accept the chip."""

    YES = "yes"
    NO = "no"
    DEPENDS = "depends"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Entry:
    """One backend of a list. `reason` says why not, or why one cannot tell."""

    name: str
    kernels: tuple[str, ...]
    serves: Serves
    reason: str = ""
    needs: tuple[tuple[Condition, ...], ...] = ()
    """If `serves` is DEPENDS: alternatives under which it does."""
    automatic: bool = True
    """False: never taken by itself, only where it is asked for."""


@dataclass(frozen=True, slots=True)
class Table:
    """One ordered list, best first; entries that are not automatic stand behind it."""

    name: str
    source: str
    entries: tuple[Entry, ...]

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries if entry.automatic)


@dataclass(frozen=True, slots=True)
class Oracle:
    """All lists of one version. `flags` maps an option to its values, `deprecated` holds upstream's sentences."""

    artifact: str
    version: str
    capability: str
    tables: tuple[Table, ...]
    variables: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]
    deprecated: tuple[str, ...]
    problems: tuple[str, ...]

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.name == name), None)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A list before its entries are judged: names and how to judge one."""

    name: str
    source: str
    automatic: tuple[str, ...]
    others: tuple[str, ...]
    judge: Callable[[str], Entry]


def read_oracle(tree: SourceTree, facts: Facts) -> Oracle:
    """Read and judge all lists. Nothing of vLLM's is imported; what cannot be read is a problem, not an error."""
    problems: list[str] = []
    tables = []
    for read in (_dense_lists, _expert_lists, _attention_lists):
        found = list(read(tree, facts, problems))
        if not found:
            problems.append(
                f"no {read.__name__[1:].replace('_', ' ')} were found: this version keeps them elsewhere"
            )
        for listed in found:
            entries = [listed.judge(name) for name in listed.automatic]
            rest = [listed.judge(name) for name in listed.others]
            asked = [_on_request(entry) for entry in rest]
            tables.append(Table(listed.name, listed.source, (*entries, *asked)))
    capability = str(facts.capability)
    flags = read_flags(tree)
    names = ", ".join(tree.names)
    return Oracle(
        names,
        tree.version,
        capability,
        tuple(tables),
        read_variables(tree),
        flags,
        read_deprecated(tree),
        tuple(problems),
    )


def _on_request(entry: Entry) -> Entry:
    return Entry(entry.name, entry.kernels, entry.serves, entry.reason, entry.needs, automatic=False)


# -- dense -----------------------------------------------------------------------------------------------------


def _dense_lists(tree: SourceTree, facts: Facts, problems: list[str]) -> Iterator[_Listed]:
    module = tree.module(_LINEAR)
    for statement in module.body if module else ():
        name = target_of(statement)
        if not re.fullmatch(r"_POSSIBLE_\w*KERNELS", name):
            continue
        machine = Machine(tree, facts)
        try:
            table = machine.member(_LINEAR, name)
            listed = next(value for key, value in table.items() if shown(key).endswith(".CUDA"))
            kernels = tuple(item.name for item in listed if isinstance(item, ClassValue))
        except (UpstreamError, StuckError, AttributeError, StopIteration, TypeError) as error:
            problems.append(f"{name} cannot be read: {str(error) or 'it has no list for CUDA'}")
            continue
        title = f"dense {name.removeprefix('_POSSIBLE_').removesuffix('KERNELS').strip('_') or 'WNA16'}"
        source = f"{_LINEAR}:{statement.lineno}"
        yield _Listed(title, source, kernels, (), partial(_judge_linear, tree, facts))


def _judge_linear(tree: SourceTree, facts: Facts, name: str) -> Entry:
    def walk(path: Path) -> tuple[bool, str]:
        machine = Machine(tree, facts, path)
        kernel = machine.member(_LINEAR, name)
        if not isinstance(kernel, ClassValue):
            raise StuckError(f"{name} cannot be read")
        return call_gate(machine, kernel)

    return _entry(name, (name,), explore(walk))


def _entry(name: str, kernels: tuple[str, ...], answers: Sequence[Answer[tuple[bool, str]]]) -> Entry:
    stuck = next((answer.stuck for answer in answers if answer.stuck), "")
    accepting = [answer for answer in answers if answer.value and answer.value[0]]
    reasons = [answer.value[1] for answer in answers if answer.value and not answer.value[0]]
    reasons += [answer.error for answer in answers if answer.error]
    reason = next((text for text in reasons if text), "")
    if stuck:
        return Entry(name, kernels, Serves.UNKNOWN, stuck)
    if not accepting:
        return Entry(name, kernels, Serves.NO, reason)
    if len(accepting) == len(answers):
        return Entry(name, kernels, Serves.YES)
    return Entry(name, kernels, Serves.DEPENDS, reason, merge([answer.conditions for answer in accepting]))


# -- experts ---------------------------------------------------------------------------------------------------

_EXPERT_SCHEMES = {
    "nvfp4": Scheme(Number.NVFP4, Number.NVFP4),
    "mxfp4": Scheme(Number.MXFP4),
    "fp8": Scheme(Number.FP8, Number.FP8, "block", (128, 128), "dynamic-group"),
    "mxfp8": Scheme(Number.MXFP8, Number.MXFP8),
    "int_wna16": Scheme(Number.INT4),
    "unquantized": Scheme(Number.FULL),
}


def _expert_lists(tree: SourceTree, facts: Facts, problems: list[str]) -> Iterator[_Listed]:
    for short, scheme in _EXPERT_SCHEMES.items():
        name = f"{_ORACLE}.{short}"
        module = tree.module(name)
        if module is None:
            problems.append(f"{name} is not in the artifact")
            continue
        lists = _lists(tree, facts, short, module, problems)
        if not lists:
            problems.append(f"{name} has no list of backends that can be read")
        listed = {member for _, names, _ in lists for member in names}
        for title, names, line in lists:
            asked = [
                other for other in _members(tree, facts, name, module) if other not in listed and other != "NONE"
            ]
            judge = partial(_judge_experts, tree, facts, name, scheme)
            yield _Listed(
                f"MoE {short}{title}",
                f"{name}:{line}",
                names,
                tuple(asked) if title == lists[0][0] else (),
                judge,
            )


def automatic_experts(tree: SourceTree, facts: Facts, short: str) -> tuple[str, ...]:
    """The backends that are tried by themselves for experts of one oracle (`nvfp4`), best first; none if unread."""
    module = tree.module(f"{_ORACLE}.{short}")
    lists = _lists(tree, facts, short, module, []) if module else []
    return tuple(dict.fromkeys(member for _, names, _ in lists for member in names))


def _lists(
    tree: SourceTree, facts: Facts, short: str, module: ast.Module, problems: list[str]
) -> list[tuple[str, tuple[str, ...], int]]:
    name = f"{_ORACLE}.{short}"
    ranked = _ranked_lists(tree, facts, name, module, _EXPERT_SCHEMES[short])
    return ranked or list(_literal_lists(tree, facts, name, module, problems))


def _ranked_lists(
    tree: SourceTree, facts: Facts, name: str, module: ast.Module, scheme: Scheme
) -> list[tuple[str, tuple[str, ...], int]]:
    """What the functions that rank backends give for this chip; nothing if there is none or it is not followed."""
    found = []
    for node in module.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("_get_priority_backends"):
            continue

        def order(path: Path, ranking: str = node.name) -> tuple[str, ...]:
            machine = Machine(tree, facts, path)
            return tuple(_name(item) for item in iterate(machine, call_ranking(machine, name, ranking, scheme)))

        answers = [answer.value for answer in explore(order) if answer.value]
        if answers:
            special = node.name.partition("_for_")[2]
            found.append((f" {special}" if special else "", answers[0], node.lineno))
    return found


def _literal_lists(
    tree: SourceTree, facts: Facts, name: str, module: ast.Module, problems: list[str]
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Lists of three or more members of one enumeration; the title is the function's special part.

    A starred part, `*([...] if CONDITION else [])`, is what the condition makes of it on this chip.
    """
    for scope in [module, *(node for node in module.body if isinstance(node, ast.FunctionDef))]:
        for node in scope.body if scope is module else ast.walk(scope):
            target = target_of(node) if isinstance(node, ast.stmt) else ""
            value = getattr(node, "value", None)
            if not re.search(r"backends$", target, re.IGNORECASE) or not isinstance(value, ast.List | ast.Tuple):
                continue
            if not target.isupper() and "priority" not in target and target != "backends":
                continue
            if _helper(target) or any(not isinstance(item, ast.Attribute | ast.Starred) for item in value.elts):
                continue
            names = tuple(_spelled(tree, facts, name, value, problems))
            if len(names) < 3:
                continue
            special = scope.name.partition("_for_")[2] if isinstance(scope, ast.FunctionDef) else ""
            yield (f" {special}" if special else ""), names, value.lineno


def _spelled(
    tree: SourceTree, facts: Facts, name: str, written: ast.List | ast.Tuple, problems: list[str]
) -> Iterator[str]:
    """The members of a list. A starred part that cannot be followed is a problem; the rest of the list is read."""
    for item in written.elts:
        if isinstance(item, ast.Attribute):
            yield item.attr
        elif isinstance(item, ast.Starred):
            part = item.value

            def walk(path: Path, part: ast.expr = part) -> tuple[str, ...]:
                machine = Machine(tree, facts, path)
                found = list(iterate(machine, machine.value_of(part, Frame(name))))
                if not all(isinstance(member, Instance) for member in found):
                    raise StuckError(f"{ast.unparse(part)} is no list of backends")
                return tuple(_name(member) for member in found)

            answers = explore(walk)
            values = list(dict.fromkeys(answer.value for answer in answers if answer.value is not None))
            if len(values) != 1 or any(answer.value is None for answer in answers):
                why = next((answer.stuck or answer.error for answer in answers if answer.value is None), "")
                problems.append(
                    f"{name}:{item.lineno}: {why or 'a part of the list depends on more than the chip'}"
                )
            yield from values[0] if values else ()


def _helper(name: str) -> bool:
    """Lists of what shares a property, which is no order of preference."""
    return bool(re.match(r"(?:AITER|TRTLLM|TRITON|B12X|FLASHINFER)_", name))


def _members(tree: SourceTree, facts: Facts, name: str, module: ast.Module) -> list[str]:
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name.endswith("Backend"):
            cls = Machine(tree, facts).member(name, statement.name)
            if isinstance(cls, ClassValue) and cls.enumeration:
                return [str(item.attributes["name"]) for item in members(Machine(tree, facts), cls)]
    return []


def _judge_experts(tree: SourceTree, facts: Facts, module: str, scheme: Scheme, backend: str) -> Entry:
    kernels: dict[str, None] = {}

    def walk(path: Path) -> tuple[bool, str]:
        machine = Machine(tree, facts, path)
        function = machine.member(module, "backend_to_kernel_cls")
        if not isinstance(function, Function):
            raise StuckError(f"{module} has no backend_to_kernel_cls")
        member = _member_of(machine, module, backend)
        reasons: list[str] = []
        found = machine.call(function, [member])
        for kernel in found if isinstance(found, list) else [found]:
            if not isinstance(kernel, ClassValue):
                raise StuckError(f"{backend} leads to {shown(kernel)}")
            kernels[kernel.name] = None
            supported, reason = call_gate(machine, kernel, experts_keys(machine, scheme))
            if supported:
                return True, ""
            reasons.append(reason)
        return False, next((reason for reason in reasons if reason), "")

    answers = explore(walk)
    return _entry(backend, tuple(kernels), answers)


def _member_of(machine: Machine, module: str, name: str) -> Instance:
    tree = machine.tree.module(module)
    for statement in tree.body if tree else ():
        for enumeration in _imported_backends(statement):
            cls = machine.member(module, enumeration)
            if isinstance(cls, ClassValue) and cls.enumeration:
                found = next((item for item in members(machine, cls) if item.attributes["name"] == name), None)
                if found is not None:
                    return found
    raise StuckError(f"{module} has no backend {name}")


def _imported_backends(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef):
        return [statement.name] if statement.name.endswith("Backend") else []
    if isinstance(statement, ast.ImportFrom):
        return [item.asname or item.name for item in statement.names if item.name.endswith("Backend")]
    return []


# -- attention -------------------------------------------------------------------------------------------------


def _attention_lists(tree: SourceTree, facts: Facts, problems: list[str]) -> Iterator[_Listed]:
    for title, latent in (("attention", False), ("attention MLA", True)):

        def order(path: Path, latent: bool = latent) -> list[str]:
            machine = Machine(tree, facts, path)
            function = machine.member("vllm.platforms.cuda", "_get_backend_priorities")
            platform = machine.member("vllm.platforms", "current_platform")
            capability = machine.call(machine.attribute(platform, "get_device_capability"), [])
            return [_name(item) for item in iterate(machine, machine.call(function, [latent, capability]))]

        answers = [answer for answer in explore(order) if answer.value]
        if not answers or not answers[0].value:
            problems.append("the order of attention backends cannot be read from vllm.platforms.cuda")
            continue
        names = tuple(answers[0].value)
        if any(tuple(answer.value or ()) != names for answer in answers):
            problems.append(f"the order of {title} backends depends on more than the chip; one of them is shown")
        source = "vllm.platforms.cuda:_get_backend_priorities"
        yield _Listed(title, source, names, (), partial(_judge_attention, tree, facts))


def _name(value: Value) -> str:
    return str(value.attributes["name"]) if isinstance(value, Instance) else shown(value)


def _judge_attention(tree: SourceTree, facts: Facts, name: str) -> Entry:
    found: dict[str, None] = {}

    def walk(path: Path) -> tuple[bool, str]:
        machine = Machine(tree, facts, path)
        registry = machine.member("vllm.v1.attention.backends.registry", "AttentionBackendEnum")
        member = next((item for item in members(machine, registry) if item.attributes["name"] == name), None)
        kernel = machine.call(machine.attribute(member, "get_class"), [])
        if not isinstance(kernel, ClassValue):
            raise StuckError(f"{name} leads to {shown(kernel)}")
        found[kernel.name] = None
        return call_gate(machine, kernel)

    answers = explore(walk)
    return _entry(name, tuple(found), answers)
