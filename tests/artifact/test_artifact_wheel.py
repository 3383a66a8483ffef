"""What a wheel says about itself, and whether it is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from wheel_maker import FILES, NAME, RECORD, hashed, record_of, wheel

from sm121.artifact import Wheel, WheelName
from sm121.artifact.metadata import DirectUrl, Metadata, Stamp, WheelFile, read_entry_points
from sm121.artifact.record import read_record
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def faults(findings: Iterable[Finding]) -> list[str]:
    return [finding.message for finding in findings if finding.verdict is not Verdict.PASS]


def test_a_good_wheel_is_described(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path)) as opened:
        identity = opened.identify()
    assert faults(identity.problems) == []
    assert [finding.verdict for finding in identity.problems] == [Verdict.PASS]
    assert identity.name is not None
    assert (identity.name.project, identity.name.version, identity.name.build) == ("thing", "1.0", "")
    assert identity.name.tags == {"cp38-abi3-manylinux_2_28_aarch64"}
    dist = identity.distribution
    assert dist is not None
    assert (dist.name, dist.version, dist.site, dist.folder) == ("thing", "1.0", "", "thing-1.0.dist-info")
    assert (dist.metadata.requires_python, dist.metadata.license) == (">=3.11", "Apache-2.0")
    assert dist.metadata.requires == ("torch==2.14.0", 'numpy; extra == "more"')
    assert dist.metadata.extras == ("more",)
    assert dist.wheel == WheelFile("1.0", "maker (1)", purelib=False, tags=("cp38-abi3-linux_aarch64",))
    assert dist.entry_points == {"console_scripts": {"thing": "thing:main"}}
    (stamp,) = dist.stamps
    assert (stamp.path, stamp.version, stamp.commit) == ("thing/_version.py", "1.0", "gabc1234")
    assert stamp.values["cuda"] == "13.0"
    assert dist.check is not None
    assert (dist.check.rows, dist.check.matching, dist.check.true) == (7, 7, True)


def test_every_fault_of_record_is_found_at_once(tmp_path: Path) -> None:
    rows = [
        f"thing/__init__.py,{hashed(b'other')},0",
        f"thing/_version.py,{hashed(FILES['thing/_version.py'])},5",
        f"thing/gone.py,{hashed(b'')},0",
        "thing/_C.abi3.so,,",
        f"thing-1.0.dist-info/METADATA,{hashed(FILES['thing-1.0.dist-info/METADATA'])},",
        f"thing-1.0.dist-info/METADATA,{hashed(FILES['thing-1.0.dist-info/METADATA'])},",
        f"thing-1.0.dist-info/WHEEL,{hashed(FILES['thing-1.0.dist-info/WHEEL'], 'md5')},",
        "a,b,c,d",
        "thing/bad.py,sha256=,x",
        f"{RECORD},,",
    ]
    with Wheel(wheel(tmp_path, record="\r\n".join(rows).encode())) as opened:
        identity = opened.identify()
    assert identity.distribution is not None
    check = identity.distribution.check
    assert check is not None
    assert check.wrong == ("thing/__init__.py", "thing/_version.py")
    assert check.missing == ("thing/gone.py",)
    assert check.unhashed == ("thing/_C.abi3.so",)
    assert check.extra == ("thing-1.0.dist-info/entry_points.txt",)
    assert check.duplicate == ("thing-1.0.dist-info/METADATA",)
    assert check.unverified == ("thing-1.0.dist-info/WHEEL",)
    assert len(check.faults) == 2
    assert not check.true
    verdicts = {finding.verdict for finding in identity.problems if finding.check == "wheel.record"}
    assert verdicts == {Verdict.FAIL, Verdict.UNKNOWN}
    said = "\n".join(faults(identity.problems))
    for words in ("2 files differ from RECORD: thing/__init__.py, thing/_version.py", "line 8", "line 9"):
        assert words in said


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_stronger_hashes_are_verified_too(tmp_path: Path, algorithm: str) -> None:
    rows = [f"{path},{hashed(data, algorithm)},{len(data)}" for path, data in FILES.items()]
    with Wheel(wheel(tmp_path, record="\n".join([*rows, f"{RECORD},,"]).encode())) as opened:
        assert faults(opened.identify().problems) == []


@pytest.mark.parametrize(
    ("drop", "said"),
    [
        ("thing-1.0.dist-info/METADATA", "has no METADATA"),
        ("thing-1.0.dist-info/WHEEL", "has no WHEEL"),
    ],
)
def test_missing_documents_are_named(tmp_path: Path, drop: str, said: str) -> None:
    files = {path: data for path, data in FILES.items() if path != drop}
    with Wheel(wheel(tmp_path, files)) as opened:
        assert any(said in message for message in faults(opened.identify().problems))


def test_no_record_and_no_dist_info(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path, record=b"")) as opened:
        assert any("has no RECORD" in message for message in faults(opened.identify().problems))
    bare = {path: data for path, data in FILES.items() if "dist-info" not in path}
    with Wheel(wheel(tmp_path, bare, record=b"")) as opened:
        identity = opened.identify()
        assert identity.distribution is None
        assert any("has 0 .dist-info folders" in message for message in faults(identity.problems))


def test_two_dist_infos_are_no_identity(tmp_path: Path) -> None:
    files = {**FILES, "other-2.0.dist-info/METADATA": b"Name: other\nVersion: 2.0\n"}
    with Wheel(wheel(tmp_path, files)) as opened:
        identity = opened.identify()
    assert identity.distribution is None
    assert any("other-2.0.dist-info, thing-1.0.dist-info" in message for message in faults(identity.problems))


def test_a_wheel_that_is_not_named_as_one(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path, name="thing.whl")) as opened:
        identity = opened.identify()
    assert identity.name is None
    assert identity.distribution is not None
    assert any("no name of a wheel" in message for message in faults(identity.problems))


def test_file_names() -> None:
    name = WheelName.parse(
        "cc_torch-0.2+cu130torch29-1a-cp312.cp313-cp312-linux_aarch64.manylinux_2_28_aarch64.whl"
    )
    assert (name.project, name.version, name.build) == ("cc_torch", "0.2+cu130torch29", "1a")
    assert len(name.tags) == 4
    for wrong in (
        "x.zip",
        "a-1.whl",
        "a-b-c-d-e.whl",
        "a-1.0-py3-none-any-x-y.whl",
        "\x1b[31m-1-py3-none-any.whl",
    ):
        with pytest.raises(ArtifactError, match="no name of a wheel") as caught:
            WheelName.parse(wrong)
        assert str(caught.value).isprintable() or "\n" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (b"version = (", "SyntaxError"),
        (b"\x00", "no valid Python"),
        (b"(" * 5000, "no valid Python"),
        (b"x = " + b"-" * 50_000 + b"1", "no valid Python"),
        (b"# " + b"x" * (1 << 18), "at most"),
        (b"\xff\xfe", "no valid Python"),
    ],
)
def test_version_modules_are_never_run_and_never_crash(source: bytes, fault: str) -> None:
    stamp = Stamp.parse("x/_version.py", source)
    assert fault in stamp.fault
    assert stamp.version == ""


def test_metadata_of_any_kind() -> None:
    assert Metadata.parse(b"").faults == ("METADATA has no Name", "METADATA has no Version")
    twice = Metadata.parse(b"Name: a\nName: b\nVersion: 1\n")
    assert any("name" in fault for fault in twice.faults)
    assert WheelFile.parse(b"\xff\xfe\x00garbage").tags == ()
    with pytest.raises(ArtifactError, match="entry_points"):
        read_entry_points(b"no section\n")
    with pytest.raises(ArtifactError, match="entry_points"):
        read_entry_points(b"[a]\nx = 1\nx = 2\n")
    assert read_entry_points(b"[a]\nX = m:f\nx = m:g\n") == {"a": {"X": "m:f", "x": "m:g"}}


def test_direct_urls() -> None:
    old = DirectUrl.parse(b'{"url": "file:///a.whl", "archive_info": {"hash": "sha256=abc"}}')
    assert (old.url, old.hashes, old.editable) == ("file:///a.whl", {"sha256": "abc"}, False)
    assert DirectUrl.parse(b'{"url": "file:///a", "dir_info": {"editable": true}}').editable
    vcs = DirectUrl.parse(b'{"url": "https://x/y", "vcs_info": {"vcs": "git", "commit_id": "abc"}}')
    assert vcs.commit == "abc"
    for wrong in (b"", b"[]", b'{"url": 3}', b'{"archive_info": []}'):
        with pytest.raises(ArtifactError):
            DirectUrl.parse(wrong)


def test_records_of_any_kind() -> None:
    assert read_record(b"") == ((), ())
    assert read_record(b"\xff")[1][0].startswith("RECORD cannot be read")
    rows, found = read_record(b'"a,b.py",sha256=x,3\n"quoted ""name""",,\n\n')
    assert [row.path for row in rows] == ["a,b.py", 'quoted "name"']
    assert found == ()
    assert read_record(b"a," + b"x" * 200_000 + b",1")[1]
    assert len(read_record(record_of(FILES))[0]) == len(FILES) + 1


def test_what_a_wheel_holds_beside_its_record(tmp_path: Path) -> None:
    signed = {**FILES, "thing-1.0.dist-info/RECORD.jws": b"{}"}
    record = record_of(FILES)
    with Wheel(wheel(tmp_path, signed, record=record)) as opened:
        assert faults(opened.identify().problems) == []
    with Wheel(wheel(tmp_path, {**FILES, "evil.pth": b"import os"}, record=record)) as opened:
        assert any(
            "1 files are not in RECORD: evil.pth" in message for message in faults(opened.identify().problems)
        )


def test_names_are_found_as_members(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path)) as opened:
        assert opened.name == NAME
        member = opened.find("thing/_C.abi3.so")
        assert member is not None
        assert member.read() == FILES["thing/_C.abi3.so"]
        assert opened.find("thing") is None
