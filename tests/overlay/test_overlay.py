"""Overlays on small environments made here: what is refused, what is stamped, and that every way back ends well."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from sm121.artifact import FolderArtifact
from sm121.artifact.installed import survey
from sm121.errors import LockedError, OverlayError, PackError
from sm121.findings import Verdict
from sm121.inspector.judge.stamp import judge_version
from sm121.inspector.reading import may_hold_code
from sm121.overlay import apply as applying
from sm121.overlay.apply import State, apply, remove, status
from sm121.overlay.installed import find_installed
from sm121.overlay.make import base_of, make_overlay
from sm121.overlay.model import Overlay, read_overlay

LIBRARY = "vllm/_moe_C_stable_libtorch.abi3.so"
OTHER = "vllm/spinloop.abi3.so"
VERSION = "0.33.0+cu130.sm121"
COMMIT = "g4ba787ec9"


def elf(text: str, machine: int = 183) -> bytes:
    """The start of an ELF file for aarch64 (183) or x86_64 (62), then some text."""
    return b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44) + text.encode()


def module(version: str, commit: str = COMMIT) -> bytes:
    local = version.partition("+")[2]
    numbers = (0, 33, 0, local) if local else (0, 33, 0)
    return (
        f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = {numbers!r}\n\n"
        f"__commit_id__ = commit_id = {commit!r}\n"
    ).encode()


def environment(
    root: Path,
    version: str = VERSION,
    *,
    ledger: bool = True,
    machine: int = 183,
    files: dict[str, bytes] | None = None,
) -> Path:
    """An environment with a small vLLM, as an installer leaves it; `files` replace or add some, by path."""
    site = root / "lib" / "python3.12" / "site-packages"
    info = f"vllm-{version}.dist-info"
    content = {
        "vllm/__init__.py": b"from ._version import __version__\n",
        "vllm/_version.py": module(version),
        LIBRARY: elf("the release", machine),
        OTHER: elf("spin", machine),
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n\nVersion: in the text\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: cp38-abi3-manylinux_2_34_aarch64\n",
        f"{info}/INSTALLER": b"uv",
    }
    if ledger:
        libraries = [
            {"path": path, "origin": "source", "sha256": "0" * 64, "size": 1} for path in (LIBRARY, OTHER)
        ]
        content[f"{info}/sm121.json"] = json.dumps(
            {"version": 1, "wheel_version": version, "libraries": libraries}
        ).encode()
    content |= files or {}
    rows = []
    for path, data in content.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    rows += ["vllm/__pycache__/__init__.cpython-312.pyc,,", f"{info}/RECORD,,"]
    (site / info / "RECORD").write_text("\r\n".join(rows) + "\r\n", newline="")
    (site / "vllm" / "__pycache__").mkdir()
    (site / "vllm" / "__pycache__" / "__init__.cpython-312.pyc").write_bytes(b"code")
    (root / "pyvenv.cfg").write_text("version = 3.12.3\n")
    return root


def overlay(root: Path, env: Path, text: str = "the edited one", machine: int = 183, path: str = LIBRARY) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "edited.so").write_bytes(elf(text, machine))
    return make_overlay({path: root / "edited.so"}, base_of(env, "vllm"), root / "overlays", ["from a test"])


def snapshot(root: Path) -> dict[str, Any]:
    """Everything that can be told of every file and folder: bytes, mode, time of change, inode."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            found[str(path.relative_to(root))] = "folder"
        else:
            found[str(path.relative_to(root))] = (
                path.read_bytes(),
                status.st_mode,
                status.st_mtime_ns,
                status.st_ino,
            )
    return found


def site_of(env: Path) -> Path:
    return env / "lib" / "python3.12" / "site-packages"


def test_on_and_off_again(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    before = snapshot(env)
    folder = overlay(tmp_path / "made", env)
    made, installed = apply(folder, env)
    site = site_of(env)
    assert (site / LIBRARY).read_bytes() == elf("the edited one")
    assert (site / OTHER).read_bytes() == elf("spin")
    assert installed.version == made.stamped == folder.name.removeprefix("vllm-")
    assert made.stamped.startswith(f"{VERSION}.overlay.x")
    assert installed.info == f"vllm-{made.stamped}.dist-info"
    assert (site / "vllm" / "_version.py").read_bytes() == module(made.stamped)
    assert f"\nVersion: {made.stamped}\n\nVersion: in the text\n" in (installed.folder / "METADATA").read_text()
    ledger = json.loads((installed.folder / "sm121.json").read_text())
    assert ledger["wheel_version"] == made.stamped
    assert {row["path"]: row["origin"] for row in ledger["libraries"]} == {LIBRARY: "overlay", OTHER: "source"}
    assert ledger["overlay"]["notes"] == ["from a test"]
    now = status(env, "vllm")
    assert (now.state, now.overlay, now.changed) == (State.APPLIED, made, ())
    assert remove(env, "vllm").version == VERSION
    assert snapshot(env) == before
    assert status(env, "vllm").state is State.RELEASE


def test_record_is_true_with_the_overlay(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    apply(overlay(tmp_path / "made", env), env)
    found = survey(FolderArtifact(env))
    (dist,) = found.distributions()
    assert dist.check is not None
    assert dist.check.true, dist.check
    assert found.unclaimed([dist]) == ()
    assert dist.metadata.version in dist.folder


def test_the_inspector_says_what_it_is() -> None:
    made = Overlay("vllm", VERSION, COMMIT, "aarch64", ())
    (finding,) = [each for each in judge_version(made.stamped, "vllm") if each.check == "stamp.overlay"]
    assert finding.verdict is Verdict.WARN
    assert "sm121 overlay remove" in finding.advice
    assert not [each for each in judge_version(VERSION, "vllm") if each.check == "stamp.overlay"]


def test_what_is_put_aside_is_not_looked_at_as_a_library() -> None:
    assert not may_hold_code("x/vllm-1.dist-info/sm121-overlay/before/0", executable=True)
    assert may_hold_code("x/vllm-1.dist-info/sm121-overlay/other", executable=True)


def test_files_that_an_installer_shares_by_links_are_not_written_to(tmp_path: Path) -> None:
    """uv installs hard links into its cache."""
    env = environment(tmp_path / "env")
    shared = {}
    for number, path in enumerate(site_of(env).rglob("*")):
        if path.is_file():
            os.link(path, tmp_path / f"cache{number}")
            shared[tmp_path / f"cache{number}"] = path.read_bytes()
    apply(overlay(tmp_path / "made", env), env)
    remove(env, "vllm")
    assert all(path.read_bytes() == data for path, data in shared.items())


def test_over_the_official_wheel_too(tmp_path: Path) -> None:
    env = environment(tmp_path / "env", "0.33.0", ledger=False)
    before = snapshot(env)
    made, installed = apply(overlay(tmp_path / "made", env), env)
    assert installed.version == made.stamped
    assert made.stamped.startswith("0.33.0+overlay.x")
    remove(env, "vllm")
    assert snapshot(env) == before


def test_the_next_overlay_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    before = snapshot(env)
    first = overlay(tmp_path / "one", env)
    second = overlay(tmp_path / "two", env, "edited once more", path=OTHER)
    apply(first, env)
    made, _ = apply(second, env)
    assert (site_of(env) / LIBRARY).read_bytes() == elf("the release")
    assert status(env, "vllm").overlay == made
    remove(env, "vllm")
    assert snapshot(env) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.33.0+cu129.sm121"}, ["0.33.0+cu130.sm121 was wanted", "found 0.33.0+cu129.sm121"]),
        ({"version": "0.33.0"}, ["0.33.0+cu130.sm121 was wanted", "found 0.33.0."]),
        ({"files": {"vllm/_version.py": module(VERSION, "gffffffff")}}, ["g4ba787ec9 was wanted", "found gffffffff"]),
        ({"machine": 62}, ["is for x86_64, the overlay for aarch64"]),
        ({"version": "0.26.0", "files": {"vllm/_version.py": module("0.26.0", "gabc")}}, ["found 0.26.0", "found gabc"]),
    ],
)  # fmt: skip
def test_another_release_is_refused_with_every_reason(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    folder = overlay(tmp_path / "made", environment(tmp_path / "env"))
    other = environment(tmp_path / "other", **change)
    before = snapshot(other)
    with pytest.raises(OverlayError) as caught:
        apply(folder, other)
    for word in words:
        assert word in str(caught.value)
    assert snapshot(other) == before


def test_what_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    folder = overlay(tmp_path / "made", env)
    (site_of(env) / LIBRARY).write_bytes(elf("patched by hand"))
    (site_of(env) / f"vllm-{VERSION}.dist-info" / "METADATA").unlink()
    with pytest.raises(OverlayError, match="one installed vllm was wanted"):
        apply(folder, env)
    env = environment(tmp_path / "another")
    (site_of(env) / LIBRARY).write_bytes(elf("patched by hand"))
    before = snapshot(env)
    with pytest.raises(OverlayError, match="not what RECORD says"):
        apply(folder, env)
    assert snapshot(env) == before


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    folder = overlay(tmp_path / "made", env)
    place = site_of(env) / LIBRARY
    place.rename(tmp_path / "elsewhere.so")
    place.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(OverlayError, match="should be a file"):
        apply(folder, env)
    assert place.is_symlink()


def test_changes_after_the_overlay_are_not_lost_unasked(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    before = snapshot(env)
    apply(overlay(tmp_path / "made", env), env)
    (site_of(env) / LIBRARY).unlink()
    (site_of(env) / LIBRARY).write_bytes(elf("still another"))
    assert status(env, "vllm").changed == (LIBRARY,)
    with pytest.raises(OverlayError, match="was changed after"):
        remove(env, "vllm")
    assert (site_of(env) / LIBRARY).read_bytes() == elf("still another")
    remove(env, "vllm", force=True)
    assert snapshot(env) == before


def test_what_was_kept_and_is_damaged_is_not_put_back(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    _, installed = apply(overlay(tmp_path / "made", env), env)
    saved = installed.kept / "before" / "0"
    saved.unlink()
    saved.write_bytes(b"something else")
    with pytest.raises(OverlayError, match="damaged"):
        remove(env, "vllm")
    saved.unlink()
    with pytest.raises(OverlayError, match="cannot be brought back"):
        remove(env, "vllm")


@pytest.mark.parametrize(
    "told",
    [
        "", "null", "{}", "[" * 100_000, '{"info": 5, "changes": 5}', '{"info": "x.dist-info", "changes": [["a", "b"]]}',
        json.dumps({"info": "../x", "changes": []}),
        json.dumps({"info": "x.dist-info", "changes": [["../../../../outside", "0" * 64, "0" * 64]]}),
        json.dumps({"info": "x.dist-info", "changes": [["/outside", "0" * 64, "0" * 64]]}),
    ],
)  # fmt: skip
def test_a_list_of_changes_that_was_tampered_with_changes_nothing(tmp_path: Path, told: str) -> None:
    env = environment(tmp_path / "env")
    _, installed = apply(overlay(tmp_path / "made", env), env)
    (installed.kept / "changes.json").write_text(told)
    before = snapshot(tmp_path)
    for ask in (status, remove):
        with pytest.raises(OverlayError, match="cannot be used") as caught:
            ask(env, "vllm")
        assert caught.value.do
    assert snapshot(tmp_path) == before


def test_an_overlay_whose_document_is_gone_is_told(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    _, installed = apply(overlay(tmp_path / "made", env), env)
    (installed.kept / "overlay.json").unlink()
    with pytest.raises(OverlayError, match="cannot be used"):
        status(env, "vllm")


def test_a_ledger_without_an_end_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path / "env", files={f"vllm-{VERSION}.dist-info/sm121.json": b"[" * 100_000})
    with pytest.raises(OverlayError, match="cannot be read"):
        apply(overlay(tmp_path / "made", env), env)


class Stopped(BaseException):
    """The process is gone: nothing is caught or cleaned up after it."""


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the operations that change the disk work `after` times, then none."""
    left = [after]

    def counted(original: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if left[0] <= 0:
                raise Stopped
            left[0] -= 1
            return original(*arguments, **keywords)

        return call

    for owner, names in (
        (Path, ("replace", "rename", "mkdir", "touch", "unlink", "rmdir")),
        (os, ("link", "fchmod", "chown")),
        (shutil, ("rmtree", "copy2")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.parametrize("doing", ["apply", "remove"])
def test_from_every_point_of_interruption_there_is_a_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    folder = overlay(tmp_path / "made", environment(tmp_path / "first"))
    for after in range(200):
        env = environment(tmp_path / f"env{after}")
        before = snapshot(env)
        if doing == "remove":
            apply(folder, env)
        with monkeypatch.context() as patch:
            interrupt(patch, after)
            try:
                _ = apply(folder, env) if doing == "apply" else remove(env, "vllm")
            except Stopped:
                pass
            else:
                break
        now = status(env, "vllm")
        if now.state is State.RELEASE:
            # Nothing happened yet, or all was over.
            assert snapshot(env) == before
            continue
        if doing == "apply" and now.state is State.APPLIED:
            assert now.changed == ()
        remove(env, "vllm")
        assert snapshot(env) == before, after
    else:
        raise AssertionError("it never came to its end")
    assert after > {"apply": 25, "remove": 8}[doing]


def test_two_at_a_time_are_one_too_many(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    folder = overlay(tmp_path / "made", env)
    with applying._locked(find_installed(env, "vllm").folder), pytest.raises(LockedError):
        apply(folder, env)


def test_an_overlay_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    folder = overlay(tmp_path / "made", env)
    (folder / "files" / LIBRARY).write_bytes(elf("not this"))
    with pytest.raises(OverlayError, match="should be sha256:"):
        read_overlay(folder)
    data = json.loads((folder / "overlay.json").read_text())
    changes: tuple[dict[str, Any], ...] = (
        {"version": "0.33.0"}, {"commit": "g1"}, {"format": 2}, {"libraries": []}, {"more": 1}, {"version": "x"},
        {"libraries": [{"path": "../../etc/passwd", "sha256": "0" * 64, "size": 1}]},
        {"libraries": [{"path": "/etc/passwd", "sha256": "0" * 64, "size": 1}]}, {"project": 7}, {"notes": "x"},
    )  # fmt: skip
    for change in changes:
        (folder / "overlay.json").write_text(json.dumps({**data, **change}))
        with pytest.raises(OverlayError):
            read_overlay(folder)
    for text in ("", "[]", "{", "null", '{"format": 1}', "\x00"):
        (folder / "overlay.json").write_text(text)
        with pytest.raises(OverlayError):
            read_overlay(folder)
    with pytest.raises(OverlayError, match="is no overlay"):
        read_overlay(tmp_path)


def test_only_libraries_that_the_release_has(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    (tmp_path / "a.so").write_bytes(elf("a"))
    (tmp_path / "b.so").write_bytes(elf("b", 62))
    with pytest.raises(OverlayError) as caught:
        make_overlay(
            {"vllm/nothing.so": tmp_path / "a.so", LIBRARY: tmp_path / "b.so"},
            base_of(env, "vllm"),
            tmp_path / "out",
        )
    assert "vllm/nothing.so" in str(caught.value)
    assert "several processors" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_overlay_over_an_overlay_is_not_made(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    apply(overlay(tmp_path / "made", env), env)
    with pytest.raises(OverlayError, match="not the version of a release"):
        overlay(tmp_path / "again", env)


def test_equal_content_has_one_name(tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    one, two = overlay(tmp_path / "one", env), overlay(tmp_path / "two", env)
    assert one.name == two.name
    assert (one / "overlay.json").read_bytes() == (two / "overlay.json").read_bytes()
    assert overlay(tmp_path / "three", env, "another").name != one.name
    again = overlay(tmp_path / "one", env)
    assert again == one
    assert [path.name for path in one.parent.iterdir()] == [one.name]


@pytest.mark.parametrize("text", ["", "version = 1\n", "def f(:\n"])
def test_a_version_module_of_an_unknown_shape_is_refused(tmp_path: Path, text: str) -> None:
    env = environment(tmp_path / "env")
    folder = overlay(tmp_path / "made", env)
    other = environment(tmp_path / "other", files={"vllm/_version.py": text.encode()})
    before = snapshot(other)
    with pytest.raises((OverlayError, PackError)):
        apply(folder, other)
    assert snapshot(other) == before


def test_nothing_there_to_take_off(tmp_path: Path) -> None:
    with pytest.raises(OverlayError, match="no overlay on vllm"):
        remove(environment(tmp_path / "env"), "vllm")
    with pytest.raises(OverlayError, match="is no folder"):
        status(tmp_path / "nothing", "vllm")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OverlayError, match="found none"):
        status(tmp_path / "empty", "vllm")
