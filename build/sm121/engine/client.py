"""The engine through its SDK: pull, tag, push, look. What an engine only mentions in a stream becomes an error here."""

from __future__ import annotations

import platform as machine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import docker
import requests
import urllib3
from docker.errors import APIError, ContainerError, DockerException, ImageNotFound

from sm121.artifact import printable
from sm121.artifact.reference import parse_digest
from sm121.engine.emulation import CPUS, Emulation, emulation, registrations
from sm121.errors import DigestError, ImageError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from docker import DockerClient

    from sm121.artifact import ImageReference, Platform
    from sm121.values import Sha256

TIMEOUT = 900
"""Seconds for one answer of the engine."""
_BROKEN = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_NOT_RUNNABLE = ("exec format error", "no such file or directory: unknown")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push came to: the manifest's digest and size, and bytes of layers that were sent (before compression)."""

    digest: Sha256
    size: int
    sent: int
    kept: int
    """Layers that the registry had already."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. Every failure of it is an ImageError."""

    client: DockerClient
    host: str

    @classmethod
    def connect(cls, host: str = "") -> Self:
        """Reach the engine at `host`, else where DOCKER_HOST says."""
        try:
            if host.startswith("ssh://"):
                client = docker.DockerClient(base_url=host, timeout=TIMEOUT, use_ssh_client=True)
            elif host.startswith("unix://"):
                client = docker.DockerClient(base_url=host, timeout=TIMEOUT)
            else:
                client = docker.from_env(timeout=TIMEOUT)
            client.ping()
        except _BROKEN as error:
            raise _stopped("answers", error) from error
        return cls(client, host or client.api.base_url)

    def close(self) -> None:
        self.client.close()

    def cpu(self) -> str:
        """The CPU of the engine's machine, as kernels name it."""
        return str(self._asked(self.client.info)["Architecture"])

    def emulation(self, platform: Platform, base: ImageReference) -> Emulation:
        """Whether containers for `platform` run: by this machine's kernel if it is the engine's, else by trying."""
        info = self._asked(self.client.info)
        cpu = CPUS.get(platform.architecture, platform.architecture)
        if info["Architecture"] == cpu:
            return Emulation.NATIVE
        if info.get("KernelVersion") == machine.release() and info.get("Name") == machine.node():
            return emulation(str(info["Architecture"]), cpu, registrations())
        return self.probe(platform, base)

    def probe(self, platform: Platform, base: ImageReference) -> Emulation:
        """Start a program of the base in a container that reaches nothing."""
        self.pull(base, platform)
        try:
            self.client.containers.run(
                str(base),
                entrypoint=["/bin/sh", "-c", ":"],
                platform=str(platform),
                network_mode="none",
                remove=True,
            )
        except (ContainerError, APIError) as error:
            text = str(error).lower()
            return Emulation.ABSENT if any(word in text for word in _NOT_RUNNABLE) else Emulation.UNKNOWN
        except _BROKEN as error:
            raise _stopped("answers", error) from error
        return Emulation.REGISTERED

    def pull(self, reference: ImageReference, platform: Platform) -> str:
        """Bring an image by digest; returns its ID. The engine takes what a digest names, whatever its CPU."""
        name, digest = reference.name, str(reference.by_digest().digest)
        try:
            events = self.client.api.pull(name, tag=digest, platform=str(platform), stream=True, decode=True)
            read_events(events, f"pull {reference}")
            attributes: dict[str, Any] = self.client.images.get(str(reference)).attrs
        except _BROKEN as error:
            raise _stopped(f"pulls {reference}", error) from error
        if attributes.get("Architecture") != platform.architecture:
            raise ImageError(
                f"{reference} is for {attributes.get('Architecture')}; {platform} was wanted.",
                do="name the digest of the index, or of that platform's manifest.",
            )
        return str(attributes["Id"])

    def has(self, image: str) -> bool:
        """Whether the engine holds an image by that ID or name."""
        try:
            self.client.images.get(image)
        except ImageNotFound:
            return False
        except _BROKEN as error:
            raise _stopped("answers", error) from error
        return True

    def diff_ids(self, image: str) -> tuple[str, ...]:
        """The digests of the plain layers of an image that the engine holds."""
        try:
            return tuple(self.client.images.get(image).attrs["RootFS"]["Layers"])
        except _BROKEN as error:
            raise _stopped("answers", error) from error

    def push(
        self, image: str, repository: str, tag: str, on_event: Callable[[Mapping[str, Any]], None] | None = None
    ) -> Pushed:
        """Name an image in the engine and push it under that name; the registry's digest comes back.

        Raises ImageError for any error in the stream, and where the registry's digest does not come.
        """
        subject = f"push {repository}:{tag}"
        try:
            if not self.client.api.tag(image, repository, tag):
                raise ImageError(f"the engine does not tag {image} as {repository}:{tag}.")
            events = self.client.api.push(repository, tag=tag, stream=True, decode=True)
            return read_push(read_events(events, subject, on_event), subject)
        except _BROKEN as error:
            raise _stopped(f"pushes {repository}:{tag}", error) from error

    def untag(self, name: str) -> None:
        """Take a name away again; the image stays while it has another, or is in use."""
        with suppress(*_BROKEN):
            self.client.api.remove_image(name, noprune=True)

    def _asked(self, question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return question()
        except _BROKEN as error:
            raise _stopped("answers", error) from error


def read_events(
    events: Iterable[object], subject: str, on_event: Callable[[Mapping[str, Any]], None] | None = None
) -> list[Mapping[str, Any]]:
    """All events of a stream; ImageError for the first that tells of an error: the engine raises none for it."""
    kept: list[Mapping[str, Any]] = []
    for event in events:
        if not isinstance(event, dict):
            raise ImageError(f"{subject}: the engine sends {printable(repr(event)[:200])}, which is no event.")
        detail = event.get("errorDetail")
        text = event.get("error") or (detail.get("message") if isinstance(detail, dict) else "")
        if text:
            raise _refused(subject, str(text))
        if on_event is not None:
            on_event(event)
        kept.append(event)
    return kept


def read_push(events: Iterable[Mapping[str, Any]], subject: str) -> Pushed:
    """What a push came to. Raises ImageError if the registry's digest is missing, DigestError for two of them."""
    sent: dict[str, int] = {}
    kept: set[str] = set()
    found: dict[str, int] = {}
    for event in events:
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        if status == "Pushing":
            detail = event.get("progressDetail")
            current = detail.get("current", 0) if isinstance(detail, dict) else 0
            sent[layer] = max(sent.get(layer, 0), int(current))
        elif status.startswith(("Layer already exists", "Mounted from")):
            kept.add(layer)
        aux = event.get("aux")
        if isinstance(aux, dict) and "Digest" in aux:
            found[str(aux["Digest"])] = int(aux.get("Size", 0))
    if not found:
        raise ImageError(
            f"{subject}: the engine ends without the registry's digest.", do="push again; what arrived is kept."
        )
    if len(found) > 1:
        raise DigestError(f"{subject}: the engine names {len(found)} digests: {', '.join(sorted(found))}.")
    ((digest, size),) = found.items()
    try:
        return Pushed(parse_digest(digest), size, sum(sent.values()), len(kept))
    except ValueError as error:
        raise ImageError(f"{subject}: {error}.") from error


def _refused(subject: str, text: str) -> ImageError | StorageError:
    shown = printable(text.strip())
    if "no space left" in text:
        return StorageError(
            f"{subject}: {shown}.", do="free space where the engine or the registry keeps its images."
        )
    if "unauthorized" in text or "denied" in text or "no basic auth" in text:
        return ImageError(f"{subject}: {shown}.", do="run docker login for that registry, or check the name.")
    if "connection refused" in text or "EOF" in text or "timeout" in text.lower() or "reset" in text:
        return ImageError(
            f"{subject}: the registry stopped answering ({shown}).",
            do="run the same command again; what arrived is kept.",
        )
    return ImageError(f"{subject}: {shown}.", do="nothing was named; mend this and run the same command again.")


def _stopped(what: str, error: Exception) -> ImageError:
    return ImageError(
        f"The container engine does not do its part ({what}): {printable(str(error))}.",
        do="start it, or set DOCKER_HOST; then run the same command again, what is finished is kept.",
    )
