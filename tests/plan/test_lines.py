"""Every line in one table, from the pins."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121 import cli, pins
from sm121.errors import PlanError, UsageError
from sm121.lines_commands import lines_json, show_lines
from sm121.plan import lines
from sm121.plan.lines import LineView, line_views
from sm121.target import LoadsAs
from sm121.toolchain import examine
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden" / "lines.json"
PINS = pins.load(ROOT / "pins")
INSTALLED = {
    "/usr/local/cuda-12.9": CudaVersion(12, 9, 86),
    "/usr/local/cuda-11.8": CudaVersion(11, 8, 89),
    "/opt/cuda": None,
}


@cache
def _views(installed: tuple[tuple[str, CudaVersion | None], ...]) -> dict[str, LineView]:
    return {view.name: view for view in line_views(PINS, host="x86_64", installed=dict(installed))}


def views(installed: Mapping[str, CudaVersion | None] | None = None) -> dict[str, LineView]:
    return _views(tuple((installed or {}).items()))


def test_golden() -> None:
    """The table is data: any change of it shows here. SM121_GOLDEN=write makes the file anew."""
    text = json.dumps(lines_json([*views(installed=INSTALLED).values()], "0.33.0", "aarch64"), indent=1) + "\n"
    if os.environ.get("SM121_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_every_line_delivers_machine_code_for_12_1() -> None:
    for view in views().values():
        assert view.loads_as.machine_code, view.name
        assert not view.problems
        assert {group.loads_as for group in view.groups if group.shipped} <= {
            LoadsAs.NATIVE, LoadsAs.FAMILY, LoadsAs.SAME_MAJOR, LoadsAs.NO,
        }  # fmt: skip
    assert {name: str(view.loads_as) for name, view in views().items()} == {
        "cu130": "family", "cu135": "family", "cu129": "native", "cu128": "native",
    }  # fmt: skip


def test_what_a_line_lacks_is_named() -> None:
    for name, missing in (("cu130", ()), ("cu129", ("fused KDA decode", "fused GDN decode"))):
        (main,) = (each for each in views()[name].extensions if each.name == "_C_stable_libtorch")
        assert main.missing == missing
        assert sum(main.units.values()) == 80 - len(missing)


@pytest.mark.parametrize(
    ("installed", "possible"),
    [
        ({}, {"cu130": "wheels", "cu135": "wheels", "cu129": "", "cu128": ""}),
        (INSTALLED, {"cu130": "wheels", "cu135": "wheels", "cu129": "installed", "cu128": "installed"}),
        ({"/opt/cuda": CudaVersion(13, 0, 88)}, {"cu130": "wheels installed", "cu135": "wheels", "cu129": "", "cu128": ""}),
    ],
)  # fmt: skip
def test_ways_to_the_compiler(installed: dict[str, CudaVersion], possible: dict[str, str]) -> None:
    found = {
        name: " ".join(each.kind for each in view.toolchains if each.possible and each.kind != "image")
        for name, view in views(installed=installed).items()
    }
    assert found == possible
    assert all(view.toolchains[-1].kind == "image" for view in views(installed).values())


def test_flashinfers_modules_and_their_targets() -> None:
    for view in views().values():
        assert view.targets["flashinfer"] == ("sm_120f", "sm_121a")
        assert 0 < view.modules["serving"] < view.modules["all"]


def test_runtime_torch_and_driver() -> None:
    for name, major, torch, driver in (
        ("cu128", 12, "2.14.0+cu128", "580"),
        ("cu135", 13, "2.14.0+cu130", "580"),
    ):
        view = views()[name]
        assert f"libcudart.so.{major}" in view.runtime
        assert (view.torch, view.driver) == (torch, driver)
    assert views()["cu128"].runtime["libcudart.so.12"] == "nvidia-cuda-runtime-cu12 12.8.90"
    assert views()["cu135"].ptx_driver == "13.5"


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_table_names_every_line(width: int, verbose: bool) -> None:
    console = Console(width=width, record=True, highlight=False, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    show_lines([*views().values()], "0.33.0", "aarch64", console, verbose=verbose)
    text = "".join(console.export_text().split())
    for word in ("cu130", "cu135", "cu129", "cu128", "sm_120f", "580"):
        assert word in text
    assert ("notbuilt" in text) is verbose


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_word_of_the_table_is_broken(width: int) -> None:
    console = Console(width=width, record=True, highlight=False, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    show_lines([*views().values()], "0.33.0", "aarch64", console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for word in (
        "_moe_C_stable_libtorch",
        "nvidia-cuda-runtime-cu12",
        "libcudart.so.13:",
        "--torch-home",
        "2.14.0+cu128,",
    ):
        assert word in text
    assert ("cu129, cu128" in text) is (width < 160)  # said once of both, where the table does not fit


@pytest.fixture
def no_toolkits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "PLACES", ())
    monkeypatch.setattr("sm121.lines_commands.installed_toolkits", list)


@pytest.mark.usefixtures("no_toolkits")
def test_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.run(["lines"]) == 0
    assert "cu128" in capsys.readouterr().out
    assert cli.run(["lines", "--line", "cu129", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in told["lines"]] == ["cu129"]
    assert cli.run(["lines", "--json", str(tmp_path / "lines.json")]) == 0
    assert len(json.loads((tmp_path / "lines.json").read_text())["lines"]) == len(PINS.lines)
    assert cli.run(["lines", "--line", "cu12"]) == UsageError.exit_code
    assert cli.run(["lines", "--line", ""]) == UsageError.exit_code
    assert cli.run(["lines", "--vllm", "0.1"]) == UsageError.exit_code


@pytest.mark.usefixtures("no_toolkits")
def test_a_line_whose_list_cannot_be_built_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(ROOT / "pins", tmp_path / "pins"))
    text = (folder / "lines.toml").read_text()
    (folder / "lines.toml").write_text(text.replace('vllm-archs = ["12.1a"]', 'vllm-archs = ["12.0a"]'))
    assert cli.run(["lines", "--pins", str(folder)]) == PlanError.exit_code
    out = capsys.readouterr().out
    assert "cu129: TORCH_CUDA_ARCH_LIST=12.0a" in out
    assert "does not load on 12.1" in out


def test_a_target_that_is_lost_is_no_pass() -> None:
    assert lines._best(["sm_120a"]) is LoadsAs.NO
    assert lines._best(["sm_120a", "sm_120f"]) is LoadsAs.FAMILY
    assert lines._worst([]) is LoadsAs.NO
    assert ArchSpec.from_sm("sm_120f").sm == "sm_120f"


def test_buildable_lines_need_nothing_brought() -> None:
    views = line_views(PINS, host="x86_64", installed={})
    assert [view.name for view in views if view.unaided] == ["cu130", "cu135"]
