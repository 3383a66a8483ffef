"""What a compiler cache is told, and what it says of a build afterwards."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from sm121.errors import CompileError
from sm121.plan.cache import CacheProgram

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sm121.plan.cache import CompilerCache

NOT_MEASURED = "not measured under sccache"
"""What its server's children used is not known of each unit; a 0 would look like a result."""
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_PATIENCE = "@connect-timeout=1000 @operation-timeout=5000"
"""Milliseconds for each result; ccache's own 10 s would make a hanging cache cost more than many a compile."""
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a cache did for one build.

    `hits` and `misses` are results: for ccache one per compile command, for sccache one per step of nvcc. `shared_hits` are
    those that came from the shared cache. `failures` are requests that the cache, or the
    way to it, failed; each cost time and nothing else.
    """

    program: str
    where: str
    read_only: bool
    hits: int
    misses: int
    shared_hits: int = 0
    failures: int = 0

    def to_data(self) -> dict[str, Any]:
        told = asdict(self)
        told["mode"] = "read only" if told.pop("read_only") else "read and write"
        return told

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        known = dict(data)
        return cls(read_only=known.pop("mode") == "read only", **known)

    def __str__(self) -> str:
        total = self.hits + self.misses
        share = f", {100 * self.hits / total:.0f} %" if total else ""
        shared = f", {self.shared_hits} of them in the shared cache" if self.shared_hits else ""
        failed = f", {self.failures} requests failed" if self.failures else ""
        units = f"; CPU time and memory of units: {NOT_MEASURED}" if self.program == CacheProgram.SCCACHE else ""
        return f"{self.where}: {self.hits} of {total} results were there{share}{shared}{failed}{units}"


def ccache_environment(cache: CompilerCache, folder: Path, compiler: str, statistics: Path) -> dict[str, str]:
    """Variables for ccache: `folder` is the local level, `compiler` stands for all programs that decide about a result."""
    variables = {
        "CCACHE_DIR": str(folder), "CCACHE_CONFIGPATH": os.devnull, "CCACHE_MAXSIZE": "20G",
        "CCACHE_COMPILERCHECK": f"string:{compiler}", "CCACHE_NOHASHDIR": "1",
        "CCACHE_TEMPDIR": str(folder / "tmp"), "CCACHE_STATSLOG": str(statistics),
    }  # fmt: skip
    if not cache.shared:
        return {**variables, **({"CCACHE_READONLY": "1"} if cache.read_only else {})}
    # What the local level has must reach the shared one as well: it may be another build's, or have lost it.
    more = {} if cache.read_only else {"CCACHE_RESHARE": "1"}
    properties = [_PATIENCE] * (cache.scheme != "file") + ["read-only=true"] * cache.read_only
    return {**variables, **more, "CCACHE_REMOTE_STORAGE": " ".join([cache.url, *properties])}


def sccache_environment(cache: CompilerCache, folder: Path, keys: Mapping[str, str]) -> dict[str, str]:
    """Variables for sccache's server; `keys` is the environment that has the user's keys for S3."""
    mode = "READ_ONLY" if cache.read_only else "READ_WRITE"
    if cache.scheme in {"redis", "rediss"}:
        parts, (user, password) = cache.parts, cache.login
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        scheme = "redis" if cache.scheme == "redis" else "rediss"
        return {
            "SCCACHE_REDIS_ENDPOINT": f"{scheme}://{host}:{parts.port or 6379}",
            "SCCACHE_REDIS_DB": parts.path.strip("/") or "0",
            "SCCACHE_REDIS_RW_MODE": mode,
            **({"SCCACHE_REDIS_USERNAME": user} if user else {}),
            **({"SCCACHE_REDIS_PASSWORD": password} if password else {}),
        }
    if cache.scheme == "s3":
        parts, options = cache.parts, cache.options
        return {
            "SCCACHE_BUCKET": parts.netloc,
            "SCCACHE_S3_KEY_PREFIX": parts.path.strip("/"),
            "SCCACHE_S3_RW_MODE": mode,
            "SCCACHE_REGION": options.get("region", "auto"),
            **({"SCCACHE_ENDPOINT": options["endpoint"]} if "endpoint" in options else {}),
            "SCCACHE_S3_USE_SSL": "false" if options.get("tls") == "no" else "true",
            **({"SCCACHE_S3_NO_CREDENTIALS": "true"} if options.get("anonymous") == "yes" else {}),
            **{name: keys[name] for name in _AWS if name in keys},
        }
    return {"SCCACHE_DIR": str(folder), "SCCACHE_CACHE_SIZE": "20G", "SCCACHE_LOCAL_RW_MODE": mode}


def ccache_use(cache: CompilerCache, said: str) -> CacheUse:
    """Read what `ccache --print-log-stats --format=json` prints."""
    counts = {name: int(value) for name, value in _object(said, "ccache").items() if isinstance(value, int)}
    return CacheUse(
        str(CacheProgram.CCACHE), cache.name, cache.read_only,
        hits=sum(counts.get(name, 0) for name in _HITS),
        misses=counts.get("cache_miss", 0),
        shared_hits=counts.get("remote_storage_hit", 0),
        failures=counts.get("remote_storage_error", 0) + counts.get("remote_storage_timeout", 0),
    )  # fmt: skip


def sccache_use(cache: CompilerCache, said: str, where: str = "") -> CacheUse:
    """Read what `sccache --show-stats --stats-format json` prints; `where` if it is not where `cache` says."""
    found = _object(said, "sccache")
    try:
        stats = found["stats"]
        hits = sum(stats["cache_hits"]["counts"].values())
        failures = (
            stats["cache_timeouts"]
            + stats["cache_read_errors"]
            + sum(stats["cache_errors"]["counts"].values())
            + (0 if cache.read_only else stats["cache_write_errors"])  # a reader counts what it does not write
        )
        return CacheUse(
            str(CacheProgram.SCCACHE), where or cache.name, cache.read_only, hits=hits,
            misses=sum(stats["cache_misses"]["counts"].values()),
            shared_hits=hits if cache.shared and not where else 0, failures=failures,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise CompileError(f"sccache's statistics cannot be read: {error!r} in {said[:200]!r}.") from error


def _object(said: str, program: str) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except ValueError as error:
        raise CompileError(f"{program}'s statistics cannot be read: {said[:200]!r}.") from error
    if not isinstance(found, dict):
        raise CompileError(f"{program}'s statistics should be one object, found {said[:200]!r}.")
    return found
