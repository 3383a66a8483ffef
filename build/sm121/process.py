"""The only place that starts programs.

A child gets an environment made from an allow-list: neither PYTHONPATH nor CUDA variables of the caller reach a
compiler, so that nothing on the machine is picked up by accident.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121.errors import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_INHERITED = (
    "HOME", "USER", "LOGNAME", "TMPDIR", "TERM", "NO_COLOR",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
)  # fmt: skip
_GRACE = 10.0
"""Seconds that a compiler gets to end when it is asked to."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Completed:
    """What a program left behind."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def environment(extra: Mapping[str, str] | None = None, *, path: str = SYSTEM_PATH) -> dict[str, str]:
    """Make a child's environment: what identifies the user and the network, a fixed locale, `path`, `extra`."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, "LC_ALL": "C.UTF-8", "PATH": path, **(extra or {})}


def quoted(argv: Sequence[str | Path]) -> str:
    """The command as one could type it."""
    return shlex.join(str(argument) for argument in argv)


def find(program: str, *, path: str | None = None) -> str | None:
    """Where `program` is found on `path` (the caller's own PATH if not given)."""
    return shutil.which(program, path=path)


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return its output.

    Raises ProgramError if it is missing, exceeds `timeout` seconds, or (with `check`) ends non-zero.
    """
    words = tuple(str(argument) for argument in argv)
    try:
        done = subprocess.run(
            words, cwd=cwd, env=dict(env) if env is not None else environment(), input=stdin, timeout=timeout,
            capture_output=True, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL if stdin is None else None,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise _missing(words[0], error) from error
    except PermissionError as error:
        raise ProgramError(f"{words[0]} cannot be executed: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"{words[0]} did not end within {timeout:g} s: {quoted(words)}") from error
    completed = Completed(words, done.returncode, done.stdout, done.stderr)
    if check and done.returncode:
        raise failed(completed)
    return completed


def feed(argv: Sequence[str | Path], source: Path | bytes, *, env: Mapping[str, str] | None = None) -> Completed:
    """Run a program that reads a file, or bytes, from its standard input; its status is the caller's business."""
    words = tuple(str(argument) for argument in argv)
    with tempfile.TemporaryFile() if isinstance(source, bytes) else source.open("rb") as file:
        if isinstance(source, bytes):
            file.write(source)
            file.seek(0)
        try:
            done = subprocess.run(
                words, env=dict(env) if env is not None else environment(), stdin=file, capture_output=True,
                text=True, errors="replace", check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise _missing(words[0], error) from error
        except PermissionError as error:
            raise ProgramError(f"{words[0]} cannot be executed: {error.strerror}.") from error
    return Completed(words, done.returncode, done.stdout, done.stderr)


def measure(
    argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
) -> tuple[Completed, float]:
    """Run a program to its end, whatever its status; return its output and the processor time it took, in seconds.

    When we are interrupted, the program is ended too.
    """
    words = tuple(str(argument) for argument in argv)
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            child = subprocess.Popen(
                words, cwd=cwd, env=dict(env) if env is not None else environment(), stdin=subprocess.DEVNULL,
                stdout=stdout, stderr=stderr,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise _missing(words[0], error) from error
        except PermissionError as error:
            raise ProgramError(f"{words[0]} cannot be executed: {error.strerror}.") from error
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            child.wait()
            raise
        child.returncode = os.waitstatus_to_exitcode(status)
        said = []
        for file in (stdout, stderr):
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))
    return Completed(words, child.returncode, *said), usage.ru_utime + usage.ru_stime


def stream(
    argv: Sequence[str | Path],
    *,
    log: Path,
    on_line: Callable[[str], None],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program, write all it prints to `log` as it comes, hand each line to `on_line`, return its status.

    The program is in the care of a guard (`guard.py`): when we are interrupted, crash or are killed, it is ended with
    everything that it started, so no compiler goes on in the background. A signal is a status of 128 + its number.
    """
    words = [str(argument) for argument in argv]
    env = dict(env) if env is not None else environment()
    _require(words[0], cwd, env)
    with log.open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"$ {quoted(words)}\n")
        file.flush()
        child = subprocess.Popen(
            _guarded(words, _GRACE), cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None
        try:
            for line in child.stdout:
                file.write(line)
                file.flush()
                on_line(line.rstrip("\n"))
            return child.wait()
        finally:
            _release(child, _GRACE)


@dataclass(frozen=True, slots=True)
class Running:
    """A program that runs beside us, in the care of a guard which ends it, whatever becomes of us."""

    argv: tuple[str, ...]
    log: Path
    """What it prints."""
    grace: float
    """Seconds between the polite end and the other one."""
    _guard: subprocess.Popen[bytes]

    @property
    def ended(self) -> int | None:
        """Its status once it has ended, 128 + number for a signal; None while it runs."""
        return self._guard.poll()

    def stop(self) -> None:
        """End it with everything that it started, and wait until nothing is left."""
        _release(self._guard, self.grace)


def start(
    argv: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    grace: float = 30.0,
) -> Running:  # fmt: skip
    """Start a program that goes on while we do other things; all it prints is added to `log`.

    It is ended by `stop`, and also when this process dies in any way: `guard.py` watches over it.
    """
    words = tuple(str(argument) for argument in argv)
    with log.open("ab") as file:
        file.write(f"$ {quoted(words)}\n".encode())
        file.flush()
        guard = subprocess.Popen(
            _guarded(words, grace), cwd=cwd, env=dict(env) if env is not None else environment(),
            stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return Running(words, log, grace, guard)


def failed(completed: Completed, *, lines: int = 20) -> ProgramError:
    """Describe a program that ended non-zero, with the last of what it printed."""
    said = (completed.stderr.strip() or completed.stdout.strip()).splitlines()[-lines:]
    shown = "".join(f"\n    {line}" for line in said)
    code = completed.returncode
    how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return ProgramError(f"{completed.argv[0]} {how}: {quoted(completed.argv)}{shown}")


def _missing(program: str, error: FileNotFoundError) -> ProgramError:
    if error.filename and str(error.filename) != program:
        return ProgramError(f"the folder {error.filename} to run {program} in does not exist.")
    return ProgramError(f"the program {program} was not found.", do=f"install {program} or put it on PATH.")


def _require(program: str, cwd: Path | None, env: Mapping[str, str]) -> None:
    """Say of a program or a folder that does not exist what the guard could only say as a status."""
    if cwd is not None and not cwd.is_dir():
        raise ProgramError(f"the folder {cwd} to run {program} in does not exist.")
    found = (cwd or Path()) / program if "/" in program else find(program, path=env.get("PATH", os.defpath))
    if found is None or not Path(found).exists():
        raise ProgramError(f"the program {program} was not found.", do=f"install {program} or put it on PATH.")


def _guarded(words: Sequence[str], grace: float) -> list[str]:
    return [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), str(grace), *words]


def _release(guard: subprocess.Popen[Any], grace: float) -> None:
    """Let go of a guard's pipe, which ends what it guards, and wait until nothing is left."""
    assert guard.stdin is not None
    guard.stdin.close()
    try:
        guard.wait(grace + 20)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
