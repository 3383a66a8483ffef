from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm121.compile.caching import CacheUse, ccache_environment, ccache_use, sccache_environment, sccache_use
from sm121.errors import CompileError
from sm121.plan.cache import CompilerCache

FOLDER, LOG = Path("/work/cache/ccache"), Path("/work/cache/ccache.log")


def told(text: str, *, read_only: bool = False) -> dict[str, str]:
    return ccache_environment(CompilerCache.parse(text, read_only=read_only), FOLDER, "key", LOG)


def test_ccache_locally() -> None:
    env = told("ccache")
    assert env["CCACHE_DIR"] == str(FOLDER)
    assert env["CCACHE_COMPILERCHECK"] == "string:key"
    assert env["CCACHE_CONFIGPATH"] == "/dev/null"
    assert env["CCACHE_NOHASHDIR"] == "1"
    assert not {"CCACHE_REMOTE_STORAGE", "CCACHE_READONLY"} & env.keys()
    assert told("ccache", read_only=True)["CCACHE_READONLY"] == "1"


def test_ccache_with_a_shared_cache() -> None:
    env = told("redis://u:p@h:1/2")
    assert env["CCACHE_REMOTE_STORAGE"].split() == [
        "redis://u:p@h:1/2",
        "@connect-timeout=1000",
        "@operation-timeout=5000",
    ]
    assert env["CCACHE_RESHARE"] == "1"
    reader = told("redis://h", read_only=True)
    assert reader["CCACHE_REMOTE_STORAGE"].split()[-1] == "read-only=true"
    assert not {"CCACHE_RESHARE", "CCACHE_READONLY"} & reader.keys()  # what it compiles itself may stay with it
    assert told("file:///mnt/cache")["CCACHE_REMOTE_STORAGE"] == "file:///mnt/cache"


def test_sccache() -> None:
    def env(text: str, *, read_only: bool = False) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "SECRET": "no"}
        return sccache_environment(CompilerCache.parse(text, read_only=read_only), Path("/c"), keys)

    assert env("sccache") == {
        "SCCACHE_DIR": "/c",
        "SCCACHE_CACHE_SIZE": "20G",
        "SCCACHE_LOCAL_RW_MODE": "READ_WRITE",
    }
    assert env("sccache+redis://u:p%23@[::1]/3", read_only=True) == {
        "SCCACHE_REDIS_ENDPOINT": "redis://[::1]:6379", "SCCACHE_REDIS_DB": "3", "SCCACHE_REDIS_RW_MODE": "READ_ONLY",
        "SCCACHE_REDIS_USERNAME": "u", "SCCACHE_REDIS_PASSWORD": "p#",
    }  # fmt: skip
    assert env("s3://bucket/a/b?region=r&endpoint=minio:9000&tls=no") == {
        "SCCACHE_BUCKET": "bucket", "SCCACHE_S3_KEY_PREFIX": "a/b", "SCCACHE_S3_RW_MODE": "READ_WRITE",
        "SCCACHE_REGION": "r", "SCCACHE_ENDPOINT": "minio:9000", "SCCACHE_S3_USE_SSL": "false",
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key",
    }  # fmt: skip
    assert env("s3://b?region=r&anonymous=yes")["SCCACHE_S3_NO_CREDENTIALS"] == "true"


def test_what_ccache_says() -> None:
    """Counters of ccache 4.14.2: two results from Redis, one compiled, one request failed."""
    said = json.dumps(
        {
            "cache_miss": 1, "direct_cache_hit": 1, "preprocessed_cache_hit": 2, "local_storage_hit": 1,
            "local_storage_miss": 3, "remote_storage_hit": 2, "remote_storage_read_hit": 4, "remote_storage_error": 1,
            "remote_storage_timeout": 0,
        }
    )  # fmt: skip
    use = ccache_use(CompilerCache.parse("redis://u:p@h"), said)
    assert use == CacheUse("ccache", "redis://h", read_only=False, hits=3, misses=1, shared_hits=2, failures=1)
    assert (
        str(use) == "redis://h: 3 of 4 results were there, 75 %, 2 of them in the shared cache, 1 requests failed"
    )


def test_what_sccache_says() -> None:
    """Counters of sccache 0.16.0 after one file of one architecture, all there."""
    stats = {
        "cache_hits": {"counts": {"CUDA": 1, "CUDA (Device code)": 1, "PTX": 1, "CUBIN": 1}},
        "cache_misses": {"counts": {}}, "cache_errors": {"counts": {}}, "cache_timeouts": 0, "cache_read_errors": 0,
        "cache_write_errors": 2,
    }  # fmt: skip
    use = sccache_use(CompilerCache.parse("s3://b?region=r"), json.dumps({"stats": stats}))
    assert (use.hits, use.misses, use.shared_hits, use.failures) == (4, 0, 4, 2)
    assert use.where == "s3://b?region=r"
    assert str(use).endswith("; CPU time and memory of units: not measured under sccache")
    assert (
        sccache_use(CompilerCache.parse("s3://b?region=r"), json.dumps({"stats": stats}), "sccache").shared_hits
        == 0
    )


@pytest.mark.parametrize("said", ["", "[]", "{", '{"stats": 1}', '{"stats": {}}'])
def test_statistics_that_cannot_be_read(said: str) -> None:
    with pytest.raises(CompileError, match="statistics"):
        sccache_use(CompilerCache.parse("sccache"), said)


def test_a_record_comes_back() -> None:
    use = CacheUse("ccache", "redis://h", read_only=True, hits=3, misses=1, shared_hits=2, failures=0)
    assert CacheUse.from_data(json.loads(json.dumps(use.to_data()))) == use
    assert use.to_data()["mode"] == "read only"
