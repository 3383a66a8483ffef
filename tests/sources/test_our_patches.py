"""Our patches against the real sources that they are for: they apply, they are needed, and what they change.

Sources are fetched by hash and read with `ast`; nothing of vLLM is imported.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sm121 import pins
from sm121.arch_lists import effective
from sm121.progress import Progress
from sm121.sources.fetch import fetch
from sm121.sources.patches import State, apply, judge
from sm121.sources.series import load_patches, load_series
from sm121.sources.unpack import unpack
from sm121.values import CudaVersion, Sha256

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.network

ROOT = Path(__file__).parents[2]
B12X = "0001-Consider-B12X-for-NVFP4-MoE-on-SM12x"
ARCH = "0001-Support-12.1-as-a-CUDA-architecture-from-CUDA-13-on"
ORACLE = "vllm/model_executor/layers/fused_moe/oracle/nvfp4.py"
EXPERTS = "vllm/model_executor/layers/fused_moe/b12x.py"
LINEAR = "vllm/model_executor/kernels/linear/__init__.py"
CMAKE = ("CMakeLists.txt", "cmake/utils.cmake")
NATIVE = ("FlashInferCutlassNvFp4LinearKernel", "CutlassNvFp4LinearKernel")


@dataclass(frozen=True)
class Sdist:
    version: str
    size: int
    sha256: Sha256
    name: str = "vllm"

    @property
    def filename(self) -> str:
        return f"vllm-{self.version}.tar.gz"


# Releases that the ranges cover and no build uses, as the package index lists them (2026-11-29).
LISTED = {
    "0.27.1": (39257426, "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646"),
    "0.28.0": (39991441, "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a"),
    "0.29.0": (40906181, "c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97"),
    "0.30.0": (42432229, "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b"),
    "0.31.0": (43419411, "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380"),
    "0.32.0": (44549956, "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"),
}
SDISTS = {version: Sdist(version, size, Sha256(digest)) for version, (size, digest) in LISTED.items()} | {
    release.version: Sdist(release.version, release.sdist.size, release.sdist.sha256)
    for release in pins.load(ROOT / "pins").releases
}
WITH_B12X = [version for version in sorted(SDISTS) if any(
    patch.name.startswith(B12X) for series in load_series(ROOT / "patches", "vllm", version) for patch in series.patches
)]  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """Lays out the few files of a version that the patches are about."""
    store = tmp_path_factory.mktemp("files")
    wanted = {ORACLE, EXPERTS, LINEAR, *CMAKE}
    trees: dict[str, Path] = {}

    def lay_out(version: str, into: Path) -> Path:
        if version not in trees:
            sdist = SDISTS[version]
            path = fetch([sdist], store, progress=Progress(Console(file=io.StringIO())))[sdist.filename]
            trees[version] = store / version
            unpack(path, trees[version], strip=1, members=lambda name: name.partition("/")[2] in wanted)
        shutil.copytree(trees[version], into)
        return into

    return lay_out


class Platform:
    """What the patched expression may ask of vLLM's platform."""

    def __init__(self, kind: str, family: int) -> None:
        self._kind, self._family = kind, family

    def is_cuda(self) -> bool:
        return self._kind == "cuda"

    def is_device_capability_family(self, capability: int) -> bool:
        return self._family == capability // 10


class Names:
    """Every attribute is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


def auto_list(source: str, platform: Platform) -> list[str]:
    """The backends that `--moe-backend auto` asks, in order, before anything filters them."""
    function = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "select_nvfp4_moe_backend"
    )
    literal = next(
        node.value
        for node in function.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.List)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "AVAILABLE_BACKENDS"
    )
    names = {"__builtins__": {}, "NvFp4MoeBackend": Names(), "current_platform": platform}
    found: list[str] = eval(compile(ast.Expression(literal), "list", "eval"), names)
    return found


@pytest.mark.parametrize("version", sorted(SDISTS))
def test_they_apply(version: str, place: Callable[[str, Path], Path], tmp_path: Path) -> None:
    tree = place(version, tmp_path / "tree")
    names = [patch.name for series in load_series(ROOT / "patches", "vllm", version) for patch in series.patches]
    assert names, version
    judged = judge(load_patches(ROOT / "patches", "vllm", version, names), tree)
    assert {one.state for one in judged} <= {State.APPLIES, State.OFFSET}
    if version in {release.version for release in pins.load(ROOT / "pins").releases}:
        assert {one.state for one in judged} == {State.APPLIES}, "made on a pinned version"


@pytest.mark.parametrize("version", WITH_B12X)
def test_b12x_is_asked_before_marlin_on_sm12x_alone(
    version: str, place: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    tree = place(version, tmp_path / "tree")
    gb10, hopper, rdna4 = Platform("cuda", 12), Platform("cuda", 9), Platform("rocm", 12)
    before = auto_list((tree / ORACLE).read_text(), gb10)
    assert "B12X" not in before, "upstream has it: end the range of the patch"
    apply(load_patches(ROOT / "patches", "vllm", version), tree)
    source = (tree / ORACLE).read_text()

    after = auto_list(source, gb10)
    assert after[after.index("B12X") + 1] == "MARLIN"
    assert [name for name in after if name != "B12X"] == before
    assert auto_list(source, hopper) == auto_list(source, rdna4) == before
    assert "FLASHINFER_B12X" not in after

    module = ast.parse(source)
    imported = [
        alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module == "vllm.platforms"
        for alias in node.names
    ]
    assert imported == ["current_platform"]
    assert "is_device_capability_family(120)" in (tree / EXPERTS).read_text(), "B12X's own check"


def configured(tree: Path, cuda: str, arch_list: str) -> list[str]:
    """What upstream's CMake makes of a list: for most sources, and for those that need a suffix."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake on this machine")
    text = (tree / "CMakeLists.txt").read_text()
    block = re.search(
        r"^if\(DEFINED CMAKE_CUDA_COMPILER_VERSION AND.*?^endif\(\)", text, re.MULTILINE | re.DOTALL
    )
    assert block, "CMakeLists.txt has another shape"
    script = tree / "script.cmake"
    script.write_text(
        f'cmake_minimum_required(VERSION 3.20)\ninclude("{tree}/cmake/utils.cmake")\n'
        f"set(CMAKE_CUDA_COMPILER_VERSION {cuda})\n{block[0]}\n"
        f'cuda_archs_loose_intersection(MOST "${{CUDA_SUPPORTED_ARCHS}}" "{arch_list}")\n'
        'cuda_archs_loose_intersection(GATED "12.0f" "${MOST}")\nmessage("${MOST} ${GATED}")\n'
    )
    done = subprocess.run([cmake, "-P", script], capture_output=True, text=True, check=True)
    return done.stderr.split()


@pytest.mark.parametrize("version", sorted(SDISTS))
def test_12_1a_is_honoured_when_asked_for(
    version: str, place: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    tree = place(version, tmp_path / "tree")
    assert configured(tree, "13.0.88", "12.1a") == ["12.0", "12.0f"]
    apply(load_patches(ROOT / "patches", "vllm", version), tree)
    assert configured(tree, "13.0.88", "12.1a") == ["12.0", "12.0f"], "off unless named"
    apply(load_patches(ROOT / "patches", "vllm", version, [ARCH]), tree)
    for cuda in ("13.0.88", "13.4.92"):
        assert configured(tree, cuda, "12.1a") == ["12.1a", "12.1a"]
        assert configured(tree, cuda, "12.1f") == ["12.1f", "12.1f"]
        assert configured(tree, cuda, "12.0f") == ["12.0f", "12.0f"], "a family list stays one"
        for arch_list in ("12.1a", "12.1f", "12.0f"):
            # Upstream's own function, and the rules by which plans promise.
            planned = effective("vllm", version, CudaVersion.parse(cuda), arch_list, [f"{ARCH}.patch"])
            ours = [" ".join(map(str, archs)) for archs in (planned.generic, planned.gated)]
            assert ours == configured(tree, cuda, arch_list)


@pytest.mark.parametrize("version", sorted(SDISTS))
def test_no_release_prefers_a_weight_only_kernel(
    version: str, place: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    """vllm#53014 put one second in the list and #55170 took it back: both between two releases, so no patch."""
    module = ast.parse((place(version, tmp_path / "tree") / LINEAR).read_text())
    table = next(
        node.value
        for node in module.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "_POSSIBLE_NVFP4_KERNELS"
    )
    assert isinstance(table, ast.Dict)
    kernels = next(
        [ast.unparse(kernel) for kernel in value.elts]
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Attribute) and key.attr == "CUDA" and isinstance(value, ast.List)
    )
    last_native = max(kernels.index(name) for name in NATIVE)
    weight_only = [name for name in kernels if "W4A16" in name or "Marlin" in name]
    assert weight_only
    assert all(kernels.index(name) > last_native for name in weight_only)
