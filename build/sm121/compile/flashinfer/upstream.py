"""Reads the `build.ninja` that FlashInfer writes for one module.

Only what upstream's generator writes is understood (flashinfer/jit/cpp_ext.py); anything else is an error: a
rule that was read wrongly would be a library compiled wrongly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Mapping

_RULES = {
    "compile": "$cxx_launcher $cxx -MMD -MF $out.d $cflags -c $in -o $out $post_cflags",
    "cuda_compile": "$nvcc_launcher $nvcc --generate-dependencies-with-compile -MF $out.d $cuda_cflags -c $in "
    "-o $out $cuda_post_cflags",
    "link": "$cxx $in $ldflags -o $out",
}
"""Rule to the command that upstream writes for it (0.6.14 to 0.7.2.post1, read 2026-11-30)."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit: its object and source as paths, whether nvcc compiles it, its options as one string."""

    object: str
    source: str
    cuda: bool
    flags: str


@dataclass(frozen=True, slots=True)
class UpstreamModule:
    """One module as upstream would build it."""

    name: str
    units: tuple[Unit, ...]
    library: str
    link_flags: str


def read_module(text: str, name: str) -> UpstreamModule:
    """Take apart the `build.ninja` of the module `name`. Raises CompileError for what is not known."""
    variables: dict[str, str] = {}
    commands: dict[str, str] = {}
    edges: list[tuple[str, str, list[str], dict[str, str]]] = []
    rule, bindings = "", variables
    for line in re.sub(r"\$\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        if line.startswith("rule "):
            rule, bindings = line.split()[1], {}
        elif line.startswith("build "):
            outputs, _, rest = line.removeprefix("build ").partition(": ")
            word, *inputs = rest.split()
            bindings = {}
            edges.append((outputs, word, inputs, bindings))
            rule = ""
        elif line.startswith("default "):
            rule, bindings = "", variables
        else:
            key, separator, value = (part.strip() for part in line.partition("="))
            if not separator or not re.fullmatch(r"\w+", key):
                raise _unknown(name, f"the line {line.strip()[:120]!r}")
            if line.startswith(" "):
                if rule and key == "command":
                    commands[rule] = value
                bindings[key] = value
            else:
                variables[key] = value
    for used in sorted({edge[1] for edge in edges}):
        if used not in _RULES or commands.get(used) != _RULES[used]:
            raise _unknown(name, f"the rule {used!r} with the command {commands.get(used, 'none')!r}")
    return _module(name, variables, edges)


def _module(
    name: str, variables: Mapping[str, str], edges: list[tuple[str, str, list[str], dict[str, str]]]
) -> UpstreamModule:
    units, links = [], []
    for output, rule, inputs, bindings in edges:
        scope = {**variables, **bindings}
        if rule == "link":
            links.append((output, inputs, _expanded(scope["ldflags"], scope)))
            continue
        flags = _expanded(scope["cuda_cflags" if rule == "cuda_compile" else "cflags"], scope)
        units.append(Unit(output, inputs[0], rule == "cuda_compile", flags))
    if len(links) != 1 or {*links[0][1]} != {unit.object for unit in units}:
        raise _unknown(name, f"{len(links)} link commands for {len(units)} objects")
    return UpstreamModule(name, tuple(sorted(units, key=lambda unit: unit.object)), links[0][0], links[0][2])


def _expanded(text: str, scope: Mapping[str, str]) -> str:
    while match := _VARIABLE.search(text):
        text = text[: match.start()] + scope.get(match[1] or match[2], "") + text[match.end() :]
    return " ".join(text.split())


def _unknown(name: str, what: str) -> CompileError:
    return CompileError(
        f"the build file that FlashInfer writes for {name} holds {what}, which is not known here.",
        do="this FlashInfer is not supported yet; build a pinned version.",
    )
