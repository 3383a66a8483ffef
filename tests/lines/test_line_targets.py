"""What the assemblers of the pinned CUDA releases accept and refuse, of the targets that the lines plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinned_wheels import PINS, TOOLKITS, ptxas_of
from sm121 import process
from sm121.arch_lists import effective
from sm121.device import read_cubin
from sm121.resources.toolkit import releases, supports
from sm121.values import ArchSpec, CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.network

PLAIN = """.version 7.8
.target {oldest}
.address_size 64
.visible .entry probe() {{ ret; }}
"""
OLDEST = {"12.8": "sm_50", "12.9": "sm_50", "13.0": "sm_75", "13.5": "sm_75"}
"""PTX for this chip can be assembled for every chip that the release knows."""
FP4 = """.version {isa}
.target {sm}
.address_size 64
.visible .entry probe(.param .u64 out)
{{
  .reg .f32 a; .reg .b8 pair; .reg .b16 wide; .reg .b64 to;
  mov.f32 a, 0f3F800000;
  cvt.rn.satfinite.e2m1x2.f32 pair, a, a;
  cvt.u16.u8 wide, pair;
  ld.param.u64 to, [out];
  st.global.u16 [to], wide;
  ret;
}}
"""
ISA = {"12.8": "8.7", "12.9": "8.8", "13.0": "9.0", "13.5": "9.5"}


@pytest.fixture(scope="module", params=sorted(TOOLKITS))
def release(request: pytest.FixtureRequest) -> str:
    word: str = request.param
    return word


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ptxas of every pinned release."""
    return {release: ptxas_of(release, tmp_path_factory.mktemp(f"ptxas-{release}")) for release in TOOLKITS}


def assembled(ptxas: Path, text: str, target: str, folder: Path) -> tuple[bool, str]:
    (folder / "probe.ptx").write_text(text)
    (folder / "probe.cubin").unlink(missing_ok=True)
    done = process.run(
        [ptxas, "--gpu-name", target, "probe.ptx", "-o", "probe.cubin"], cwd=folder, check=False, timeout=60
    )
    return done.returncode == 0 and (folder / "probe.cubin").exists(), done.stdout + done.stderr


def plain(release: str) -> str:
    return PLAIN.format(oldest=OLDEST[release])


def refused(said: str, target: str) -> bool:
    return f"Value '{target}' is not defined for option 'gpu-name'" in said


def test_every_target_is_accepted_or_refused_as_the_data_says(
    release: str, programs: dict[str, Path], tmp_path: Path
) -> None:
    targets = sorted(
        {target for row in releases() for target in row.targets} | {ArchSpec(15, 0), ArchSpec(12, 9, "a")}
    )
    cuda = CudaVersion.parse(release)
    wrong = []
    for target in targets:
        accepted, said = assembled(programs[release], plain(release), target.sm, tmp_path)
        expected = supports(cuda, target)
        if accepted is not (expected is True) or not (accepted or refused(said, target.sm)):
            wrong.append(f"{target.sm}: {'accepted' if accepted else said.strip()}, expected {expected}")
    assert len(targets) > 30
    assert not wrong


@pytest.mark.parametrize("version", [release.version for release in PINS.releases])
@pytest.mark.parametrize("name", [line.name for line in PINS.lines])
def test_every_planned_target_is_assembled_by_the_lines_compiler(
    name: str, version: str, programs: dict[str, Path], tmp_path: Path
) -> None:
    line = PINS.line(name)
    flashinfer = PINS.vllm(version).flashinfer.version
    targets = {
        *effective("vllm", version, line.compiler, line.vllm_arch_list).all,
        *effective("flashinfer", flashinfer, line.compiler, line.flashinfer_arch_list).all,
    }
    assert any(target.major == 12 for target in targets)
    compiler = str(line.compiler)
    for target in sorted(targets):
        accepted, said = assembled(programs[compiler], plain(compiler), target.sm, tmp_path)
        assert accepted, said
        cubin = read_cubin((tmp_path / "probe.cubin").read_bytes())
        assert [kernel.name for kernel in cubin.kernels] == ["probe"]
        if cubin.toolkit:
            assert CudaVersion.parse(cubin.toolkit.version).release == line.compiler.release


def test_no_target_of_12_1_exists_in_the_release_of_cu128s_torch(
    programs: dict[str, Path], tmp_path: Path
) -> None:
    """Why line cu128 compiles with 12.9."""
    line = PINS.line("cu128")
    assert (str(line.cuda), str(line.compiler)) == ("12.8", "12.9")
    for target in ("sm_121", "sm_121a", "sm_121f", "sm_120f"):
        accepted, said = assembled(programs["12.8"], plain("12.8"), target, tmp_path)
        assert not accepted
        assert refused(said, target)
        assert assembled(programs["12.9"], plain("12.9"), target, tmp_path)[0]


@pytest.mark.parametrize("name", [line.name for line in PINS.lines])
def test_the_targets_of_the_sm12x_kernels_have_fp4_instructions(
    name: str, programs: dict[str, Path], tmp_path: Path
) -> None:
    line = PINS.line(name)
    gated = effective("vllm", PINS.vllm().version, line.compiler, line.vllm_arch_list).gated
    assert gated
    release = str(line.compiler)
    for target in gated:
        text = FP4.format(isa=ISA[release], sm=target.sm)
        accepted, said = assembled(programs[release], text, target.sm, tmp_path)
        assert accepted, said
        bare = f"sm_{target.number}"
        accepted, said = assembled(programs[release], FP4.format(isa=ISA[release], sm=bare), bare, tmp_path)
        assert not accepted
        assert "not supported on .target" in said
