"""Resolution by uv: the complete set of an environment, or the two owners of a conflict."""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from sm121 import index, process
from sm121.errors import FetchError, PinsError, PreflightError
from sm121.pins.choose import LIBC, PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.pins.model import Cpu

_NETWORK = ("error sending request", "dns error", "failed to fetch", "connection", "timed out", "network")


@dataclass(frozen=True, slots=True)
class Resolution:
    """What would be installed: normalised name -> version, and who asks for each."""

    versions: Mapping[str, str]
    via: Mapping[str, tuple[str, ...]]


def resolve(
    requirements: Iterable[str], constraints: Iterable[str], cpu: Cpu, *, python: tuple[int, int] = PYTHON
) -> Resolution:
    """Let uv find versions for `requirements` under `constraints`, wheels only, on Linux with LIBC and `python`.

    Raises PinsError with uv's explanation of a conflict, FetchError if the index cannot be reached,
    PreflightError without uv.
    """
    program = uv_program()
    with tempfile.TemporaryDirectory(prefix="sm121-resolve-") as folder:
        wanted = Path(folder) / "requirements.in"
        limits = Path(folder) / "constraints.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
        done = process.run(
            [
                program, "pip", "compile", wanted, "--constraints", limits, "--only-binary", ":all:",
                "--python-version", f"{python[0]}.{python[1]}", "--no-python-downloads",
                "--python-platform", f"{cpu}-manylinux_{LIBC[0]}_{LIBC[1]}",
                "--no-config", "--no-header", "--no-progress", "--color", "never",
            ],
            env=uv_environment(), cwd=Path(folder), timeout=600, check=False,
        )  # fmt: skip
    if done.returncode:
        raise _explained(done.stderr)
    return _read(done.stdout)


def uv_program() -> str:
    """Where uv is. Raises PreflightError."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else process.find("uv")
    if found is None:
        raise PreflightError("uv, which resolves versions, was not found.", do="pip install uv")
    return found


def uv_environment() -> dict[str, str]:
    """uv gets the configured indexes by variable, since an address may hold a password."""
    chosen = index.settings()
    extra = {"UV_DEFAULT_INDEX": chosen.urls[0], "UV_INDEX": " ".join(chosen.urls[1:])} if chosen.urls else {}
    if not chosen.urls:
        extra["UV_OFFLINE"] = "1"
    if chosen.certificates:
        extra["SSL_CERT_FILE"] = chosen.certificates
    return process.environment({name: value for name, value in extra.items() if value})


def _explained(said: str) -> PinsError | FetchError:
    """uv's explanation in one paragraph; it names both owners of a conflict."""
    words = " ".join(said.split())
    reason, _, hint = words.partition(" hint: ")
    if "Because " in reason:
        reason = reason[reason.index("Because ") :]
        return PinsError(
            f"no set of versions satisfies everybody: {reason}", do=hint or "change one of the pins."
        )
    if any(word in words.lower() for word in _NETWORK):
        return FetchError(f"uv could not ask the package index: {index.public_text(words)}")
    return PinsError(f"uv could not resolve the set: {index.public_text(words)}")


def _read(text: str) -> Resolution:
    """Read uv's annotated output."""
    versions: dict[str, str] = {}
    via: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", line):
            name = canonicalize_name(match[1])
            versions[name] = match[2]
            via[name] = []
        elif name and (match := re.match(r"\s+#(?: via)?\s+(\S+)(.*)$", line)) and match[1] != "via":
            if match[1] == "-c" or match[1] == "-r":
                continue
            via[name].append(canonicalize_name(match[1]))
    return Resolution(versions, {package: tuple(asking) for package, asking in via.items()})
