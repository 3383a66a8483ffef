"""What stands in an image besides wheels: an environment for the base's Python, a user, and how it is started."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from sm121.errors import ImageError
from sm121.image.layer import Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.image.base import BaseFacts
    from sm121.image.placing import Prefix

FOLDER = "opt/sm121"
"""Where everything of ours lies: an environment of its own, whatever the base has installed for its Python."""
USER = "vllm"
UID = 10001
HOME = f"home/{USER}"
PORT = 8000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECOND = 1_000_000_000
_PROBE = "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/health', timeout=5)"
_DEFAULTS = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""What the container toolkit needs to be told if the base does not do it."""


def frame(prefix: Prefix, facts: BaseFacts) -> list[Entry]:
    """The environment, the user and the user's folders. Raises ImageError if the base has another such user."""
    passwd, group = _with_user(facts)
    version = prefix.python
    settings = f"home = {facts.python_home}\ninclude-system-site-packages = false\nversion = {version}\n"
    return [
        Entry.text(f"{prefix.folder}/pyvenv.cfg", settings.encode()),
        Entry(f"{prefix.bin}/python", link=f"{facts.python_home}/python{version}"),
        Entry(f"{prefix.bin}/python3", link="python"),
        Entry(f"{prefix.bin}/python{version}", link="python"),
        Entry(f"{prefix.folder}/lib64", link="lib"),
        Entry.folder(prefix.site),
        Entry.text("etc/passwd", passwd),
        Entry.text("etc/group", group),
        Entry.folder("home"),
        Entry.folder(HOME, mode=0o750, owner=UID),
        Entry.folder(f"{HOME}/.cache", owner=UID),
    ]


def run_options(
    base: Mapping[str, Any], prefix: Prefix, labels: Mapping[str, str], env: Mapping[str, str]
) -> dict[str, Any]:
    """How a container of the image starts, as the configuration holds it. The base's own variables stay."""
    before = base.get("config") or {}
    variables = dict(pair.split("=", 1) for pair in before.get("Env") or () if "=" in pair)
    path = variables.get("PATH") or _PATH
    variables = {**_DEFAULTS, **variables}
    variables |= {
        "PATH": f"/{prefix.bin}:{path}",
        "HOME": f"/{HOME}",
        "PYTHONNOUSERSITE": "1",
        # Layers hold no .pyc: they would depend on the compiling Python. The first start writes them here.
        "PYTHONPYCACHEPREFIX": f"/{HOME}/.cache/pycache",
        **env,
    }
    probe = [prefix.interpreter, "-c", _PROBE.format(port=PORT)]
    return {
        "User": f"{UID}:{UID}",
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Entrypoint": [f"/{posixpath.join(prefix.bin, 'vllm')}", "serve"],
        "Cmd": None,
        "WorkingDir": f"/{HOME}",
        "ExposedPorts": {f"{PORT}/tcp": {}},
        "Labels": {**(before.get("Labels") or {}), **labels},
        "StopSignal": "SIGTERM",
        # Loading weights takes minutes: failures count only afterwards.
        "Healthcheck": {
            "Test": ["CMD", *probe], "Interval": 30 * _SECOND, "Timeout": 10 * _SECOND, "StartPeriod": 1800 * _SECOND,
            "Retries": 3,
        },
    }  # fmt: skip


def _with_user(facts: BaseFacts) -> tuple[bytes, bytes]:
    """passwd and group with our user added; a base that has the same one already is left as it is."""
    passwd = facts.passwd.decode("utf-8", "replace").splitlines() or ["root:x:0:0:root:/root:/bin/sh"]
    group = facts.group.decode("utf-8", "replace").splitlines() or ["root:x:0:"]
    wanted = f"{USER}:x:{UID}:{UID}::/{HOME}:/usr/sbin/nologin"
    clash = [line for line in passwd if line.split(":")[0] == USER or line.split(":")[2:3] == [str(UID)]]
    if any(line.split(":")[:1] != [USER] or line.split(":")[2:3] != [str(UID)] for line in clash):
        raise ImageError(
            f"the base has the user {clash[0]!r}; {USER} with the number {UID} was wanted.",
            do="take a base without that user.",
        )
    if not clash:
        passwd.append(wanted)
        group.append(f"{USER}:x:{UID}:")
    return "".join(f"{line}\n" for line in passwd).encode(), "".join(f"{line}\n" for line in group).encode()
