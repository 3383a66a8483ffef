"""What should not be in an image: secrets, caches of compilers, wheels, what lower layers still carry."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import listed, shown
from sm121.progress import plural, size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sm121.inspector.container import Hidden
    from sm121.inspector.container_rules import ContainerRules

_STALE = "https://github.com/flashinfer-ai/flashinfer/issues/5145"
_LAYERS = "https://docs.docker.com/build/building/secrets/"
_WASTE = 64 << 20
"""Bytes below which what lower layers carry for nothing is not worth a warning."""
_ASSIGNED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|'[^']*'|\S+)")


def judge_secrets(
    env: Mapping[str, str], labels: Mapping[str, str], history: Sequence[str], rules: ContainerRules
) -> Iterator[Finding]:
    """Secrets in the environment, the labels and the history: everybody who has the image can read them.

    A secret is never shown.
    """
    clean = True
    named = [("environment", name, value) for name, value in sorted(env.items())]
    named += [("label", name, value) for name, value in sorted(labels.items())]
    for step, text in enumerate(history, 1):
        # A value that the environment sets stands in the history too, and is told once.
        named += [
            (f"history, step {step}", match[1], match[2].strip("\"'"))
            for match in _ASSIGNED.finditer(text)
            if env.get(match[1]) != match[2].strip("\"'")
        ]
    for where, name, value in named:
        kind = rules.secrets.by_form(value)
        if not kind and rules.secrets.by_name(name) and not rules.secrets.harmless.fullmatch(value):
            kind = "a secret, by its name"
        if kind:
            clean = False
            yield _secret(where, f"{shown(name)} holds {kind}")
    for step, text in enumerate(history, 1):
        plain = _ASSIGNED.sub("", text)
        if kind := rules.secrets.by_form(plain):
            clean = False
            yield _secret(f"history, step {step}", f"the command holds {kind}")
    if clean:
        got = "no secret in the environment, the labels and the history"
        yield Finding("image.secret", "the configuration", Verdict.PASS, got)


def judge_files(
    paths: Collection[str], hidden: Sequence[Hidden] | None, rules: ContainerRules
) -> Iterator[Finding]:
    """Files of credentials, visible or only hidden by a later layer."""
    for kind in rules.secrets.files:
        for path in sorted(path for path in paths if kind.pattern.search(path)):
            yield _secret(shown(path), f"is {kind.name}")
        for item in hidden or ():
            if kind.pattern.search(item.path):
                yield _secret(shown(item.path), f"is {kind.name}; layer {item.layer} still holds it")


def judge_caches(paths: Collection[str], rules: ContainerRules) -> Iterator[Finding]:
    """Caches that compilers filled while the image was made."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for cache in rules.caches:
            if cache.pattern.search(f"/{path}"):
                found[cache.name].append(path)
    for name, files in sorted(found.items()):
        got = f"{plural(len(files), 'file')} of the cache of {name} are baked in, such as {shown(min(files))}"
        advice = "Delete the cache in the step that fills it: it was made by other versions or for another chip."
        yield Finding("image.cache", name, Verdict.WARN, got, "an empty cache", advice, _STALE)
    if not found:
        yield Finding("image.cache", "caches", Verdict.PASS, "no cache of a compiler is baked in")


def judge_wheels(
    paths: Collection[str], hidden: Sequence[Hidden] | None, rules: ContainerRules
) -> Iterator[Finding]:
    """Wheels that were installed from, and stayed: as files, or in a layer below the one that deletes them."""
    left = sorted(path for path in paths if path.endswith(".whl") and not rules.staged.search(path))
    if left:
        got = f"{plural(len(left), 'wheel')} stayed: {listed(left, 3)}"
        yield Finding("image.wheels", "wheels", Verdict.WARN, got, "none", _mounted())
    lost = [item for item in hidden or () if item.path.endswith(".whl") and not rules.staged.search(item.path)]
    if lost:
        total = sum(item.size for item in lost)
        got = f"layers still carry {size(total)} of deleted wheels: {listed([item.path for item in lost], 3)}"
        yield Finding("image.wheels", "layers", Verdict.WARN, got, "no wheel in any layer", _mounted())
    if not left and not lost:
        yield Finding("image.wheels", "wheels", Verdict.PASS, "no wheel stayed in any layer")


def judge_waste(hidden: Sequence[Hidden]) -> Iterator[Finding]:
    """What layers carry and the image does not show."""
    total = sum(item.size for item in hidden)
    if not total:
        return
    largest = sorted(hidden, key=lambda item: (-item.size, item.path))[:3]
    parts = ", ".join(f"{shown(item.path)} ({size(item.size)}, layer {item.layer})" for item in largest)
    got = f"{size(total)} in {plural(len(hidden), 'file')} that a later layer deletes or replaces: {parts}"
    advice = "Delete in the step that creates, and change modes there too." if total >= _WASTE else ""
    yield Finding(
        "image.waste", "layers", Verdict.WARN if total >= _WASTE else Verdict.INFO, got, "", advice, _LAYERS
    )


def _secret(subject: str, got: str) -> Finding:
    advice = "Revoke it: everybody who has the image has it. Give builds secrets by --secret, servers by a file."
    return Finding("image.secret", subject, Verdict.FAIL, got, "no secret", advice, _LAYERS)


def _mounted() -> str:
    return "Install from a bind mount of the build context."
