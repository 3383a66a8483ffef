"""A real registry on the loopback address: Debian's package docker-registry, in a folder of the test."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIG = """\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@dataclass
class RegistryProcess:
    """A registry that can be ended in the middle of something and started again with what it had."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        config = self.folder / "config.yml"
        config.write_text(_CONFIG.format(root=self.folder / "data", port=self.port))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://{self.host}/v2/", timeout=2):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(10)
            self.process = None

    def blob(self, digest: str) -> Path:
        """Where the registry keeps a blob."""
        name = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    """A registry with nothing in it."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed: apt-get install docker-registry")
    running = RegistryProcess(tmp_path_factory.mktemp("registry"), free_port())
    running.start()
    yield running
    running.stop()
