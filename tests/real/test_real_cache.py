"""Shared compiler caches with real compilers and a real Redis: hits across folders, dead servers, readers, shards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121 import pins
from sm121.pack.publish import Published
from sm121.plan.cache import CompilerCache
from sm121.plan.model import Request
from sm121.plan.sharding import Shard
from sm121.plan.vllm import plan_vllm
from sm121.preflight import lacks, read_host
from sm121.progress import Progress
from sm121.sources.patches import planned_patches
from sm121.steps import Build, Context
from sm121.steps.caching import read_use
from sm121.values import Sha256
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sm121.compile.caching import CacheUse

pytestmark = [pytest.mark.real, pytest.mark.network, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = (
    "CMakeFiles/_C_stable_libtorch.dir/csrc/cuda_utils_kernels.cu.o",
    "CMakeFiles/_C_stable_libtorch.dir/csrc/quantization/marlin/gptq_marlin_repack.cu.o",
    "CMakeFiles/cumem_allocator.dir/csrc/cumem_allocator.cpp.o",
)
"""Code for 12.x, PTX alone, host code: seconds each."""
HOST_CODE = ("cumem_allocator", "spinloop", "fs_io_C")


@dataclass
class Redis:
    """A server of our own on loopback, which keeps nothing."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", self.port))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            cwd=self.folder, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(100):
            if self.ask("ping") == "PONG":
                return
            time.sleep(0.1)
        raise AssertionError("redis-server does not answer")

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    if not (shutil.which("redis-server") and shutil.which("redis-cli")):
        pytest.skip("this machine lacks redis-server and redis-cli (Debian: redis-server)")
    (tmp_path / "redis").mkdir()
    server = Redis(tmp_path / "redis")
    server.start()
    yield server
    assert server.process is not None
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources, toolkit, torch and tools, laid out once; every folder of a test has them by hard links."""
    folder = tmp_path_factory.mktemp("ground")
    made(folder, CompilerCache.parse("none")).run(until="cutlass")
    return folder


def made(folder: Path, cache: CompilerCache, *extensions: str) -> Build:
    host = read_host("aarch64")
    if missing := lacks(host, "aarch64"):
        pytest.skip(f"this machine lacks {', '.join(lack.what for lack in missing)}")
    loaded = pins.load(ROOT / "pins")
    patches = planned_patches(ROOT / "patches", "vllm", loaded.vllm().version)
    request = Request(
        line="cu130", cache=cache.name, extensions=extensions, finish=False,
        folder=str(folder) if str(cache.program) == "sccache" else "",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "files").exists():
        (ROOT / "work" / "files").mkdir(parents=True, exist_ok=True)
        (folder / "files").symlink_to(ROOT / "work" / "files")
    progress = Progress(Console(stderr=True))
    context = Context(
        work=Workspace(folder), dist=folder / "dist", progress=progress, patches=ROOT / "patches", cache=cache
    )
    return Build(plan_vllm(request, loaded, host, patches), context)


def place(ground: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copytree(ground / "steps", folder / "steps", copy_function=os.link, symlinks=True)
    return folder


@dataclass
class Outcome:
    """Digests of the objects, and what the cache did."""

    digests: list[str]
    use: CacheUse


def compiled(
    folder: Path, url: str, *, read_only: bool = False, on_line: Callable[[str], None] | None = None
) -> Outcome:
    build = made(folder, CompilerCache.parse(url, read_only=read_only))
    build.run(until="tools")
    prepared = build.prepare()
    build.make(prepared, OBJECTS, listen=on_line)
    obj = prepared.tree / "obj"
    use = read_use(obj)
    assert use is not None
    return Outcome([digest(obj / name) for name in OBJECTS], use)


def digest(file: Path) -> str:
    """Of an object, but for nvcc's process number in its symbol table, which no library has (`-Wl,-s`)."""
    return Sha256.of_bytes(re.sub(rb"tmpxft_[0-9a-f]{8}", b"tmpxft", file.read_bytes())).hex


def test_a_second_folder_finds_everything_and_a_reader_writes_nothing(
    tmp_path: Path, ground: Path, redis: Redis
) -> None:
    """Paths differ in length and hold a blank; then Redis' own rights keep a stranger from writing."""
    redis.ask(
        "acl",
        "setuser",
        "reader",
        "on",
        ">secret",
        "~*",
        "+get",
        "+exists",
        "+ping",
        "+select",
        "+hello",
        "+auth",
    )
    stranger = redis.url.replace("//", "//reader:secret@")
    first = compiled(place(ground, tmp_path / "reader"), stranger, read_only=True)
    assert (first.use.hits, first.use.misses, first.use.failures, first.use.read_only) == (0, 3, 0, True)
    assert "secret" not in str(first.use)
    assert redis.ask("dbsize") == "0"
    filled = compiled(place(ground, tmp_path / "one"), redis.url)
    assert (filled.use.hits, filled.use.misses) == (0, 3)
    kept = redis.ask("dbsize")
    assert int(kept) >= 3
    again = compiled(place(ground, tmp_path / "another" / "folder of work"), redis.url)
    assert (again.use.hits, again.use.misses, again.use.shared_hits, again.use.failures) == (3, 0, 3, 0)
    reading = compiled(place(ground, tmp_path / "reader again"), stranger, read_only=True)
    assert (reading.use.hits, reading.use.failures) == (3, 0)
    assert redis.ask("dbsize") == kept
    assert first.digests == filled.digests == again.digests == reading.digests


def test_a_cache_that_dies_or_hangs_only_costs_time(tmp_path: Path, ground: Path, redis: Redis) -> None:
    seen: list[str] = []

    def kill(line: str) -> None:
        if line.startswith("[1/") and not seen:
            seen.append(line)
            redis.send(signal.SIGKILL)
            assert redis.process is not None
            redis.process.wait()

    died = compiled(place(ground, tmp_path / "died"), redis.url, on_line=kill)
    assert seen
    assert died.use.misses == 3
    assert died.use.failures >= 1
    gone = compiled(place(ground, tmp_path / "gone"), redis.url)
    assert (gone.use.misses, gone.use.failures) == (3, 1)
    redis.start()
    redis.send(signal.SIGSTOP)
    hangs = compiled(place(ground, tmp_path / "hangs"), redis.url)
    redis.send(signal.SIGCONT)
    assert (hangs.use.misses, hangs.use.failures) == (3, 1)
    assert died.digests == gone.digests == hangs.digests


def test_a_folder_is_a_shared_cache_too(tmp_path: Path, ground: Path) -> None:
    """What shards leave in folders of their own is one cache when it is copied together."""
    url = f"file://{tmp_path / 'artifact'}"
    compiled(place(ground, tmp_path / "one"), url)
    shutil.copytree(tmp_path / "artifact", tmp_path / "carried")
    again = compiled(place(ground, tmp_path / "two"), f"file://{tmp_path / 'carried'}", read_only=True)
    assert (again.use.hits, again.use.shared_hits) == (3, 3)


def test_sccache_in_one_folder(tmp_path: Path, ground: Path, redis: Redis) -> None:
    """sccache's results are good for one path: the same folder on every machine."""
    url = redis.url.replace("redis:", "sccache+redis:")
    first = compiled(place(ground, tmp_path / "work"), url)
    assert first.use.hits == 0
    assert first.use.misses > 3
    shutil.rmtree(tmp_path / "work")
    again = compiled(place(ground, tmp_path / "work"), url)
    assert (again.use.misses, again.use.failures) == (0, 0)
    assert again.use.hits == first.use.misses
    assert again.digests == first.digests
    redis.send(signal.SIGKILL)
    shutil.rmtree(tmp_path / "work")
    dead = compiled(place(ground, tmp_path / "work"), url)
    assert (dead.use.where, dead.use.failures) == ("sccache", 1)
    assert dead.digests == first.digests


def test_a_sharded_wheel_is_the_unsharded_one(tmp_path: Path, ground: Path, redis: Redis) -> None:
    cache = CompilerCache.parse(redis.url)
    shares = []
    for number in (1, 2):
        folder = place(ground, tmp_path / f"shard {number}")
        shares.append(made(folder, cache, *HOST_CODE).shard(Shard(number, 2)))
        assert not list(folder.glob("steps/libraries/*"))
    assert [share.all_objects for share in shares] == [3, 3]
    assert sum(share.objects for share in shares) == 3
    assert all(share.objects for share in shares)
    together = made(place(ground, tmp_path / "together"), cache, *HOST_CODE).run()
    alone = made(place(ground, tmp_path / "alone"), CompilerCache.parse("none"), *HOST_CODE).run()
    assert isinstance(together, list)
    assert isinstance(alone, list)
    one, other = together[0], alone[0]
    assert isinstance(one, Published)
    assert isinstance(other, Published)
    assert one.sha256 == other.sha256
    told = json.loads(one.manifest.read_text())["compiler_cache"]
    assert (told["hits"], told["misses"], told["shared_hits"]) == (3, 0, 3)
    assert "compiler_cache" not in json.loads(other.manifest.read_text())
