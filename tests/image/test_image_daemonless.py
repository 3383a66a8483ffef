"""Whole images without an engine, from small parts."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from made_images import OUR_FILES, PASSWD, World, base_files, base_layout, elf, lock_file, our_wheel, wheel_file
from sm121.artifact import Image, open_artifact
from sm121.errors import DigestError, ImageError, PackError, PinsError, UsageError, VerdictFail
from sm121.findings import Verdict
from sm121.image.daemonless import assemble, judge_libc, read_wheels
from sm121.image.folder import LayoutFolder
from sm121.image.labels import stamp_labels
from sm121.image.layer import Compression
from sm121.image.naming import record_of
from sm121.image.places import Named, exact, open_image
from sm121.image.publish import make_image
from sm121.image.record import ImageRecord
from sm121.image.runtime_set import RuntimeSet
from sm121.image.store import BlobStore
from sm121.image.verify import verify
from sm121.progress import Progress
from sm121.values import Sha256

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.findings import Finding
    from sm121.image.publish import PublishedImage

QUIET = Progress(quiet=True)


def make(world: World, name: str = "work", **changes: Any) -> PublishedImage:
    return make_image(world.request(**changes), world.root / name, world.root / f"dist-{name}", QUIET)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path / "one")


@pytest.fixture
def made(world: World) -> PublishedImage:
    return make(world)


def config_of(image: PublishedImage) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((image.layout / "blobs/sha256" / image.record.config.hex).read_bytes())
    return value


def test_two_folders_give_one_digest_and_equal_documents(
    world: World, made: PublishedImage, tmp_path: Path
) -> None:
    other = make(World.make(tmp_path / "elsewhere" / "deeper"), threads=1)
    assert other.record.digest == made.record.digest
    for name, path in made.files.items():
        assert path.read_bytes() == other.files[name].read_bytes(), name
    assert str(tmp_path) not in "".join(path.read_text() for path in made.files.values())


def test_how_a_container_starts(made: PublishedImage) -> None:
    config = config_of(made)
    run = config["config"]
    assert (config["architecture"], config["os"]) == ("arm64", "linux")
    assert run["Entrypoint"] == ["/opt/sm121/bin/vllm", "serve"]
    assert run["Cmd"] is None
    assert run["User"] == "10001:10001"
    assert run["Healthcheck"]["Test"][:2] == ["CMD", "/opt/sm121/bin/python"]
    env = dict(pair.split("=", 1) for pair in run["Env"])
    assert env["PATH"].startswith("/opt/sm121/bin:/usr/local/sbin:")
    assert env["PYTHONPYCACHEPREFIX"] == "/home/vllm/.cache/pycache"
    assert [entry["created_by"] for entry in config["history"]] == [
        "made", "sm121: environment and user", "sm121: runtime set: 2 wheels of the runtime set",
        "sm121: wheel thing-1.0+cu130.sm121-py3-none-any.whl",
    ]  # fmt: skip
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"])
    assert config["created"] == "2023-11-14T22:13:20Z"


def test_the_stamp_chain_is_in_the_labels(made: PublishedImage) -> None:
    labels, (wheel,) = config_of(made)["config"]["Labels"], made.record.wheels
    assert labels["org.opencontainers.image.version"] == "1.0+cu130.sm121"
    assert labels["sm121.thing.version"] == wheel.manifest.subject.version
    assert labels["sm121.thing.wheel.sha256"] == wheel.sha256.hex
    assert labels["sm121.thing.manifest.sha256"] == wheel.manifest_sha256.hex
    assert labels["sm121.thing.plan.sha256"] == wheel.manifest.plan.hex
    assert labels["sm121.lock.sha256"] == made.record.lock.hex
    assert labels["org.opencontainers.image.base.digest"] == str(made.record.base_digest)
    assert labels["org.opencontainers.image.revision"] == "gabc1234"


def test_what_is_in_it(made: PublishedImage) -> None:
    with open_artifact(made.layout) as image:
        assert isinstance(image, Image)
        members = {member.path: member for member in image.members()}
        assert not [path for path in members if path.endswith((".whl", ".pyc"))]
        assert b"vllm:x:10001:10001::/home/vllm:" in members["etc/passwd"].read()
        assert members["etc/passwd"].read().startswith(PASSWD)
        settings = members["opt/sm121/pyvenv.cfg"].read().decode()
        assert "home = /usr/bin\ninclude-system-site-packages = false\n" in settings
        python = image.find("opt/sm121/bin/python")
        assert python is not None
        assert python.read() == elf()
        assert image.problems == []


def test_record_and_bill_of_materials_are_right(made: PublishedImage) -> None:
    text = made.files["record.json"].read_bytes()
    assert ImageRecord.from_json(text, "record").to_json() == text
    bill = made.files["sbom.cdx.json"].read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    purls = {component["purl"] for component in json.loads(bill)["components"]}
    assert purls == {
        "pkg:pypi/one@1.0", "pkg:pypi/two-parts@2.0", "pkg:pypi/thing@1.0%2Bcu130.sm121",
        "pkg:deb/debian/libc6@2.41-12?arch=arm64&distro=debian-13",
    }  # fmt: skip


def test_the_record_follows_its_schema(made: PublishedImage) -> None:
    schema = json.loads(resources.files("sm121.image").joinpath("record.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    content = json.loads(made.files["record.json"].read_bytes())
    validator.validate(content)
    for key in schema["required"]:
        assert not validator.is_valid({name: value for name, value in content.items() if name != key})
    assert not validator.is_valid({**content, "more": 1})


@pytest.mark.parametrize("key", ["name", "digest", "wheels", "layers", "inspection", "base", "runtime", "labels"])
def test_a_record_that_says_less_is_refused(made: PublishedImage, key: str) -> None:
    content = json.loads(made.files["record.json"].read_bytes())
    del content[key]
    with pytest.raises(ImageError, match=key):
        ImageRecord.from_json(json.dumps(content).encode(), "record")


def test_the_provenance_is_a_slsa_statement(made: PublishedImage) -> None:
    statement = json.loads(made.files["provenance.json"].read_bytes())
    jsonschema.validate(
        statement,
        {
            "type": "object", "required": ["_type", "subject", "predicateType", "predicate"],
            "properties": {
                "_type": {"const": "https://in-toto.io/Statement/v1"},
                "predicateType": {"const": "https://slsa.dev/provenance/v1"},
                "predicate": {
                    "required": ["buildDefinition", "runDetails"],
                    "properties": {"buildDefinition": {"required": ["buildType", "externalParameters"]}},
                },
            },
        },
    )  # fmt: skip
    materials = {
        each["digest"]["sha256"] for each in statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    (wheel,) = made.record.wheels
    assert materials >= {
        made.record.base_digest.hex, made.record.lock.hex, wheel.sha256.hex, wheel.manifest_sha256.hex,
        Sha256.of_bytes(b"sdist").hex, Sha256.of_bytes(b"patch").hex,
        *(package.sha256.hex for package in made.record.packages),
    }  # fmt: skip


def checked(layout: Path, record: ImageRecord, **more: Any) -> dict[str, Finding]:
    place = LayoutFolder(layout)
    found = verify(place, record.digest, lambda digest: open_image(place, digest, record.platform), **more)
    return {finding.check: finding for finding in sorted(found, key=lambda each: each.verdict.rank)}


def test_verify_passes_what_was_made(made: PublishedImage) -> None:
    found = checked(made.layout, made.record)
    assert {each.verdict for each in found.values()} <= {Verdict.PASS, Verdict.INFO}
    assert "6 files" in found["verify.wheel"].got or "files, those of thing" in found["verify.wheel"].got
    assert "layers were not read" in checked(made.layout, made.record, contents=False)["verify.wheel"].got


def test_two_wheels_of_one_project_have_labels_of_their_own(world: World, tmp_path: Path) -> None:
    """FlashInfer's modules come as two: the one that holds them and the one that finds them."""
    (built,) = read_wheels([world.wheel])
    finder = replace(built, filename="thing_finder-1.0-py3-none-any.whl", sha256=Sha256.of_bytes(b"finder"))
    labels = stamp_labels(
        [built, finder],
        base=("r.example/base", Sha256.of_bytes(b"")),
        lock=Sha256.of_bytes(b""),
        python="3.12",
        epoch=0,
    )
    assert labels["sm121.thing.wheel"] == built.filename
    assert labels["sm121.thing-finder.wheel"] == finder.filename
    assert labels["sm121.thing-finder.wheel.sha256"] == finder.sha256.hex


def test_a_base_may_name_the_only_variant_of_arm64(world: World, tmp_path: Path) -> None:
    """Debian's bases for arm64 say v8; found on a whole image."""
    digest = base_layout(tmp_path / "v8", variant="v8")
    image = make(world, base=f"oci:{tmp_path / 'v8'}@{digest}")
    assert config_of(image)["variant"] == "v8"
    assert checked(image.layout, image.record)["verify.platform"].verdict is Verdict.PASS


def blob(layout: Path, digest: Sha256) -> Path:
    return layout / "blobs" / "sha256" / digest.hex


def test_verify_finds_a_damaged_layer(made: PublishedImage) -> None:
    path = blob(made.layout, made.record.layers[-1].digest)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-30])
    found = checked(made.layout, made.record)
    assert any(check.startswith("image.layer") and each.verdict is Verdict.FAIL for check, each in found.items())


def test_an_image_that_fails_gets_no_name(world: World) -> None:
    """A secret in the environment."""
    with pytest.raises(VerdictFail, match="no name"):
        make(world, env={"HF_TOKEN": "hf_" + "aB3dE6gH9j" * 3 + "kLmN"})
    assert not (world.root / "dist-work" / "images").exists()
    assert list((world.root / "work" / "logs").glob("image-*/report.json"))


def test_a_rebuilt_wheel_moves_one_layer(world: World, made: PublishedImage, tmp_path: Path) -> None:
    other = make(World.make(tmp_path / "two", {**OUR_FILES, "thing/new.py": b"new"}))
    assert [a.digest == b.digest for a, b in zip(made.record.layers, other.record.layers, strict=True)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert other.record.name != made.record.name


def test_zstd_has_other_blobs_and_the_same_contents(world: World, made: PublishedImage) -> None:
    other = make(world, "zstd", compression=Compression.ZSTD)
    assert [layer.diff_id for layer in other.record.layers] == [layer.diff_id for layer in made.record.layers]
    assert other.record.digest != made.record.digest


@pytest.mark.parametrize(
    ("files", "architecture", "kind", "said"),
    [
        (base_files("3.11"), "arm64", ImageError, "Python 3.12 is not on its PATH; it has Python 3.11"),
        ({"etc/passwd": PASSWD}, "arm64", ImageError, "it has no Python"),
        (base_files(machine=0x3E), "arm64", ImageError, "is no program for linux/arm64"),
        (base_files(), "amd64", ImageError, "linux/arm64; it has linux/amd64"),
        ({k: v for k, v in base_files().items() if "os.py" not in k}, "arm64", ImageError, "no standard library"),
        ({k: v for k, v in base_files().items() if "libc" not in k}, "arm64", ImageError, "no glibc was found"),
        (
            {**base_files(), "usr/lib/aarch64-linux-gnu/libc.so.6": elf() + b"GNU C Library stable release version 2.31."},
            "arm64", ImageError, "has glibc 2.31; the runtime set needs 2.34",
        ),
        ({**base_files(), "etc/passwd": b"x:x:10001:1::/:/bin/sh\n"}, "arm64", ImageError, "has the user"),
    ],
)  # fmt: skip
def test_bases_that_do_not_fit_are_refused_by_reading(
    world: World,
    tmp_path: Path,
    files: dict[str, bytes | str],
    architecture: str,
    kind: type[Exception],
    said: str,
) -> None:
    digest = base_layout(tmp_path / "bad", files, architecture=architecture)
    with pytest.raises(kind, match=said):
        make(world, base=f"oci:{tmp_path / 'bad'}@{digest}")
    assert not (world.root / "dist-work").exists()


def test_bases_without_a_digest_or_with_another(world: World) -> None:
    with pytest.raises(UsageError, match="without a digest"):
        make(world, base="docker.io/library/ubuntu:24.04")
    with pytest.raises(UsageError, match="without a digest"):
        make(world, base=world.base.partition("@")[0])
    with pytest.raises((DigestError, ImageError)):
        make(world, base=world.base.partition("@")[0] + "@sha256:" + "0" * 64)


def test_a_damaged_base_is_refused(world: World) -> None:
    for path in (world.root / "base" / "blobs" / "sha256").iterdir():
        if path.stat().st_size > 5000:
            path.write_bytes(path.read_bytes().replace(b"# os", b"# so"))
    with pytest.raises(DigestError, match="a layer of the base should be"):
        make(world)


def test_a_base_that_an_engine_saved(world: World, made: PublishedImage, tmp_path: Path) -> None:
    import tarfile  # noqa: PLC0415

    source = world.root / "base"
    config = json.loads(blob(source, record_base(made)).read_bytes())["config"]["digest"].removeprefix("sha256:")
    layer = json.loads(blob(source, record_base(made)).read_bytes())["layers"][0]["digest"].removeprefix(
        "sha256:"
    )
    saved = tmp_path / "saved.tar"
    (tmp_path / "manifest.json").write_text(
        json.dumps([{"Config": f"{config}.json", "RepoTags": ["base:1"], "Layers": ["x/layer.tar"]}])
    )
    with tarfile.open(saved, "w") as archive:
        archive.add(source / "blobs/sha256" / layer, "x/layer.tar")
        archive.add(source / "blobs/sha256" / config, f"{config}.json")
        archive.add(tmp_path / "manifest.json", "manifest.json")
    other = make(world, "saved", base=f"docker-archive:{saved}@sha256:{config}")
    assert [layer.diff_id for layer in other.record.layers] == [layer.diff_id for layer in made.record.layers]
    with pytest.raises(DigestError, match=f"the image there is sha256:{config}"):
        make(world, "saved", base=f"docker-archive:{saved}@sha256:{'0' * 64}")


def record_base(made: PublishedImage) -> Sha256:
    return made.record.base_digest


def test_wheels_and_sets_that_do_not_belong_together(world: World) -> None:
    for changes, said in (({"cpu": "x86_64"}, "is for aarch64"), ({"line": "cu129"}, "is of line cu130")):
        lock = lock_file(world.root / "other.lock", sorted(world.mirror.iterdir()), **changes)
        with pytest.raises(UsageError, match=said):
            make(world, lock=lock)


def test_a_wheel_that_the_base_is_too_old_for(world: World) -> None:
    (wheel,) = read_wheels((world.wheel,))
    newer = replace(wheel, filename="thing-1.0-cp38-abi3-manylinux_2_42_aarch64.whl")
    runtime = RuntimeSet.read(world.lock)
    judge_libc("base", (2, 42), [wheel, newer], runtime)
    with pytest.raises(ImageError, match="does not install there") as caught:
        judge_libc("base", (2, 31), [wheel, newer], runtime)
    assert len(caught.value.problems) == 2


def test_wheels_that_were_not_published(world: World, tmp_path: Path) -> None:
    bare = wheel_file(tmp_path, "thing", "1.0", {"thing.py": b""})
    failed = our_wheel(tmp_path / "failed", verdict=Verdict.FAIL)
    changed = our_wheel(tmp_path / "changed")
    changed.write_bytes(changed.read_bytes() + b"\0")
    with pytest.raises(PackError) as caught:
        make(world, wheels=(bare, failed, changed, tmp_path / "missing.whl"))
    text = "\n".join(caught.value.problems)
    for said in (
        "has no manifest beside it",
        "its inspection is fail",
        "its manifest describes",
        "does not exist",
    ):
        assert said in text


def test_locks_that_are_none(world: World, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("torch\nnumpy==1.0\n")
    with pytest.raises(PinsError) as caught:
        make(world, lock=lock)
    text = "\n".join(caught.value.problems)
    assert "line, CPU and Python are missing" in text
    assert "'torch' is no NAME==VERSION" in text
    for path in world.mirror.iterdir():
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(PinsError, match=r"one 1\.0 with the locked hash is not in"):
        make(world)


def test_layers_are_made_once(world: World) -> None:
    store, files = BlobStore(world.root / "s"), world.root / "f"
    first = assemble(world.request(), store, files, QUIET)
    times = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    again = assemble(world.request(), store, files, QUIET)
    assert again.manifest.digest == first.manifest.digest
    kept = {layer.digest.hex for layer in first.ours}
    assert {name: path.stat().st_mtime_ns for path in store.folder.iterdir() if (name := path.name) in kept} == {
        name: time for name, time in times.items() if name in kept
    }


def test_which_image_of_a_layout_is_meant(made: PublishedImage) -> None:
    place = LayoutFolder(made.layout)
    assert exact(place, "") == made.record.digest
    assert exact(place, made.record.name) == made.record.digest
    with pytest.raises(ImageError, match="tomorrow"):
        exact(place, "cu130")
    named = Named.parse(f"oci:{made.layout}:{made.record.name}")
    assert named.name == made.record.name
    assert record_of(place, made.record.digest) == made.record


def test_a_file_that_two_own_and_nothing_uses_has_one_owner(world: World) -> None:
    """build_backend.py of flashinfer-python and torch-c-dlpack-ext: the last one's is there, as after an installation."""
    wheels = [
        wheel_file(world.root / "shared", name, "1.0", {f"{name}.py": b"", "build_backend.py": name.encode()})
        for name in ("first", "second")
    ]
    lock = lock_file(world.root / "shared.lock", wheels)
    made = make(world, lock=lock, mirror=world.root / "shared")
    with open_artifact(made.layout) as image:
        members = {member.path: member for member in image.members()}
        site = "opt/sm121/lib/python3.12/site-packages"
        assert members[f"{site}/build_backend.py"].read() == b"second"
        assert b"build_backend" not in members[f"{site}/first-1.0.dist-info/RECORD"].read()
        assert b"build_backend" in members[f"{site}/second-1.0.dist-info/RECORD"].read()
    assert made.record.verdict in {Verdict.PASS, Verdict.INFO}
