"""Images handed on without a registry: layouts, and other machines over ssh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from made_images import World
from sm121 import cli
from sm121.artifact import open_artifact
from sm121.artifact.imagedocs import Descriptor
from sm121.errors import ArtifactError, DigestError, ImageError, UsageError, VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.image.copying import copy_image
from sm121.image.documents import OCI_MANIFEST, Document, canonical, image_index
from sm121.image.folder import LayoutFolder
from sm121.image.naming import find_image, give_immutable_name, list_names, promote, require_passed, resolve
from sm121.image.places import open_image
from sm121.image.publish import make_image
from sm121.image.referrers import PROVENANCE, RECORD, REPORT, SBOM, attached
from sm121.image.store import BlobStore
from sm121.image.verify import Identity, verify
from sm121.progress import Progress
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sm121.findings import Finding
    from sm121.image.publish import PublishedImage

QUIET = Progress(quiet=True)
SSH = """\
#!/bin/sh
# A stand-in for ssh: runs the command here, below the folder that stands for the other machine.
while [ "$1" != -- ]; do shift; done
echo "$2: $3" >>{root}/log
[ -e {root}/down ] && {{ echo "ssh: connect to host $2: Connection refused" >&2; exit 255; }}
cd {root} && exec sh -c "$3"
"""


@pytest.fixture
def made(tmp_path: Path) -> PublishedImage:
    return make_image(World.make(tmp_path / "one").request(), tmp_path / "work", tmp_path / "dist", QUIET)


def copy(source: Path, target: Path, digest: Sha256, tmp_path: Path) -> tuple[int, int]:
    done = copy_image(
        LayoutFolder(source), LayoutFolder(target, create=True), digest, BlobStore(tmp_path / "s"), QUIET
    )
    return done.blobs_sent, done.attached


def test_a_layout_to_a_layout(made: PublishedImage, tmp_path: Path) -> None:
    sent, with_it = copy(made.layout, tmp_path / "two", made.record.digest, tmp_path)
    assert (sent, with_it) == (10, 4)  # 4 layers, configuration, 4 documents, the empty configuration of those
    assert copy(made.layout, tmp_path / "two", made.record.digest, tmp_path)[0] == 0
    with open_artifact(tmp_path / "two") as image:
        assert [member.path for member in image.members()]
    place = LayoutFolder(tmp_path / "two")
    for kind in (RECORD, REPORT, SBOM, PROVENANCE):
        assert len(list(attached(place, made.record.digest, kind))) == 1


def test_an_index_goes_with_its_images(made: PublishedImage, tmp_path: Path) -> None:
    source = LayoutFolder(made.layout)
    image = source.document(made.record.digest)
    index = image_index([image.descriptor])
    source.push_document(index)
    copy(made.layout, tmp_path / "two", index.digest, tmp_path)
    two = LayoutFolder(tmp_path / "two")
    assert [each.digest for each in two.images()] == [index.digest]
    assert len(two.referrers(made.record.digest)) == 4


def test_damage_is_not_copied(made: PublishedImage, tmp_path: Path) -> None:
    path = made.layout / "blobs/sha256" / made.record.layers[-1].digest.hex
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(DigestError, match="are there"):
        copy(made.layout, tmp_path / "two", made.record.digest, tmp_path)
    assert LayoutFolder(tmp_path / "two").images() == []
    path.unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        copy(made.layout, tmp_path / "two", made.record.digest, tmp_path)


def test_a_folder_that_holds_something_else(made: PublishedImage, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "thesis.txt").write_text("years")
    with pytest.raises(ArtifactError, match="something else"):
        copy(made.layout, tmp_path / "two", made.record.digest, tmp_path)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root, programs = tmp_path / "node", tmp_path / "programs"
    root.mkdir()
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(SSH.format(root=root))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return root


@pytest.mark.programs
def test_to_a_node_and_again(
    made: PublishedImage, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"ssh://me@node{node}/it's here"
    arguments = ["copy", f"oci:{made.layout}", target, "--work", str(tmp_path / "w"), "--json", "-q"]
    assert cli.run(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["blobs_sent"] == 10
    with open_artifact(node / "it's here") as image:
        assert "opt/sm121/bin/vllm" in {member.path for member in image.members()}
    assert len(LayoutFolder(node / "it's here").referrers(made.record.digest)) == 4
    assert cli.run(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["blobs_sent"], again["sent"]) == (0, 0)
    listed = json.loads((node / "it's here" / "index.json").read_text())["manifests"]
    assert len(listed) == 5
    assert not list((node / "it's here").rglob("*.part"))


@pytest.mark.programs
def test_an_immutable_name_goes_along_and_never_moves(
    made: PublishedImage, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, place in ((f"ssh://node{node}/x", node / "x"), (f"oci:{tmp_path / 'y'}", tmp_path / "y")):
        assert cli.run(["copy", f"oci:{made.layout}@{made.record.digest}", target, "-q"]) == 0
        held = LayoutFolder(place)
        assert held.document(made.record.name).digest == made.record.digest
        held.name_document(held.document(held.referrers(made.record.digest)[0].digest), made.record.name)
        capsys.readouterr()
        assert cli.run(["copy", f"oci:{made.layout}", target, "-q"]) == ImageError.exit_code
        assert "never moves" in capsys.readouterr().err


@pytest.mark.programs
def test_a_node_that_does_not_answer(
    made: PublishedImage, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "down").touch()
    assert cli.run(["copy", f"oci:{made.layout}", f"ssh://node{node}/x", "-q"]) == ImageError.exit_code
    assert "Connection refused" in capsys.readouterr().err
    assert not (node / "x").exists()


@pytest.mark.programs
def test_bytes_that_change_on_the_way_to_a_node(
    made: PublishedImage, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh = tmp_path / "programs" / "ssh"
    ssh.write_text(ssh.read_text().replace('exec sh -c "$3"', 'tr a b | exec sh -c "$3"'))
    assert cli.run(["copy", f"oci:{made.layout}", f"ssh://node{node}/x", "-q"]) == ImageError.exit_code
    assert "the bytes that arrived were others" in capsys.readouterr().err
    assert not (node / "x" / "index.json").exists()


def listing(layout: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    path = layout / "index.json"
    data = json.loads(path.read_text())
    data["manifests"] = change(data["manifests"])
    path.write_text(json.dumps(data))


def without(kind: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda listed: [each for each in listed if each.get("artifactType") != kind]


def checked(made: PublishedImage, **more: Any) -> list[Finding]:
    place = LayoutFolder(made.layout)
    return verify(
        place, made.record.digest, lambda digest: open_image(place, digest, made.record.platform), **more
    )


def verdicts(findings: list[Finding], check: str) -> set[Verdict]:
    return {each.verdict for each in findings if each.check == check}


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (RECORD, "verify.record"),
        (REPORT, "verify.report"),
        (SBOM, "verify.sbom"),
        (PROVENANCE, "verify.provenance"),
    ],
)
def test_verify_misses_what_is_not_attached(made: PublishedImage, kind: str, check: str) -> None:
    listing(made.layout, without(kind))
    assert verdicts(checked(made), check) == {Verdict.FAIL}


@pytest.mark.parametrize(
    ("kind", "old", "new", "check"),
    [
        (SBOM, b'"two-parts"', b'"two_other"', "verify.sbom"),
        (PROVENANCE, b"in-toto.io/Statement/v1", b"in-toto.io/Statement/v0", "verify.provenance"),
        (REPORT, b'"verdict"', b'"verdikt"', "verify.report"),
        (RECORD, b'"sm121.python": "3.12"', b'"sm121.python": "3.13"', "verify.label"),
        (RECORD, b'"contents": "', b'"contents": "0', "verify.record"),
        (RECORD, b'"name": "1.0-cu130-sm121-', b'"name": "cu130", "x": "', "verify.record"),
        (PROVENANCE, b'"_type"', b'"type"', "verify.provenance"),
        (SBOM, b"{", b"[" * 100_000, "verify.sbom"),
        (REPORT, b"{", b"[" * 100_000, "verify.report"),
    ],
)  # fmt: skip
def test_verify_finds_what_was_changed(
    made: PublishedImage, kind: str, old: bytes, new: bytes, check: str
) -> None:
    """The attachment is replaced by a changed one, with digests that fit."""
    place = LayoutFolder(made.layout)
    (before,) = attached(place, made.record.digest, kind)
    assert old in before.data
    changed = before.data.replace(old, new, 1)
    manifest = json.loads(place.document(before.manifest).data)
    manifest["layers"][0] |= {"digest": str(Sha256.of_bytes(changed)), "size": len(changed)}
    document = Document(OCI_MANIFEST, canonical(manifest), artifact_type=kind)
    place.push_document(Document("", changed))
    listing(made.layout, without(kind))
    place.attach(made.record.digest, document)
    assert Verdict.FAIL in verdicts(checked(made), check)


def test_a_signature_is_never_pretended(made: PublishedImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert verdicts(checked(made), "verify.signature") == {Verdict.INFO}
    assert verdicts(checked(made, signer=Identity(key="k")), "verify.signature") == {Verdict.FAIL}
    place = LayoutFolder(made.layout)
    place.name_document(place.document(made.record.digest), f"sha256-{made.record.digest.hex}.sig")
    (found,) = [each for each in checked(made) if each.check == "verify.signature"]
    assert found.verdict is Verdict.INFO
    assert "not verified: cosign is not installed" in found.got
    assert verdicts(checked(made, signer=Identity(key="k")), "verify.signature") == {Verdict.UNKNOWN}


@pytest.mark.programs
@pytest.mark.parametrize(("status", "verdict"), [(0, Verdict.PASS), (1, Verdict.FAIL)])
def test_cosign_decides_where_it_is(
    made: PublishedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, verdict: Verdict
) -> None:
    cosign = tmp_path / "cosign"
    cosign.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\necho no match >&2\nexit {status}\n')
    cosign.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    place = LayoutFolder(made.layout)
    place.name_document(place.document(made.record.digest), f"sha256-{made.record.digest.hex}.sig")
    (found,) = [each for each in checked(made, signer=Identity(key="k.pub")) if each.check == "verify.signature"]
    assert found.verdict is verdict
    assert (tmp_path / "asked").read_text().startswith("verify --key k.pub ")


def test_promotion_needs_a_passed_report(made: PublishedImage, tmp_path: Path) -> None:
    place = LayoutFolder(made.layout)
    assert require_passed(place, made.record.digest) == made.record
    (before,) = attached(place, made.record.digest, RECORD)
    for word, kind in ((b"fail", VerdictFail), (b"unknown", VerdictUnknown)):
        after = b'"\n  },\n  "labels"'
        data = before.data.replace(b'"verdict": "info' + after, b'"verdict": "' + word + after)
        assert data != before.data
        manifest = json.loads(place.document(before.manifest).data)
        manifest["layers"][0] |= {"digest": str(Sha256.of_bytes(data)), "size": len(data)}
        place.push_document(Document("", data))
        listing(made.layout, without(RECORD))
        place.attach(made.record.digest, Document(OCI_MANIFEST, canonical(manifest), artifact_type=RECORD))
        with pytest.raises(kind, match="the verdict of its inspection is"):
            promote(place, "cu130", made.record.digest, tmp_path / "journal")
        assert place.find("cu130") is None


def test_names_of_a_layout(made: PublishedImage, tmp_path: Path) -> None:
    place, digest = LayoutFolder(made.layout), made.record.digest
    act = promote(place, "cu130", digest, tmp_path / "journal", now=lambda: 0)
    assert act is not None
    found = resolve(place, "cu130")
    assert (found.digest, found.platforms, found.names) == (digest, ("linux/arm64",), (made.record.name,))
    assert found.promotions == (act,)
    assert [(each.tag, each.kind, each.fault) for each in list_names(place)] == [
        (made.record.name, "immutable", ""), ("cu130", "moving", ""),
    ]  # fmt: skip
    assert find_image(place, made.record.name) == digest
    with pytest.raises(ImageError, match="cannot be the name of"):
        give_immutable_name(place, "1.0-cu130-sm121-ffffffffffff", digest)
    with pytest.raises(ImageError, match=r"has no nothing; it has 1\.0-cu130"):
        place.document("nothing")


def test_what_an_engine_pushed_under_is_no_name(made: PublishedImage) -> None:
    place = LayoutFolder(made.layout)
    place.name_document(place.document(made.record.digest), "staging-0123456789ab")
    assert [(each.tag, each.kind, each.fault) for each in list_names(place)] == [
        (made.record.name, "immutable", ""), ("staging-0123456789ab", "staging", ""),
    ]  # fmt: skip


def test_a_record_cannot_give_another_name(made: PublishedImage, tmp_path: Path) -> None:
    """A registry of others could move our moving names otherwise."""
    place = LayoutFolder(made.layout)
    (before,) = attached(place, made.record.digest, RECORD)
    changed = before.data.replace(f'"name": "{made.record.name}"'.encode(), b'"name": "cu130"')
    assert changed != before.data
    manifest = json.loads(place.document(before.manifest).data)
    manifest["layers"][0] |= {"digest": str(Sha256.of_bytes(changed)), "size": len(changed)}
    place.push_document(Document("", changed))
    listing(made.layout, without(RECORD))
    place.attach(made.record.digest, Document(OCI_MANIFEST, canonical(manifest), artifact_type=RECORD))
    assert cli.run(["copy", f"oci:{made.layout}", f"oci:{tmp_path / 'two'}", "-q"]) == ImageError.exit_code
    assert not (tmp_path / "two").exists() or LayoutFolder(tmp_path / "two").tags() == []


def test_targets_with_a_digest_are_refused(made: PublishedImage) -> None:
    assert cli.run(["copy", f"oci:{made.layout}", f"oci:x@{made.record.digest}"]) == UsageError.exit_code
    assert cli.run(["verify", "registry.example/name"]) == UsageError.exit_code
    assert cli.run(["verify", str(made.layout)]) == 0
    assert cli.run(["resolve", f"oci:{made.layout}"]) == 0


def test_a_descriptor_that_lies_about_its_size(made: PublishedImage, tmp_path: Path) -> None:
    place = LayoutFolder(made.layout)
    digest = made.record.layers[-1].digest
    with pytest.raises(DigestError, match="was wanted"):
        place.pull_blob(Descriptor("", digest, 1), BlobStore(tmp_path), lambda _: None)
