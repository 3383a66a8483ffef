"""Installed distributions in folders, environments and images, compared with their RECORD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_maker import ImageMaker, index, layer, oci_layout
from wheel_maker import FILES, RECORD, hashed, wheel

from sm121.artifact import (
    Distribution,
    FolderArtifact,
    Image,
    Kind,
    Survey,
    Wheel,
    compare_with_wheel,
    open_artifact,
    shared_paths,
    survey,
)
from sm121.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SITE = "lib/python3.12/site-packages"
SCRIPT = b"#!/env/bin/python\nfrom thing import main\n"


def installed_files() -> dict[str, bytes]:
    """The wheel of wheel_maker as pip installs it, by path in the environment."""
    extra = {
        "thing-1.0.dist-info/INSTALLER": b"pip\n",
        "thing-1.0.dist-info/REQUESTED": b"",
        "thing-1.0.dist-info/direct_url.json": b'{"url": "file:///t.whl", "archive_info": {"hashes": {"sha256": "ab"}}}',
    }
    rows = [f"{path},{hashed(data)},{len(data)}" for path, data in {**FILES, **extra}.items()]
    rows += [f"../../../bin/thing,{hashed(SCRIPT)},{len(SCRIPT)}", "thing/__pycache__/__init__.cpython-312.pyc,,"]
    record = "\n".join([*rows, f"{RECORD},,"]).encode()
    inside = {**FILES, **extra, RECORD: record, "thing/__pycache__/__init__.cpython-312.pyc": b"compiled"}
    return {**{f"{SITE}/{path}": data for path, data in inside.items()}, "bin/thing": SCRIPT}


def written(root: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def image_of(folder: Path, *layers: Mapping[str, bytes], prefix: str = "opt/env/") -> Path:
    made = []
    for files in layers:
        paths = sorted(prefix + path for path in files)
        above = {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/") + 1)}
        folders: list[tuple[str, bytes | str | None]] = [(path, None) for path in sorted(above)]
        made.append(layer(*folders, *[(prefix + path, files[path]) for path in sorted(files)]))
    image = ImageMaker(made)
    return oci_layout(folder / "oci", index(image), image)


def the_one(path: Path) -> Distribution:
    with open_artifact(path) as artifact:
        seen = survey(artifact)
        assert seen.problems == []
        (dist,) = seen.distributions()
        return dist


def test_an_environment_and_an_image_give_the_same_distribution(tmp_path: Path) -> None:
    files = installed_files()
    on_disk = the_one(written(tmp_path / "env", files))
    in_image = the_one(image_of(tmp_path, files))
    for dist, prefix in ((on_disk, ""), (in_image, "opt/env/")):
        assert (dist.name, dist.version, dist.python, dist.installer) == ("thing", "1.0", "3.12", "pip")
        assert (dist.site, dist.requested, dist.vendored) == (prefix + SITE, True, False)
        assert dist.direct_url is not None
        assert dist.direct_url.hashes == {"sha256": "ab"}
        assert dist.problems == ()
        assert dist.check is not None
        assert dist.check.true
        assert dist.check.rows == len(files)
        (stamp,) = dist.stamps
        assert (stamp.path, stamp.version) == (f"{prefix}{SITE}/thing/_version.py", "1.0")
    assert on_disk.layer == ""
    assert in_image.layer.startswith("sha256:")


def test_the_same_wheel_is_recognised(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path)) as opened:
        identity = opened.identify()
    assert identity.distribution is not None
    same = compare_with_wheel(identity.distribution, the_one(image_of(tmp_path, installed_files())))
    assert same.same
    assert (same.equal, same.open) == (len(FILES), ())


def test_another_build_of_the_wheel_is_recognised(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path)) as opened:
        identity = opened.identify()
    assert identity.distribution is not None
    files = installed_files()
    files[f"{SITE}/thing/_C.abi3.so"] = b"patched after the installation"
    changed = compare_with_wheel(identity.distribution, the_one(written(tmp_path / "a", files)))
    assert (changed.same, changed.differing) == (False, ("thing/_C.abi3.so",))
    del files[f"{SITE}/thing/_C.abi3.so"]
    gone = compare_with_wheel(identity.distribution, the_one(written(tmp_path / "b", files)))
    assert (gone.same, gone.differing) == (False, ("thing/_C.abi3.so",))
    other = {**FILES, "thing/new.py": b"new"}
    with Wheel(wheel(tmp_path, other, name="thing-1.0-2-py3-none-any.whl")) as opened:
        newer = opened.identify().distribution
    assert newer is not None
    assert compare_with_wheel(newer, the_one(written(tmp_path / "c", installed_files()))).missing == (
        "thing/new.py",
    )
    assert compare_with_wheel(identity.distribution, the_one(image_of(tmp_path, installed_files()))).added == ()


def test_scripts_and_data_of_a_wheel_are_found_where_they_are_installed(tmp_path: Path) -> None:
    extra = {"thing-1.0.data/scripts/run": b"#!python\n", "thing-1.0.data/data/share/thing.txt": b"t"}
    with Wheel(wheel(tmp_path, {**FILES, **extra})) as opened:
        packed = opened.identify().distribution
    assert packed is not None
    files = installed_files()
    rows = f"../../../bin/run,{hashed(b'#!/x')},4\n../../../share/thing.txt,{hashed(b't')},1\n".encode()
    files[f"{SITE}/{RECORD}"] = rows + files[f"{SITE}/{RECORD}"]
    files |= {"bin/run": b"#!/x", "share/thing.txt": b"t"}
    for dist in (the_one(written(tmp_path / "env", files)), the_one(image_of(tmp_path, files))):
        result = compare_with_wheel(packed, dist)
        assert (result.differing, result.missing, result.added) == ((), (), ())
        assert "thing-1.0.data/scripts/run" in result.open
    assert dist.check is not None
    assert dist.check.unverified == (
        "../../../share/thing.txt",
    )  # not shown to the survey, and it lies in a layer


def test_changes_after_the_installation_are_found(tmp_path: Path) -> None:
    files = installed_files()
    files[f"{SITE}/thing/__init__.py"] = b"changed"
    del files[f"{SITE}/thing/_C.abi3.so"]
    for path in (written(tmp_path / "env", files), image_of(tmp_path, files)):
        check = the_one(path).check
        assert check is not None
        assert (check.wrong, check.missing) == (("thing/__init__.py",), ("thing/_C.abi3.so",))


def test_a_higher_layer_changes_a_file(tmp_path: Path) -> None:
    changed = {f"{SITE}/thing/_C.abi3.so": b"other code of another build"}
    check = the_one(image_of(tmp_path, installed_files(), changed)).check
    assert check is not None
    assert check.wrong == ("thing/_C.abi3.so",)


def test_files_that_nobody_claims(tmp_path: Path) -> None:
    files = {
        **installed_files(),
        f"{SITE}/evil.pth": b"import os",
        f"{SITE}/thing/__pycache__/x.cpython-312.pyc": b"",
    }
    with open_artifact(written(tmp_path / "env", files)) as artifact:
        seen = survey(artifact)
        assert seen.unclaimed(seen.distributions()) == (f"{SITE}/evil.pth",)


def test_without_hashes_nothing_is_called_verified(tmp_path: Path) -> None:
    with open_artifact(written(tmp_path / "env", installed_files())) as artifact:
        (dist,) = survey(artifact, hashes=False).distributions()
    assert dist.check is not None
    assert not dist.check.true
    assert dist.check.wrong == ()
    assert len(dist.check.unverified) == len(FILES) + 4


def test_egg_infos_of_both_kinds(tmp_path: Path) -> None:
    info = b"Metadata-Version: 2.1\nName: setuptools\nVersion: 66.1.1\n"
    files = {
        "usr/lib/python3/dist-packages/setuptools-66.1.1.egg-info/PKG-INFO": info,
        "usr/lib/python3/dist-packages/setuptools-66.1.1.egg-info/top_level.txt": b"setuptools\n",
        "usr/lib/python3/dist-packages/old-1.egg-info": b"Name: old\nVersion: 1\n",
    }
    for path in (written(tmp_path / "root", files), image_of(tmp_path, files, prefix="")):
        with open_artifact(path) as artifact:
            found = {dist.name: dist for dist in survey(artifact).distributions()}
        assert {name: dist.version for name, dist in found.items()} == {"old": "1", "setuptools": "66.1.1"}
        assert all(dist.check is None and dist.python == "3" and not dist.vendored for dist in found.values())


def test_vendored_distributions_are_marked(tmp_path: Path) -> None:
    inner = {f"{SITE}/thing/_vendor/wheel-0.45.1.dist-info/METADATA": b"Name: wheel\nVersion: 0.45.1\n"}
    with open_artifact(written(tmp_path / "env", {**installed_files(), **inner})) as artifact:
        found = {dist.name: dist.vendored for dist in survey(artifact).distributions()}
    assert found == {"thing": False, "wheel": True}


def test_a_dist_info_without_metadata(tmp_path: Path) -> None:
    files = {f"{SITE}/left-1.0.dist-info/RECORD": b"left-1.0.dist-info/RECORD,,\n"}
    dist = the_one(written(tmp_path / "env", files))
    assert (dist.name, dist.version, dist.key) == ("left", "1.0", "left")
    assert [finding.verdict for finding in dist.problems] == [Verdict.WARN]


def test_rows_that_lead_out_of_the_artifact(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    record = f"../../../../secret,{hashed(b'secret')},6\n/etc/passwd,{hashed(b'')},0\n{RECORD},,\n".encode()
    files = {**installed_files(), f"{SITE}/{RECORD}": record}
    check = the_one(written(tmp_path / "env", files)).check
    assert check is not None
    assert check.unverified == ("../../../../secret",)
    assert check.missing == ("/etc/passwd",)


def test_several_pythons_of_one_environment(tmp_path: Path) -> None:
    root = written(tmp_path / "env", installed_files())
    written(root, {path.replace("3.12", "3.13t"): data for path, data in installed_files().items()})
    (root / "lib64").symlink_to("lib")
    (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    with open_artifact(root) as artifact:
        assert isinstance(artifact, FolderArtifact)
        assert artifact.kind is Kind.ENVIRONMENT
        assert artifact.sites == (SITE, SITE.replace("3.12", "3.13t"))
        found = survey(artifact).distributions()
        assert [dist.python for dist in found] == ["3.12", "3.13t"]
        assert [finding.check for finding in artifact.problems] == ["folder.environment"]
        member = artifact.find("lib64/python3.12/site-packages/thing/_version.py")
        assert member is not None
        assert member.path == f"{SITE}/thing/_version.py"
        assert artifact.find("../secret") is None
        assert artifact.find("lib") is None


def test_a_site_folder_by_itself_and_a_plain_folder(tmp_path: Path) -> None:
    root = written(tmp_path / "env", installed_files())
    with open_artifact(root / SITE) as artifact:
        assert isinstance(artifact, FolderArtifact)
        assert (artifact.kind, artifact.sites) == (Kind.ENVIRONMENT, ("",))
        (dist,) = survey(artifact).distributions()
        assert (dist.site, dist.python) == ("", "")
        assert dist.check is not None
        assert dist.check.unverified == ("../../../bin/thing",)
    with open_artifact(root / "bin") as artifact:
        assert artifact.kind is Kind.FOLDER


def test_two_owners_of_one_path(tmp_path: Path) -> None:
    def dist(name: str, data: bytes) -> dict[str, bytes]:
        rows = f"lib/x.so,{hashed(data)},{len(data)}\n{name}/__init__.py,{hashed(b'')},0\n".encode()
        info = f"Name: {name}\nVersion: 1\n".encode()
        return {f"{SITE}/{name}-1.dist-info/METADATA": info, f"{SITE}/{name}-1.dist-info/RECORD": rows}

    for second, same in ((b"one", True), (b"two", False)):
        root = written(
            tmp_path / str(same), {**dist("a", b"one"), **dist("b", second), f"{SITE}/lib/x.so": b"one"}
        )
        with open_artifact(root) as artifact:
            (shared,) = shared_paths(survey(artifact).distributions())
        assert (shared.path, shared.owners, shared.same) == (f"{SITE}/lib/x.so", ("a 1", "b 1"), same)


def test_a_survey_takes_buffers_that_the_caller_has(tmp_path: Path) -> None:
    with open_artifact(image_of(tmp_path, installed_files())) as artifact:
        assert isinstance(artifact, Image)
        seen = Survey(artifact)
        for member in artifact.members(seen.wants):
            with member.buffer() as data:
                seen.see(member, data)
        (dist,) = seen.distributions()
    assert dist.check is not None
    assert dist.check.true
