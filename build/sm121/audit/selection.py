"""Runs vLLM's own selection code, as text, for one kind of layer: what would it take, and why not the others.

The functions followed are those that the quantization methods call when layers are made:
`vllm/model_executor/kernels/linear/__init__.py`, `vllm/model_executor/layers/fused_moe/oracle/*.py` and
`get_attn_backend_cls` of `vllm/platforms/cuda.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.audit.calls import attention_call, dense_call, experts_call
from sm121.audit.conditions import Condition, merge
from sm121.audit.schemes import Number, Scheme
from sm121.audit.static import Answer, Facts, Machine, explore
from sm121.audit.static.paths import Path, Step, StuckError
from sm121.audit.static.values import ClassValue, Instance, Value, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm121.audit.checkpoint import Checkpoint
    from sm121.audit.source import SourceTree


_LOWER = "it would serve, but another ranks higher"


class Layer(StrEnum):
    """A kind of layer that has a selection of its own."""

    DENSE = "dense"
    EXPERTS = "experts"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One backend that was asked whether it serves."""

    backend: str
    """The oracle's name for it (FLASHINFER_CUTLASS), or the kernel class where there is no other."""
    kernel: str
    """The class that was asked."""
    taken: bool
    reason: str = ""
    """Why not, in upstream's words."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken if `conditions` hold. `backend` is empty where upstream raises or the code was not followed."""

    backend: str
    kernel: str
    conditions: tuple[tuple[Condition, ...], ...]
    """Alternatives, each a conjunction. One empty alternative means: in any case."""
    candidates: tuple[Candidate, ...]
    log: str = ""
    """The line that vLLM writes when it takes it."""
    error: str = ""
    stuck: str = ""
    assumed: tuple[str, ...] = ()
    """What was taken as given because vLLM's metadata pins the package that has it."""

    @property
    def certain(self) -> bool:
        return any(not alternative for alternative in self.conditions)


@dataclass(frozen=True, slots=True)
class Selection:
    """The outcome for one kind of layer, one choice per possible result, the first-found first."""

    layer: Layer
    scheme: str
    function: str
    choices: tuple[Choice, ...]
    note: str = ""

    @property
    def title(self) -> str:
        """What is selected for, in words: `dense NVFP4 W4A4`, `MLA attention`, `attention`."""
        if self.layer is not Layer.ATTENTION:
            return f"{self.layer} {self.scheme}"
        return str(self.layer) if self.scheme == self.layer else f"{self.scheme} {self.layer}"

    @property
    def decided(self) -> Choice | None:
        """The one choice, where there is only one and the code was followed to its end."""
        only = self.choices[0] if len(self.choices) == 1 else None
        return only if only is not None and not only.stuck else None


def select_dense(
    tree: SourceTree, facts: Facts, scheme: Scheme, checkpoint: Checkpoint | None = None
) -> Selection:
    """Which linear kernel serves layers of this scheme."""
    if scheme.weights is Number.FULL:
        return _fixed(
            Layer.DENSE, scheme, "torch", "UnquantizedLinearMethod", "16-bit layers run on torch (cuBLAS)"
        )
    return _select(tree, facts, Layer.DENSE, scheme.name, lambda machine: dense_call(machine, scheme, checkpoint))


def select_experts(
    tree: SourceTree, facts: Facts, scheme: Scheme, checkpoint: Checkpoint | None = None
) -> Selection:
    """Which MoE backend serves experts of this scheme."""
    return _select(
        tree, facts, Layer.EXPERTS, scheme.name, lambda machine: experts_call(machine, scheme, checkpoint)
    )


def select_attention(
    tree: SourceTree, facts: Facts, checkpoint: Checkpoint | None, *, chosen: str = ""
) -> Selection:
    """Which attention backend serves; `chosen` is what `--attention-backend` asks for."""
    kind = "MLA" if checkpoint and checkpoint.kv and checkpoint.kv.latent else "attention"
    return _select(
        tree, facts, Layer.ATTENTION, kind, lambda machine: attention_call(machine, checkpoint, chosen=chosen)
    )


def _fixed(layer: Layer, scheme: Scheme, backend: str, kernel: str, note: str) -> Selection:
    choice = Choice(backend, kernel, ((),), (Candidate(backend, kernel, taken=True),))
    return Selection(layer, scheme.name, "", (choice,), note)


def _select(
    tree: SourceTree, facts: Facts, layer: Layer, scheme: str, call: Callable[[Machine], tuple[str, Value]]
) -> Selection:
    function = ""

    def walk(path: Path) -> tuple[str, str]:
        nonlocal function
        machine = Machine(tree, facts, path)
        function, result = call(machine)
        return _named(result)

    answers = explore(walk)
    return Selection(layer, scheme, function, _choices(answers))


def _named(result: Value) -> tuple[str, str]:
    """The backend and the class of a result: a kernel object, a pair, or the dotted path of a class."""
    if isinstance(result, tuple) and result:
        first, *rest = result
        backend = shown(first.attributes.get("value")) if isinstance(first, Instance) else shown(first)
        kernel = next((item.name for item in rest if isinstance(item, ClassValue)), "")
        return backend, kernel
    if isinstance(result, str):
        kernel = result.rsplit(".", 1)[-1]
        return kernel, kernel
    if isinstance(result, Instance):
        return result.cls.name, result.cls.name
    if isinstance(result, ClassValue):
        return result.name, result.name
    raise StuckError(f"the selection gives {shown(result)}")


def _choices(answers: Sequence[Answer[tuple[str, str]]]) -> tuple[Choice, ...]:
    grouped: dict[tuple[str, str, str, str], list[Answer[tuple[str, str]]]] = {}
    for answer in answers:
        backend, kernel = answer.value or ("", "")
        grouped.setdefault((backend, kernel, answer.error, answer.stuck), []).append(answer)
    choices = []
    for (backend, kernel, error, stuck), alike in grouped.items():
        conditions = merge([answer.conditions for answer in alike])
        candidates = _candidates(alike[0].steps, kernel)
        assumed = tuple(
            sorted({step.subject for answer in alike for step in answer.steps if step.kind == "assumed"})
        )
        log = _log(alike[0].steps)
        choices.append(Choice(backend, kernel, conditions, candidates, log, error, stuck, assumed))
    return tuple(choices)


def _candidates(steps: Sequence[Step], taken: str) -> tuple[Candidate, ...]:
    found: dict[tuple[str, str], Candidate] = {}
    backend = ""
    for step in steps:
        if step.kind == "backend":
            backend = step.subject
        elif step.kind == "gate":
            name = backend or step.subject
            before = found.get((name, step.subject))
            if before is None or (before.taken and not step.answer):
                reason = "" if step.answer else step.detail
                found[name, step.subject] = Candidate(name, step.subject, bool(step.answer), reason)
    return tuple(
        item if item.kernel == taken or not item.taken else replace(item, taken=False, reason=_LOWER)
        for item in found.values()
    )


def _log(steps: Sequence[Step]) -> str:
    lines = [
        step.detail for step in steps if step.kind == "log" and step.detail.startswith(("Using ", "Selected "))
    ]
    return lines[-1] if lines else ""
