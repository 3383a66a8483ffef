"""The verb that proves FlashInfer's modules by FlashInfer itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_wheel_filename
from rich.console import Console

from sm121.compile.flashinfer.proof import prove
from sm121.errors import UsageError, VerdictFail
from sm121.plan.flashinfer_modules import DEFAULT_SET, sets
from sm121.sources.unpack import unpack
from sm121.values import ArchSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from packaging.version import Version

    from sm121.compile.flashinfer.proof import Proof

_SOURCES = "flashinfer-python"
_MODULES = "flashinfer-jit-cache"
MOST = 20
"""Faults that are told one by one."""


def add_prove_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `prove`."""
    verb = verbs.add_parser(
        "prove", help="ask FlashInfer itself whether its modules are all compiled ahead of time",
        description="Unpack the wheels beside each other, forbid compiling, and let FlashInfer look for every module "
        "of the wheel and make the calls that vLLM's kernels end in on 12.1. No GPU is needed; the interpreter must "
        "have torch and be of the wheels' CPU.",
    )  # fmt: skip
    verb.add_argument(
        "wheels", metavar="WHEEL", type=Path, nargs="+",
        help="flashinfer-python and the flashinfer-jit-cache wheels that shall serve it",
    )  # fmt: skip
    verb.add_argument(
        "--python", metavar="FILE", required=True, help="interpreter with torch, with words before it if need be"
    )
    verb.add_argument(
        "--set", metavar="NAME", default=DEFAULT_SET,
        help=f"set whose calls are made, or none (default: {DEFAULT_SET})",
    )  # fmt: skip
    verb.add_argument(
        "--path", metavar="DIR", type=Path, action="append", default=[], help="further folder to import from"
    )
    verb.add_argument("--arch", default="12.1a", help="architecture to ask for (default: 12.1a)")
    verb.add_argument("--json", action="store_true", help="print the answer as JSON")
    verb.set_defaults(run=_prove)


def _prove(arguments: argparse.Namespace) -> int:
    wheels, version = _wheels(arguments.wheels)
    named = sets(version)
    if arguments.set != "none" and arguments.set not in named:
        raise UsageError(f"there is no set {arguments.set!r}.", do=f"name one of {', '.join(named)}, or none.")
    calls = (
        [call for claim in named[arguments.set].claims for call in claim.calls] if arguments.set != "none" else []
    )
    try:
        arch = ArchSpec.parse(arguments.arch)
    except ValueError as error:
        raise UsageError(f"--arch: {error}.") from error
    with tempfile.TemporaryDirectory(prefix="sm121-prove-") as folder:
        paths = []
        for wheel in wheels:
            unpack(wheel, Path(folder) / wheel.name)
            paths.append(Path(folder) / wheel.name)
        modules = sorted(path.stem for root in paths for path in root.glob("*/jit_cache/*/*.so"))
        proof = prove(
            python=str(arguments.python).split(), paths=[*paths, *(path.absolute() for path in arguments.path)],
            modules=modules, calls=calls, arch=arch,
        )  # fmt: skip
    _show(proof, as_json=arguments.json)
    if not proof.complete:
        raise VerdictFail(
            [*proof.faults[:MOST], *_rest(proof)] or ["the wheels hold no module."],
            do="build the missing modules; FlashInfer would compile them when they are first used.",
        )
    return 0


def _wheels(paths: Sequence[Path]) -> tuple[list[Path], str]:
    """The wheels and the public version of flashinfer-python; UsageError naming every fault."""
    problems = []
    found: dict[str, Version] = {}
    for path in paths:
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except ValueError as error:
            problems.append(f"{path}: {error}.")
            continue
        if not path.is_file():
            problems.append(f"{path} does not exist.")
        found[canonicalize_name(name)] = version
    if _SOURCES not in found:
        problems.append(f"no wheel of {_SOURCES} is among them.")
    if not any(name.startswith(_MODULES) for name in found):
        problems.append(f"no wheel of {_MODULES} is among them.")
    if problems:
        raise UsageError(problems, do="name flashinfer-python and the wheels with its modules.")
    return list(paths), str(found[_SOURCES].public)


def _rest(proof: Proof) -> list[str]:
    left = len(proof.faults) - MOST
    return [f"{left} more are like these; --json names all."] if left > 0 else []


def _show(proof: Proof, *, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "complete": proof.complete, "modules": proof.modules, "prebuilt": proof.prebuilt,
                    "opened": proof.opened, "calls": proof.calls, "served": proof.served, "torch": proof.torch,
                    "cuda": proof.cuda, "gpu": proof.gpu, "providers": proof.providers, "faults": proof.faults,
                },
                indent=2,
            )
        )  # fmt: skip
        return
    console = Console(highlight=False, soft_wrap=True)
    for name, version, archs in proof.providers:
        console.print(f"provider {name} {version} for {', '.join(archs)}", markup=False)
    console.print(
        f"{proof.prebuilt} of {proof.modules} modules are reported as compiled ahead of time, {proof.opened} open"
    )
    if proof.calls:
        console.print(f"{proof.served} of {proof.calls} calls that 12.1 makes find their module compiled")
    console.print(
        f"with torch {proof.torch}, compiling forbidden, {'with' if proof.gpu else 'without'} a GPU", markup=False
    )
