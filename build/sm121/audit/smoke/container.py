"""Serves from an image: a container with the GPU, of which nothing is left afterwards."""

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest
from requests import RequestException

from sm121 import process
from sm121.artifact.member import printable
from sm121.audit.smoke.environment import LOOPBACK, Service, free_port
from sm121.engine.client import Engine
from sm121.errors import ArtifactError, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient
    from docker.models.containers import Container
    from docker.models.images import Image

    from sm121.audit.smoke.setups import Setup
    from sm121.progress import Progress

_FAULTS = (DockerException, RequestException, OSError)
LABEL = "sm121.smoke"
"""On every container: the host and process that it belongs to."""
_MODEL = "/model"
_STOP = 30
"""Seconds between the polite end and the other one."""
_SHARED_MEMORY = 16 << 30


def find_image(client: DockerClient, name: str, progress: Progress) -> Image:
    """The image of the engine's, pulled if it is not there. Raises ImageError."""
    try:
        return client.images.get(name)
    except ImageNotFound:
        pass
    except _FAULTS as error:
        raise ImageError(f"the engine cannot say whether it has {name}: {printable(str(error))}.") from error
    try:
        with progress.step(f"pull {name}"):
            return client.images.pull(name)
    except _FAULTS as error:
        raise ImageError(
            f"{name} is not in the engine and cannot be pulled: {printable(str(error))}.",
            do="name it as `docker images` shows it, or by digest as REGISTRY/REPOSITORY@sha256:DIGEST.",
        ) from error


def gpu_requests(gpus: str) -> list[DeviceRequest]:
    """What `docker run --gpus` would ask for: `all`, `none`, or a list of numbers."""
    if gpus == "none":
        return []
    chosen: dict[str, Any] = {"count": -1} if gpus == "all" else {"device_ids": gpus.split(",")}
    return [DeviceRequest(capabilities=[["gpu"]], **chosen)]


# Runs in the image, which vLLM is not imported for: where it lies, and its Python files as one archive.
_GATHER = """
import importlib.util, pathlib, sys, tarfile
spec = importlib.util.find_spec("vllm")
if spec is None or not spec.submodule_search_locations: raise SystemExit("no package vllm")
root = pathlib.Path(list(spec.submodule_search_locations)[0]).parent
with tarfile.open("/tmp/sm121-python.tar", "w") as archive:
    names = [root / name for name in ("vllm", "flashinfer", "b12x")]
    files = [path for name in names if name.is_dir() for path in name.rglob("*.py")]
    files += root.glob("*.dist-info/METADATA")
    for path in files: archive.add(path, "lib/site-packages/" + str(path.relative_to(root)))
"""


def gather_python(client: DockerClient, image: Image, target: Path) -> Path:
    """Unpack the image's vLLM as text below `target`, to be read and never imported. Raises ImageError."""
    container = None
    try:
        container = client.containers.create(
            image,
            command=["-c", _GATHER],
            entrypoint=["python3"],
            network_mode="none",
            labels=_labels(),
            init=True,
        )
        container.start()
        status = container.wait(timeout=600)["StatusCode"]
        if status:
            said = container.logs(tail=5).decode("utf-8", "replace")
            raise ImageError(f"the image's Python does not find vLLM: {printable(' '.join(said.split()))}.")
        pieces, _ = container.get_archive("/tmp/sm121-python.tar")  # noqa: S108 -- inside the container
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as outer:
            inner = outer.extractfile("sm121-python.tar")
            assert inner is not None
            with tarfile.open(fileobj=inner) as archive:
                archive.extractall(target, filter="data")
    except (*_FAULTS, tarfile.TarError, KeyError) as error:
        raise ImageError(f"the image's Python files cannot be had: {printable(str(error))}.") from error
    finally:
        if container is not None:
            _remove(container)
    return target


def _labels() -> dict[str, str]:
    return {LABEL: f"{socket.gethostname()}/{os.getpid()}"}


@dataclass(frozen=True, slots=True)
class ContainerServer:
    """A server in a container. Its log is written by a thread that ends with it."""

    url: str
    _container: Container
    _log: threading.Thread
    _watch: process.Running

    def ended(self) -> str:
        try:
            self._container.reload()
        except NotFound:
            return "was removed"
        except _FAULTS as error:
            return f"is out of reach: {printable(str(error))}"
        state = self._container.attrs.get("State", {})
        if state.get("Running"):
            return ""
        return "was ended for want of memory" if state.get("OOMKilled") else f"ended with {state.get('ExitCode')}"

    def stop(self) -> None:
        with suppress(*_FAULTS):
            self._container.stop(timeout=_STOP)
        _remove(self._container)
        self._log.join(_STOP)
        self._watch.stop()


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except _FAULTS as error:
        name = container.name or container.id
        raise ImageError(
            f"the container {name} could not be removed: {printable(str(error))}.", do=f"docker rm -f {name}"
        ) from error


@dataclass(frozen=True, slots=True)
class ContainerStarter:
    """Serves from an image."""

    client: DockerClient
    image: Image
    service: Service
    artifact: str
    gpus: str = "all"

    def start(self, setup: Setup, log: Path) -> ContainerServer:
        """Start a container that serves on a free port of this machine's loopback address. Raises ImageError."""
        port = free_port()
        folder = Path(self.service.model)
        mounted = {str(folder.resolve()): {"bind": _MODEL, "mode": "ro"}} if folder.is_dir() else {}
        if home := os.environ.get("HF_HOME"):
            mounted[home] = {"bind": "/root/.cache/huggingface", "mode": "rw"}
        words = self.service.words(setup, LOOPBACK, port)
        if folder.is_dir():
            words[0] = _MODEL
        container = watch = None
        try:
            container = self.client.containers.create(
                self.image, command=words, entrypoint=["vllm", "serve"], labels=_labels(), init=True,
                network_mode="host", volumes=mounted, shm_size=_SHARED_MEMORY,
                device_requests=gpu_requests(self.gpus), environment={**setup.environment, **self.service.environment},
            )  # fmt: skip
            # Before it runs: whatever becomes of us, somebody removes it.
            watch = _watch(container, log)
            container.start()
        except _FAULTS as error:
            if container is not None:
                _remove(container)
            if watch is not None:
                watch.stop()
            raise ImageError(
                f"the container does not start: {printable(str(error))}.",
                do="without a GPU or its container toolkit give --gpus none; else read the engine's log.",
            ) from error
        reader = threading.Thread(target=_copy, args=(container, log), name="sm121-container-log", daemon=True)
        reader.start()
        return ContainerServer(f"http://{LOOPBACK}:{port}", container, reader, watch)


def _watch(container: Container, log: Path) -> process.Running:
    """A process that removes the container when this one is gone, or when it is stopped."""
    host = os.environ.get("DOCKER_HOST")
    extra = {"DOCKER_HOST": host} if host else {}
    program: list[str | Path] = [
        sys.executable,
        Path(__file__).with_name("container_watch.py"),
        str(container.id),
    ]
    return process.start(program, log=log.with_suffix(".watch"), env=process.environment(extra), grace=60)


def _copy(container: Container, log: Path) -> None:
    """What the container prints, until it ends."""
    with suppress(*_FAULTS), log.open("ab") as file:
        for piece in container.logs(stream=True, follow=True):
            file.write(piece)
            file.flush()


@contextmanager
def engine() -> Iterator[DockerClient]:
    """The engine's client, closed when the block ends."""
    reached = Engine.connect()
    try:
        yield reached.client
    finally:
        reached.close()


def check_model(model: str) -> None:
    """A model that looks like a folder must be one. Raises ArtifactError."""
    path = Path(model)
    if (model.startswith((".", "/", "~")) or path.exists()) and not (path / "config.json").is_file():
        raise ArtifactError(
            f"{model} holds no config.json.",
            do="name a checkpoint's folder, or a model of the hub as OWNER/NAME.",
        )
