"""Images of the local engine, with an engine that is played."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from docker.errors import DockerException, ImageNotFound
from image_maker import ImageMaker, docker_save, layer, sha256

from sm121.artifact import Image, open_artifact
from sm121.artifact.engine import open_engine
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.errors import ArtifactError, ImageError, StorageError
from sm121.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker


@dataclass
class PlayedImage:
    """What docker's library calls an image."""

    image: ImageMaker
    archive: bytes
    architecture: str = "arm64"
    size: int = 1000
    saved: int = 0
    fails: bool = False

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "Id": sha256(self.image.config()), "Os": "linux", "Architecture": self.architecture, "Size": self.size,
            "Created": "2026-01-01T00:00:00Z", "Config": {"Env": ["A=1"], "Labels": None, "Entrypoint": ["x"], "User": ""},
            "RootFS": {"Type": "layers", "Layers": [sha256(data) for data in self.image.layers]},
        }  # fmt: skip

    def history(self) -> list[dict[str, Any]]:
        return [{"CreatedBy": "second", "Size": 0}, {"CreatedBy": "first", "Size": 5}]

    def save(self, chunk_size: int = 0) -> Iterator[bytes]:
        self.saved += 1
        for start in range(0, len(self.archive), 700):
            if self.fails and start:
                raise DockerException("the engine went away")
            yield self.archive[start : start + 700]


@dataclass
class PlayedEngine:
    """What docker's library calls a client."""

    held: dict[str, PlayedImage] = field(default_factory=dict)
    closed: bool = False

    @property
    def images(self) -> PlayedEngine:
        return self

    def get(self, name: str) -> PlayedImage:
        if name not in self.held:
            raise ImageNotFound(name)
        return self.held[name]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedEngine:
    base, top = layer(("a", b"base"), ("b", b"b")), layer(("a", b"top"))
    image = ImageMaker([base, top, base, top])  # equal layers are links in the archive
    archive = docker_save(tmp_path / "save.tar", image).read_bytes()
    made = PlayedEngine({"made:1": PlayedImage(image, archive)})
    monkeypatch.setattr("docker.from_env", lambda timeout: made)
    return made


def opened(engine: PlayedEngine, name: str = "made:1") -> Image:
    return open_engine(name, LINUX_ARM64, client=cast("docker.DockerClient", engine))


def test_the_description_is_had_without_the_layers(engine: PlayedEngine) -> None:
    with opened(engine) as image:
        assert image.name == "docker-daemon:made:1"
        assert (image.config.env, image.config.entrypoint) == (("A=1",), ("x",))
        assert [(step.created_by, step.empty_layer) for step in image.config.history] == [
            ("first", False), ("second", True),
        ]  # fmt: skip
        assert (image.digest, image.problems, engine.held["made:1"].saved) == (None, [], 0)
    assert engine.closed


def test_the_layers_come_from_one_temporary_copy_that_is_named(engine: PlayedEngine) -> None:
    with opened(engine) as image:
        assert {member.path: member.read() for member in image.members()} == {"a": b"top", "b": b"b"}
        assert engine.held["made:1"].saved == 1
        (finding,) = image.problems
        assert (finding.check, finding.verdict) == ("image.archive", Verdict.INFO)
        assert "temporary file" in finding.got
        with next(image.members(lambda path: path == "b")).buffer() as data:
            assert bytes(data) == b"b"


def test_an_archive_that_is_another_image(engine: PlayedEngine, tmp_path: Path) -> None:
    other = ImageMaker([layer(("evil", b"evil"))])
    engine.held["made:1"].archive = docker_save(tmp_path / "other.tar", other).read_bytes()
    with opened(engine) as image:
        assert list(image.members()) == []
        assert len([finding for finding in image.problems if finding.verdict is Verdict.FAIL]) == 4


def test_refusals(engine: PlayedEngine) -> None:
    with pytest.raises(ImageError, match="no image none:1"):
        opened(engine, "none:1")
    engine.held["made:1"].architecture = "amd64"
    with pytest.raises(ImageError, match="is for linux/amd64"):
        opened(engine)
    engine.held["made:1"].architecture = "arm64"
    engine.held["made:1"].size = 1 << 60
    with opened(engine) as image, pytest.raises(StorageError, match="TMPDIR"):
        list(image.members())
    engine.held["made:1"].size = 0
    engine.held["made:1"].fails = True
    with opened(engine) as image, pytest.raises(ImageError, match="went away"):
        list(image.members())


def test_names_lead_to_the_engine_first_and_never_by_accident(
    engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker-daemon:made:1", "made:1"):
        with open_artifact(name) as artifact:
            assert isinstance(artifact, Image)
            assert artifact.name == "docker-daemon:made:1"
    asked = []

    def registry(reference: object, platform: object, *, limits: object) -> Image:
        asked.append(str(reference))
        raise ImageError("asked")

    monkeypatch.setattr("sm121.artifact.pulled.open_registry", registry)
    digest = f"sha256:{'a' * 64}"
    for name in ("other:2", "docker.io/library/made:1", f"made@{digest}", "ghcr.io/x/made:1", "docker://made:1"):
        with pytest.raises(ImageError, match="asked"):
            open_artifact(name)
    assert asked == [
        "docker.io/library/other:2", "docker.io/library/made:1", f"docker.io/library/made@{digest}", "ghcr.io/x/made:1",
        "docker.io/library/made:1",
    ]  # fmt: skip


def test_no_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(timeout: float) -> None:
        raise DockerException("Error while fetching server API version")

    monkeypatch.setattr("docker.from_env", absent)
    with pytest.raises(ImageError, match="No container engine answers"):
        open_artifact("docker-daemon:made:1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("missing.whl", "does not exist"),
        ("./some/x", "does not exist"),
        ("/nowhere/at/all", "does not exist"),
        ("justaword", "names a repository, not an image"),
        ("UPPER:1", "does not exist"),
        ("oci:nowhere", "does not exist"),
        ("\x1b[31mred.so", "does not exist"),
    ],
)
def test_what_is_neither_a_path_nor_an_image(text: str, said: str) -> None:
    with pytest.raises(ArtifactError, match=said) as caught:
        open_artifact(text)
    assert "\x1b" not in str(caught.value)
    assert len(caught.value.problems) == 1
    assert caught.value.do.startswith("check the ")


def test_near_names_are_offered(tmp_path: Path) -> None:
    (tmp_path / "vllm-0.33.0-cp38-abi3-linux_aarch64.whl").write_bytes(b"")
    with pytest.raises(ArtifactError) as caught:
        open_artifact(tmp_path / "vllm-0.33.1-cp38-abi3-linux_aarch64.whl")
    assert "vllm-0.33.0-cp38" in caught.value.do
