"""The compiler cache of a running build: its server where it has one, and what it did, kept as a record."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.compile.caching import CacheUse, ccache_environment, ccache_use, sccache_environment, sccache_use
from sm121.errors import CompileError, PackError
from sm121.plan.cache import CacheProgram, CompilerCache
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.steps.run import Run

RECORD = "cache.json"
"""In the result of a step that compiles: what the cache did."""
_PATIENCE = 3.0
"""Seconds for a shared cache to answer at all."""
_START = 30.0
"""Seconds for sccache's server to start."""


def cache_of(run: Run) -> CompilerCache:
    """The cache with the login that only the command line knows."""
    return run.context.cache or CompilerCache.parse(run.plan.cache)


def environment(run: Run) -> dict[str, str]:
    """What every compile command is told. sccache's commands only learn where its server is."""
    cache = cache_of(run)
    if cache.program is CacheProgram.CCACHE:
        return ccache_environment(cache, _folder(run, cache), _compiler(run), _statistics(run))
    return {"SCCACHE_SERVER_UDS": str(_socket(run))} if cache.program else {}


@contextmanager
def caching(run: Run, tools: Path, env: dict[str, str], record: Path) -> Iterator[dict[str, str]]:
    """Keep the cache in service while the block compiles with the environment that it gives.

    `tools` is the folder of the cache's program. What the cache did is written to `record`, also when the block fails.
    A shared cache that does not answer is left out: the build goes on, slower.
    """
    cache = cache_of(run)
    record.unlink(missing_ok=True)
    if cache.program is None:
        yield env
        return
    lost = _unreachable(cache)
    if lost:
        run.progress.say(
            f"warning: the shared cache at {cache.name} does not answer ({lost}); the build goes on without it, slower.",
            style="yellow",
        )
    if cache.program is CacheProgram.CCACHE:
        yield from _with_ccache(run, cache, tools / "ccache", env, record, lost=bool(lost))
    else:
        yield from _with_sccache(run, cache, tools / "sccache", env, record, lost=bool(lost))


def _with_ccache(
    run: Run, cache: CompilerCache, program: Path, env: dict[str, str], record: Path, *, lost: bool
) -> Iterator[dict[str, str]]:
    statistics = _statistics(run)
    statistics.parent.mkdir(parents=True, exist_ok=True)
    statistics.unlink(missing_ok=True)
    try:
        yield {name: value for name, value in env.items() if not (lost and name == "CCACHE_REMOTE_STORAGE")}
    finally:
        if statistics.exists():
            said = process.run([program, "--print-log-stats", "--format=json"], env=env, check=False)
            _keep(run, ccache_use(cache, said.stdout), record, lost=lost)


def _with_sccache(
    run: Run, cache: CompilerCache, program: Path, env: dict[str, str], record: Path, *, lost: bool
) -> Iterator[dict[str, str]]:
    local = CompilerCache(cache.program, read_only=cache.read_only)
    place = _socket(run)
    try:
        server = None if lost else _served(run, cache, program, env)
        if server is None and cache.shared:
            lost = True
            server = _served(run, local, program, env)
        if server is None:
            raise CompileError(
                "sccache's server does not start.", do="build with another --cache; the log is above."
            )
        try:
            yield env
            if server.ended is None:
                said = process.run([program, "--show-stats", "--stats-format", "json"], env=env, check=False)
                _keep(run, sccache_use(cache, said.stdout, local.name if lost else ""), record, lost=lost)
            else:
                run.progress.say("warning: sccache's server has ended early.", style="yellow")
        finally:
            server.stop()
    finally:
        place.unlink(missing_ok=True)
        with suppress(OSError):
            place.parent.rmdir()


def _served(run: Run, cache: CompilerCache, program: Path, env: dict[str, str]) -> process.Running | None:
    """sccache's server for `cache`, once it listens; None, and the reason is said, if it does not start."""
    folder, place = _folder(run, cache), _socket(run)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    settings = {
        "SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1", "SCCACHE_IDLE_TIMEOUT": "0",
        "SCCACHE_SERVER_UDS": str(place), "SCCACHE_CONF": os.devnull, "SCCACHE_LOG": "error",
        **sccache_environment(cache, folder, os.environ),
    }  # fmt: skip
    log = run.work.log("sccache")
    server = process.start([program], log=log, env={**env, **settings}, cwd=run.work.root, grace=10)
    ends = time.monotonic() + _START
    try:
        while server.ended is None and time.monotonic() < ends:
            if _listens(place):
                return server
            time.sleep(0.1)
    except BaseException:
        server.stop()
        raise
    server.stop()
    said = [line.strip() for line in log.read_text(errors="replace").splitlines()[1:] if line.strip()]
    reason = next((line for line in said if "rror" in line or "denied" in line), " ".join(said[:1]) or "no word")
    run.progress.say(
        f"warning: sccache's server for {cache.name} did not start ({reason[:200]}); the build goes on without it, slower. "
        f"Check region, endpoint, bucket and keys; its log is {log}.",
        style="yellow",
    )
    return None


def cache_notes(run: Run) -> tuple[str, ...]:
    """What the ledger says of a cache program that decides about the bytes."""
    program = cache_of(run).program
    if program is not CacheProgram.SCCACHE:
        return ()
    return (f"compiled through sccache below {run.work.root}: the libraries' bytes depend on that path",)


def keep_record(made: Path, into: Path) -> None:
    """Copy the record of the compile in the folder `made` into a step's result."""
    if (made / RECORD).exists():
        shutil.copy2(made / RECORD, into / RECORD)


def read_use(folder: Path) -> CacheUse | None:
    """What the cache did for the finished step in `folder`; None if it ran without one."""
    try:
        return CacheUse.from_data(json.loads((folder / RECORD).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PackError(f"{folder / RECORD} cannot be read: {error}.", do="remove that step's folder.") from error


def _keep(run: Run, use: CacheUse, record: Path, *, lost: bool) -> None:
    record.write_text(json.dumps({**use.to_data(), "failures": use.failures + lost}, indent=1) + "\n")
    run.progress.say(f"  cache {use}")


def _unreachable(cache: CompilerCache) -> str:
    """Why the shared cache does not answer; "" if it does, or cannot be asked this way."""
    try:
        if cache.scheme == "file":
            _touch(Path(cache.parts.path), write=not cache.read_only)
        elif address := cache.address():
            return _knock(address, ping=cache.scheme == "redis")
    except TimeoutError:
        return f"no answer in {_PATIENCE:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _touch(folder: Path, *, write: bool) -> None:
    if write:
        folder.mkdir(parents=True, exist_ok=True)
    os.scandir(folder).close()


def _knock(address: tuple[str, int], *, ping: bool) -> str:
    with socket.create_connection(address, timeout=_PATIENCE) as connection:
        if not ping:
            return ""
        # A server that hangs still takes connections; one that wants a password answers that.
        connection.settimeout(_PATIENCE)
        connection.sendall(b"PING\r\n")
        return "" if connection.recv(64) else "it closed the connection"


def _listens(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(place))
        except OSError:
            return False
    return True


def _compiler(run: Run) -> str:
    """Every program of the toolkit decides about the result, not nvcc alone: the step's key stands for them."""
    compiler = run.plan.host.compiler
    said = (
        process.run([compiler.split()[0], "--version"], check=False).stdout.splitlines()[:1] if compiler else []
    )
    return " ".join([run.plan.step("toolkit").key, compiler, *said])


def _folder(run: Run, cache: CompilerCache) -> Path:
    return run.work.cache / str(cache.program)


def _statistics(run: Run) -> Path:
    return run.work.cache / "ccache.log"


def _socket(run: Run) -> Path:
    """A short path, since the address of a socket has at most 107 characters (unix(7))."""
    name = Sha256.of_bytes(str(run.work.root).encode()).hex[:12]
    return Path(tempfile.gettempdir()) / f"sm121-{os.getuid()}-{name}" / "sccache"
