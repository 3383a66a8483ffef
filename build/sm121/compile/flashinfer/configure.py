"""Upstream's build commands as one build file for ninja: relative paths, long compiles first, heavy ones bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121 import process
from sm121.compile.flashinfer.upstream import read_module
from sm121.compile.ninja import relative
from sm121.errors import CompileError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.compile.build import Schedule
    from sm121.compile.flashinfer.upstream import Unit, UpstreamModule

LINK_FLAGS = "-Wl,--as-needed,-s,--build-id=sha1"
"""The same link on distributions whose gcc differs in its defaults: only libraries that are used are asked for; no
symbol table, because it names temporary files, and a build id over what is left."""
CONFIGURED = "configured.json"


@dataclass(frozen=True, slots=True)
class Modules:
    """What is to be compiled: modules with the sources that were planned, and how."""

    sources: Mapping[str, Sequence[str]]
    """Module to the file names of its sources, sorted."""
    extra: tuple[str, ...]
    """Upstream's generators for modules outside its ahead-of-time set."""
    arch_list: str
    cuda: str
    torch: str
    compiler: str
    """The C++ compiler for the target."""
    launcher: str
    """What is put in front of every compile command, as shell words."""
    more_flags: str = ""
    """Further options of nvcc."""


def generate(tree: Path, modules: Modules, python: str, log: Path) -> None:
    """Let FlashInfer write down its build commands below `tree`/obj, in an interpreter of its own.

    Raises CompileError if its scripts fail, or if they make other modules or sources than were planned.
    """
    out = tree / "obj"
    # Generated sources stay: upstream writes those that differ, so that only what changed is compiled.
    for file in (out / "modules").glob("*/build.ninja"):
        file.unlink()
    request = {
        "wheel": str(tree / "source"), "python": str(tree / "tools" / "python"),
        "tvm_ffi": str(tree / "tvm-ffi" / "tvm_ffi"), "cuda_home": str(tree / "cuda"),
        "python_headers": str(tree / "python"), "out": str(out), "cuda": modules.cuda, "torch": modules.torch,
        "arch_list": modules.arch_list, "extra": list(modules.extra), "modules": list(modules.sources),
    }  # fmt: skip
    (tree / "request.json").write_text(json.dumps(request, indent=1) + "\n")
    argv = [python, "-I", "-S", "-B", str(tree / "generator" / "generate.py"), str(tree / "request.json")]
    try:
        done = process.run(argv, cwd=tree, env=process.environment(path=""))
    except ProgramError as error:
        raise CompileError(
            ["FlashInfer's own scripts did not write down how its modules are compiled:", *error.problems],
            do="this FlashInfer is not supported yet; build a pinned version.",
        ) from error
    log.write_text(done.stdout + done.stderr)
    _compare(json.loads((out / "modules.json").read_text()), modules)


def _compare(written: Mapping[str, Any], modules: Modules) -> None:
    have = {row["name"]: sorted(row["sources"]) for row in written["modules"]}
    problems = [
        f"FlashInfer makes no module {name} for {modules.arch_list}."
        for name in modules.sources
        if name not in have
    ]
    problems += [
        f"{name} is made from {', '.join(have[name])}; planned were {', '.join(sources)}."
        for name, sources in modules.sources.items()
        if name in have and have[name] != sorted(sources)
    ]
    problems += [f"FlashInfer asked for {name}, and no stand-in answers it." for name in written["unanswered"]]
    if problems:
        raise CompileError(
            problems, do="the list of modules in the data is not that of these sources; build a pinned version."
        )


def read_modules(tree: Path, modules: Modules) -> list[UpstreamModule]:
    """What upstream wrote down for each module, with paths relative to `tree`/obj.

    Upstream escapes no path, so that one with blanks could not be taken apart: relative ones have none.
    """
    folder = tree / "obj" / "modules"
    texts = {name: (folder / name / "build.ninja").read_text() for name in modules.sources}
    return [read_module(relative(text, str(tree)), name) for name, text in texts.items()]


def write_build_file(
    tree: Path, found: Sequence[UpstreamModule], modules: Modules, schedule: Schedule
) -> dict[str, list[str]]:
    """Write `tree`/obj/build.ninja. Returns unit (`MODULE/OBJECT`) to the device code it is asked for.

    Every path is relative to `obj`, so the same inputs give the same commands in any folder. Ninja starts ready
    edges in the order of the file: those that take longest come first.
    """
    obj = tree / "obj"
    edges: list[tuple[float, str, str]] = []
    links: list[str] = []
    gencodes: dict[str, list[str]] = {}
    for module in found:
        for unit in module.units:
            pairs = [
                word.removeprefix("-gencode=") for word in unit.flags.split() if word.startswith("-gencode=")
            ]
            if unit.cuda:
                gencodes[unit.object.removeprefix("modules/")] = [
                    pair.removeprefix("arch=").replace(",code=", "/") for pair in dict.fromkeys(pairs)
                ]
            pool = "  pool = heavy\n" if unit.object in schedule.heavy else ""
            command = _compile_command(unit, modules)
            text = f"build {unit.object}: compile {unit.source}\n  command_line = {command}\n{pool}"
            edges.append((-schedule.seconds.get(unit.object, 0.0), unit.object, text))
        links.append(_link(module, modules))
    head = (
        "ninja_required_version = 1.10\n\n"
        f"pool heavy\n  depth = {schedule.heavy_jobs}\n\n"
        "rule compile\n  command = $command_line\n  description = compile $out\n"
        "  depfile = $out.d\n  deps = gcc\n\n"
        "rule link\n  command = $command_line\n  description = link $out\n\n"
    )
    text = head + "\n".join(text for *_, text in sorted(edges)) + "\n" + "\n".join(links)
    scratch = obj / "build.new"
    scratch.write_text(relative(text, str(tree)))
    scratch.replace(obj / "build.ninja")
    return gencodes


def _compile_command(unit: Unit, modules: Modules) -> str:
    compiler, flags, dependencies = modules.compiler, unit.flags, "-MMD"
    if unit.cuda:
        # -MD is nvcc's short name of what upstream writes in full; compiler caches know this one.
        compiler, dependencies = f"../cuda/bin/nvcc -ccbin={modules.compiler}", "-MD"
        flags = f"{unit.flags} {modules.more_flags}".strip()
    files = f"{dependencies} -MT {unit.object} -MF {unit.object}.d -c {unit.source} -o {unit.object}"
    return f"{modules.launcher} {compiler} {flags} {files}"


def _link(module: UpstreamModule, modules: Modules) -> str:
    objects = " ".join(unit.object for unit in module.units)
    return (
        f"build {module.library}: link {objects}\n"
        f"  command_line = {modules.compiler} {LINK_FLAGS} {objects} {module.link_flags} -o {module.library}\n"
        f"build {module.name}: phony {module.library}\n"
    )
