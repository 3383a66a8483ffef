"""The verb that makes overlays, puts them on an installed release and takes them off."""

from __future__ import annotations

import json
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121.build_commands import add_plan_options
from sm121.device import read_device_code
from sm121.errors import OverlayError, UsageError
from sm121.finish.library import finish_library
from sm121.loop.commands import PLAN_DEFAULTS, ready
from sm121.loop.session import Session
from sm121.loop.states import edited_state
from sm121.loop.trees import pinned
from sm121.overlay.apply import State, apply, remove, status
from sm121.overlay.make import Base, base_of, make_overlay
from sm121.progress import size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from sm121.overlay.installed import Installed
    from sm121.steps import Build

_EPILOG = """\
examples:
  sm121 overlay make --ext _moe_C_stable_libtorch --onto dist/vllm-0.33.0+cu130.sm121-cp38-abi3-manylinux_2_34_aarch64.whl
  sm121 overlay apply overlays/vllm-0.33.0+cu130.sm121.overlay.x1f2e3d4c /srv/vllm/.venv
  sm121 overlay status /srv/vllm/.venv
  sm121 overlay remove /srv/vllm/.venv

An overlay goes over the release and commit that it was made for, and over nothing else. The installation then says so in
its version. Nothing of the environment is run: it may be of another processor, or a folder of an image.
"""


def add_overlay_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `overlay`."""
    top = verbs.add_parser(
        "overlay", help="lay compiled extensions over an installed vLLM, and take them off", epilog=_EPILOG,
        description="Puts a developer's extensions over an installed release of the same version and commit.",
    )  # fmt: skip
    parts = top.add_subparsers(metavar="WHAT", required=True)
    make = parts.add_parser(
        "make", help="link extensions and make an overlay of them", description="Makes an overlay."
    )
    make.add_argument(
        "--ext",
        metavar="NAME",
        action="append",
        default=[],
        help="extension to link; may be repeated (default: those that the edits reach)",
    )
    make.add_argument(
        "--library", metavar="PATH=FILE", action="append", default=[],
        help="a library that is compiled already, with its path in the site folder; instead of --ext",
    )  # fmt: skip
    make.add_argument(
        "--onto",
        metavar="WHEEL|ENV",
        type=Path,
        required=True,
        help="the wheel or environment that it shall go over",
    )
    make.add_argument(
        "--source",
        metavar="DIR",
        type=Path,
        help="edited sources (default: the work tree of patches, else the pinned)",
    )
    make.add_argument(
        "--finish", action="store_true", help="compile PTX ahead of time as in a release; else the driver does it"
    )
    make.add_argument(
        "-o", dest="out", metavar="DIR", type=Path, default=Path("overlays"), help="where to (default: overlays)"
    )
    make.add_argument("--json", action="store_true", help="print the result as JSON")
    make.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_plan_options(make)
    make.set_defaults(run=_make, **{**PLAN_DEFAULTS, "finish": False})
    for name, run, about in (
        ("apply", _apply, "put an overlay on; one that lies there is taken off first"),
        ("status", _status, "what lies on an installation"),
        ("remove", _remove, "take the overlay off: every byte is as it was"),
    ):
        part = parts.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        if name == "apply":
            part.add_argument("overlay", metavar="OVERLAY", type=Path, help="folder of the overlay")
        else:
            part.add_argument("--project", default="vllm", help="which distribution (default: vllm)")
        part.add_argument(
            "environment", metavar="ENV", type=Path, help="virtual environment, prefix or site folder"
        )
        if name == "remove":
            part.add_argument("--force", action="store_true", help="also if its files were changed since")
        part.add_argument("--json", action="store_true", help="print the result as JSON")
        part.set_defaults(run=run)


def _make(arguments: argparse.Namespace) -> int:
    if arguments.ext and arguments.library:
        raise UsageError("an overlay is made of --ext or of --library.", do="leave one of them out.")
    if not arguments.onto.exists():
        raise UsageError(
            f"--onto {arguments.onto}: there is no such wheel or environment.", do="name one that exists."
        )
    base = base_of(arguments.onto, "vllm")
    if arguments.library:
        libraries, notes = _given(arguments.library), ["the libraries were given as files"]
    else:
        libraries, notes = _linked(arguments, base)
    folder = make_overlay(libraries, base, arguments.out, notes)
    shown = {
        "overlay": str(folder), "for": f"vllm {base.version}, commit {base.commit}",
        "libraries": ", ".join(f"{path} ({size(file.stat().st_size)})" for path, file in libraries.items()),
        "next": f"sm121 overlay apply {folder} ENV",
    }  # fmt: skip
    _show(shown, as_json=arguments.json)
    return 0


def _given(words: list[str]) -> dict[str, Path]:
    found, problems = {}, []
    for word in words:
        path, sign, file = word.partition("=")
        if not sign or not path or not Path(file).is_file():
            problems.append(f"--library {word}: PATH=FILE with a file that exists was wanted.")
        found[path] = Path(file)
    if problems:
        raise UsageError(problems, do="write e.g. --library vllm/spinloop.abi3.so=build/spinloop.abi3.so.")
    return found


def _linked(arguments: argparse.Namespace, base: Base) -> tuple[dict[str, Path], list[str]]:
    """Make the extensions in the build tree of edited sources, which is kept."""
    # The plan is that of `sm121 kernels`, whose build folder this is: another one would be configured anew.
    names, arguments.ext = arguments.ext, []
    build = ready(arguments, dry=False)
    plan = build.plan
    paths = {e.name: e.path for e in plan.extensions if e.origin == "source"}
    if unknown := [name for name in names if name not in paths]:
        raise UsageError(
            [f"there is no extension {name!r} to compile." for name in unknown],
            do=f"name one of {', '.join(paths)}.",
        )
    if base.version.partition("+")[0] != plan.version:
        raise OverlayError(
            f"{plan.project} {plan.version} is compiled, and {arguments.onto} is {base.version}.",
            do="name the same version with --vllm.",
        )
    with build.work.locked():
        base_state = pinned(build)
        state = edited_state(build, arguments.source, base_state)
        session = Session(build, state, base_state)
        names = names or _affected(session)
        tree = session.tree
        with build.progress.step(f"link {', '.join(names)} from {state.title}"):
            build.make(tree.prepared, names)
        made = {paths[name]: next(tree.obj.rglob(f"{name}.abi3.so")) for name in names}
        if arguments.finish:
            made = _finished(build, made)
    return made, [f"compiled from {state.title}", "finished" if arguments.finish else "PTX is left to the driver"]


def _affected(session: Session) -> list[str]:
    """The extensions that the edits reach."""
    found = sorted({chosen.unit.extension for chosen in session.by_edits(session.pinned)})
    if not found:
        raise OverlayError(
            f"no extension differs from the release in {session.state.title}.", do="edit, or name one with --ext."
        )
    return found


def _finished(build: Build, made: Mapping[str, Path]) -> dict[str, Path]:
    settings = build.finish_settings()
    folder = build.work.root / "kernels" / "finished"
    found = {}
    for path, file in made.items():
        found[path] = file
        with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as buffer:
            if not read_device_code(buffer).has_device_code:
                continue
        found[path] = folder / file.name
        finish_library(file, found[path], settings, build.progress)
    return found


def _apply(arguments: argparse.Namespace) -> int:
    overlay, installed = apply(arguments.overlay, arguments.environment)
    shown = {
        "installed": f"{overlay.project} {installed.version}", "over": overlay.version,
        "libraries": ", ".join(piece.path for piece in overlay.pieces),
        "take off": f"sm121 overlay remove {arguments.environment}",
    }  # fmt: skip
    _show(shown, as_json=arguments.json)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    now = status(arguments.environment, arguments.project)
    shown: dict[str, Any] = {"state": str(now.state), "version": now.version}
    if now.overlay:
        shown |= {"over": now.overlay.version, "libraries": ", ".join(piece.path for piece in now.overlay.pieces)}
        shown |= {"made of": "; ".join(now.overlay.notes)}
    if now.changed:
        shown["changed since"] = ", ".join(now.changed)
    if now.state is State.UNFINISHED:
        shown["next"] = f"sm121 overlay remove {arguments.environment}"
    _show(shown, as_json=arguments.json)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    installed: Installed = remove(arguments.environment, arguments.project, force=arguments.force)
    _show({"installed": f"{installed.project} {installed.version}"}, as_json=arguments.json)
    return 0


def _show(shown: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    console = Console(highlight=False)
    width = max(len(name) for name in shown)
    for name, value in shown.items():
        console.print(f"{name:>{width}}  {value}", markup=False, soft_wrap=True)
