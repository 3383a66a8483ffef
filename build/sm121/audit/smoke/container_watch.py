"""Removes a container when it is told to end: `container_watch.py CONTAINER`.

A program of its own, in the care of the guard: the guard tells it so when whoever started the container is gone,
whatever ended that. Where the container has been removed in the usual way, there is nothing left to do.
"""

from __future__ import annotations

import signal
import sys
import time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before the slow imports, so that it is never missed

import docker  # noqa: E402
from docker.errors import DockerException, NotFound  # noqa: E402

_TRIES = 20


def main(container: str) -> None:
    """Wait to be told, then remove the container."""
    signal.sigwait({signal.SIGTERM})
    for _ in range(_TRIES):
        try:
            docker.from_env().containers.get(container).remove(force=True, v=True)
        except NotFound:
            return
        except (DockerException, OSError):
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
