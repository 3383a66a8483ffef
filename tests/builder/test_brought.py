"""What only the user can bring: asked for before anything is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from sm121 import build_commands, cli, pins, preflight
from sm121.errors import ArtifactError, PreflightError, ToolchainError, UsageError
from sm121.local import local_torch
from sm121.plan.model import Host, Local, Request
from sm121.plan.vllm import plan_vllm
from sm121.resources import GIB, Machine
from sm121.toolchain.examine import InstalledAt
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from sm121.plan.model import Plan

PINS = pins.load(Path(__file__).resolve().parents[2] / "pins")
MACHINE = Machine(cpus=2, memory_total=24 * GIB, memory_available=20 * GIB)
HOST = Host(cpu="x86_64", machine=MACHINE, python="3.11.7", compiler="aarch64-linux-gnu-g++ 12.2.0")
TORCH = Local("/venv/torch", "2.14.0+cu129", "0" * 64, "12.9", "aarch64")


def plan(line: str, cuda_home: str | None = None, torch: Local | None = None) -> Plan:
    return plan_vllm(Request(line=line, cuda_home=cuda_home, torch_home=torch), PINS, HOST)


@pytest.fixture
def toolkits(monkeypatch: pytest.MonkeyPatch) -> list[InstalledAt]:
    """The toolkits of the machine; a test adds to them."""
    found: list[InstalledAt] = []
    monkeypatch.setattr(preflight, "installed_toolkits", lambda: found)
    return found


def test_a_line_of_wheels_asks_for_nothing(toolkits: list[InstalledAt]) -> None:
    preflight.ensure_brought([plan("cu130"), plan("cu135")])


@pytest.mark.parametrize("line", ["cu129", "cu128"])
def test_all_that_is_missing_comes_at_once_with_the_way_to_get_it(line: str, toolkits: list[InstalledAt]) -> None:
    with pytest.raises(PreflightError) as caught:
        preflight.ensure_brought([plan(line)])
    assert len(caught.value.problems) == 2
    for word in (f"line {line}", "CUDA 12.9 toolkit", f"torch 2.14.0+{line}"):
        assert word in " ".join(caught.value.problems)
    for word in ("cuda-toolkit-12-9", "--cuda-home DIR", "--cuda-image", "--torch-home DIR", "sm121 lines"):
        assert word in caught.value.do


def test_a_toolkit_that_is_here_is_offered_but_never_taken(toolkits: list[InstalledAt]) -> None:
    toolkits += [
        InstalledAt(Path("/usr/local/cuda-13.0"), CudaVersion(13, 0, 88)),
        InstalledAt(Path("/usr/local/cuda-12.9"), CudaVersion(12, 9, 86)),
    ]
    with pytest.raises(PreflightError) as caught:
        preflight.ensure_brought([plan("cu129", torch=TORCH)])
    assert "give --cuda-home /usr/local/cuda-12.9" in caught.value.do
    assert "cuda-toolkit-12-9" not in caught.value.do


def test_toolkits_of_other_releases_are_named(toolkits: list[InstalledAt]) -> None:
    toolkits += [
        InstalledAt(Path("/usr/local/cuda-12.8"), CudaVersion(12, 8, 93)),
        InstalledAt(Path("/opt/cuda"), None),
    ]
    with pytest.raises(PreflightError) as caught:
        preflight.ensure_brought([plan("cu128", torch=TORCH)])
    assert "/usr/local/cuda-12.8 (12.8.93), /opt/cuda (of unknown release)" in " ".join(caught.value.problems)


@pytest.mark.parametrize(
    ("line", "release", "headers", "fits"),
    [
        ("cu129", "12.9.86", "12090", True),
        ("cu128", "12.9.86", "12090", True),
        ("cu128", "12.8.93", "12080", False),
        ("cu129", "13.0.88", "13000", False),
        ("cu130", "12.9.86", "12090", False),
        ("cu130", "13.0.88", "13000", True),
        ("cu130", "13.0.88", "12090", False),
        ("cu135", "13.0.88", "13000", False),
        ("cu135", "13.5.37", "13050", True),
    ],
)
@pytest.mark.programs
def test_a_toolkit_of_another_release_is_refused_for_every_line(
    tmp_path: Path, line: str, release: str, headers: str, fits: bool
) -> None:
    home = tmp_path / "cuda"
    for name in ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc", "targets/sbsa-linux/lib/libcudart.so"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"#!/bin/sh\necho V{release}\n")
        (home / name).chmod(0o755)
    (home / "targets" / "sbsa-linux" / "include").mkdir()
    (home / "targets" / "sbsa-linux" / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {headers}\n")
    made = plan(line, str(home), TORCH if line in {"cu128", "cu129"} else None)
    if fits:
        preflight.ensure_brought([made])
        return
    with pytest.raises(ToolchainError) as caught:
        preflight.ensure_brought([made])
    assert made.compiler in str(caught.value)
    assert "--cuda-home DIR" in caught.value.do


@pytest.mark.parametrize("line", ["cu129", "cu128", "cu130"])
def test_an_image_takes_the_toolkits_place_if_it_is_named_by_digest(
    line: str, toolkits: list[InstalledAt]
) -> None:
    digest = f"docker://docker.io/nvidia/cuda@sha256:{'a' * 64}"
    torch = TORCH if line != "cu130" else None
    for image in (digest, "docker://docker.io/nvidia/cuda:12.9.1-devel"):
        made = plan_vllm(Request(line=line, cuda_image=image, torch_home=torch), PINS, HOST)
        assert made.toolchain == f"out of {image}"
        assert made.step("toolkit").inputs["parts"] == image
        assert not any(download.role.startswith("toolkit") for download in made.downloads)
        if image == digest:
            preflight.ensure_brought([made])
        else:
            with pytest.raises(UsageError, match="by digest"):
                preflight.ensure_brought([made])


def _never(*_arguments: object, **_keywords: object) -> NoReturn:
    raise AssertionError("something was fetched, installed or asked for before the toolkit was")


@pytest.mark.programs
@pytest.mark.parametrize("line", ["cu129", "cu128"])
def test_the_session_stops_before_any_fetch(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("require_reachable", "ensure_packages", "ensure_disk", "Build"):
        monkeypatch.setattr(build_commands, name, _never)
    arguments = ["build", "--line", line, "--work", str(tmp_path / "work"), "--dist", str(tmp_path / "dist")]
    assert cli.run(arguments) == PreflightError.exit_code
    assert "CUDA 12.9 toolkit" in capsys.readouterr().err
    assert cli.run([*arguments, "--cuda-home", str(tmp_path / "nothing"), "--dry-run"]) == 0
    capsys.readouterr()
    assert list(tmp_path.iterdir()) == []


def torch_folder(folder: Path, text: str) -> Path:
    for name in ("include", "lib", "share/cmake/Torch"):
        (folder / name).mkdir(parents=True)
    (folder / "version.py").write_text(text)
    return folder


def test_a_torch_tells_its_cuda_release(tmp_path: Path) -> None:
    text = "from typing import Optional\n__version__ = '2.14.0+cu129'\ncuda: Optional[str] = '12.9'\nhip = None\n"
    found = local_torch(torch_folder(tmp_path / "torch", text))
    assert (found.version, found.cuda, found.cpu) == ("2.14.0+cu129", "12.9", "")
    fixture = Path(__file__).resolve().parents[1] / "device" / "fixtures" / "host_aarch64.so"
    (tmp_path / "torch" / "lib" / "libc10.so").write_bytes(fixture.read_bytes())
    assert local_torch(tmp_path / "torch").cpu == "aarch64"


@pytest.mark.parametrize("text", ["", "__version__ = f()\n", "cuda = None\n"])
def test_a_torch_that_tells_nothing_is_unknown(tmp_path: Path, text: str) -> None:
    found = local_torch(torch_folder(tmp_path / "torch", text))
    assert (found.version, found.cuda) == ("unknown", "")


def test_a_torch_whose_version_is_no_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no Python"):
        local_torch(torch_folder(tmp_path / "torch", "__version__ = ("))
