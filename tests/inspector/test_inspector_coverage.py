"""Which image the driver takes, and what that means for kernels, families and libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from made_facts import CODE, SILENT, image, library, unit

from sm121.device import Toolkit
from sm121.inspector.coverage import Body, cover, families
from sm121.inspector.loading import choose
from sm121.inspector.policy import policy
from sm121.target import GB10, Capability, LoadsAs
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from sm121.inspector.facts import LibraryFacts

RULES = policy()
FOREIGN = "_ZN7cutlass13device_kernelI37MainloopSm100TmaUmmaWarpSpecializedE"


def chosen(*targets: str, capability: Capability = GB10) -> str | None:
    images = [image(target) for target in targets]
    index = choose(images, capability)
    return None if index is None else images[index].target


@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        (["sm_80", "sm_120", "sm_120f", "sm_121", "sm_121a"], "sm_121a"),
        (["sm_121", "sm_121f"], "sm_121f"),
        (["sm_120", "sm_120f"], "sm_120f"),
        (["sm_80", "sm_120", "compute_121"], "sm_120"),
        (["compute_80", "compute_90", "compute_120"], "compute_120"),
        (["sm_90a", "compute_80"], "compute_80"),
        (["sm_120a", "compute_120a"], None),
        (["sm_90a", "sm_100f", "sm_110"], None),
        ([], None),
    ],
)
def test_the_driver_takes_the_best_image(targets: list[str], wanted: str | None) -> None:
    assert chosen(*targets) == wanted


def test_another_chip_takes_another_image() -> None:
    assert chosen("sm_120", "sm_90a", capability=Capability(9, 0)) == "sm_90a"


def covered(facts: LibraryFacts, driver: CudaVersion | None = None) -> dict[str, tuple[str, Body]]:
    return {kernel.name: (kernel.state, kernel.body) for kernel in cover(facts, RULES, GB10, driver).kernels}


def test_a_kernel_counts_only_in_the_image_that_loads() -> None:
    facts = library(
        "x.so", [unit(["sm_90a", "sm_120"], {"both": [500, 500], "hopper": [900, None], "ours": [None, 64]})]
    )
    assert covered(facts) == {
        "both": ("same-major", Body.REAL), "hopper": ("no", Body.REAL), "ours": ("same-major", Body.REAL),
    }  # fmt: skip


def test_the_best_unit_decides_for_a_kernel() -> None:
    units = [
        unit(["sm_80", "compute_80"], {"k": [100, 0]}),
        unit(["sm_120f"], {"k": [100]}),
        unit(["sm_90a"], {"k": [100]}),
    ]
    assert covered(library("x.so", units)) == {"k": ("family", Body.REAL)}


def test_a_stub_is_small_beside_its_like_and_writes_nothing() -> None:
    sizes = {"stub": [384, 9000], "tiny": [384, 9000], "short": [384, 1500], "plain": [5000, 9000]}
    quiet = {"stub": SILENT, "short": SILENT, "plain": SILENT}
    facts = library("x.so", [unit(["sm_120", "sm_90"], sizes, code={**dict.fromkeys(sizes, CODE), **quiet})])
    assert covered(facts) == {
        "stub": ("stub", Body.STUB), "tiny": ("same-major", Body.SMALL), "short": ("same-major", Body.REAL),
        "plain": ("same-major", Body.REAL),
    }  # fmt: skip


def test_another_chips_main_loop_does_not_serve() -> None:
    kernels = cover(library("x.so", [unit(["sm_120f"], {FOREIGN: [40000]})]), RULES, GB10).kernels
    assert [(kernel.state, kernel.serves) for kernel in kernels] == [("foreign", False)]
    datacenter = cover(library("x.so", [unit(["sm_100f"], {FOREIGN: [40000]})]), RULES, Capability(10, 0)).kernels
    assert [(kernel.state, kernel.serves) for kernel in datacenter] == [("native", True)]


def test_an_old_driver_cannot_read_new_ptx() -> None:
    facts = library("x.so", [unit([image("compute_80", isa=(9, 0))], {"k": [0]})])
    assert covered(facts, CudaVersion(13, 0)) == {"k": ("jit", Body.REAL)}
    old = cover(facts, RULES, GB10, CudaVersion(12, 9))
    assert old.loads_as is LoadsAs.NO
    assert old.units[0].refused == ("compute_80",)
    assert [kernel.state for kernel in old.kernels] == ["no"]


def test_what_nvlink_adds_proves_nothing() -> None:
    nvlink = Toolkit("nvlink", "13.0.88", "-arch sm_121a")
    stub = unit([image("sm_121a", kernels=0, toolkit=nvlink)], {})
    facts = library("x.so", [stub, unit(["sm_90a"])])
    library_coverage = cover(facts, RULES, GB10)
    assert library_coverage.loads_as is LoadsAs.NO
    assert len(library_coverage.counted) == 1


def test_families_come_from_the_library_or_the_name() -> None:
    names = {
        "_ZN6marlin6MarlinILl1E": "Marlin dense",
        "_Z21MainloopSm120TmaWarpSpecializedBlockScaled_float_e2m1": "NVFP4 dense GEMM (CUTLASS Sm120 BlockScaled)",
        "_ZN4vllm3moe4sortE": "MoE routing/align/permute",
        "_Z3addPf": "other",
    }
    facts = library("vllm/_C.abi3.so", [unit(["sm_120"], {name: [100] for name in names})])
    assert {kernel.name: kernel.family for kernel in cover(facts, RULES, GB10).kernels} == names
    for path, family in {
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": "FlashAttention-2",
        "flashinfer_jit_cache/jit_cache/fp4_gemm_cutlass_sm120/fp4_gemm_cutlass_sm120.so": "FlashInfer NVFP4 GEMM",
        "x/cached_ops/xqa_mla_a/xqa_mla_a.so": "FlashInfer MLA",
        "x/cached_ops/xqa_input_a/xqa_input_a.so": "FlashInfer XQA",
    }.items():
        kernels = cover(library(path, [unit(["sm_121a"])]), RULES, GB10).kernels
        assert {kernel.family for kernel in kernels} == {family}
    qutlass = cover(library("vllm/_qutlass_C.abi3.so", [unit(["sm_120f"], {"GemmQuantNv": [9]})]), RULES, GB10)
    assert [kernel.family for kernel in qutlass.kernels] == ["QuTLASS: QuTLASS fused quant"]


def test_families_add_up_over_libraries() -> None:
    one = cover(library("a.so", [unit(["sm_121a"], {"marlin_a": [100], "marlin_b": [50]})]), RULES, GB10)
    two = cover(library("b.so", [unit(["sm_90a"], {"marlin_c": [900]})]), RULES, GB10)
    (family,) = families([one, two])
    assert family.kernels == {"native": 2, "no": 1}
    assert family.bytes == {"native": 150, "no": 0}
    assert family.libraries == ("a.so", "b.so")
    assert (family.machine, family.serving) == (2, 2)
