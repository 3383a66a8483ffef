from __future__ import annotations

import errno
import os
import resource
import tempfile
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn

import pytest
from made_wheels import FILENAME, HOPPER, INFO, MADE_WITH, STAMP, TAG, members, write_wheel

from sm121.errors import PackError, StorageError, VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.pack import publish as publishing
from sm121.pack.checks import SPARK
from sm121.pack.publish import ensure_publishable, find_published, publish
from sm121.pack.wheel import assemble
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class File:
    sha256: Sha256


@dataclass(frozen=True)
class Note:
    """A manifest, as far as publishing sees one."""

    files: Mapping[str, File]
    verdict: Verdict = Verdict.PASS
    text: bytes = b"{}\n"

    def output(self, name: str) -> File | None:
        return self.files.get(name)

    def to_json(self) -> bytes:
        return self.text


def made(folder: Path, *, left_out: tuple[str, ...] = ()) -> tuple[Path, Note]:
    """A real assembled wheel and its record."""
    folder.mkdir(exist_ok=True)
    official = write_wheel(folder / FILENAME)
    path = assemble(official, {}, left_out, {}, STAMP, TAG, folder / "step", made_with=MADE_WITH).path
    return path, Note({path.name: File(Sha256.of_file(path))})


def listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_names_beside_and_below(tmp_path: Path) -> None:
    wheel, note = made(tmp_path)
    dist = tmp_path / "my results"
    published = publish(
        wheel, note, dist, documents={".report.json": b"[]\n"}, channel="github-release", place=SPARK
    )
    digest = sha256(wheel.read_bytes()).hexdigest()
    names = {wheel.name + suffix for suffix in ("", ".sha256", ".manifest.json", ".report.json")}
    assert listed(dist) == names | {f"by-digest/sha256-{digest}/{name}" for name in names}
    assert published.exact == dist / "by-digest" / f"sha256-{digest}" / wheel.name
    assert published.exact.read_bytes() == published.wheel.read_bytes() == wheel.read_bytes()
    assert published.checksum.read_text() == f"{digest}  {wheel.name}\n"
    assert published.manifest.read_bytes() == b"{}\n"
    assert published.wheel.stat().st_mode & 0o777 == 0o644
    assert not published.wheel.samefile(wheel), "what happens to the scratch folder cannot change a result"
    assert find_published(dist, wheel.name, published.sha256) == published


@pytest.mark.parametrize(("verdict", "kind"), [(Verdict.FAIL, VerdictFail), (Verdict.UNKNOWN, VerdictUnknown)])
def test_nothing_that_did_not_pass_is_published(tmp_path: Path, verdict: Verdict, kind: type[Exception]) -> None:
    wheel, note = made(tmp_path)
    with pytest.raises(kind, match=f"the verdict of its inspection is {verdict}"):
        publish(wheel, replace(note, verdict=verdict), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.INFO, Verdict.WARN])
def test_what_passed_is_published(tmp_path: Path, verdict: Verdict) -> None:
    wheel, note = made(tmp_path)
    assert publish(wheel, replace(note, verdict=verdict), tmp_path / "dist").wheel.is_file()


def test_a_record_of_other_bytes_is_refused(tmp_path: Path) -> None:
    wheel, note = made(tmp_path)
    for files, found in (({}, "no such file"), ({wheel.name: File(Sha256("0" * 64))}, "sha256:0000")):
        with pytest.raises(PackError, match=found):
            publish(wheel, replace(note, files=files), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_a_wheel_that_contradicts_its_name_is_refused(tmp_path: Path) -> None:
    wheel, _ = made(tmp_path)
    renamed = wheel.rename(wheel.with_name(wheel.name.replace("0.33.0", "0.34.0").replace("2_28", "2_17")))
    with pytest.raises(PackError) as raised:
        publish(renamed, Note({renamed.name: File(Sha256.of_file(renamed))}), tmp_path / "dist")
    assert len(raised.value.problems) == 3, "folder, METADATA and WHEEL disagree with the name"
    assert not (tmp_path / "dist").exists()


def test_a_wheel_with_a_cuda_runtime_inside_is_refused(tmp_path: Path) -> None:
    content = {**members(), "vllm.libs/libcudart-1a2b3c4d.so.13": b"\x7fELF"}
    content[f"{INFO}/WHEEL"] = b"Tag: cp38-abi3-manylinux_2_28_aarch64\n"
    wheel = write_wheel(tmp_path / FILENAME, content)
    with pytest.raises(PackError, match="libcudart"):
        publish(wheel, Note({wheel.name: File(Sha256.of_file(wheel))}), tmp_path / "dist")


def test_the_same_bytes_again_change_nothing(tmp_path: Path) -> None:
    wheel, note = made(tmp_path)
    dist = tmp_path / "dist"
    first = publish(wheel, note, dist)
    before = {name: (dist / name).stat().st_mtime_ns for name in listed(dist)}
    assert publish(wheel, replace(note, text=b"another host\n"), dist) == first
    assert {name: (dist / name).stat().st_mtime_ns for name in listed(dist)} == before


def test_other_bytes_of_the_same_name_are_not_overwritten_unasked(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheel, note = made(tmp_path / "one")
    first = publish(wheel, note, dist)
    other, other_note = made(tmp_path / "two", left_out=(HOPPER,))
    assert other.name == wheel.name
    before = {name: (dist / name).read_bytes() for name in listed(dist)}
    with pytest.raises(PackError, match="exists with other bytes"):
        publish(other, other_note, dist)
    assert {name: (dist / name).read_bytes() for name in listed(dist)} == before
    assert find_published(dist, other.name, Sha256.of_file(other)) is None

    second = publish(other, replace(other_note, text=b"{2}\n"), dist, replace=True)
    assert second.wheel.read_bytes() == other.read_bytes()
    assert second.manifest.read_bytes() == b"{2}\n"
    assert second.checksum.read_text().startswith(second.sha256.hex)
    assert first.exact.read_bytes() == wheel.read_bytes(), "by its digest the old one can still be had"
    assert find_published(dist, wheel.name, first.sha256) is None


def test_a_changed_copy_by_digest_is_noticed(tmp_path: Path) -> None:
    wheel, note = made(tmp_path)
    published = publish(wheel, note, tmp_path / "dist")
    published.wheel.unlink()
    published.exact.write_bytes(b"tampered")
    with pytest.raises(StorageError, match="found other content"):
        publish(wheel, note, tmp_path / "dist")
    assert not published.wheel.exists()


def test_without_hard_links_the_names_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    wheel, note = made(tmp_path)
    published = publish(wheel, note, tmp_path / "dist")
    assert not published.wheel.samefile(published.exact)
    assert published.wheel.read_bytes() == wheel.read_bytes()
    assert find_published(tmp_path / "dist", wheel.name, published.sha256) == published
    published.wheel.write_bytes(b"changed")
    assert find_published(tmp_path / "dist", wheel.name, published.sha256) is None


class _Killed(BaseException):
    """Stands for the end of the process between two calls of the operating system."""


def test_wherever_it_is_interrupted_no_wheel_lacks_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop before the first, second, ... change of a name or of what is on the disk, until one run gets through."""
    wheel, note = made(tmp_path)
    whole = listed(publish(wheel, note, tmp_path / "reference").wheel.parent)
    calls = ("link", "rename", "replace", "fsync", "mkdir")
    kept = {name: getattr(os, name) for name in calls}
    for step in range(200):
        dist = tmp_path / str(step)
        left = step

        def dying(name: str, *arguments: object, **keywords: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Killed
            return kept[name](*arguments, **keywords)

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, lambda *a, _name=name, **k: dying(_name, *a, **k))
            try:
                publish(wheel, note, dist)
            except _Killed:
                finished = False
            else:
                finished = True
        for found in dist.rglob("*.whl") if dist.exists() else ():
            assert found.with_name(found.name + ".manifest.json").is_file()
            assert found.with_name(found.name + ".sha256").is_file()
            assert found.read_bytes() == wheel.read_bytes()
        publish(wheel, note, dist)
        assert listed(dist) == whole
        if finished:
            assert step > 10
            return
    pytest.fail("the interruptions never ended")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is in the way") as caught:
        ensure_publishable(tmp_path / "file")
    assert caught.value.do

    def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / "dist"))

    ensure_publishable(tmp_path / "dist")
    assert list((tmp_path / "dist").iterdir()) == []
    wheel, note = made(tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    for attempt in (
        lambda: ensure_publishable(tmp_path / "dist"),
        lambda: publish(wheel, note, tmp_path / "dist"),
    ):
        with pytest.raises(StorageError, match=r"dist cannot be written: Read-only file system"):
            attempt()


def test_a_full_disk_leaves_no_name(tmp_path: Path) -> None:
    wheel, note = made(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wheel.stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(StorageError, match="could not be written"):
            publish(wheel, note, tmp_path / "dist")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert listed(tmp_path / "dist") == set()


def test_two_processes_may_publish_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, note = made(tmp_path)
    dist = tmp_path / "dist"
    fill = publishing._fill

    def beaten(folder: Path, *rest: object) -> None:
        monkeypatch.setattr(publishing, "_fill", fill)
        publish(wheel, note, dist)
        (folder.parent / "elsewhere").mkdir()
        moved = folder.rename(folder.parent / "elsewhere" / folder.name)
        real = os.rename

        def late(old: object, new: object, **_keywords: object) -> None:
            monkeypatch.setattr(os, "rename", real)
            moved.rename(folder)
            real(old, new)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "rename", late)
        fill(folder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(publishing, "_fill", beaten)
    assert publish(wheel, note, dist).wheel.read_bytes() == wheel.read_bytes()
