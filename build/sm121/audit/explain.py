"""Joins the three links before anything runs: declared by the checkpoint, selected by vLLM, delivered by the artifact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.audit.advice import Situation, advise, judge_variables
from sm121.audit.compiled import compiled_answers
from sm121.audit.conditions import alternatives
from sm121.audit.delivery import Delivery, State, judge_delivery
from sm121.audit.modules import Role
from sm121.audit.oracle import automatic_experts
from sm121.audit.schemes import Number
from sm121.audit.selection import Layer, select_attention, select_dense, select_experts
from sm121.audit.static import Facts
from sm121.audit.switches import read_variables
from sm121.findings import Finding, Verdict, overall
from sm121.target import GB10, Capability

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sm121.audit.checkpoint import Checkpoint
    from sm121.audit.delivery import Supplies
    from sm121.audit.selection import Choice, Selection
    from sm121.audit.source import SourceTree
    from sm121.values import CudaVersion

_DENSE_ROLES = (Role.ATTENTION, Role.DENSE, Role.SHARED, Role.MAMBA, Role.MTP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How the server would be started. `answers` are answers to questions that stayed open before."""

    capability: Capability = GB10
    cuda: CudaVersion | None = None
    """The CUDA version of torch; None leaves what depends on it open."""
    moe_backend: str = "auto"
    linear_backend: str = "auto"
    attention_backend: str = ""
    kv_cache: str = "auto"
    speculative: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, bool] = field(default_factory=dict)

    def facts(self, checkpoint: Checkpoint | None, supplies: Supplies | None = None) -> Facts:
        """What the evaluation may take as known."""
        has_family = supplies.has_family if supplies is not None else lambda _family: None
        cache = self.kv_cache
        if cache == "auto" and checkpoint is not None and checkpoint.quantization.kv_cache:
            cache = checkpoint.quantization.kv_cache
        return Facts(
            capability=self.capability,
            environment=self.environment,
            cuda=self.cuda,
            answers=self.answers,
            native=compiled_answers(self.capability, self.cuda, has_family),
            settings={
                "kernel_config.moe_backend": _spelled(self.moe_backend),
                "kernel_config.linear_backend": _spelled(self.linear_backend),
                "kernel_config.linear_backend_per_quant": None,
                "cache_config.cache_dtype": cache,
                "model_config.quantization_config": None,
                "model_config.hf_text_config.model_type": checkpoint.model_type if checkpoint else "",
                "lora_config": None,
            },
        )


def _spelled(backend: str) -> str:
    return backend.lower().replace("-", "_")


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of layer: which layers it stands for, what is selected, and whether the code is there."""

    roles: tuple[Role, ...]
    selection: Selection
    deliveries: tuple[Delivery, ...]
    """One for each choice, in their order."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer. The verdict is the gravest finding's."""

    checkpoint: Checkpoint
    artifact: str
    version: str
    request: Request
    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return overall(self.findings)

    def part(self, layer: Layer) -> Part | None:
        return next((part for part in self.parts if part.selection.layer is layer), None)


def explain(checkpoint: Checkpoint, tree: SourceTree, supplies: Supplies, request: Request) -> Explanation:
    """Say which backends would be taken on the chip, why, and what will break. Nothing is run or imported."""
    facts = request.facts(checkpoint, supplies)
    parts = tuple(_parts(checkpoint, tree, facts, supplies, request))
    selected, possible = _taken(parts, certain=True), _taken(parts, certain=False)
    situation = Situation(
        checkpoint, tree.version, _spelled(request.moe_backend), _spelled(request.linear_backend),
        request.speculative, selected, possible, automatic_experts(tree, facts, "nvfp4"),
    )  # fmt: skip
    findings = [
        *(Finding("explain.checkpoint", checkpoint.name, Verdict.WARN, text) for text in checkpoint.problems),
        *(finding for part in parts for finding in _judge(part, supplies)),
        *advise(situation),
        *judge_variables(request.environment, read_variables(tree), tree.version),
    ]
    return Explanation(checkpoint, ", ".join(tree.names), tree.version, request, parts, tuple(findings))


def _taken(parts: tuple[Part, ...], *, certain: bool) -> tuple[str, ...]:
    """Backends and kernel classes that are taken in any case, or under a condition only."""
    return tuple(
        name
        for part in parts
        for choice in part.selection.choices
        for name in (choice.backend, choice.kernel)
        if name and choice.certain is certain
    )


def _parts(
    checkpoint: Checkpoint, tree: SourceTree, facts: Facts, supplies: Supplies, request: Request
) -> Iterator[Part]:
    roles: dict[object, list[Role]] = {}
    for role in _DENSE_ROLES:
        for scheme in checkpoint.schemes.get(role, ()):
            roles.setdefault(scheme, []).append(role)
    head = checkpoint.scheme(Role.HEAD)
    if head is not None and head.weights is not Number.FULL:
        roles.setdefault(head, []).append(Role.HEAD)
    for role in _DENSE_ROLES:
        for scheme in checkpoint.schemes.get(role, ()):
            if roles.get(scheme, [None])[0] is role:
                yield _part(tuple(roles[scheme]), select_dense(tree, facts, scheme, checkpoint), supplies)
    for scheme in checkpoint.schemes.get(Role.EXPERTS, ()):
        yield _part((Role.EXPERTS,), select_experts(tree, facts, scheme, checkpoint), supplies)
    if checkpoint.layers.attention:
        chosen = request.attention_backend.upper()
        yield _part((), select_attention(tree, facts, checkpoint, chosen=chosen), supplies)


def _part(roles: tuple[Role, ...], selection: Selection, supplies: Supplies) -> Part:
    deliveries = tuple(
        judge_delivery(choice.kernel or choice.backend, supplies) if choice.backend else
        Delivery("", State.UNKNOWN, "nothing is selected")
        for choice in selection.choices
    )  # fmt: skip
    return Part(roles, selection, deliveries)


_VERDICTS = {
    State.DELIVERED: Verdict.PASS,
    State.DRIVER: Verdict.WARN,
    State.MACHINE: Verdict.INFO,
    State.UNKNOWN: Verdict.UNKNOWN,
    State.MISSING: Verdict.FAIL,
}
_ADVICE = {
    State.DRIVER: "Expect a long first load, and a failure where the driver is older than the toolkit that made the PTX.",
    State.MACHINE: "Send a warm-up request: the first one compiles.",
    State.MISSING: "Expect `no kernel image is available` or a refusal at start; take a wheel that has the code.",
    State.UNKNOWN: "Name the other wheels or the whole environment too.",
}


def _judge(part: Part, supplies: Supplies) -> Iterator[Finding]:
    layer, subject = part.selection.layer, part.selection.title
    check = f"explain.{layer}"
    for choice, delivery in zip(part.selection.choices, part.deliveries, strict=True):
        condition = "" if choice.certain else f", if {alternatives(choice.conditions)}"
        if choice.stuck:
            yield Finding(
                check, subject, Verdict.UNKNOWN, f"the selection cannot be followed: {choice.stuck}{condition}"
            )
        elif choice.error:
            yield Finding(
                check, subject, _conditional(Verdict.FAIL, choice), f"vLLM refuses: {choice.error}{condition}"
            )
        else:
            yield Finding(
                check, subject, _conditional(_VERDICTS[delivery.state], choice),
                f"takes {_named(choice)}{condition}; its code is {delivery.state} ({delivery.detail})",
                advice=(supplies.remedy if delivery.state is State.UNKNOWN else "") or _ADVICE.get(delivery.state, ""),
            )  # fmt: skip


def _conditional(verdict: Verdict, choice: Choice) -> Verdict:
    """What holds only under a condition that nobody checked is not known; that it could fail is worth a warning."""
    if choice.certain or verdict is Verdict.INFO:
        return verdict
    return Verdict.INFO if verdict is Verdict.PASS else Verdict.WARN if verdict is Verdict.FAIL else verdict


def _named(choice: Choice) -> str:
    if choice.kernel and choice.kernel != choice.backend:
        return f"{choice.backend} ({choice.kernel})"
    return choice.backend
