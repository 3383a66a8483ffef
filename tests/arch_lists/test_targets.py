from __future__ import annotations

import pytest

from sm121.arch_lists import Targets, effective, expected_images
from sm121.arch_lists.data import flashinfer_releases, vllm_releases
from sm121.errors import PlanError
from sm121.values import CudaVersion

# TORCH_CUDA_ARCH_LIST: generic -> gated with CUDA 12.8 and 12.9; the same from CUDA 13.0 on. Measured by running
# cuda_archs_loose_intersection of vLLM 0.33.0 with cmake -P (test_upstream.py repeats it).
TABLE = {
    "12.0": ("12.0 -> 12.0a", "12.0 -> 12.0f"),
    "12.0a": ("12.0a -> 12.0a", "12.0a -> 12.0a"),
    "12.0f": ("12.0f -> 12.0f", "12.0f -> 12.0f"),
    "12.1": ("12.1 -> 12.1a", "12.0 -> 12.0f"),
    "12.1a": ("12.1a -> 12.1a", "12.0 -> 12.0f"),
    "12.1f": ("12.1f -> 12.1f", "12.0 -> 12.0f"),
    "12.0;12.1": ("12.0;12.1 -> 12.0a;12.1a", "12.0 -> 12.0f"),
    "12.0;12.1a": ("12.1a;12.0 -> 12.0a;12.1a", "12.0 -> 12.0f"),
    "12.0a;12.1a": ("12.0a;12.1a -> 12.0a;12.1a", "12.0a -> 12.0a"),
    "12.0f;12.1a": ("12.0f;12.1a -> 12.0f;12.1a", "12.0f -> 12.0f"),
    "12.0a;12.0f": ("12.0a -> 12.0a", "12.0a -> 12.0a"),
    "12.1;12.1a": ("12.1a;12.1 -> 12.1a", "12.0 -> 12.0f"),
    "8.0;12.0": ("8.0;12.0 -> 12.0a", "8.0;12.0 -> 12.0f"),
    "12.0+PTX": ("12.0 -> 12.0a", "12.0 -> 12.0f"),
    "11.0": (" -> ", "11.0 -> "),
}
# Fatbin entries of the official aarch64 wheels' libraries, built with CUDA 13.0 from this list.
RELEASE_LIST = "8.0 8.7 8.9 9.0 10.0 11.0 12.0"
OFFICIAL = {
    "0.33.0": {
        "_C_stable_libtorch": {
            "sm_80": 71, "sm_86": 1, "sm_87": 51, "sm_89": 57, "sm_90": 58, "sm_90a": 27, "sm_100": 49,
            "sm_100f": 24, "sm_110": 49, "sm_110f": 21, "sm_120": 50, "sm_120f": 35, "compute_80": 19,
            "compute_89": 1, "compute_90": 8,
        },
        "_moe_C_stable_libtorch": {
            "sm_80": 23, "sm_87": 8, "sm_89": 13, "sm_90": 8, "sm_100": 8, "sm_110": 8, "sm_120": 8, "sm_120f": 19,
            "compute_80": 15,
        },
        "_deepselect_C": {"sm_100f": 78},
        "_flashkda_C": {"sm_90a": 1, "sm_100f": 1, "sm_120f": 1},
        "_flashmla_C": {"sm_90a": 53, "sm_100f": 53},
        "_flashmla_extension_C": {"sm_90a": 2, "sm_100f": 2},
        "_qutlass_C": {"sm_100f": 6},
        "_vllm_fa2_C": {"sm_80": 76, "compute_80": 76},
        "_vllm_fa3_C": {"sm_90a": 192},
    },
    "0.26.0": {
        "_C_stable_libtorch": {
            "sm_80": 64, "sm_87": 45, "sm_89": 50, "sm_90": 50, "sm_90a": 24, "sm_100": 42, "sm_100f": 18,
            "sm_110": 42, "sm_110f": 18, "sm_120": 42, "sm_120f": 33, "compute_80": 19, "compute_89": 1,
            "compute_90": 8,
        },
        "_moe_C_stable_libtorch": {
            "sm_80": 22, "sm_87": 7, "sm_89": 12, "sm_90": 7, "sm_90a": 3, "sm_100": 7, "sm_100f": 3, "sm_110": 7,
            "sm_110f": 3, "sm_120": 7, "sm_120f": 22, "compute_80": 15,
        },
        "_flashmla_C": {"sm_90a": 22, "sm_100f": 22},
        "_flashmla_extension_C": {"sm_90a": 2, "sm_100f": 2},
        "_qutlass_C": {"sm_100f": 6},
        "_vllm_fa2_C": {"sm_80": 76, "compute_80": 76},
        "_vllm_fa3_C": {"sm_90a": 192},
    },
}  # fmt: skip


def shown(targets: Targets) -> str:
    return f"{';'.join(map(str, targets.generic))} -> {';'.join(map(str, targets.gated))}"


@pytest.mark.parametrize("arch_list", TABLE)
@pytest.mark.parametrize(("cuda", "column"), [("12.8", 0), ("12.9", 0), ("13.0", 1), ("13.4", 1)])
def test_table(arch_list: str, cuda: str, column: int) -> None:
    assert shown(effective("vllm", "0.33.0", CudaVersion.parse(cuda), arch_list)) == TABLE[arch_list][column]


def test_the_one_cell_in_which_0_26_0_differs() -> None:
    differing = {
        (arch_list, column)
        for arch_list, row in TABLE.items()
        for column, cuda in enumerate([CudaVersion(12, 9), CudaVersion(13, 0)])
        if shown(effective("vllm", "0.26.0", cuda, arch_list)) != row[column]
    }
    assert differing == {("12.1;12.1a", 0)}
    assert shown(effective("vllm", "0.26.0", CudaVersion(12, 9), "12.1;12.1a")) == "12.1a;12.0 -> 12.0a;12.1a"


def test_what_is_dropped_is_named() -> None:
    cuda = CudaVersion(13, 0)
    assert [str(arch) for arch in effective("vllm", "0.33.0", cuda, "12.0a;12.1a").dropped] == ["12.1a"]
    assert [str(arch) for arch in effective("vllm", "0.33.0", cuda, "12.0a;12.0f").dropped] == ["12.0f"]
    assert [str(arch) for arch in effective("vllm", "0.33.0", cuda, "7.0;12.0f").dropped] == ["7.0"]
    assert effective("vllm", "0.33.0", cuda, "12.1a").dropped == ()


@pytest.mark.parametrize("version", OFFICIAL)
def test_the_official_wheels_hold_what_is_expected(version: str) -> None:
    assert expected_images("vllm", version, CudaVersion(13, 0), RELEASE_LIST) == {
        extension: dict(sorted(counts.items())) for extension, counts in OFFICIAL[version].items()
    }


@pytest.mark.parametrize("arch_list", ["12.0", "12.1", "12.1a", "12.1f", "12.1+PTX"])
def test_units_of_a_12_list(arch_list: str) -> None:
    images = expected_images("vllm", "0.33.0", CudaVersion(13, 0), arch_list)
    old = {"sm_80": 4, "compute_80": 4, "sm_89": 1, "compute_89": 1, "sm_90": 1, "compute_90": 1}
    assert images["_C_stable_libtorch"] == {"sm_120": 39, "sm_120f": 35} | old
    assert images["_moe_C_stable_libtorch"] == {"sm_120": 8, "sm_120f": 19, "sm_80": 1, "compute_80": 1}
    assert images["_flashkda_C"] == {"sm_120f": 1}
    assert images["_qutlass_C"] == {"sm_120f": 6}
    assert "_vllm_fa3_C" not in images


@pytest.mark.parametrize(("arch_list", "target"), [("12.0f", "sm_120f"), ("12.0a;12.1a", "sm_120a")])
def test_units_of_a_list_with_one_target(arch_list: str, target: str) -> None:
    images = expected_images("vllm", "0.33.0", CudaVersion(13, 0), arch_list)
    ours = {extension: counts.get(target) for extension, counts in images.items()}
    assert ours == {
        "_C_stable_libtorch": 74,
        "_moe_C_stable_libtorch": 27,
        "_flashkda_C": 1,
        "_qutlass_C": 6,
        "_vllm_fa2_C": None,
    }


@pytest.mark.parametrize(
    ("cuda", "arch_list", "expected"),
    [
        ("12.8", "12.0", None),
        ("12.9", "12.0f", {"sm_120f": 1}),
        ("12.9", "12.0", {"sm_120a": 1}),
        ("12.9", "12.0a", {"sm_120a": 1}),
        ("12.9", "12.1", None),
        ("12.9", "12.1a", None),
        ("12.9", "12.1f", None),
        ("13.0", "12.1a", {"sm_120f": 1}),
    ],
)
def test_flashkda(cuda: str, arch_list: str, expected: dict[str, int] | None) -> None:
    images = expected_images("vllm", "0.33.0", CudaVersion.parse(cuda), arch_list)
    assert images.get("_flashkda_C") == expected


def test_qutlass_is_of_one_family() -> None:
    both = expected_images("vllm", "0.33.0", CudaVersion(13, 0), "10.0;12.0")
    assert both["_qutlass_C"] == {"sm_100f": 6}


@pytest.mark.parametrize("version", ["0.30.0", "0.33.1", "1.0", "", "main"])
def test_nothing_is_promised_for_a_release_that_was_not_read(version: str) -> None:
    cuda = CudaVersion(13, 0)
    assert expected_images("vllm", version, cuda, "12.0f") == {}
    targets = effective("vllm", version, cuda, "12.0f")
    assert not targets.exact
    assert targets.rules == ("vLLM 0.26.0" if version == "0.30.0" else "vLLM 0.33.0")


def test_a_local_version_is_the_same_release() -> None:
    assert effective("vllm", "0.33.0+cu130", CudaVersion(13, 0), "12.0f").exact


@pytest.mark.parametrize(
    ("version", "cuda", "arch_list", "expected"),
    [
        ("0.7.2.post1", "12.8", "12.0", "12.0a"),
        ("0.7.2.post1", "12.9", "12.0", "12.0f"),
        ("0.7.2.post1", "13.0", "12.1 12.0", "12.0f 12.1a"),
        ("0.7.2.post1", "12.9", "10.0 9.0 8.0", "8.0 9.0a 10.0a"),
        ("0.7.2.post1", "12.8", "12.1a", "12.1a"),
        ("0.6.14", "12.9", "12.0 12.1", "12.0f 12.1a"),
        ("0.6.18.post1", "13.0", "12.1f", "12.1f"),
    ],
)
def test_flashinfer_suffixes(version: str, cuda: str, arch_list: str, expected: str) -> None:
    targets = effective("flashinfer", version, CudaVersion.parse(cuda), arch_list)
    assert " ".join(map(str, targets.generic)) == expected
    assert targets.exact


@pytest.mark.parametrize(
    ("version", "cuda", "arch_list", "wanted"),
    [
        ("0.7.2.post1", "12.8", "12.1", "12.9"),
        ("0.7.2.post1", "12.6", "12.0", "12.8"),
        ("0.6.14", "12.8", "12.0", "12.9"),
        ("0.6.18.post1", "12.8", "12.0", "12.9"),
    ],
)
def test_flashinfer_refuses_old_toolkits(version: str, cuda: str, arch_list: str, wanted: str) -> None:
    refused = effective("flashinfer", version, CudaVersion.parse(cuda), arch_list).refused
    assert [str(cuda) for _, cuda in refused] == [wanted]


@pytest.mark.parametrize(
    ("arch_list", "units"), [("12.1a", 2339), ("12.0f", 2341), ("12.0a", 2340), ("12.0f 12.1a", 2342)]
)
def test_flashinfer_units(arch_list: str, units: int) -> None:
    images = expected_images("flashinfer", "0.7.2.post1", CudaVersion(13, 0), arch_list)
    assert sum(max(counts.values()) for counts in images.values()) == units
    both = {"sm_120f": 1152, "sm_121a": 1152}
    names = {f"sm_{item.replace('.', '')}" for item in arch_list.split()}
    assert images["xqa_input_*"] == {target: 1152 for target in both.keys() | {"sm_120a"} if target in names}


def test_flashinfer_promises_nothing_beyond_12() -> None:
    assert expected_images("flashinfer", "0.7.2.post1", CudaVersion(13, 0), "9.0a 12.1a") == {}
    assert expected_images("flashinfer", "0.8.0", CudaVersion(13, 0), "12.1a") == {}


def test_a_bad_list_is_refused_with_all_its_faults() -> None:
    with pytest.raises(PlanError) as caught:
        effective("vllm", "0.33.0", CudaVersion(13, 0), "12.1A sm_120 12.0f 9.0,10.0")
    assert len(caught.value.problems) == 3
    with pytest.raises(PlanError, match="sglang"):
        effective("sglang", "1", CudaVersion(13, 0), "12.0")


def test_the_data_is_dated_and_its_names_are_unique() -> None:
    for release in vllm_releases():
        names = [(group.extension, group.name) for group in release.groups]
        assert len(set(names)) == len(names)
        assert all(group.units > 0 for group in release.groups)
        assert release.source
    for rules in flashinfer_releases():
        assert rules.source
        assert rules.read[0] >= rules.first
