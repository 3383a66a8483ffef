"""A container engine of the tests' own: Debian's dockerd on a socket and in a folder that go with the session.

Programs come from Debian's packages docker.io, docker-registry, qemu-user-static, binfmt-support and mmdebstrap.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest
from docker.errors import DockerException
from registry_fixture import RegistryProcess, free_port
from requests import RequestException

from sm121.artifact import ImageReference
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.engine.client import Engine
from sm121.engine.emulation import BINFMT, Emulation, emulation, registrations

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("SM121_TEST_CACHE", ROOT / "work" / "tests"))
PACKAGES = "apt-get install docker.io docker-registry qemu-user-static binfmt-support mmdebstrap"
_BASE = [
    "mmdebstrap", "--quiet", "--format=tar", "--mode=root", "--variant=extract", "--architectures=arm64",
    "--include=python3,ca-certificates,dash,coreutils,findutils,grep,sed,libc-bin,base-files,bash",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "bookworm",
]  # fmt: skip
"""Unpacks packages and runs none of their scripts, so no emulation is needed; the same bytes each time."""


@dataclass
class EngineProcess:
    """An engine that can be stopped and started again with what it had."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/sock"

    def start(self) -> None:
        # A second engine without a bridge would take docker0 away from a first one.
        bridge = "docker0" if Path("/sys/class/net/docker0").exists() else "none"
        words = [
            "dockerd", "--storage-driver=overlay2", f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec",
            f"--pidfile={self.folder}/pid", f"--bridge={bridge}", "--iptables=false", "--ip-forward=false", "-H", self.host,
        ]  # fmt: skip
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                client = docker.DockerClient(base_url=self.host)
                client.ping()
                client.close()
            except (DockerException, RequestException, OSError):
                time.sleep(0.1)
            else:
                return
        raise AssertionError((self.folder / "log").read_text(errors="replace")[-3000:])

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
            self.process = None

    def remove(self) -> None:
        """End everything and leave nothing, mounts included."""
        self.stop()
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        for line in reversed(mounts):
            if line.split()[1].startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def docker(self, *words: str, check: bool = True) -> str:
        """Run the docker program against this engine; returns what it prints."""
        done = subprocess.run(
            ["/usr/bin/docker", *words], env={**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout


def _require(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a container engine of the tests' own needs root")
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed: {PACKAGES}")


@pytest.fixture(scope="session")
def engine_process() -> Iterator[EngineProcess]:
    """A running engine with nothing in it."""
    _require("dockerd", "/usr/bin/docker")
    running = EngineProcess(Path(tempfile.mkdtemp(prefix="sm121-engine-")))
    try:
        running.start()
        yield running
    finally:
        running.remove()


@pytest.fixture
def engine(engine_process: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine as the program sees it: where DOCKER_HOST says."""
    monkeypatch.setenv("DOCKER_HOST", engine_process.host)
    for name in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "BUILDX_BUILDER"):
        monkeypatch.delenv(name, raising=False)
    connected = Engine.connect(engine_process.host)
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def engine_registry() -> Iterator[RegistryProcess]:
    """A registry that lasts as long as the engine."""
    _require("docker-registry")
    with tempfile.TemporaryDirectory(prefix="sm121-registry-") as folder:
        running = RegistryProcess(Path(folder), free_port())
        running.start()
        yield running
        running.stop()


@pytest.fixture(scope="session")
def arm64() -> Iterator[None]:
    """Programs for aarch64 run: natively, or by a registration that is taken back at the end if it is ours."""
    _require()
    cpu = os.uname().machine
    mounted = registered = False
    if emulation(cpu, "aarch64", registrations()) not in {Emulation.NATIVE, Emulation.REGISTERED}:
        _require("update-binfmts", "qemu-aarch64-static")
        if not (BINFMT / "status").exists():
            subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
            mounted = True
        subprocess.run(["update-binfmts", "--enable", "qemu-aarch64"], check=True)
        registered = True
    assert emulation(cpu, "aarch64", registrations()) in {Emulation.NATIVE, Emulation.REGISTERED}
    yield
    if registered:
        subprocess.run(["update-binfmts", "--disable", "qemu-aarch64"], check=False)
    if mounted:
        subprocess.run(["umount", str(BINFMT)], check=False)


@pytest.fixture(scope="session")
def base(engine_process: EngineProcess, engine_registry: RegistryProcess) -> ImageReference:
    """Debian with Python for arm64, in the registry; named by its digest."""
    rootfs = _rootfs()
    with tempfile.TemporaryDirectory(prefix="sm121-base-") as name:
        folder = Path(name)
        shutil.copyfile(rootfs, folder / "rootfs.tar")
        (folder / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
        tag = f"{engine_registry.host}/base:bookworm"
        engine_process.docker(
            "build", "-q", "--platform", str(LINUX_ARM64), "--network", "none", "-t", tag, str(folder)
        )
    reference = ImageReference.parse(f"{engine_registry.host}/base")
    connected = Engine.connect(engine_process.host)
    digest = connected.push(tag, str(reference), "bookworm").digest
    connected.close()
    return reference.with_digest(digest)


def _rootfs() -> Path:
    """The base's files; made once and kept in the scratch folder."""
    _require("mmdebstrap")
    key = hashlib.sha256("\0".join(_BASE).encode()).hexdigest()[:12]
    kept = CACHE / f"arm64-base-{key}.tar"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        done = subprocess.run(
            [*_BASE, str(part)], env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no base could be made from Debian's packages: {done.stderr[-300:]}")
        part.replace(kept)
    return kept
