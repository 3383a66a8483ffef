"""Which docker program builds, what it and the engine can do, and how a build is written down for it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import ImageError, PreflightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HONOURED = (
    "DOCKER_HOST", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTEXT",
    "DOCKER_API_VERSION", "BUILDX_BUILDER", "BUILDX_CONFIG", "BUILDKIT_HOST", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR",
)  # fmt: skip
_BUILTIN = 23
"""From this major on the docker program builds through the plug-in buildx only."""
_ATTESTS = (0, 10)
"""buildx from here on attaches statements of its own, which would make an index of a single image."""
_EPOCH = 23
"""Engines from here on take SOURCE_DATE_EPOCH."""


@dataclass(frozen=True, slots=True)
class Features:
    """What takes part in a build. Versions are (major, minor); `buildx` is None where the plug-in is missing.

    `host` is where the engine listens, as the program sees it; `driver` is that of the builder, "" for the engine's.
    """

    program: str
    client: tuple[int, int]
    buildx: tuple[int, int] | None
    engine: tuple[int, int]
    cpu: str
    host: str = ""
    driver: str = ""
    described: str = ""

    @property
    def epoch(self) -> bool:
        """Whether the times in the image's documents can be set."""
        return self.engine >= (_EPOCH, 0)

    @property
    def attests(self) -> bool:
        return self.buildx is not None and self.buildx >= _ATTESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCall:
    """One build: paths of this machine, arguments, and what the steps may reach (`none`, `default` or `host`)."""

    context: Path
    dockerfile: Path
    platform: str
    target: str
    arguments: Mapping[str, str]
    labels: Mapping[str, str]
    network: str
    iidfile: Path
    secrets: Mapping[str, Path]
    no_cache: bool = False
    epoch: int = 0


def build_command(features: Features, call: BuildCall) -> list[str]:
    """The command for a build. Pure."""
    words = [features.program, "buildx", "build"] if features.buildx else [features.program, "build"]
    if features.buildx:
        words.append("--load")
    if features.attests:
        words += ["--provenance=false", "--sbom=false"]
    words += ["--progress", "plain", "--platform", call.platform, "--network", call.network]
    words += ["--file", str(call.dockerfile), "--target", call.target, "--iidfile", str(call.iidfile)]
    if call.no_cache:
        words.append("--no-cache")
    for name, path in sorted(call.secrets.items()):
        words += ["--secret", f"id={name},src={path}"]
    arguments = dict(call.arguments)
    if features.epoch:
        arguments["SOURCE_DATE_EPOCH"] = str(call.epoch)
    for name, value in arguments.items():
        words += ["--build-arg", f"{name}={value}"]
    for name, value in call.labels.items():
        words += ["--label", f"{name}={value}"]
    return [*words, str(call.context)]


def docker_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """A child's environment with what the user set for docker: engine, context, builder, login."""
    said = os.environ if environ is None else environ
    kept = {name: said[name] for name in _HONOURED if said.get(name)}
    return process.environment({**kept, "DOCKER_BUILDKIT": "1"}, path=said.get("PATH", process.SYSTEM_PATH))


def find_features(program: str = "") -> Features:
    """The first docker program that can build, with the engine that it reaches.

    Raises PreflightError if there is none, ImageError if no engine answers.
    """
    found: list[str] = []
    for candidate in [program] if program else _programs():
        versions = _versions(candidate)
        client = _pair(_of(versions, "Client"))
        buildx = _buildx(candidate)
        if client is None or (buildx is None and client[0] >= _BUILTIN):
            found.append(f"{candidate} {_of(versions, 'Client') or '(no version)'} has no buildx plug-in")
            continue
        server = versions.get("Server")
        if not isinstance(server, dict):
            raise ImageError(
                f"No container engine answers {candidate}.",
                do="start it, or set DOCKER_HOST or a docker context.",
            )
        cpu = {"amd64": "x86_64", "arm64": "aarch64"}.get(str(server.get("Arch")), str(server.get("Arch")))
        described = f"docker {_of(versions, 'Client')}, engine {server.get('Version')}"
        if buildx:
            described += f", buildx {buildx[0]}.{buildx[1]}"
        return Features(
            candidate, client, buildx, _pair(str(server.get("Version"))) or (0, 0), cpu, _host(candidate),
            _driver(candidate) if buildx else "", described,
        )  # fmt: skip
    raise PreflightError(
        found or "the program docker was not found.",
        do="install docker with its buildx plug-in (Debian: docker.io), name one with --docker, or use --builder oci.",
    )


def _programs() -> Iterator[str]:
    """Every docker on PATH: the first may lack what a later one has."""
    seen = set()
    for folder in os.environ.get("PATH", process.SYSTEM_PATH).split(os.pathsep):
        path = Path(folder) / "docker"
        if folder and os.access(path, os.X_OK) and path.resolve() not in seen:
            seen.add(path.resolve())
            yield str(path)


def _versions(program: str) -> dict[str, object]:
    done = process.run(
        [program, "version", "--format", "{{json .}}"], env=docker_environment(), timeout=60, check=False
    )
    try:
        data = json.loads(done.stdout)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _of(versions: Mapping[str, object], part: str) -> str:
    table = versions.get(part)
    return str(table.get("Version", "")) if isinstance(table, dict) else ""


def _buildx(program: str) -> tuple[int, int] | None:
    done = process.run([program, "buildx", "version"], env=docker_environment(), timeout=60, check=False)
    return _pair(done.stdout) if done.returncode == 0 else None


def _host(program: str) -> str:
    """Where the engine listens: a docker context may say so instead of DOCKER_HOST."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    words = [program, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    done = process.run(words, env=docker_environment(), timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _driver(program: str) -> str:
    done = process.run([program, "buildx", "inspect"], env=docker_environment(), timeout=60, check=False)
    match = re.search(r"^Driver:\s*(\S+)", done.stdout, re.MULTILINE)
    return match[1] if match else ""


def _pair(text: str) -> tuple[int, int] | None:
    match = re.search(r"\bv?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
