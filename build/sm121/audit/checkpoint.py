"""What a checkpoint declares: quantization, layer kinds, sizes. Only JSON is read, weights are never opened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm121.audit.layers import KvShape, Layers, Mixture, read_kv_shape, read_layers, read_mixture
from sm121.audit.loose import Loose, load_json
from sm121.audit.modules import Modules, Role, read_modules, stored_bytes
from sm121.audit.schemes import FULL, NONE, Matching, Number, Quantization, Scheme, read_quantization
from sm121.errors import ArtifactError
from sm121.expressions import compiled

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")


# Names of one module of each role, as the common families write them; {i} is the layer.
_SPELLINGS = {
    Role.ATTENTION: (
        "self_attn.q_proj", "self_attn.qkv_proj", "self_attn.o_proj", "mixer.q_proj",
        "self_attn.kv_a_proj_with_mqa",
    ),
    Role.DENSE: ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mixer.up_proj", "feed_forward.up_proj"),
    Role.EXPERTS: (
        "mlp.experts.0.gate_proj", "mlp.experts.0.down_proj", "mlp.experts", "mixer.experts.0.up_proj",
        "block_sparse_moe.experts.0.w1", "mlp.experts.gate_up_proj",
    ),
    Role.SHARED: (
        "mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj", "mixer.shared_experts.up_proj",
    ),
    Role.MAMBA: ("linear_attn.in_proj_qkvz", "linear_attn.out_proj", "mixer.in_proj", "mamba.in_proj"),
    Role.MTP: ("mtp.layers.0.mlp.gate_proj", "mtp.layers.0.self_attn.q_proj", "mtp.fc"),
    Role.HEAD: ("lm_head",),
}  # fmt: skip
_PREFIXES = (
    "model.layers.{i}.", "model.language_model.layers.{i}.", "language_model.model.layers.{i}.",
    "backbone.layers.{i}.",
)  # fmt: skip
_MOST_LAYERS_ASKED = 200
_DO = (
    "download that file of the checkpoint again, for a download that broke off ends early; `python -m json.tool FILE` "
    "shows the same place."
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One model as its configuration describes it.

    `schemes` holds, for each role that the model has, every scheme that occurs there, commonest first.
    `problems` are sentences about what could not be read; where one touches quantization, the schemes are
    Number.UNKNOWN.
    """

    name: str
    model_type: str
    architectures: tuple[str, ...]
    quantization: Quantization
    schemes: dict[Role, tuple[Scheme, ...]]
    layers: Layers
    mixture: Mixture | None
    kv: KvShape | None
    dtype: str
    hidden_size: int | None
    vocabulary: int | None
    longest_context: int | None
    tied_head: bool
    activation: str
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Those of the problems that touch kinds and sizes of layers: what is computed from them is not known."""
    stored_bytes: int | None = None
    """Size of the weights as they lie beside the configuration."""

    @classmethod
    def read(cls, reference: Path) -> Checkpoint:
        """Read a checkpoint's folder or its `config.json`. Raises ArtifactError if there is none to read."""
        path = reference / "config.json" if reference.is_dir() else reference
        if not path.exists():
            wanted = "a folder with a config.json, or the file itself"
            raise ArtifactError(
                f"{path} does not exist; wanted {wanted}.", do="name where the checkpoint was downloaded to."
            )
        config = Loose.of(load_json(path, do=_DO), path.name)
        beside = path.parent / "hf_quant_config.json"
        extra = None
        if not _quantization_table(config) and beside.is_file():
            extra = Loose.of(load_json(beside, do=_DO), beside.name, config.problems)
        folder = path.parent.name or str(path.parent)
        name = folder if reference.is_dir() else str(reference)
        modules = read_modules(path.parent, config.problems)
        found = cls.parse(config, name=name, quantization=extra, modules=modules)
        return replace(found, stored_bytes=_stored(path, modules))

    @classmethod
    def parse(
        cls, config: Loose, *, name: str = "", quantization: Loose | None = None, modules: Modules | None = None
    ) -> Checkpoint:
        """Make a checkpoint from a parsed `config.json`; ModelOpt's separate file and the index add to it."""
        if not config.members:
            raise ArtifactError(
                f"{config.where} describes no model: {'; '.join(config.problems) or 'it is empty'}.", do=_DO
            )
        text = _language_part(config)
        table = quantization or _quantization_table(config)
        declared = read_quantization(table) if table else NONE
        for pattern in _unreadable(declared):
            config.problems.append(
                f"{config.where}: the pattern {pattern!r} is not evaluated, it may match anything"
            )
        before = len(config.problems)
        layers, mixture, kv = read_layers(text), read_mixture(text), read_kv_shape(text)
        doubts = tuple(dict.fromkeys(config.problems[before:]))
        tied = bool(text.flag("tie_word_embeddings") or config.flag("tie_word_embeddings"))
        schemes = _schemes(declared, layers, mixture, modules or Modules(), tied=tied)
        return cls(
            name=name or config.where,
            model_type=config.text("model_type") or "",
            architectures=config.names("architectures"),
            quantization=declared,
            schemes=schemes,
            layers=layers,
            mixture=mixture,
            kv=kv,
            dtype=(text.text("dtype", "torch_dtype") or config.text("dtype", "torch_dtype") or "").removeprefix(
                "torch."
            ),
            hidden_size=text.count("hidden_size", "n_embd", "d_model"),
            vocabulary=text.count("vocab_size"),
            longest_context=text.count("max_position_embeddings", "n_positions", "max_sequence_length"),
            tied_head=tied,
            activation=(text.text("hidden_act", "mlp_hidden_act", "hidden_activation") or "silu").lower(),
            problems=tuple(dict.fromkeys(config.problems)),
            doubts=doubts,
        )

    @property
    def weight_only(self) -> bool:
        """Whether every quantized group stores weights alone."""
        groups = [group.scheme for group in self.quantization.groups]
        return bool(groups) and all(scheme.weight_only for scheme in groups)

    @property
    def undecided(self) -> bool:
        """Whether some layers are stored in a way that is not read here."""
        found = (scheme for schemes in self.schemes.values() for scheme in schemes)
        return any(Number.UNKNOWN in {scheme.weights, scheme.activations} for scheme in found)

    def scheme(self, role: Role) -> Scheme | None:
        """The commonest scheme of a role, None if the model has no such layers."""
        return next(iter(self.schemes.get(role, ())), None)


def _stored(path: Path, modules: Modules) -> int | None:
    # A collection of configurations has no weights of its own beside it.
    return (modules.total_bytes or stored_bytes(path.parent)) if path.name == "config.json" else None


def _language_part(config: Loose) -> Loose:
    """Multimodal configurations keep the language model in a member of its own, at times two levels down."""
    for _ in range(3):
        inner = next((found for key in _NESTED if (found := config.table(key)) is not None), None)
        if inner is None or config.has("num_hidden_layers"):
            return config
        config = inner
    return config


def _quantization_table(config: Loose) -> Loose | None:
    for place in (config, _language_part(config)):
        for key in ("quantization_config", "compression_config"):
            if place.has(key):
                found = place.table(key)
                return found if found is not None else Loose({}, f"{place.where}.{key}", place.problems)
    return None


def _unreadable(declared: Quantization) -> Iterable[str]:
    if declared.matching is not Matching.REGEX:
        return ()
    patterns = [*declared.ignored, *(target for group in declared.groups for target in group.targets)]
    return [pattern for pattern in patterns if pattern.startswith("re:") and compiled(pattern[3:]) is None]


def _schemes(
    declared: Quantization, layers: Layers, mixture: Mixture | None, modules: Modules, *, tied: bool
) -> dict[Role, tuple[Scheme, ...]]:
    there = {
        Role.ATTENTION: layers.attention > 0,
        Role.MAMBA: layers.recurrent > 0,
        Role.EXPERTS: mixture is not None,
        Role.SHARED: mixture is not None and mixture.shared > 0,
        Role.DENSE: mixture is None or mixture.dense_layers > 0,
        Role.MTP: layers.predictors > 0,
    }
    found = {role: _ranked(role, declared, layers, modules) for role in Role if there.get(role)}
    return {**found, Role.HEAD: (_head(declared, modules, tied=tied),)}


def _ranked(role: Role, declared: Quantization, layers: Layers, modules: Modules) -> tuple[Scheme, ...]:
    """The schemes of one role, commonest first."""
    names = modules.of(role)
    count: Counter[Scheme] = Counter()
    if names:
        count.update(declared.scheme_of(name) for name in names)
    else:
        for spelled in _spelled(role, layers.total):
            # The list of exceptions uses the model's own spelling, so one hit among the spellings decides.
            ignored = any(declared.ignores(name) for name in spelled)
            schemes = (declared.scheme_of(name) for name in spelled)
            count[FULL if ignored else next((scheme for scheme in schemes if scheme != FULL), FULL)] += 1
    return tuple(scheme for scheme, _ in count.most_common())


def _spelled(role: Role, layers: int) -> Iterable[tuple[str, ...]]:
    """For each layer, the names that a module of the role may have there."""
    if role is Role.MTP:
        yield _SPELLINGS[role]
        return
    for number in range(min(max(layers, 1), _MOST_LAYERS_ASKED)):
        yield tuple(prefix.format(i=number) + name for prefix in _PREFIXES for name in _SPELLINGS[role])


def _head(declared: Quantization, modules: Modules, *, tied: bool) -> Scheme:
    """vLLM quantizes the output head only where the method is made for it, and never a tied one."""
    stored = modules.quantized("lm_head")
    if stored is False or (tied and not stored):
        return FULL
    scheme = declared.groups[0].scheme if declared.groups else FULL
    if stored:
        by_name = declared.scheme_of("lm_head")
        return by_name if by_name != FULL else scheme
    if declared.head_quantized is not None:
        return scheme if declared.head_quantized else FULL
    if declared.experts_only or declared.matching is Matching.PART:
        return FULL
    return declared.scheme_of("lm_head")
