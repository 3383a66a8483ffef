"""Images pushed to, copied between, named and verified in a real registry."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from made_images import OUR_FILES, World
from sm121 import cli
from sm121.artifact import ImageReference, open_artifact
from sm121.errors import ImageError, UsageError, VerdictFail
from sm121.findings import Verdict
from sm121.image.folder import LayoutFolder
from sm121.image.names import ImmutableName
from sm121.image.naming import promote
from sm121.image.publish import make_image, push_image
from sm121.image.referrers import PROMOTION, REPORT, attached
from sm121.image.remote import Repository
from sm121.image.store import BlobStore
from sm121.progress import Progress
from sm121.values import Sha256

if TYPE_CHECKING:
    from registry_fixture import RegistryProcess

    from sm121.image.publish import PublishedImage

pytestmark = pytest.mark.container
QUIET = Progress(quiet=True)


@pytest.fixture
def made(tmp_path: Path) -> PublishedImage:
    return make_image(World.make(tmp_path).request(), tmp_path / "work", tmp_path / "dist", QUIET)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sm121(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    capsys.readouterr()
    assert sm121(*arguments) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def test_pushed_inspected_promoted_verified(
    registry: RegistryProcess, made: PublishedImage, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, record = f"{registry.host}/team/thing", made.record
    pushed = told(capsys, "push", made.layout, repository, "--json")
    assert pushed["name"] == f"{repository}:{record.name}"
    assert pushed["attached"] == 4
    with open_artifact(f"{repository}@{record.digest}") as image:
        assert {member.path for member in image.members()} >= {
            "opt/sm121/bin/vllm", "opt/sm121/lib/python3.12/site-packages/thing/__init__.py",
        }  # fmt: skip
    found = told(capsys, "resolve", f"{repository}:{record.name}", "--json")
    assert found["digest"] == str(record.digest)
    assert found["platforms"] == ["linux/arm64"]
    first = told(capsys, "promote", f"{repository}:cu130", record.name, "--json")
    assert (first["changed"], first["before"]) == (True, "")
    assert told(capsys, "promote", f"{repository}:cu130", record.digest, "--json")["changed"] is False
    journal = [json.loads(line) for line in Path("dist/promotions.jsonl").read_text().splitlines()]
    assert [(act["name"], act["digest"]) for act in journal] == [("cu130", str(record.digest))]
    assert sm121("list", repository) == 0
    listed = capsys.readouterr().out
    assert f"{record.name}  immutable  {record.digest}" in listed
    assert "cu130" in listed
    assert "sha256-" not in listed
    checked = told(capsys, "verify", f"{repository}@{record.digest}", "--json")
    passed = {finding["check"] for finding in checked["findings"] if finding["verdict"] == "pass"}  # type: ignore[attr-defined]
    documents = {
        "digest",
        "record",
        "platform",
        "config",
        "layers",
        "base",
        "label",
        "report",
        "provenance",
        "sbom",
    }
    assert passed >= {f"verify.{name}" for name in (*documents, "wheel", "packages")}


def test_a_second_push_sends_nothing_and_a_rebuilt_wheel_moves_one_layer(
    registry: RegistryProcess, made: PublishedImage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = f"{registry.host}/team/thing"
    told(capsys, "push", made.layout, repository, "--json")
    again = told(capsys, "push", made.layout, repository, "--json")
    assert (again["sent"], again["blobs_sent"]) == (0, 0)
    changed = World.make(tmp_path / "changed", {**OUR_FILES, "thing/new.py": b"new"})
    other = make_image(changed.request(), tmp_path / "work", tmp_path / "dist", QUIET)
    moved = told(capsys, "push", other.layout, repository, "--json")
    ours = {layer.digest for layer in other.record.layers} - {layer.digest for layer in made.record.layers}
    assert len(ours) == 1
    assert moved["blobs_sent"] == 6  # the layer, the configuration, the four documents


def test_promotion_writes_down_what_was_before(
    registry: RegistryProcess, made: PublishedImage, tmp_path: Path
) -> None:
    changed = World.make(tmp_path / "changed", {**OUR_FILES, "thing/new.py": b"new"})
    other = make_image(changed.request(), tmp_path / "work", tmp_path / "dist", QUIET)
    reference = ImageReference.parse(f"{registry.host}/team/thing")
    with Repository(reference, write=True) as place:
        for image in (made, other):
            push_image(image.layout, place, BlobStore(tmp_path / "work" / "images"), QUIET)
        promote(place, "cu130", made.record.digest, tmp_path / "journal", now=lambda: 1e9)
        promote(place, "cu130", other.record.digest, tmp_path / "journal", now=lambda: 2e9)
        (act,) = attached(place, other.record.digest, PROMOTION)
        assert json.loads(act.data)["before"] == str(made.record.digest)
        assert json.loads(act.data)["at"] == "2033-05-18T03:33:20Z"
        assert place.document("cu130").digest == other.record.digest


def test_an_image_without_its_report_is_not_promoted(
    registry: RegistryProcess, made: PublishedImage, tmp_path: Path
) -> None:
    reference = ImageReference.parse(f"{registry.host}/team/thing")
    index = made.layout / "index.json"
    listed = json.loads(index.read_text())
    listed["manifests"] = [each for each in listed["manifests"] if each.get("artifactType") != REPORT]
    index.write_text(json.dumps(listed))
    with Repository(reference, write=True) as place:
        push_image(made.layout, place, BlobStore(tmp_path / "work" / "images"), QUIET)
        with pytest.raises(ImageError, match="has no inspection report"):
            promote(place, "cu130", made.record.digest, tmp_path / "journal")
        assert place.find("cu130") is None
    assert not (tmp_path / "journal").exists()
    assert sm121("verify", f"{reference}@{made.record.digest}") == VerdictFail.exit_code


def test_an_immutable_name_never_moves(registry: RegistryProcess, made: PublishedImage, tmp_path: Path) -> None:
    changed = World.make(tmp_path / "changed", {**OUR_FILES, "thing/new.py": b"new"})
    other = make_image(changed.request(), tmp_path / "work", tmp_path / "dist", QUIET)
    reference = ImageReference.parse(f"{registry.host}/team/thing")
    store = BlobStore(tmp_path / "work" / "images")
    with Repository(reference, write=True) as place:
        push_image(made.layout, place, store, QUIET)
        place.name_document(place.document(made.record.digest), other.record.name)  # somebody else's doing
        with pytest.raises(ImageError, match="never moves"):
            push_image(other.layout, place, store, QUIET)
        assert place.document(other.record.name).digest == made.record.digest
    assert sm121("verify", f"{reference}:{other.record.name}") == VerdictFail.exit_code


def test_copy_between_registries_takes_what_is_attached_and_only_what_is_missing(
    registry: RegistryProcess, made: PublishedImage, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = f"{registry.host}/team/thing", f"{registry.host}/other/place"
    told(capsys, "push", made.layout, one, "--json")
    copied = told(capsys, "copy", f"{one}@{made.record.digest}", two, "--json")
    assert copied["sent"] == 0  # the registry has the blobs already and takes them over
    assert copied["attached"] == 4
    assert told(capsys, "verify", f"{two}@{made.record.digest}", "--json")["verdict"] in {"pass", "info"}
    back = told(capsys, "copy", f"{two}@{made.record.digest}", "oci:back", "--json")
    assert back["attached"] == 4
    place = LayoutFolder(Path("back"))
    assert [image.digest for image in place.images()] == [made.record.digest]
    assert told(capsys, "verify", "oci:back@" + str(made.record.digest), "--json")["verdict"] in {"pass", "info"}


def test_names_that_move_are_no_inputs_and_digests_no_outputs(
    registry: RegistryProcess, made: PublishedImage, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = f"{registry.host}/team/thing"
    told(capsys, "push", made.layout, repository, "--json")
    told(capsys, "promote", f"{repository}:cu130", made.record.name, "--json")
    assert sm121("copy", f"{repository}:cu130", f"{registry.host}/x") == ImageError.exit_code
    assert "may name another image tomorrow" in capsys.readouterr().err
    assert sm121("promote", f"{repository}:next", "cu130") == ImageError.exit_code
    assert sm121("push", made.layout, f"{repository}@{made.record.digest}") == UsageError.exit_code
    assert sm121("promote", f"{repository}:{made.record.name}", str(made.record.digest)) == UsageError.exit_code
    assert sm121("copy", f"{repository}@{made.record.digest}", f"{repository}2:tag") == UsageError.exit_code
    wrong = ["copy", f"{repository}@{made.record.digest}", f"{registry.host}/x", "--platform", "linux/amd64"]
    assert sm121(*wrong) == ImageError.exit_code
    assert "is for linux/arm64; linux/amd64 was wanted" in capsys.readouterr().err


def test_a_base_is_pulled_by_digest(
    registry: RegistryProcess, made: PublishedImage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World.make(tmp_path / "again")
    told(capsys, "copy", world.base, f"{registry.host}/base", "--json")
    digest = world.base.partition("@")[2]
    request = world.request(base=f"{registry.host}/base@{digest}")
    pulled = make_image(request, tmp_path / "fresh", tmp_path / "dist2", QUIET)
    assert [layer.diff_id for layer in pulled.record.layers] == [layer.diff_id for layer in made.record.layers]
    assert dict(pulled.record.labels)["org.opencontainers.image.base.name"] == f"{registry.host}/base"
    with pytest.raises(UsageError, match="without a digest"):
        make_image(
            world.request(base=f"{registry.host}/base:latest"), tmp_path / "fresh", tmp_path / "dist2", QUIET
        )


def test_a_damaged_blob_in_the_registry_is_found(
    registry: RegistryProcess, made: PublishedImage, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = f"{registry.host}/team/thing"
    told(capsys, "push", made.layout, repository, "--json")
    blob = registry.blob(str(made.record.layers[-1].digest))
    blob.write_bytes(blob.read_bytes()[:-4] + b"evil")
    assert sm121("verify", f"{repository}@{made.record.digest}") == VerdictFail.exit_code
    assert "image.layer" in capsys.readouterr().out


def test_no_registry_is_a_clear_error_and_nothing_is_named(
    registry: RegistryProcess, made: PublishedImage, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.stop()
    assert sm121("push", made.layout, f"{registry.host}/team/thing") == ImageError.exit_code
    assert "does not answer" in capsys.readouterr().err
    registry.start()
    with Repository(ImageReference.parse(f"{registry.host}/team/thing")) as place:
        assert place.tags() == []


def test_the_registry_is_ended_in_the_middle_of_a_push_and_the_next_one_goes_on(
    registry: RegistryProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = {**OUR_FILES, "thing/weights.bin": random.Random(1).randbytes(8 << 20)}
    made = make_image(
        World.make(tmp_path / "heavy", heavy).request(), tmp_path / "work", tmp_path / "dist", QUIET
    )
    reference = ImageReference.parse(f"{registry.host}/team/thing")
    came: list[int] = []

    def moved(count: int) -> None:
        came.append(count)
        if len(came) == 4:
            registry.stop()

    layer = made.record.layers[-1]
    path = made.layout / "blobs" / "sha256" / layer.digest.hex
    with Repository(reference, write=True, pause=lambda _: None) as place:
        with pytest.raises(ImageError, match="does not answer"):
            place.push_blob(layer.digest, path, moved)
        assert len(came) >= 4
    registry.start()
    with Repository(reference) as place:
        assert not place.has_blob(layer.digest)
        assert place.tags() == []
    pushed = told(capsys, "push", made.layout, reference.name, "--json")
    assert pushed["name"] == f"{reference.name}:{made.record.name}"
    assert told(capsys, "verify", f"{reference.name}@{made.record.digest}", "--json")["verdict"] in {
        "pass",
        "info",
    }


def test_a_name_can_be_parsed_back(made: PublishedImage) -> None:
    name = ImmutableName.parse(made.record.name)
    assert name is not None
    assert name.means(Sha256(made.record.digest.hex))
    assert made.record.verdict in {Verdict.PASS, Verdict.INFO}
