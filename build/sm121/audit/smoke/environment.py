"""Serves from a wheel: a fresh environment with a locked set around it, and `vllm serve` in the care of a guard."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from sm121 import process
from sm121.errors import ArtifactError, PreflightError, ProgramError
from sm121.pins.resolve import uv_environment, uv_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sm121.audit.smoke.setups import Setup
    from sm121.progress import Progress

_MARK = ".complete"
_PASSED_ON = ("HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")
"""Of the caller's variables; those of vLLM's own would change what is validated and must be named."""
_UV_OWN = ("UV_CACHE_DIR", "UV_LINK_MODE")
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Service:
    """What every set-up serves and how: a model's folder or name, its name in requests, the user's own words."""

    model: str
    name: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def words(self, setup: Setup, host: str, port: int) -> list[str]:
        """Arguments of `vllm serve`; the user's come last, so that they win."""
        return [
            self.model, "--host", host, "--port", str(port), "--served-model-name", self.name, *setup.arguments,
            *self.arguments,
        ]  # fmt: skip


# -- the environment -------------------------------------------------------------------------------------------


def make_environment(
    wheels: Sequence[Path], requirements: Path | None, python: str, root: Path, progress: Progress
) -> Path:
    """An environment with exactly these wheels and a locked set; made once and kept under `root` by its content.

    Without `requirements` (a file with hashes, as `sm121 pins lock` writes it) the set is resolved from the wheels'
    metadata and kept beside the environment as `requirements.txt`. Raises ArtifactError, ProgramError.
    """
    digests = [f"{wheel.name} {_digest(wheel)}" for wheel in wheels]
    locked = _read(requirements) if requirements is not None else ""
    key = hashlib.sha256("\n".join([python, *digests, locked]).encode()).hexdigest()[:16]
    home = root / key
    if (home / _MARK).is_file():
        progress.kept(f"environment {home}")
        return home
    with progress.step(f"environment {home}"):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        uv = _Uv(uv_program(), home / "install.log", progress)
        uv.run("venv", "--python", python, "--no-python-downloads", "--no-project", home / "venv")
        lock = home / "requirements.txt"
        if requirements is not None:
            lock.write_text(locked, encoding="utf-8")
        else:
            _resolve(uv, wheels, home, lock)
        into = ("pip", "install", "--python", home / "venv", "--no-deps")
        uv.run(*into, "--require-hashes", "--only-binary", ":all:", "-r", lock)
        uv.run(*into, *wheels)
        (home / _MARK).write_text("\n".join(digests) + "\n", encoding="utf-8")
    return home


def _resolve(uv: _Uv, wheels: Sequence[Path], home: Path, lock: Path) -> None:
    """Lock what the wheels ask for, without the wheels themselves."""
    wanted = home / "requirements.in"
    wanted.write_text(
        "".join(f"{_name(wheel)} @ {wheel.resolve().as_uri()}\n" for wheel in wheels), encoding="utf-8"
    )
    found = home / "resolved.txt"
    uv.run(
        "pip", "compile", wanted, "--python", home / "venv", "--generate-hashes", "--only-binary", ":all:", "--no-header",
        "--no-annotate", "-o", found,
    )  # fmt: skip
    own = {_name(wheel) for wheel in wheels}
    lock.write_text(without(found.read_text(encoding="utf-8"), own), encoding="utf-8")


def without(text: str, names: set[str]) -> str:
    """A requirements file less the entries of some distributions; an entry's further lines are indented."""
    kept, keep = [], True
    for line in text.splitlines():
        if line and not line[0].isspace():
            match = re.match(r"[A-Za-z0-9._-]+", line)
            keep = match is None or canonicalize_name(match[0]) not in names
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


@dataclass(frozen=True, slots=True)
class _Uv:
    """uv with the user's indexes; what it says goes into a log, and the lines that tell of progress to the user."""

    program: str
    log: Path
    progress: Progress

    def run(self, *words: str | Path) -> None:
        """Run it. Raises ProgramError with the end of what it said."""
        extra = {name: os.environ[name] for name in _UV_OWN if name in os.environ}
        said: list[str] = []

        def heard(line: str) -> None:
            said.append(line)
            if re.match(r"\s*(?:Downloading|Resolved|Prepared|Installed|Building)\b", line):
                self.progress.say(f"  {line.strip()}", style="dim")

        status = process.stream(
            [self.program, *words, "--no-config", "--color", "never"], log=self.log, on_line=heard,
            env={**uv_environment(), **extra},
        )  # fmt: skip
        if status:
            shown = "".join(f"\n    {line}" for line in said[-15:])
            raise ProgramError(
                f"uv {words[0]} ended with {status}:{shown}",
                do=f"read {self.log}; a set that fits comes from `sm121 pins lock`, given with --requirements.",
            )


def _name(wheel: Path) -> str:
    return str(parse_wheel_filename(wheel.name)[0])


def check_wheels(wheels: Sequence[Path]) -> None:
    """Raises ArtifactError that names every file which is no wheel."""
    problems = []
    for wheel in wheels:
        try:
            _name(wheel)
        except InvalidWheelFilename:
            problems.append(f"{wheel} has no wheel's name.")
            continue
        if not wheel.is_file():
            problems.append(f"{wheel} does not exist.")
    if problems:
        raise ArtifactError(
            problems, do="name .whl files, vLLM's first and others beside it with further --wheel."
        )


def wheel_version(wheel: Path) -> str:
    """The version in a wheel's name."""
    return str(parse_wheel_filename(wheel.name)[1])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error}.", do="name the file that `sm121 pins lock -o FILE` wrote."
        ) from error


# -- the server ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server process on this machine."""

    url: str
    _running: process.Running

    def ended(self) -> str:
        status = self._running.ended
        if status is None:
            return ""
        return f"was ended by signal {status - 128}" if status > 128 else f"ended with {status}"

    def stop(self) -> None:
        self._running.stop()


@dataclass(frozen=True, slots=True)
class LocalStarter:
    """Serves from an environment's folder."""

    environment: Path
    service: Service
    artifact: str

    def __post_init__(self) -> None:
        if not self._program.is_file():
            raise PreflightError(
                f"{self.environment} has no program bin/vllm.",
                do="name an environment in which vLLM is installed.",
            )

    @property
    def _program(self) -> Path:
        return self.environment / "bin" / "vllm"

    def start(self, setup: Setup, log: Path) -> LocalServer:
        """Start `vllm serve` on a free port of the loopback address."""
        port = free_port()
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        path = f"{self.environment / 'bin'}:{process.SYSTEM_PATH}"
        extra = {"PYTHONUNBUFFERED": "1", **passed, **setup.environment, **self.service.environment}
        running = process.start(
            [self._program, "serve", *self.service.words(setup, LOOPBACK, port)], log=log,
            env=process.environment(extra, path=path),
        )  # fmt: skip
        return LocalServer(f"http://{LOOPBACK}:{port}", running)
