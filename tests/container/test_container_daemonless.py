"""An image that was made without an engine, run by one: its environment, its user, its entry point."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from made_images import OUR_FILES, World, lock_file, our_wheel
from sm121.artifact import ImageReference
from sm121.image.places import same_registry
from sm121.image.publish import make_image, push_image
from sm121.image.remote import Repository
from sm121.image.store import BlobStore
from sm121.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from engine_fixture import EngineProcess
    from registry_fixture import RegistryProcess

pytestmark = pytest.mark.container
MAIN = b"""\
import json, os, platform, pwd, sys
import one, two
def main():
    me = pwd.getpwuid(os.getuid())
    cache = os.path.join(me.pw_dir, ".cache", "pycache")
    print(json.dumps({"cpu": platform.machine(), "prefix": sys.prefix, "argv": sys.argv, "user": me.pw_name,
                      "compiled": os.path.isdir(cache), "home": os.access(me.pw_dir, os.W_OK),
                      "site": os.access(os.path.dirname(one.__file__), os.W_OK)}))
"""


@pytest.mark.usefixtures("arm64")
def test_it_runs_as_it_should(
    base: ImageReference, engine_process: EngineProcess, engine_registry: RegistryProcess, tmp_path: Path
) -> None:
    world = World.make(tmp_path)
    lock = lock_file(tmp_path / "cu130.lock", sorted(world.mirror.iterdir()), python="3.11")
    wheel = our_wheel(tmp_path / "dist", {**OUR_FILES, "thing/__init__.py": MAIN})
    quiet = Progress(quiet=True)
    request = world.request(base=str(base), lock=lock, wheels=(wheel,))
    made = make_image(request, tmp_path / "work", tmp_path / "out", quiet)
    reference = ImageReference.parse(f"{engine_registry.host}/daemonless")
    mounts = same_registry(base.name, reference.name)
    with Repository(reference, write=True, mounts=mounts) as place:
        record, copied = push_image(made.layout, place, BlobStore(tmp_path / "work" / "images"), quiet)
    of_base = sum(layer.size for layer in record.layers if layer.holds == "base")
    assert copied.sent < of_base, "the registry has the base already"
    exact = f"{reference.name}@{record.digest}"
    said = json.loads(
        engine_process.docker("run", "--rm", "--network", "none", "--platform", "linux/arm64", exact, "model")
    )
    assert said == {
        "cpu": "aarch64", "prefix": "/opt/sm121", "argv": ["/opt/sm121/bin/vllm", "serve", "model"], "user": "vllm",
        "compiled": True, "home": True, "site": False,
    }  # fmt: skip
    held = json.loads(engine_process.docker("image", "inspect", exact))[0]
    assert (held["Os"], held["Architecture"]) == ("linux", "arm64")
    assert held["Config"]["Healthcheck"]["Test"][0] == "CMD"
    assert held["Config"]["Labels"] | dict(record.labels) == held["Config"]["Labels"]
    assert exact in held["RepoDigests"]
    engine_process.docker("image", "rm", "-f", held["Id"])
