"""Source trees that only git hosts have, at the commits that upstream pins."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import FetchError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ANSWER = 20.0
"""Seconds that a git host has to answer."""
TRANSFER = 1800.0
"""Seconds that one tree may take."""


@dataclass(frozen=True, slots=True)
class External:
    """A tree: upstream's name for it, its repository, and the tag or commit that upstream pins."""

    name: str
    repository: str
    ref: str


def require_reachable(externals: Sequence[External]) -> None:
    """Ask every host, at the same time; raise one FetchError that names the trees that cannot be had."""
    with ThreadPoolExecutor() as pool:
        faults = [fault for fault in pool.map(_unreachable, externals) if fault]
    if faults:
        raise FetchError(
            faults,
            do="leave out --sources all: the default build takes these parts from the official wheel, by hash.",
        )


def clone(external: External, into: Path) -> str:
    """Bring one tree with its submodules into the new folder `into`, without history; return its commit."""
    into.mkdir(parents=True)
    try:
        _git(into, "init", "-q")
        _git(into, "fetch", "-q", "--depth", "1", external.repository, external.ref)
        _git(into, "checkout", "-q", "FETCH_HEAD")
        _git(
            into,
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "update",
            "-q",
            "--init",
            "--recursive",
            "--depth",
            "1",
        )
        commit = _git(into, "rev-parse", "HEAD").strip()
    except ProgramError as error:
        shutil.rmtree(into, ignore_errors=True)
        raise FetchError(
            [f"{external.name} at {external.ref} could not be had from {external.repository}:", *error.problems],
            do="check the network; what is fetched is kept.",
        ) from error
    for metadata in into.rglob(".git"):
        shutil.rmtree(metadata) if metadata.is_dir() else metadata.unlink()
    (into / ".sm121-commit.json").write_text(json.dumps({"ref": external.ref, "commit": commit}) + "\n")
    return commit


def _unreachable(external: External) -> str:
    try:
        done = process.run(
            ["git", "ls-remote", "-q", external.repository, "HEAD"],
            env=_environment(),
            timeout=ANSWER,
            check=False,
        )
    except ProgramError as error:
        return f"{external.name} is only at {external.repository}, and {error.problems[0]}"
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"{external.name} is only at {external.repository}, which cannot be reached: {said}"
    return ""


def _git(folder: Path, *words: str) -> str:
    return process.run(["git", *words], cwd=folder, env=_environment(), timeout=TRANSFER).stdout


def _environment() -> dict[str, str]:
    return process.environment({"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"})
