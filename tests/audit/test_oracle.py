"""Lists and support checks of a small package, judged for a chip; differences between two versions of it."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from fake_vllm import FILES, fake_tree
from rich.console import Console

from sm121.audit.compiled import compiled_answers
from sm121.audit.oracle import Entry, Oracle, Serves, automatic_experts, read_oracle
from sm121.audit.oracle_report import diff, diff_json, diff_text, oracle_json, oracle_text
from sm121.audit.source import SourceTree
from sm121.audit.static import Facts
from sm121.errors import ArtifactError
from sm121.target import GB10, Capability
from sm121.values import CudaVersion

LINEAR = "vllm.model_executor.kernels.linear"
NVFP4 = "vllm.model_executor.layers.fused_moe.oracle.nvfp4"


def entry(oracle: Oracle, table: str, name: str) -> Entry:
    found = oracle.table(table)
    assert found is not None
    return next(item for item in found.entries if item.name == name)


def test_dense_order_and_verdicts() -> None:
    oracle = read_oracle(fake_tree(), Facts())
    table = oracle.table("dense NVFP4")
    assert table is not None
    assert table.order == (
        "BlackwellKernel", "FlashInferKernel", "CutlassNvFp4LinearKernel", "MarlinNvFp4LinearKernel",
    )  # fmt: skip
    assert [item.serves for item in table.entries] == [Serves.NO, Serves.DEPENDS, Serves.DEPENDS, Serves.YES]
    assert table.entries[0].reason == "requires sm_10x"
    assert str(table.entries[1].needs[0][0]) == "the program nvcc is on the machine"
    assert str(table.entries[2].needs[0][0]) == "torch.ops._C.cutlass_scaled_mm_supports_fp4(121)"


def test_another_chip_has_other_verdicts() -> None:
    oracle = read_oracle(fake_tree(), Facts(capability=Capability(10, 0)))
    assert entry(oracle, "dense NVFP4", "BlackwellKernel").serves is Serves.YES
    assert entry(oracle, "MoE nvfp4", "FLASHINFER_CUTLASS").serves is Serves.NO


def test_a_backend_outside_the_list_is_there_on_request_only() -> None:
    oracle = read_oracle(fake_tree(), Facts())
    table = oracle.table("MoE nvfp4")
    assert table is not None
    assert table.order == ("FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN")
    b12x = entry(oracle, "MoE nvfp4", "B12X")
    assert not b12x.automatic
    assert b12x.serves is Serves.DEPENDS
    assert {str(item) for item in b12x.needs[0]} == {"b12x can be imported", "b12x.is_supported()"}


STARRED = """*(
                    [NvFp4MoeBackend.B12X]
                    if current_platform.is_cuda() and current_platform.is_device_capability_family(120)
                    else []
                ),
                NvFp4MoeBackend.MARLIN,"""


def _starred(part: str = STARRED) -> SourceTree:
    return fake_tree(
        {NVFP4: FILES[NVFP4].replace("NvFp4MoeBackend.MARLIN,\n            ]", part + "\n            ]")}
    )


def test_a_starred_part_of_a_list_is_what_the_chip_makes_of_it() -> None:
    """The form of this project's own patch, which puts B12X before Marlin on 12.x."""
    here, elsewhere = (
        read_oracle(_starred(), Facts()),
        read_oracle(_starred(), Facts(capability=Capability(10, 0))),
    )
    table, other = here.table("MoE nvfp4"), elsewhere.table("MoE nvfp4")
    assert table is not None
    assert table.order == ("FLASHINFER_CUTLASS", "VLLM_CUTLASS", "B12X", "MARLIN")
    assert other is not None
    assert other.order == ("FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN")
    assert [problem for problem in here.problems if "nvfp4" in problem] == []
    assert [str(item) for item in diff(read_oracle(fake_tree(), Facts()), here)] != []
    assert automatic_experts(_starred(), Facts(), "nvfp4") == table.order
    assert automatic_experts(fake_tree(), Facts(), "nvfp4") == ("FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN")


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("*([NvFp4MoeBackend.B12X] if has_flashinfer() else []),", "depends on more than the chip"),
        ("*extra_backends(),", "extra_backends"),
        ("*[1, 2],", "no list of backends"),
    ],
)
def test_a_starred_part_that_is_not_decided_is_a_problem_and_the_rest_is_read(part: str, why: str) -> None:
    oracle = read_oracle(_starred(f"{part}\n                NvFp4MoeBackend.MARLIN,"), Facts())
    table = oracle.table("MoE nvfp4")
    assert table is not None
    assert table.order[:2] == ("FLASHINFER_CUTLASS", "VLLM_CUTLASS")
    assert table.order[-1] == "MARLIN"
    assert any(why in problem for problem in oracle.problems), oracle.problems


def test_attention_for_both_kinds() -> None:
    oracle = read_oracle(fake_tree(), Facts())
    plain, latent = oracle.table("attention"), oracle.table("attention MLA")
    assert plain is not None
    assert latent is not None
    assert plain.order == ("FLASH_ATTN", "FLASHINFER")
    assert [item.serves for item in plain.entries] == [Serves.YES, Serves.YES]
    assert latent.entries[0].reason == "compute capability not supported"


def test_flags_and_variables() -> None:
    oracle = read_oracle(fake_tree(), Facts())
    assert oracle.flags == {
        "--moe-backend": ("auto", "cutlass", "marlin"),
        "--linear-backend": ("auto", "marlin"),
    }
    assert oracle.variables == ("VLLM_DISABLED_KERNELS", "VLLM_HAS_CUBIN")


def test_a_check_that_cannot_be_followed_is_unknown_with_the_reason() -> None:
    changed = FILES[LINEAR].replace("requires sm_10x", "x").replace(
        "if not current_platform.is_device_capability_family(100):", "for word in torch.words():"
    )  # fmt: skip
    oracle = read_oracle(fake_tree({LINEAR: changed}), Facts())
    found = entry(oracle, "dense NVFP4", "BlackwellKernel")
    assert found.serves is Serves.UNKNOWN
    assert "torch.words()" in found.reason


def test_lists_that_moved_elsewhere_are_named_as_not_read() -> None:
    oracle = read_oracle(fake_tree({LINEAR: "", NVFP4: "X = 1", "vllm.platforms.cuda": ""}), Facts())
    text = "\n".join(oracle.problems)
    assert "no dense lists" in text
    assert "nvfp4 has no list" in text
    assert "attention" in text


def test_what_changed_between_two_versions() -> None:
    after = {
        LINEAR: FILES[LINEAR].replace(
            "[BlackwellKernel, FlashInferKernel, CutlassNvFp4LinearKernel, MarlinNvFp4LinearKernel]",
            "[MarlinNvFp4LinearKernel, FlashInferKernel, CutlassNvFp4LinearKernel]",
        ),
        NVFP4: FILES[NVFP4].replace(
            "NvFp4MoeBackend.MARLIN,\n            ]", "NvFp4MoeBackend.MARLIN, NvFp4MoeBackend.B12X]"
        ),
        "vllm.config.kernel": FILES["vllm.config.kernel"].replace('"cutlass", "marlin"', '"cutlass", "b12x"'),
        "vllm.envs": FILES["vllm.envs"].replace('"VLLM_HAS_CUBIN": lambda', '"VLLM_OTHER": lambda'),
    }  # fmt: skip
    old, new = read_oracle(fake_tree(), Facts()), read_oracle(fake_tree(after, version="10.0"), Facts())
    text = "\n".join(str(change) for change in diff(old, new))
    for part in (
        "dense NVFP4: no longer there: BlackwellKernel", "the order changed: FlashInferKernel",
        "into automatic selection: B12X", "--moe-backend: removed: marlin", "--moe-backend: new: b12x",
        "environment: removed: VLLM_HAS_CUBIN", "environment: new: VLLM_OTHER",
    ):  # fmt: skip
        assert part in text
    assert not diff(old, old)
    console = Console(file=StringIO(), width=120)
    diff_text(old, old, console)
    assert diff_json(old, new)["changes"]


def test_text_and_json_hold_every_entry() -> None:
    oracle = read_oracle(fake_tree(), Facts())
    out = StringIO()
    oracle_text(oracle, Console(file=out, width=200))
    plain = json.loads(json.dumps(oracle_json(oracle)))
    for table in oracle.tables:
        for item in table.entries:
            assert item.name in out.getvalue()
    assert [row["name"] for row in plain["tables"]] == [table.name for table in oracle.tables]


@pytest.mark.parametrize(
    ("cuda", "there", "wanted"),
    [
        (CudaVersion(13, 0), True, True),
        (CudaVersion(13, 0), False, False),
        (CudaVersion(13, 0), None, None),
        (CudaVersion(12, 6), True, False),
        (None, True, None),
    ],
)
def test_compiled_functions_answer_from_the_kernels_that_are_there(
    cuda: CudaVersion | None, there: bool | None, wanted: bool | None
) -> None:
    answer = compiled_answers(GB10, cuda, lambda _family: there)
    assert answer("torch.ops._C.cutlass_scaled_mm_supports_fp4(121)") is wanted


def test_compiled_functions_that_have_no_rule_stay_open() -> None:
    answer = compiled_answers(GB10, CudaVersion(13, 0), lambda _family: True)
    assert answer("torch.ops._C.something_else(121)") is None
    assert answer("torch.ops._C.cutlass_scaled_mm_supports_fp4(90)") is None
    assert answer("torch.ops._C.cutlass_group_gemm_supported(121)") is False


def test_an_artifact_without_vllm_is_refused(tmp_path: object) -> None:
    with pytest.raises(ArtifactError, match=r"no Python files of vLLM|does not exist"):
        SourceTree.read([str(tmp_path)])
