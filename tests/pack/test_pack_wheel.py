from __future__ import annotations

import csv
import json
import os
import resource
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

import jsonschema
import pytest
from made_wheels import (
    FILENAME,
    HOPPER,
    INFO,
    MADE_WITH,
    MAIN,
    METADATA,
    MOE,
    NEW_INFO,
    NEWER_SO,
    PLAIN_SO,
    RUST,
    STAMP,
    TAG,
    members,
    write_wheel,
)
from packaging.utils import parse_wheel_filename

from sm121.errors import PackError, Sm121Error, StorageError, UnpackError
from sm121.pack.ledger import Origin
from sm121.pack.wheel import Assembled, assemble
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

NAME = "vllm-0.33.0+cu130.sm121-cp38-abi3-manylinux_2_28_aarch64.whl"


def make(
    folder: Path,
    *,
    official: Path | None = None,
    replaced: Mapping[str, bytes] | None = None,
    left_out: Collection[str] = (HOPPER,),
    added: Mapping[str, bytes] | None = None,
    epoch: int = 0,
    into: str = "out",
) -> Assembled:
    folder.mkdir(exist_ok=True)
    if official is None:
        official = write_wheel(folder / FILENAME)
    libraries = {}
    for number, (name, data) in enumerate(({MAIN: NEWER_SO} if replaced is None else replaced).items()):
        libraries[name] = folder / f"ours{number}.so"
        libraries[name].write_bytes(data)
    return assemble(
        official, libraries, left_out, added or {}, STAMP, TAG, folder / into, made_with=MADE_WITH, epoch=epoch
    )


def test_the_wheel_holds_ours_the_official_rest_and_nothing_left_out(tmp_path: Path) -> None:
    made = make(tmp_path, added={"vllm/NOTICE.sm121": b"ours\n"})
    with zipfile.ZipFile(made.path) as archive:
        assert archive.testzip() is None
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found[MAIN] == NEWER_SO
    assert found["vllm/NOTICE.sm121"] == b"ours\n"
    expected = {
        name.replace("vllm-0.33.0.", "vllm-0.33.0+cu130.sm121."): data
        for name, data in members().items()
        if name not in {MAIN, HOPPER, "vllm/_version.py", f"{INFO}/METADATA", f"{INFO}/WHEEL"}
    }
    assert {name: found[name] for name in expected} == expected
    assert set(found) - set(expected) == {
        MAIN, "vllm/NOTICE.sm121", "vllm/_version.py", f"{NEW_INFO}/METADATA", f"{NEW_INFO}/WHEEL",
        f"{NEW_INFO}/RECORD", f"{NEW_INFO}/sm121.json",
    }  # fmt: skip


def test_all_that_names_the_version_agrees(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert made.filename == NAME
    name, version, _, tags = parse_wheel_filename(made.filename)
    with zipfile.ZipFile(made.path) as archive:
        metadata = archive.read(f"{NEW_INFO}/METADATA").decode()
        wheel = archive.read(f"{NEW_INFO}/WHEEL").decode()
        module = archive.read("vllm/_version.py").decode()
    assert (name, str(version)) == ("vllm", "0.33.0+cu130.sm121")
    assert metadata == METADATA.replace("Version: 0.33.0\nReq", "Version: 0.33.0+cu130.sm121\nReq")
    assert [line for line in wheel.splitlines() if line.startswith("Tag:")] == [f"Tag: {tag}" for tag in tags]
    assert "Generator: sm121 (" in wheel
    scope: dict[str, object] = {}
    exec(module, scope)  # the module that vLLM imports
    assert scope["version"] == scope["__version__"] == str(version)
    assert scope["version_tuple"] == scope["__version_tuple__"] == (0, 33, 0, "cu130.sm121")
    assert scope["commit_id"] == "g4ba787ec9"


def test_record_covers_every_member_sorted(tmp_path: Path) -> None:
    made = make(tmp_path)
    with zipfile.ZipFile(made.path) as archive:
        rows = list(csv.reader(archive.read(f"{NEW_INFO}/RECORD").decode().splitlines()))
        for path, digest, size in rows[:-1]:
            data = archive.read(path)
            assert digest == "sha256=" + urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
            assert int(size) == len(data)
        names = archive.namelist()
    assert rows[-1] == [f"{NEW_INFO}/RECORD", "", ""]
    assert sorted(names) == sorted(row[0] for row in rows)
    assert [row[0] for row in rows[:-1]] == sorted(row[0] for row in rows[:-1])
    assert names[-1] == f"{NEW_INFO}/RECORD"
    inside = [name.startswith(NEW_INFO) for name in names]
    assert inside == sorted(inside), "the dist-info stands at the end"
    assert {member.path: member.size for member in made.members}.keys() == set(names)


def test_equal_inputs_give_equal_bytes_anywhere(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one"), make(tmp_path / "an other folder", into="some where")
    assert one.sha256 == other.sha256 == Sha256.of_file(one.path) == Sha256.of_file(other.path)
    assert one.size == one.path.stat().st_size
    later = make(tmp_path / "later", epoch=1_700_000_000)
    assert later.sha256 != one.sha256


def test_one_time_and_fixed_permissions(tmp_path: Path) -> None:
    for epoch, date in ((0, (1980, 1, 1, 0, 0, 0)), (1_700_000_001, (2023, 11, 14, 22, 13, 20))):
        with zipfile.ZipFile(make(tmp_path / str(epoch), epoch=epoch).path) as archive:
            assert {info.date_time for info in archive.infolist()} == {date}
            modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
        assert {name for name, mode in modes.items() if mode == 0o100755} == {
            MAIN, MOE, RUST, "vllm-0.33.0+cu130.sm121.data/scripts/run",
        }  # fmt: skip
        assert set(modes.values()) == {0o100755, 0o100644}


def test_members_that_do_not_change_keep_their_compressed_bytes(tmp_path: Path) -> None:
    content = members()
    official = tmp_path / FILENAME
    write_wheel(official, content)
    made = make(tmp_path, official=official)
    with zipfile.ZipFile(official) as before, zipfile.ZipFile(made.path) as after:
        for name in (MOE, RUST, "vllm/empty.py", 'vllm/configs/E=8,N="2".json'):
            assert after.getinfo(name).compress_size == before.getinfo(name).compress_size
            assert after.getinfo(name).compress_type == before.getinfo(name).compress_type


def test_the_ledger_tells_the_origin_of_every_library(tmp_path: Path) -> None:
    made = make(tmp_path)
    with zipfile.ZipFile(made.path) as archive:
        ledger = json.loads(archive.read(f"{NEW_INFO}/sm121.json"))
    schema = json.loads(resources.files("sm121.pack").joinpath("ledger.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(ledger)
    origins = {library["path"]: library["origin"] for library in ledger["libraries"]}
    assert origins == {MAIN: "source", MOE: "official", HOPPER: "left-out", RUST: "official"}
    digests = {library["path"]: library["sha256"] for library in ledger["libraries"]}
    assert digests[MAIN] == sha256(NEWER_SO).hexdigest()
    assert digests[HOPPER] == sha256(members()[HOPPER]).hexdigest()
    assert ledger["official"] == {"filename": FILENAME, "sha256": Sha256.of_file(tmp_path / FILENAME).hex}
    assert ledger["platform_tag"]["decided_by"] == [{"path": RUST, "symbols": ["GLIBC_2.28"]}]
    assert ledger["patches"][0]["name"] == "0001-thing.patch"
    assert ledger["source_tree"] == Sha256.of_bytes(b"tree").hex
    assert {library.path: library.origin for library in made.libraries}[HOPPER] is Origin.LEFT_OUT


def test_a_finished_library_is_called_so(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME)
    ours = tmp_path / "fa.so"
    ours.write_bytes(NEWER_SO)
    made = assemble(
        official, {HOPPER: ours}, (), {}, STAMP, TAG, tmp_path, made_with=MADE_WITH, finished={HOPPER}
    )
    assert {each.path: each.origin for each in made.libraries}[HOPPER] is Origin.FINISHED


def test_every_fault_of_a_request_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / "vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl")
    ours = tmp_path / "ours.so"
    ours.write_bytes((tmp_path / official.name).read_bytes()[:64])
    with pytest.raises(PackError) as raised:
        assemble(
            official,
            {MAIN: ours, "vllm/_moe_D.abi3.so": ours, HOPPER: tmp_path / "absent.so"},
            {MAIN, "vllm/__init__.py"},
            {"vllm/empty.py": b"", f"{NEW_INFO}/RECORD": b"", "vllm.libs/libcudart-1a2b3c4d.so.13": b""},
            STAMP, TAG, tmp_path / "out", made_with=MADE_WITH, finished={RUST},
        )  # fmt: skip
    told = str(raised.value)
    for part in (
        f"{MAIN} is both replaced and left out", f"is {MOE} meant?", "vllm/__init__.py was to be left out",
        "vllm/empty.py was to be added", f"{NEW_INFO}/RECORD was to be added", "libcudart", f"{RUST} is called finished",
        "absent.so", "ours.so, to replace", "aarch64",
    ):  # fmt: skip
        assert part in told
    assert not (tmp_path / "out").exists()


def test_a_library_for_another_cpu_is_refused(tmp_path: Path) -> None:
    foreign = PLAIN_SO[:18] + (62).to_bytes(2, "little") + PLAIN_SO[20:]
    with pytest.raises(PackError, match="should be a library for aarch64, found x86_64"):
        make(tmp_path, replaced={MAIN: foreign})


@pytest.mark.parametrize(
    ("filename", "wanted"),
    [
        ("vllm-0.32.0-cp38-abi3-manylinux_2_28_aarch64.whl", "one folder vllm-0.32.0.dist-info"),
        ("vllm-0.33.0-1-cp38-abi3-manylinux_2_28_aarch64.whl", "build number"),
        ("vllm.whl", "no wheel's file name"),
    ],
)
def test_an_official_wheel_under_a_wrong_name_is_refused(tmp_path: Path, filename: str, wanted: str) -> None:
    with pytest.raises(PackError, match=wanted):
        make(tmp_path, official=write_wheel(tmp_path / filename))


def test_another_version_than_the_stamp_is_refused(tmp_path: Path) -> None:
    content = {name.replace("0.33.0", "0.26.0"): data for name, data in members().items()}
    official = write_wheel(tmp_path / FILENAME.replace("0.33.0", "0.26.0"), content)
    with pytest.raises(PackError, match=r"the official wheel of vllm 0.33.0 was wanted, found vllm-0.26.0"):
        make(tmp_path, official=official)


def test_a_member_that_contradicts_the_official_record_is_refused(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME, record={MOE: "sha256=" + "A" * 43 + ",1"})
    with pytest.raises(PackError, match=f"{MOE} is sha256:.*its RECORD says"):
        make(tmp_path, official=official)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_official_wheel_is_refused(tmp_path: Path, keep: float) -> None:
    official = write_wheel(tmp_path / FILENAME)
    data = official.read_bytes()
    official.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(UnpackError, match="damaged"):
        make(tmp_path, official=official)


def test_no_flipped_byte_gets_through(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME)
    data = official.read_bytes()
    good = make(tmp_path, official=official).sha256
    for place in range(0, len(data), 97):
        official.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            made = make(tmp_path, official=official)
        except Sm121Error:
            continue
        with zipfile.ZipFile(made.path) as archive:  # a byte that means nothing: a time stamp, an unused field
            ledger = json.loads(archive.read(f"{NEW_INFO}/sm121.json"))
            assert archive.testzip() is None
            assert {name for name in archive.namelist() if name.endswith(".so")} == {MAIN, MOE}
        assert ledger["official"]["sha256"] == Sha256.of_file(official).hex
    official.write_bytes(data)
    assert make(tmp_path, official=official).sha256 == good


def test_unsafe_members_are_refused(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME, {**members(), "../outside.py": b""})
    with pytest.raises(UnpackError, match=r"\.\./outside\.py"):
        make(tmp_path, official=official)


def test_a_disk_that_takes_no_more_leaves_nothing_behind(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME, {**members(), "vllm/large.bin": os.urandom(300_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="could not be written"):
            make(tmp_path, official=official)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "out").iterdir()) == []
