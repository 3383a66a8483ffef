"""The rules as data: they load, they are dated, and they say what they are meant to say."""

from __future__ import annotations

import re
import tomllib
from importlib import resources

import pytest
from packaging.version import Version

from sm121.findings import Verdict
from sm121.inspector.policy import policy
from sm121.inspector.rules import Code, Presence
from sm121.values import CudaVersion

RULES = policy()
DATA = resources.files("sm121.inspector").joinpath("data")
FILES = sorted(item.name for item in DATA.iterdir() if item.name.endswith(".toml"))


@pytest.mark.parametrize("name", FILES)
def test_each_file_has_a_date_and_a_source(name: str) -> None:
    text = DATA.joinpath(name).read_text(encoding="utf-8")
    assert tomllib.loads(text)["date"].year >= 2026
    assert re.search(r"source", text)


def test_ptx_versions_are_in_step_with_cuda() -> None:
    pairs = sorted(RULES.drivers.ptx.items())
    assert [cuda for _, cuda in pairs] == sorted(cuda for _, cuda in pairs)
    assert RULES.drivers.needs((9, 0)) == CudaVersion(13, 0)
    assert RULES.drivers.needs((8, 7)) == CudaVersion(12, 8)
    assert RULES.drivers.needs((99, 0)) is None


def test_every_family_rule_names_a_family_that_exists() -> None:
    known = {family for family, *_ in RULES.families.libraries} | {family for family, _ in RULES.families.names}
    named = {
        name
        for project in RULES.projects
        for release in project.releases
        for rule in release.families
        for name in rule.names
    }
    assert named
    assert named <= known


@pytest.mark.parametrize("project", RULES.projects, ids=lambda project: project.name)
def test_the_versions_that_were_read_have_rules(project: object) -> None:
    assert isinstance(project, type(RULES.projects[0]))
    for version in project.read:
        Version(version)
        expectation = project.expects(version)
        assert expectation.known
        assert expectation.libraries
        assert bool(expectation.families) == bool(project.releases)


def test_rules_of_vllm() -> None:
    project = RULES.project("vLLM")
    assert project is not None
    new, old = project.expects("0.33.0+cu130.sm121"), project.expects("0.22.0")
    assert new.known
    must_not = {rule.path for rule in new.libraries if rule.presence is Presence.MUST_NOT}
    assert must_not == {"vllm/_C.abi3.so", "vllm/_moe_C.abi3.so"}
    assert {rule.path for rule in old.libraries if rule.presence is Presence.MUST} == {
        "vllm/_C.abi3.so", "vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C.abi3.so",
    }  # fmt: skip
    fa3 = new.library("opt/venv/lib/python3.12/site-packages/vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
    assert fa3 is not None
    assert fa3.code is Code.NONE
    assert {rule.missing for rule in new.families} == {Verdict.FAIL, Verdict.WARN}
    assert not project.expects("0.99.0").known
    assert project.expects("0.1.dev1").families == ()


def test_a_provider_of_the_jit_cache_follows_its_rules() -> None:
    project = RULES.project("flashinfer-jit-cache-sm121a")
    assert project is not None
    assert project.name == "flashinfer-jit-cache"
    assert RULES.project("flashinfer") is None


def test_the_runtimes_differ_where_they_are_known_to() -> None:
    twelve, thirteen = RULES.runtimes[12], RULES.runtimes[13]
    assert "cudaThreadExit" in twelve.symbols
    assert "cudaThreadExit" not in thirteen.symbols
    assert twelve.symbols["cudaMalloc"] == CudaVersion(12, 4)
    assert CudaVersion(12, 8) in set(twelve.symbols.values())
    assert len(twelve.symbols) > 400


@pytest.mark.parametrize(
    ("symbol", "needed", "owner"),
    [
        ("_ZN3c106detail14torchCheckFailEPKcS2_jS2_", ["libc10.so"], "torch"),
        ("_ZNK2at10TensorBase4sizeEv", ["libtorch.so"], "torch"),
        ("aoti_torch_get_dtype", ["libtorch.so"], "torch"),
        ("PyModule_Create2", [], "Python"),
        ("_Py_Dealloc", [], "Python"),
        ("cuLaunchKernelEx", ["libcuda.so.1"], "CUDA driver"),
        ("__cudaRegisterFatBinary", ["libcudart.so.13"], "CUDA runtime"),
        ("cublasLtMatmul", ["libcublasLt.so.13"], "CUDA libraries"),
        ("_ZNOSt7__cxx1115basic_stringbufIcE3strEv", ["libstdc++.so.6"], "C++ runtime"),
        ("_Znwm", ["libstdc++.so.6"], "C++ runtime"),
        ("atan", ["libm.so.6"], None),
        ("cudaMalloc", ["libtorch.so"], None),
        ("_Z20cutlass_moe_mm_sm100RN2at6TensorERKS0_S3_", ["libtorch.so", "libcudart.so.13"], None),
    ],
)
def test_who_defines_a_symbol(symbol: str, needed: list[str], owner: str | None) -> None:
    provider = RULES.libraries.provider(symbol, needed)
    assert (provider.name if provider else None) == owner
