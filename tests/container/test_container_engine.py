"""Images built, inspected, pushed and named by a real engine: small wheels, real BuildKit, real emulation."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from made_images import lock_file, wheel_file
from sm121 import cli
from sm121.artifact import Image, ImageReference, Platform, Wheel, open_artifact
from sm121.artifact.engine import open_engine
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.artifact.layout import open_layout
from sm121.artifact.pulled import open_registry
from sm121.engine.client import Engine
from sm121.engine.context import fill_context
from sm121.engine.emulation import Emulation
from sm121.engine.features import BuildCall, build_command, docker_environment, find_features
from sm121.errors import ImageError, PreflightError, VerdictFail
from sm121.findings import Verdict
from sm121.image.copying import copy_image
from sm121.image.folder import LayoutFolder
from sm121.image.remote import Repository
from sm121.image.store import BlobStore
from sm121.inspector.inspection import BaseImage, ExpectedWheel, Options, inspect_artifact
from sm121.manifest import Command, Host, Input, Inspection, Manifest, Output, Subject, Tool
from sm121.pins import FilePin, load
from sm121.pins.images import load_images
from sm121.process import run
from sm121.progress import Progress
from sm121.sources.fetch import fetch
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine_fixture import EngineProcess
    from registry_fixture import RegistryProcess

pytestmark = pytest.mark.container
ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "tests" / "device" / "fixtures"
QUIET = Progress(quiet=True)
VERSION = "0.33.0+cu130.sm121"
TAG = "cp38-abi3-manylinux_2_34_aarch64"
OURS = {
    "vllm/__init__.py": b"def main() -> None:\n    print('serving')\n",
    "vllm/_version.py": f"__version__ = version = '{VERSION}'\n".encode(),
    # Real device code for 12.x in a real aarch64 library.
    "vllm/_C_stable_libtorch.abi3.so": (DEVICE / "aarch64.so").read_bytes(),
    "vllm/_moe_C_stable_libtorch.abi3.so": (DEVICE / "host_aarch64.so").read_bytes(),
    f"vllm-{VERSION}.dist-info/entry_points.txt": b"[console_scripts]\nvllm = vllm:main\n",
}


def published(wheel: Path, version: str = VERSION) -> Path:
    """A manifest beside a wheel of vLLM, as a build writes it."""
    pin = FilePin("vllm", "0.33.0", "vllm-0.33.0.tar.gz", 1, Sha256.of_bytes(b"sdist"), "index")
    manifest = Manifest(
        subject=Subject("vllm", version, "0.33.0", "cu130", "12.1", "aarch64", TAG), plan=Sha256.of_bytes(b"plan"),
        inputs=(Input.of(pin, "sources"),), patches=(), tools=(Tool("nvcc", "13.0.88"),),
        host=Host("Linux", "x86_64", 2, 1 << 30, "3.11.7"), commands=(Command("libraries", ("ninja",)),), libraries=(),
        outputs=(Output(wheel.name, Sha256.of_file(wheel), wheel.stat().st_size),),
        inspection=Inspection(Verdict.PASS, Sha256.of_bytes(b"report")),
    )  # fmt: skip
    wheel.with_name(f"{wheel.name}.manifest.json").write_bytes(manifest.to_json())
    return wheel


@dataclass(frozen=True)
class Kit:
    """What a small image is made of."""

    folder: Path
    wheel: Path
    lock: Path
    mirror: Path
    runtime: tuple[Path, ...]

    @classmethod
    def make(cls, folder: Path) -> Kit:
        mirror = folder / "mirror"
        runtime = (
            wheel_file(mirror, "torch", "2.14.0", {"torch/__init__.py": b"__version__ = '2.14.0+cu130'\n"}),
            wheel_file(mirror, "two-parts", "2.0", {"two/__init__.py": b"2", "two/data.bin": bytes(5000)}),
        )
        wheel = published(wheel_file(folder / "dist", "vllm", VERSION, OURS, TAG))
        return cls(folder, wheel, lock_file(folder / "cu130.txt", list(runtime), python="3.11"), mirror, runtime)

    def arguments(self, base: ImageReference, *more: str) -> list[str]:
        return [
            "image", "--line", "cu130", "--vllm", "0.33.0", "--wheel", str(self.wheel), "--lock", str(self.lock),
            "--base", str(base), "--packages", "", "--work", str(self.folder / "work"), "--dist",
            str(self.folder / "dist"), "-q", *more,
        ]  # fmt: skip


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit.make(tmp_path_factory.mktemp("kit"))


@pytest.fixture(scope="session")
def installer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned pip, from the package index."""
    pin = load_images(ROOT / "pins").installer.files[0]
    return fetch([pin], tmp_path_factory.mktemp("pip"), progress=QUIET)[pin.filename]


def built(engine: Engine, base: ImageReference, kit: Kit, installer: Path, folder: Path, **changes: Any) -> str:
    """The ID of a small image, from the project's own Dockerfile."""
    features = find_features()
    context = folder / "context"
    fill_context(context, ROOT / "dockerfiles" / "runtime", installer, kit.runtime, [kit.wheel])
    call = BuildCall(
        context=context, dockerfile=context / "Dockerfile", platform=str(LINUX_ARM64), target="prebuilt",
        arguments={"BASE": str(base), "PYTHON": "3.11"}, labels={"sm121.vllm.version": VERSION}, network="none",
        iidfile=folder / "iid", secrets={}, epoch=315532800,
    )  # fmt: skip
    run(build_command(features, replace(call, **changes)), env=docker_environment())
    return (folder / "iid").read_text().strip()


@pytest.fixture(scope="session")
def image(
    engine_process: EngineProcess, arm64: None, base: ImageReference, kit: Kit, installer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setenv("DOCKER_HOST", engine_process.host)
    connected = Engine.connect(engine_process.host)
    try:
        return built(connected, base, kit, installer, tmp_path_factory.mktemp("built"))
    finally:
        connected.close()
        patch.undo()


def test_the_engine_is_found_and_runs_programs_for_arm64(
    engine: Engine, arm64: None, base: ImageReference
) -> None:
    features = find_features()
    assert features.host == engine.host
    assert features.buildx is not None or features.client[0] < 23
    assert engine.emulation(LINUX_ARM64, base) in {Emulation.REGISTERED, Emulation.NATIVE}
    # A machine that is not this one is asked through a container; so can this one be.
    assert engine.probe(LINUX_ARM64, base) is Emulation.REGISTERED


def test_a_docker_that_cannot_build_is_passed_over(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "docker"
    shim.write_text(
        '#!/bin/sh\n[ "$1" = version ] || exit 1\necho \'{"Client":{"Version":"28.2.2"},"Server":null}\'\n'
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_features().program == "/usr/bin/docker"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match="buildx"):
        find_features()


def test_what_is_in_the_image_runs_as_nobody_of_importance(engine_process: EngineProcess, image: str) -> None:
    told = engine_process.docker(
        "run", "--rm", "--network", "none", "--platform", str(LINUX_ARM64), "--entrypoint", "python", image, "-c",
        "import os, platform, sys, vllm, torch, importlib.metadata as m;"
        "print(platform.machine(), os.getuid(), sys.prefix, m.version('vllm'), os.environ['FLASHINFER_DISABLE_JIT'])",
    )  # fmt: skip
    assert told.split() == ["aarch64", "10001", "/opt/sm121", VERSION, "1"]
    assert (
        engine_process.docker("run", "--rm", "--platform", str(LINUX_ARM64), image, "model").strip() == "serving"
    )
    config = json.loads(engine_process.docker("inspect", image))[0]["Config"]
    assert config["Entrypoint"] == ["/opt/sm121/bin/vllm", "serve"]
    assert config["User"] == "10001:10001"
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["Labels"]["sm121.vllm.version"] == VERSION


def _entries(engine_process: EngineProcess, image: str, into: Path) -> list[list[tuple[object, ...]]]:
    """The layers of an image, each with its entries; times of files only: engines stamp folders that they mount into."""
    engine_process.docker("save", "-o", str(into), image)
    found: list[list[tuple[object, ...]]] = []
    with tarfile.open(into) as saved:
        manifest = saved.extractfile("manifest.json")
        assert manifest is not None
        for name in json.load(manifest)[0]["Layers"]:
            layer = saved.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=layer) as archive:
                found.append(
                    [
                        (m.name, m.type, m.mode, m.uid, m.gid, m.size, m.linkname, m.mtime if m.isreg() else 0)
                        for m in archive
                    ]
                )
    return found


def test_the_same_inputs_give_the_same_layers(
    engine: Engine, engine_process: EngineProcess, base: ImageReference, kit: Kit, installer: Path, image: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    again = built(engine, base, kit, installer, tmp_path, no_cache=True)
    first = _entries(engine_process, image, tmp_path / "first.tar")
    second = _entries(engine_process, again, tmp_path / "second.tar")
    assert first == second
    names = {str(entry[0]) for layer in first[1:] for entry in layer}
    assert not [name for name in names if name.endswith((".pyc", ".whl"))]


def _options(kit: Kit, base: ImageReference) -> Options:
    with Wheel(kit.wheel) as wheel:
        distribution = wheel.identify().distribution
    assert distribution is not None
    with open_registry(base, LINUX_ARM64) as opened:
        layers = tuple(str(digest) for digest in opened.config.diff_ids)
    expected = ExpectedWheel(distribution, Sha256.of_file(kit.wheel).hex)
    return Options(jobs=1, wheels=(expected,), base=BaseImage(str(base), layers))


def test_every_route_shows_the_same_image(
    engine: Engine, engine_process: EngineProcess, engine_registry: RegistryProcess, base: ImageReference, kit: Kit,
    image: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Engine, save archive, registry by digest, OCI layout: the same findings, but for those about the route."""
    repository = ImageReference.parse(f"{engine_registry.host}/team/routes")
    pushed = engine.push(image, str(repository), "x")
    assert pushed.kept + pushed.sent > 0
    engine_process.docker("save", "-o", str(tmp_path / "saved.tar"), image)
    with Repository(repository) as there:
        layout = LayoutFolder(tmp_path / "layout", create=True)
        copy_image(there, layout, pushed.digest, BlobStore(tmp_path / "store"), QUIET)
    routes: dict[str, Image] = {
        "engine": open_engine(image, LINUX_ARM64),
        "save": open_layout(tmp_path / "saved.tar", LINUX_ARM64),
        "registry": open_registry(repository.with_digest(pushed.digest), LINUX_ARM64),
        "layout": open_layout(tmp_path / "layout", LINUX_ARM64),
    }
    options = _options(kit, base)
    reports = {}
    for name, opened in routes.items():
        with opened:
            reports[name] = inspect_artifact(opened, options)
    seen = {
        name: {
            (finding.check, finding.subject, finding.verdict, finding.got)
            for finding in report.findings
            if finding.check not in {"image.reference", "image.archive"}
        }
        for name, report in reports.items()
    }
    assert seen["engine"] == seen["save"] == seen["registry"] == seen["layout"]
    assert all(report.libraries == reports["engine"].libraries for report in reports.values())
    by_check = {
        finding.check: finding for finding in reports["registry"].findings if finding.check.startswith("image.")
    }
    for check in ("image.wheel", "image.base", "image.wheels", "image.machine", "image.label", "image.secret"):
        assert by_check[check].verdict is Verdict.PASS, by_check[check]
    assert by_check["image.reference"].verdict is Verdict.PASS


def test_what_the_reader_sees_is_what_a_container_sees(
    engine: Engine, engine_process: EngineProcess, base: ImageReference, tmp_path: Path
) -> None:
    """Whiteouts, opaque folders, hard and symbolic links of real layers."""
    (tmp_path / "Dockerfile").write_text(
        f"FROM {base}\n"
        "RUN mkdir -p /t/gone /t/opaque/deep /t/kept && echo 1 >/t/a && ln /t/a /t/b && ln -s kept /t/link "
        "&& echo 2 >/t/gone/x && echo 3 >/t/opaque/deep/y && echo 4 >/t/kept/z && echo 5 >/t/becomes\n"
        "RUN rm -r /t/gone /t/a && rm -r /t/opaque && mkdir /t/opaque && echo 6 >/t/opaque/new "
        "&& rm /t/becomes && mkdir /t/becomes && echo 7 >/t/becomes/inside && echo 8 >/t/link/through && ln /t/b /t/c\n"
    )
    iid = tmp_path / "iid"
    engine_process.docker(
        "build", "-q", "--platform", str(LINUX_ARM64), "--network", "none", "--iidfile", str(iid), str(tmp_path)
    )
    image = iid.read_text().strip()
    listed = engine_process.docker(
        "run", "--rm", "--network", "none", "--platform", str(LINUX_ARM64), image, "find", "/", "-xdev", "-type", "f"
    ).split("\n")  # fmt: skip
    made_at_start = {".dockerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf"}
    truth = {line.lstrip("/") for line in listed if line} - made_at_start
    with open_engine(image, LINUX_ARM64) as opened:
        seen = {member.path for member in opened.members()} - made_at_start
        through = opened.find("t/link/through")
        assert through is not None
        assert through.read() == b"8\n"
        hidden = {path for path, _, _ in opened.hidden()}
    assert seen == truth
    assert {"t/gone/x", "t/opaque/deep/y", "t/becomes"} <= hidden


def test_an_image_that_fails_its_inspection_is_not_pushed(
    engine: Engine, engine_registry: RegistryProcess, base: ImageReference, kit: Kit, image: str, installer: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The small wheel lacks what vLLM must hold: the whole command, and nothing gets a name."""
    shutil.copyfile(installer, kit.mirror / installer.name)
    repository = f"{engine_registry.host}/team/refused"
    status = cli.run(kit.arguments(base, "--repository", repository, "--mirror", str(kit.mirror)))
    told = capsys.readouterr().err
    assert status == VerdictFail.exit_code, told
    assert "nothing was pushed" in told or "not pushed" in told
    with Repository(ImageReference.parse(repository)) as there:
        assert there.tags() == []
    assert not (kit.folder / "dist" / "images").exists()


def test_a_wrong_cpu_is_refused_by_the_manifest(
    engine: Engine, base: ImageReference, kit: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ImageError, match="linux/amd64"):
        open_registry(base, Platform("linux", "amd64"))
    with pytest.raises(ImageError, match="arm64"):
        engine.pull(base, Platform("linux", "amd64"))


def test_a_registry_that_is_gone_names_nothing(engine: Engine, image: str, registry: RegistryProcess) -> None:
    repository = f"{registry.host}/team/gone"
    registry.stop()
    with pytest.raises(ImageError, match="push"):
        engine.push(image, repository, "x")
    registry.start()
    with Repository(ImageReference.parse(repository)) as there:
        assert there.tags() == []


def test_a_registry_that_ends_in_the_middle_of_a_push(
    engine: Engine, base: ImageReference, registry: RegistryProcess
) -> None:
    repository = f"{registry.host}/team/middle"
    told: list[str] = []

    def stop_at_first_bytes(event: Mapping[str, Any]) -> None:
        told.append(str(event.get("status")))
        if event.get("status") == "Pushing" and registry.process is not None:
            registry.stop()

    image = engine.pull(base, LINUX_ARM64)
    with pytest.raises(ImageError, match="stopped answering"):
        engine.push(image, repository, "x", stop_at_first_bytes)
    assert "Pushing" in told
    registry.start()
    with Repository(ImageReference.parse(repository)) as there:
        assert there.tags() == []
    # The same again goes through, and gives what the base's own registry gave.
    assert engine.push(image, repository, "x").digest == base.digest


def test_an_engine_that_is_not_there_says_so() -> None:
    with pytest.raises(ImageError, match="does not do its part"):
        Engine.connect("unix:///nonexistent/docker.sock")


def test_anybodys_image_by_reference(
    engine: Engine, engine_registry: RegistryProcess, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = f"{engine_registry.host}/vllm/vllm-openai"
    digest = engine.push(image, repository, "cu129-nightly").digest
    with open_artifact(f"{repository}@{digest}") as opened:
        assert isinstance(opened, Image)
        assert opened.digest == digest
    assert (
        cli.run(["inspect", f"{repository}:cu129-nightly", "--torch", "2.14.0+cu130", "-v"])
        == VerdictFail.exit_code
    )
    told = " ".join(capsys.readouterr().out.split())
    assert "names the image by a tag" in told
    assert "cu129" in told


def test_the_pins_load_with_their_images() -> None:
    assert load(ROOT / "pins").default_line
    assert load_images(ROOT / "pins").installer.files
