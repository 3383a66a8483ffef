from __future__ import annotations

import pytest

from sm121.plan.cache import CacheProgram, CompilerCache


@pytest.mark.parametrize(
    ("text", "program", "name"),
    [
        ("ccache", CacheProgram.CCACHE, "ccache"),
        ("sccache", CacheProgram.SCCACHE, "sccache"),
        ("none", None, "none"),
        ("redis://cache:6379/2", CacheProgram.CCACHE, "redis://cache:6379/2"),
        ("ccache+redis://cache", CacheProgram.CCACHE, "redis://cache"),
        ("sccache+redis://cache", CacheProgram.SCCACHE, "sccache+redis://cache"),
        ("rediss://cache", CacheProgram.SCCACHE, "rediss://cache"),
        ("redis://[::1]:6379", CacheProgram.CCACHE, "redis://[::1]:6379"),
        ("file:///mnt/cache", CacheProgram.CCACHE, "file:///mnt/cache"),
        ("http://cache/vllm", CacheProgram.CCACHE, "http://cache/vllm"),
        ("s3://bucket/a/b?region=eu-central-1", CacheProgram.SCCACHE, "s3://bucket/a/b?region=eu-central-1"),
    ],
)
def test_what_can_be_asked_for(text: str, program: CacheProgram | None, name: str) -> None:
    cache = CompilerCache.parse(text)
    assert (cache.program, cache.name) == (program, name)
    assert cache.shared == ("://" in text)
    assert CompilerCache.parse(cache.name) == cache


@pytest.mark.parametrize(
    "text",
    [
        "", "magic", "redis", "redis:", "redis://", "redis:///0", "redis://h/x", "redis://h/0/1", "redis://h:0", "redis://h:x",
        "redis://h:70000", "redis://h?db=1", "redis://h#x", "redis://h read-only=true", "redis://h|read-only", "redis://h\n",
        "redis://h\\", "redis://h'", "redis://$(id)", "file://host/x", "file:///", "file://x", "ftp://h", "ccache+s3://b?region=x",
        "sccache+file:///x", "ccache+ccache", "s3://b", "s3://?region=x", "s3://b?region=x&endpont=y", "s3://b?region=x&tls=maybe",
        "s3://key:secret@b?region=x", "http://", "redis://[::1", "none://x",
    ],
)  # fmt: skip
def test_what_cannot(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        CompilerCache.parse(text)


@pytest.mark.parametrize(
    "text",
    ["redis://u:geheim@h/x", "redis://geheim@h:0", "redis://:geheim@h|x", "magic://u:geheim@h", "redis:/u:geheim@h",
     "redis://u:geheim/x@h", "redis://u:x/geheim@h", "http://h/x?token=geheim", "http://h/x|secret=geheim",
     "s3://b?region=x&key=geheim", "magic?key=geheim",
     "sccache+redis://u:geheim@h:x", "s3://u:geheim@b?region=x"],
)  # fmt: skip
def test_no_message_holds_a_password(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        CompilerCache.parse(text)
    assert "geheim" not in str(caught.value)


def test_a_password_is_used_and_not_shown() -> None:
    cache = CompilerCache.parse("redis://reader:p%40ss@h:6400/1", read_only=True)
    assert cache.login == ("reader", "p@ss")
    assert cache.address() == ("h", 6400)
    for shown in (cache.name, str(cache), repr(cache)):
        assert "p%40ss" not in shown
        assert "reader" not in shown
    assert str(cache) == "redis://h:6400/1, read only"
    assert CompilerCache.parse("redis://alone@h").login == ("", "alone")


def test_nothing_to_read_without_a_cache() -> None:
    with pytest.raises(ValueError, match="no cache to read"):
        CompilerCache.parse("none", read_only=True)
