"""Which indexes are asked, and what is read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pins_world import HOST, SIMPLE, World, sdist, wheel
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from sm121 import index
from sm121.errors import DigestError, FetchError
from sm121.index import Settings

if TYPE_CHECKING:
    from pathlib import Path


def pip_file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_without_configuration_the_library_decides() -> None:
    assert Settings.discover({}, []).urls == (PYPI_SIMPLE_ENDPOINT,)


def test_uv_wins_over_pip_and_variables_over_files(tmp_path: Path) -> None:
    conf = pip_file(tmp_path / "pip.conf", "[global]\nindex-url = https://file.example/simple\n")
    assert Settings.discover({}, [conf]).urls == ("https://file.example/simple",)
    pip = {"PIP_INDEX_URL": "https://pip.example/simple"}
    assert Settings.discover(pip, [conf]).urls == ("https://pip.example/simple",)
    uv = {**pip, "UV_DEFAULT_INDEX": "site=https://uv.example/simple"}
    assert Settings.discover(uv, [conf]).urls == ("https://uv.example/simple",)


def test_later_files_win_and_only_web_addresses_are_asked(tmp_path: Path) -> None:
    first = pip_file(tmp_path / "a.conf", "[global]\nindex_url = https://a.example/simple\ncert = /etc/ca.pem\n")
    second = pip_file(
        tmp_path / "b.conf",
        "[global]\nindex-url = https://b.example/simple\n"
        "extra-index-url = file:///opt/simple https://c.example/simple\n",
    )
    found = Settings.discover({}, [first, second, tmp_path / "missing.conf"])
    assert found.urls == ("https://b.example/simple", "https://c.example/simple")
    assert found.certificates == "/etc/ca.pem"


def test_a_damaged_file_and_a_forbidden_index(tmp_path: Path) -> None:
    damaged = pip_file(tmp_path / "pip.conf", "index-url = no section\n")
    assert Settings.discover({}, [damaged]).urls == (PYPI_SIMPLE_ENDPOINT,)
    assert Settings.discover({"PIP_NO_INDEX": "1"}, []).urls == ()
    assert Settings.discover({"UV_NO_INDEX": "1"}, []).urls == ()


def test_pip_reads_no_files_when_told_so(tmp_path: Path) -> None:
    assert index.pip_files({"PIP_CONFIG_FILE": "/dev/null", "HOME": str(tmp_path)}) == []
    own = pip_file(tmp_path / "own.conf", "")
    files = index.pip_files({"PIP_CONFIG_FILE": str(own), "HOME": str(tmp_path)})
    assert files[-1] == own
    assert tmp_path / ".config/pip/pip.conf" not in files


def test_no_password_is_shown() -> None:
    assert (
        index.public("https://user:secret@host.example:8080/simple/?token=1")
        == "https://host.example:8080/simple/"
    )
    assert "secret" not in index.public_text("tried https://user:secret@host.example/simple: 403")


def test_files_come_in_order_of_versions(world: World) -> None:
    world.add(wheel("thing", "1.10"), wheel("thing", "1.9"), wheel("thing", "1.0rc1"))
    found = index.project_files("thing")
    assert [file.version for file in found] == ["1.0rc1", "1.9", "1.10"]
    assert found[0].size == len(world.projects["thing"]["thing-1.0rc1-py3-none-any.whl"])
    assert found[0].uploaded == "2026-11-01"


def test_a_file_or_project_that_is_not_there(world: World) -> None:
    world.add(wheel("thing", "1.0"))
    assert index.find("thing", "thing-1.0-py3-none-any.whl").url.startswith(HOST)
    with pytest.raises(FetchError, match=r"thing-2\.0\.whl is not among the 1 files"):
        index.find("thing", "thing-2.0.whl")
    with pytest.raises(FetchError, match="has no project nothing"):
        index.project_files("nothing")


def test_without_a_network_the_message_says_so(world: World) -> None:
    world.down = True
    with pytest.raises(FetchError, match=r"did not answer about thing: no connection"):
        index.project_files("thing")


def test_a_forbidden_index_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "settings", lambda: Settings(()))
    with pytest.raises(FetchError, match="forbids every package index"):
        index.project_files("thing")


def test_a_second_index_is_asked_when_the_first_has_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(wheel("thing", "1.0"))
    monkeypatch.setattr(index, "settings", lambda: Settings((f"{HOST}/empty/", SIMPLE)))
    assert [file.version for file in index.project_files("thing")] == ["1.0"]


@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_metadata_is_read_out_of_a_wheel(world: World, ranges: bool) -> None:
    world.ranges = ranges
    world.add(wheel("thing", "1.0", requires=["torch==2.14.0"], files={"thing/big.bin": "x" * 3_000_000}))
    file = index.find("thing", "thing-1.0-py3-none-any.whl")
    assert "Requires-Dist: torch==2.14.0" in index.metadata(file)
    assert index.member(file, "thing/big.bin")[:3] == b"xxx"
    with pytest.raises(FetchError, match="has no thing/missing"):
        index.member(file, "thing/missing")


def test_a_wheel_that_is_no_zip(world: World) -> None:
    world.add(("thing-1.0-py3-none-any.whl", b"not a zip" * 10))
    with pytest.raises(FetchError, match="could not be read"):
        index.metadata(index.find("thing", "thing-1.0-py3-none-any.whl"))


def test_texts_of_a_source_distribution(world: World) -> None:
    world.add(sdist("thing", "1.0", {"requirements/cuda.txt": "torch==2.14.0\n", "setup.py": "pass\n"}))
    file = index.find("thing", "thing-1.0.tar.gz")
    texts = index.sdist_texts(file, lambda path: path.startswith("requirements/"))
    assert texts == {"requirements/cuda.txt": "torch==2.14.0\n"}


def test_a_source_distribution_with_other_bytes(world: World) -> None:
    world.add(sdist("thing", "1.0", {"setup.py": "pass\n"}))
    world.wrong["thing-1.0.tar.gz"] = "0" * 64
    with pytest.raises(DigestError, match="announces sha256:0000"):
        index.sdist_texts(index.find("thing", "thing-1.0.tar.gz"), lambda _: True)


def test_a_truncated_source_distribution(world: World) -> None:
    name, data = sdist("thing", "1.0", {"setup.py": "pass\n" * 5000})
    world.add((name, data[: len(data) // 2]))
    with pytest.raises(FetchError, match="could not be read"):
        index.sdist_texts(index.find("thing", name), lambda _: True)
