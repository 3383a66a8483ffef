"""Images in files: the documents, the merged view, the digests."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from image_maker import ImageMaker, docker_save, index, layer, oci_layout, sha256, tar_of

from sm121.artifact import Image, Kind, Platform, open_artifact
from sm121.errors import ArtifactError, DigestError, ImageError
from sm121.findings import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.artifact.tree import Tree

BASE = layer(
    ("usr", None), ("usr/lib", None), ("lib", "-> usr/lib"), ("usr/lib/a.so", b"base a"), ("usr/lib/b.so", b"base b"),
    ("opt", None), ("opt/app", None), ("opt/app/one", b"1"), ("opt/app/two", b"2"), ("opt/gone", b"gone"),
    ("opt/tool", None), ("opt/tool/x", b"x"),
)  # fmt: skip
TOP = layer(
    ("usr", None), ("usr/lib", None), ("usr/lib/a.so", b"top a"), ("usr/lib/c.so", "= usr/lib/a.so"),
    ("opt", None), ("opt/.wh.gone", b""), ("opt/app", None), ("opt/app/three", b"3"), ("opt/app/.wh..wh..opq", b""),
    ("opt/tool", b"a file now"),
)  # fmt: skip
SEEN = {
    "usr/lib/a.so": b"top a", "usr/lib/b.so": b"base b", "usr/lib/c.so": b"top a", "opt/app/three": b"3",
    "opt/tool": b"a file now",
}  # fmt: skip


def opened(path: Path) -> Image:
    artifact = open_artifact(path)
    assert isinstance(artifact, Image)
    return artifact


def of_layers(folder: Path, *layers: bytes, compression: str = "gzip") -> Image:
    image = ImageMaker(list(layers), compression=compression)
    return opened(oci_layout(folder / "oci", index(image), image))


def contents(image: Image) -> dict[str, bytes]:
    found = {}
    for member in image.members():
        assert member.path not in found
        found[member.path] = member.read()
    return found


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "save"])
def test_every_form_gives_the_same_merged_view(tmp_path: Path, form: str, compression: str) -> None:
    image = ImageMaker([BASE, TOP], compression=compression)
    path = oci_layout(tmp_path / "oci", index(image), image)
    if form.startswith("tar"):
        path = tar_of(path, tmp_path / "oci.tar")
    if form == "tar.gz":
        path = tmp_path / "oci.tar.gz"
        path.write_bytes(gzip.compress((tmp_path / "oci.tar").read_bytes()))
    if form == "save":
        path = docker_save(tmp_path / "save.tar", image)
    with opened(path) as artifact:
        assert artifact.kind is Kind.IMAGE
        assert contents(artifact) == SEEN
        assert contents(artifact) == SEEN  # a second time, from what is known
        assert [finding.check for finding in artifact.problems] == (["image.archive"] if form == "tar.gz" else [])
        assert (artifact.digest is None) == (form == "save")


def test_a_member_is_a_buffer_while_it_passes_and_later(tmp_path: Path) -> None:
    big = bytes(range(256)) * 9000
    for compression in ("", "gzip", "zstd"):
        image = of_layers(
            tmp_path / compression / "x", layer(("a", big), ("b", big[::-1])), compression=compression
        )
        with image:
            members = []
            for member in image.members():
                with member.buffer() as buffer:
                    assert bytes(buffer) == (big if member.path == "a" else big[::-1])
                members.append(member)
            for member in reversed(members):
                with member.buffer() as buffer:
                    assert bytes(buffer) == (big if member.path == "a" else big[::-1])


def test_a_member_may_be_read_in_part(tmp_path: Path) -> None:
    with of_layers(tmp_path, layer(("a", b"a" * 3000), ("b", b"b" * 3000))) as image:
        first = {}
        for member in image.members():
            with member.open() as stream:
                first[member.path] = stream.read(10)
        assert first == {"a": b"a" * 10, "b": b"b" * 10}
        assert image.problems == []


def test_only_the_configuration_is_read_for_questions_about_it(tmp_path: Path) -> None:
    run = {
        "Env": ["PATH=/bin", "CUDA_HOME=/usr/local/cuda", "CUDA_HOME=/opt/cuda"], "Labels": {"org.a": "b"},
        "Entrypoint": ["/run"], "Cmd": None, "User": "1000", "WorkingDir": "/srv",
    }  # fmt: skip
    image = ImageMaker([BASE], run=run)
    path = oci_layout(tmp_path / "oci", index(image), image)
    (path / "blobs" / "sha256" / sha256(image.blobs()[0]).removeprefix("sha256:")).unlink()
    with opened(path) as artifact:
        config = artifact.config
        assert config.environment == {"PATH": "/bin", "CUDA_HOME": "/opt/cuda"}
        assert (config.labels, config.entrypoint, config.command) == ({"org.a": "b"}, ("/run",), ())
        assert (config.user, config.working_dir, str(config.platform)) == ("1000", "/srv", "linux/arm64")
        assert [entry.created_by for entry in config.history] == ["made by hand"]
        assert [str(digest) for digest in config.diff_ids] == [sha256(BASE)]
        assert str(config.digest) == sha256(image.config())
        assert str(artifact.digest) == sha256(image.manifest())
        assert artifact.problems == []
        assert list(artifact.members()) == []
        assert [(finding.check, finding.verdict) for finding in artifact.problems] == [
            ("image.layer", Verdict.FAIL)
        ]


def test_lower_layers_are_not_read_when_the_caller_stops(tmp_path: Path) -> None:
    image = ImageMaker([BASE, TOP])
    path = oci_layout(tmp_path / "oci", index(image), image)
    (path / "blobs" / "sha256" / sha256(image.blobs()[0]).removeprefix("sha256:")).unlink()
    with opened(path) as artifact:
        member = next(artifact.members(lambda path: path == "opt/app/three"))
        assert member.read() == b"3"
        assert artifact.problems == []


def test_known_layers_are_left_out_and_named(tmp_path: Path) -> None:
    with of_layers(tmp_path, BASE, TOP) as image:
        paths = [member.path for member in image.members(known=[image.config.diff_ids[0]])]
        assert sorted(paths) == ["opt/app/three", "opt/tool", "usr/lib/a.so", "usr/lib/c.so"]
        assert [finding.verdict for finding in image.problems] == [Verdict.INFO]


def test_links_are_followed_in_look_ups(tmp_path: Path) -> None:
    base = layer(
        ("usr", None), ("usr/lib", None), ("usr/lib/f", b"f"), ("lib", "-> usr/lib"), ("lib64", "-> /lib"),
        ("etc", None), ("etc/f", "-> ../lib64/f"), ("loop", "-> pool"), ("pool", "-> loop"), ("up", "-> ../../usr"),
        ("dangling", "-> nowhere"),
    )  # fmt: skip
    with of_layers(tmp_path, base) as image:
        for path in ("usr/lib/f", "/lib64/f", "etc/f", "up/lib/f", "./usr/../lib/f", "../../lib/f"):
            member = image.find(path)
            assert member is not None
            assert (member.path, member.read()) == ("usr/lib/f", b"f")
        for path in ("loop", "loop/x", "dangling", "usr", "usr/lib/f/x", "none"):
            assert image.find(path) is None


def test_a_layer_that_writes_through_a_link_of_a_lower_one(tmp_path: Path) -> None:
    """No folder entry for lib64: the file lands where the lower layer's link leads, and hides what is there."""
    base = layer(
        ("usr", None), ("usr/lib64", None), ("usr/lib64/x.so", b"old"), ("usr/lib64/y.so", b"y"), ("usr/lib64/z", b"z"),
        ("lib64", "-> usr/lib64"),
    )  # fmt: skip
    top = layer(("lib64/x.so", b"new"), ("lib64/.wh.z", b""))
    with of_layers(tmp_path, base, top) as image:
        assert contents(image) == {"usr/lib64/x.so": b"new", "usr/lib64/y.so": b"y"}
        assert image.problems == []


def test_a_folder_entry_replaces_a_link_of_a_lower_layer(tmp_path: Path) -> None:
    base = layer(("usr", None), ("usr/lib", None), ("usr/lib/x", b"old"), ("lib", "-> usr/lib"))
    top = layer(("lib", None), ("lib/x", b"new"), ("lib/.wh.x", b""))
    with of_layers(tmp_path, base, top) as image:
        assert contents(image) == {"usr/lib/x": b"old", "lib/x": b"new"}


def test_a_link_replaces_a_folder_with_all_in_it(tmp_path: Path) -> None:
    base = layer(("a", None), ("a/x", b"x"), ("b", None), ("b/x", b"b"))
    with of_layers(tmp_path, base, layer(("a", "-> b"))) as image:
        assert contents(image) == {"b/x": b"b"}
        member = image.find("a/x")
        assert member is not None
        assert member.read() == b"b"


def test_a_folder_replaces_a_file(tmp_path: Path) -> None:
    with of_layers(tmp_path, layer(("a", b"file")), layer(("a", None), ("a/x", b"x"))) as image:
        assert contents(image) == {"a/x": b"x"}


def test_a_hard_link_keeps_what_its_target_was(tmp_path: Path) -> None:
    base = layer(("a", b"old"), ("b", "= a"))
    with of_layers(tmp_path, base, layer(("a", b"new"), ("c", "= b"))) as image:
        assert contents(image) == {"a": b"new", "b": b"old", "c": b"old"}
        links = {member.path: member.link for member in image.members()}
        assert links == {"a": "", "b": "", "c": "b"}  # "a" has other bytes by now


def test_whiteouts_do_not_touch_their_own_layer(tmp_path: Path) -> None:
    top = layer(("d", None), ("d/x", b"new"), ("d/.wh.x", b""), ("d/.wh..wh..opq", b""), ("d/y", b"y"))
    with of_layers(tmp_path, layer(("d", None), ("d/x", b"old"), ("d/z", b"z")), top) as image:
        assert contents(image) == {"d/x": b"new", "d/y": b"y"}


def test_faults_of_a_layer_are_named(tmp_path: Path) -> None:
    bad = layer(
        ("../out", b"x"), ("h", "= nowhere"), ("f", b"f"), ("f/below", b"b"), ("twice", b"1"), ("twice", b"2")
    )
    with of_layers(tmp_path, bad) as image:
        found = {}
        for member in image.members():
            found[member.path] = member.read()
        assert found == {"f": b"f", "f/below": b"b", "twice": b"2"}
        said = "\n".join(finding.message for finding in image.problems)
        for words in (
            "../out",
            "nowhere, which is no file",
            "below f, which is no folder",
            "twice: was read",
            "f: was read",
        ):
            assert words in said


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_a_changed_layer_is_found_out(tmp_path: Path, compression: str) -> None:
    image = ImageMaker([BASE, TOP], compression=compression)
    path = oci_layout(tmp_path / "oci", index(image), image)
    other = ImageMaker([layer(("evil", b"evil"))], compression=compression)
    blob = path / "blobs" / "sha256" / sha256(image.blobs()[1]).removeprefix("sha256:")
    blob.write_bytes(other.blobs()[0])
    with opened(path) as artifact:
        list(artifact.members())
        checks = {finding.check for finding in artifact.problems}
        assert checks == {"image.layer-digest"}
        assert all(finding.verdict is Verdict.FAIL for finding in artifact.problems)


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_a_truncated_layer_is_found_out(tmp_path: Path, compression: str) -> None:
    image = ImageMaker([layer(("a", bytes(range(256)) * 400), ("b", b"b"))], compression=compression)
    path = oci_layout(tmp_path / "oci", index(image), image)
    blob = path / "blobs" / "sha256" / sha256(image.blobs()[0]).removeprefix("sha256:")
    whole = blob.read_bytes()
    for size in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        blob.write_bytes(whole[:size])
        with opened(path) as artifact:
            for member in artifact.members():
                try:
                    member.read()
                except ArtifactError:
                    continue
            assert any(finding.verdict is Verdict.FAIL for finding in artifact.problems), size


def test_a_wrong_diff_id_is_found_out(tmp_path: Path) -> None:
    changes = {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{'0' * 63}1"]}}
    for image in (ImageMaker([BASE], config_changes=changes), ImageMaker([BASE], "arm64", "", {}, changes)):
        path = oci_layout(tmp_path / f"oci{image.compression}", index(image), image)
        with opened(path) as artifact:
            list(artifact.members())
            (finding,) = artifact.problems
            assert finding.check == "image.layer-digest"
            assert "diff_id" in finding.wanted


def test_a_changed_document_is_refused(tmp_path: Path) -> None:
    image = ImageMaker([BASE])
    for number, data in enumerate((image.manifest(), image.config())):
        path = oci_layout(tmp_path / f"oci{number}", index(image), image)
        (path / "blobs" / "sha256" / sha256(data).removeprefix("sha256:")).write_bytes(
            data.replace(b"linux", b"xunil")
        )
        if b"linux" not in data:
            (path / "blobs" / "sha256" / sha256(data).removeprefix("sha256:")).write_bytes(data + b" ")
        with pytest.raises(DigestError, match="was wanted"):
            open_artifact(path)


def test_the_platform_is_picked_and_a_wrong_one_refused(tmp_path: Path) -> None:
    arm, intel = ImageMaker([BASE]), ImageMaker([TOP], architecture="amd64")
    path = oci_layout(tmp_path / "both", index(intel, arm), arm, intel)
    with opened(path) as artifact:
        assert str(artifact.digest) == sha256(arm.manifest())
    with open_artifact(path, platform=Platform.parse("linux/amd64")) as other:
        assert isinstance(other, Image)
        assert str(other.digest) == sha256(intel.manifest())
    with pytest.raises(ImageError, match=r"no image for linux/riscv64; it has linux/amd64, linux/arm64"):
        open_artifact(path, platform=Platform.parse("linux/riscv64"))
    unnamed = oci_layout(tmp_path / "unnamed", index(intel, arm, platforms=False), arm, intel)
    with opened(unnamed) as artifact:
        assert str(artifact.digest) == sha256(arm.manifest())
    for number, one in enumerate((index(intel), index(intel, platforms=False))):
        with pytest.raises(ImageError, match="it has linux/amd64"):
            open_artifact(oci_layout(tmp_path / f"one{number}", one, intel))
    with pytest.raises(ImageError, match="linux/amd64"):
        open_artifact(docker_save(tmp_path / "save.tar", intel))


def test_an_index_and_a_configuration_that_disagree(tmp_path: Path) -> None:
    image = ImageMaker([BASE], architecture="amd64")
    top = index(image).replace(b'"amd64"', b'"arm64"')
    with opened(oci_layout(tmp_path / "oci", top, image)) as artifact:
        (finding,) = artifact.problems
        assert (finding.check, finding.verdict) == ("image.platform", Verdict.FAIL)
        assert finding.got == "is for linux/amd64"


def test_one_of_several_images_is_named(tmp_path: Path) -> None:
    one, two = ImageMaker([BASE]), ImageMaker([TOP])
    path = oci_layout(tmp_path / "oci", index(one, two, names=("first", "second")), one, two)
    with pytest.raises(ImageError, match="2 images for linux/arm64") as caught:
        open_artifact(path)
    assert "first" in caught.value.do
    for reference, image in (
        (f"oci:{path}:second", two), (f"oci:{path}:first", one), (f"oci:{path}@{sha256(two.manifest())}", two),
    ):  # fmt: skip
        with open_artifact(reference) as artifact:
            assert isinstance(artifact, Image)
            assert str(artifact.digest) == sha256(image.manifest())
    with pytest.raises(ImageError, match="holds no such image"):
        open_artifact(f"oci:{path}:third")
    saved = docker_save(tmp_path / "save.tar", one, two, tags=("a:1", "b:2"))
    with pytest.raises(ImageError, match="holds 2 images") as caught:
        open_artifact(saved)
    assert "a:1, b:2" in caught.value.do
    with open_artifact(f"docker-archive:{saved}:b:2") as artifact:
        assert isinstance(artifact, Image)
        assert str(artifact.config.digest) == sha256(two.config())


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "no valid JSON"),
        (b"[" * 100_000, "no valid JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "no image manifest"),
        (b'{"manifests": 3}', "manifests is 3, not a list of objects"),
        (b'{"manifests": [], "layers": []}', "an index and a manifest at once"),
        (b'{"fsLayers": []}', "schema 1"),
        (b'{"manifests": [{"digest": "sha256:x", "size": -1}]}', "size is -1"),
        (b'{"manifests": []}', "holds no such image"),
    ],
)
def test_damaged_indexes_are_refused_with_the_reason(tmp_path: Path, document: bytes, said: str) -> None:
    path = oci_layout(tmp_path / "oci", document)
    with pytest.raises((ArtifactError, ImageError), match=said):
        open_artifact(path)


def test_paths_in_an_archive_do_not_leave_it(tmp_path: Path) -> None:
    path = tmp_path / "unpacked"
    path.mkdir()
    (tmp_path / "secret").write_bytes(ImageMaker([]).config())
    (path / "manifest.json").write_text(json.dumps([{"Config": "../secret", "RepoTags": [], "Layers": []}]))
    with pytest.raises(ArtifactError, match="missing"):
        open_artifact(path)


def test_a_tar_that_is_no_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(layer(("a", b"a")))
    with pytest.raises(ArtifactError, match=r"neither index\.json nor manifest\.json"):
        open_artifact(path)
    path.write_bytes(layer(("a", b"a" * 5000))[:2000])
    with pytest.raises(ArtifactError, match="ends within"):
        open_artifact(path)


def test_attestations_are_no_images(tmp_path: Path) -> None:
    image = ImageMaker([BASE])
    top = json.loads(index(image))
    statement = {
        **top["manifests"][0],
        "digest": f"sha256:{'a' * 64}",
        "platform": {"os": "unknown", "architecture": "unknown"},
    }
    top["manifests"].append(statement)
    with opened(oci_layout(tmp_path / "oci", json.dumps(top).encode(), image)) as artifact:
        assert str(artifact.digest) == sha256(image.manifest())


def test_the_tree_lists_what_a_container_would_see(tmp_path: Path) -> None:
    with of_layers(tmp_path, BASE, TOP) as image:
        tree: Tree = image.tree
        assert {found.path for found in tree.files()} == set(SEEN)
