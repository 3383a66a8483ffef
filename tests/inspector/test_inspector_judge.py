"""The judges one by one: what they must say, and what they must not cry about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from made_facts import distribution, image, library, unit

from sm121.findings import Finding, Verdict, overall
from sm121.inspector.coverage import cover, families
from sm121.inspector.judge.device_code import describe, judge_library
from sm121.inspector.judge.families import judge_families, judge_presence
from sm121.inspector.judge.jit import jit_cost, judge_jit
from sm121.inspector.judge.line import cuda_of, judge_grafts, judge_line, judge_providers
from sm121.inspector.judge.ownership import judge_ownership
from sm121.inspector.judge.stamp import Stamp, judge_build_record, judge_stamp, judge_version
from sm121.inspector.judge.symbols import Needs, explain_loader, judge_symbols, read_nm
from sm121.inspector.judge.tags import Interpreter, judge_one_version, judge_tags
from sm121.inspector.judge.wheel import judge_name, judge_platform
from sm121.inspector.policy import policy
from sm121.inspector.rules import Code, LibraryRule, Presence
from sm121.target import GB10
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.inspector.facts import LibraryFacts

RULES = policy()
NONE = LibraryRule("x.so", Presence.MAY, Code.NONE, "it is for others")
MACHINE = LibraryRule("x.so", Presence.MUST, Code.MACHINE)


def verdicts(findings: Iterable[Finding]) -> dict[str, str]:
    """The gravest verdict per check."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.check, []).append(finding)
    return {check: str(overall(group)) for check, group in found.items()}


def device(facts: LibraryFacts, rule: LibraryRule | None = None, *, ours: bool = True) -> list[Finding]:
    return list(judge_library(cover(facts, RULES, GB10), rule, GB10, ours=ours))


@pytest.mark.parametrize(
    ("targets", "rule", "verdict"),
    [
        (["sm_121a"], None, Verdict.PASS),
        (["sm_120"], MACHINE, Verdict.PASS),
        (["compute_80"], None, Verdict.INFO),
        (["compute_80"], MACHINE, Verdict.FAIL),
        (["sm_90a"], None, Verdict.FAIL),
        (["sm_90a"], NONE, Verdict.INFO),
        (["sm_120a"], None, Verdict.FAIL),
        (["sm_120a", "compute_90"], None, Verdict.INFO),
        (["sm_120a", "sm_121a"], None, Verdict.PASS),
        (["compute_120a"], None, Verdict.FAIL),
    ],
)
def test_a_unit_of_images(targets: list[str], rule: LibraryRule | None, verdict: Verdict) -> None:
    assert overall(device(library("x.so", [unit(targets)]), rule)) is verdict


def test_one_unit_for_the_wrong_chip_of_the_family_is_enough() -> None:
    findings = device(library("x.so", [unit(["sm_120f"]), unit(["sm_120a", "sm_90a"])]))
    assert verdicts(findings)["device.arch-specific"] == "fail"
    assert verdicts(findings)["device.loads"] == "pass"


def test_units_for_other_chips_beside_ours_are_normal() -> None:
    findings = device(library("x.so", [unit(["sm_120f"]), unit(["sm_90a"]), unit(["sm_100f"])]))
    assert overall(findings) is Verdict.PASS
    assert "2 are for other chips" in findings[-1].got


def test_what_merely_lies_beside_only_warns() -> None:
    assert overall(device(library("x.so", [unit(["sm_90a"])]), ours=False)) is Verdict.WARN


def test_an_image_without_kernels_is_named() -> None:
    facts = library("x.so", [unit([image("sm_121a", kernels=0), image("sm_90a", kernels=5)], {"k": [None, 90]})])
    assert verdicts(device(facts))["device.empty"] == "warn"


def test_host_code_where_device_code_must_be() -> None:
    assert overall(device(library("x.so"))) is Verdict.PASS
    assert overall(device(library("x.so"), MACHINE)) is Verdict.FAIL


def test_the_description_is_a_phrase() -> None:
    units = [unit(["sm_120f"]), unit(["sm_120"]), unit(["compute_80"]), unit(["sm_90a"])]
    assert describe(cover(library("x.so", units), RULES, GB10), GB10) == (
        "of 4 units 1 as sm_120f, 1 as sm_120 and 1 by JIT from PTX compute_80; 1 are for other chips "
        "(no sm_121 among them, and none is needed)"
    )


def test_presence_reports_all_that_is_missing_and_all_that_is_too_much() -> None:
    vllm = RULES.project("vllm")
    assert vllm is not None
    findings = list(judge_presence(vllm.expects("0.33.0"), ["vllm/_C.abi3.so", "vllm/__init__.py"]))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL] * 3
    assert (
        overall(
            judge_presence(
                vllm.expects("0.40.0"), ["vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so"]
            )
        )
        is Verdict.WARN
    )


def test_a_family_that_is_there_in_name_only_is_missing() -> None:
    vllm = RULES.project("vllm")
    assert vllm is not None
    rules = vllm.expects("0.33.0").families
    names = {"marlin6Marlin": [90], "marlin_moe_wna16": [90], "router_gemm": [90]}
    have = families([cover(library("vllm/_C.so", [unit(["sm_120f"], names)]), RULES, GB10)])
    findings = {
        finding.got.partition(":")[0]: finding.verdict for finding in judge_families(rules, have, "vllm", GB10)
    }
    assert findings["Marlin dense"] is Verdict.PASS
    assert findings["no kernel of FP8 GEMM Sm120 (per-tensor/blockwise)"] is Verdict.FAIL
    jit = families([cover(library("vllm/_C.so", [unit(["compute_80"], {"marlin6Marlin": [0]})]), RULES, GB10)])
    (marlin,) = [item for item in judge_families(rules, jit, "vllm", GB10) if item.got.startswith("Marlin dense")]
    assert (marlin.verdict, marlin.got) == (Verdict.FAIL, "Marlin dense: none on 12.1 (1 jit)")


def jit(facts: LibraryFacts, driver: CudaVersion | None) -> dict[str, str]:
    covered = [cover(facts, RULES, GB10, driver)]
    return verdicts(judge_jit(jit_cost(covered, RULES.drivers), covered, RULES.drivers, driver))


def test_ptx_has_a_weight_and_a_driver() -> None:
    light = library("x.so", [unit([image("compute_80", size=1000)], {"k": [0]})])
    heavy = library("x.so", [unit([image("compute_80", size=90_000_000)], {"k": [0]})])
    unknown = library("x.so", [unit([image("compute_80", isa=(42, 0))], {"k": [0]})])
    assert jit(light, None) == {"jit.cost": "info", "jit.driver": "info"}
    assert jit(light, CudaVersion(13, 0)) == {"jit.cost": "info", "jit.driver": "pass"}
    assert jit(light, CudaVersion(12, 8)) == {"jit.driver": "fail", "jit.cost": "pass"}
    assert jit(heavy, None)["jit.cost"] == "warn"
    assert jit(unknown, CudaVersion(13, 0))["jit.driver"] == "unknown"
    assert jit(library("x.so", [unit(["sm_121a"])]), None) == {"jit.cost": "pass"}
    assert jit(library("x.so"), None) == {}


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("2.11.0+cu129", (12, 9)),
        ("0.33.0+cu130.sm121", (13, 0)),
        ("1.0+cu1301", None),
        ("1.0", None),
        ("1+focus12", None),
    ],
)
def test_the_line_in_a_version(version: str, line: tuple[int, int] | None) -> None:
    assert cuda_of(version) == line


def test_one_cuda_major_throughout() -> None:
    twelve, thirteen = (
        ["libcudart.so.12"],
        ["libcudart.so.13", "libnvrtc.so.13", "libcufft.so.12", "libcurand.so.10"],
    )
    assert verdicts(judge_line({"a.so": thirteen}, RULES.libraries)) == {"line.major": "pass"}
    assert verdicts(judge_line({"a.so": twelve, "b.so": thirteen}, RULES.libraries)) == {"line.major": "fail"}
    assert verdicts(judge_line({"a.so": twelve}, RULES.libraries, version="1+cu130"))["line.version"] == "fail"
    assert verdicts(judge_line({"a.so": thirteen}, RULES.libraries, torch="2.14.0+cu130"))["line.torch"] == "pass"
    assert verdicts(judge_line({"a.so": ["libc.so.6"]}, RULES.libraries, torch="2.14.0+cu130")) == {}


@pytest.mark.parametrize(
    ("requires", "files", "own", "wanted"),
    [
        (["torch==2.14.0"], [], True, {"line.torch": "pass", "line.cudart": "pass"}),
        (["torch>=2"], [], True, {"line.torch": "warn", "line.cudart": "pass"}),
        (["torch==2.14.0; extra == 'x'"], [], True, {"line.torch": "fail", "line.cudart": "warn"}),
        (
            ["not a requirement ==", "nvidia-cuda-runtime"],
            [],
            True,
            {"line.torch": "fail", "line.cudart": "pass"},
        ),
        ([], ["torch/lib/libtorch.so", "nvidia/cu13/lib/libcudart.so.13"], False, {"line.cudart": "pass"}),
        ([], ["torch/lib/libtorch.so"], False, {"line.cudart": "fail"}),
        (None, [], True, {}),
    ],
)
def test_who_brings_torch_and_the_runtime(
    requires: list[str] | None, files: list[str], own: bool, wanted: dict[str, str]
) -> None:
    needed = {"a.so": ["libtorch.so", "libcudart.so.13"]}
    assert verdicts(judge_providers(needed, RULES.libraries, requires=requires, files=files, own=own)) == wanted


@pytest.mark.parametrize(
    ("path", "project", "verdict"),
    [
        ("vllm.libs/libcudart-1a2b3c4d.so.13", "vllm", Verdict.FAIL),
        ("vllm.libs/libcuda-984fdb42.so.570.86.15", "vllm", Verdict.FAIL),
        ("vllm/lib/libtorch_cpu.so", "vllm", Verdict.FAIL),
        ("vllm.libs/libgomp-24e2ab19.so.1.0.0", "vllm", Verdict.PASS),
        ("vllm/libcudart_helper.so", "vllm", Verdict.PASS),
    ],
)
def test_grafted_libraries(path: str, project: str, verdict: Verdict) -> None:
    assert overall(judge_grafts([path, "x/__init__.py"], RULES.libraries, project)) is verdict


def needs(
    *undefined: str, needed: tuple[str, ...] = ("libtorch.so", "libcudart.so.13"), versioned: tuple[str, ...] = (),
    lazy: tuple[str, ...] = (),
) -> Needs:  # fmt: skip
    bound = dict.fromkeys(versioned, ("libother.so.1", "OTHER_1"))
    return Needs("a.so", frozenset(undefined), needed, bound, frozenset(lazy))


def test_every_missing_symbol_is_named() -> None:
    asked = needs("_Z3onev", "_Z3twov", "_Z5therev", "dlopen", "my_missing_function")
    findings = list(judge_symbols(asked, {"_Z5therev"}, RULES.libraries))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL, Verdict.FAIL, Verdict.WARN]
    assert "my_missing_function" in findings[2].got
    assert "_Z3onev" in findings[0].got


def test_symbols_with_a_version_have_a_home() -> None:
    assert overall(judge_symbols(needs("_Z3onev", versioned=("_Z3onev",)), (), RULES.libraries)) is Verdict.PASS


def test_symbols_of_a_library_that_is_not_asked_for_inform() -> None:
    findings = verdicts(judge_symbols(needs("cublasHgemm"), (), RULES.libraries))
    assert findings == {"symbols.unasked": "info", "symbols.undefined": "pass"}


PREFILL = (
    "_ZN10flashinfer39BatchPrefillWithRaggedKVCacheDispatchedILj{tile}ELj{qk}ELj{vo}ELNS_15PosEncodingModeE0ELb0ELNS_8MaskModeE1E"
    "NS_16DefaultAttentionILb0ELb0ELb0ELb0EEE12RaggedParamsEE9cudaErrorT6_PNS7_6DTypeOEPfbP11CUstream_st"
)


@pytest.mark.parametrize(
    ("symbol", "lazy", "wanted"),
    [
        (PREFILL.format(tile=32, qk=64, vo=64), True, {"symbols.uncalled": "info", "symbols.undefined": "pass"}),
        (PREFILL.format(tile=32, qk=192, vo=128), True, {"symbols.uncalled": "info", "symbols.undefined": "pass"}),
        (PREFILL.format(tile=32, qk=64, vo=64), False, {"symbols.undefined": "fail"}),
        (PREFILL.format(tile=64, qk=64, vo=64), True, {"symbols.undefined": "fail"}),
        (PREFILL.format(tile=32, qk=512, vo=512), True, {"symbols.undefined": "fail"}),
        (PREFILL.format(tile=32, qk=1024, vo=1024), True, {"symbols.undefined": "fail"}),
    ],
)  # fmt: skip
def test_a_function_that_is_never_called_may_be_missing_where_calls_are_looked_up_late(
    symbol: str, lazy: bool, wanted: dict[str, str]
) -> None:
    asked = needs(symbol, lazy=(symbol,) if lazy else ())
    assert verdicts(judge_symbols(asked, (), RULES.libraries)) == wanted


def test_a_function_that_is_never_called_and_looked_up_early_is_a_matter_of_linking() -> None:
    early, missing = judge_symbols(
        needs(PREFILL.format(tile=32, qk=64, vo=64), PREFILL.format(tile=64, qk=64, vo=64)), (), RULES.libraries
    )
    assert "when it is loaded" in early.got
    assert "-z now" in early.advice
    assert "a source file was left out" in missing.got


@pytest.mark.parametrize("needed", ["libtvm_ffi.so", "libc.so.6"])
def test_classes_of_tvm_ffi_have_a_home(needed: str) -> None:
    asked = needs("_ZTIN3tvm3ffi9ModuleObjE", "_ZTVN3tvm3ffi9ModuleObjE", needed=(needed,))
    unasked = {} if needed == "libtvm_ffi.so" else {"symbols.unasked": "info"}
    assert verdicts(judge_symbols(asked, (), RULES.libraries)) == {**unasked, "symbols.undefined": "pass"}


def test_nm_lines() -> None:
    assert read_nm("                 U cudaMalloc@libcudart.so.13") == "cudaMalloc"
    assert read_nm("0000000000001000 T _init") is None


def test_the_loader_is_explained_line_by_line() -> None:
    log = "x: libcuda.so.1: cannot open shared object file\ny: libfoo.so.2: cannot open shared object file\n"
    assert [item.verdict for item in explain_loader(log, RULES.libraries, gpu=False)] == [
        Verdict.INFO,
        Verdict.FAIL,
    ]
    assert [item.verdict for item in explain_loader(log, RULES.libraries, gpu=True)] == [
        Verdict.FAIL,
        Verdict.FAIL,
    ]
    assert explain_loader("all is well", RULES.libraries, gpu=True) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.33.0", {}),
        ("0.33.0+cu130.sm121", {}),
        ("0.33.0+cu130torch214", {}),
        ("0.33.0rc1", {}),
        ("0.1.dev18498", {"stamp.dev": "fail"}),
        ("0.1.dev1+g123.d20261129", {"stamp.dev": "fail", "stamp.dirty": "warn"}),
        ("0.34.1.dev3+gabc1234", {"stamp.dev": "warn"}),
        ("0.33.0+cu130+cu130", {"stamp.valid": "fail", "stamp.cuda": "fail"}),
        ("0.33.0+cu130.cu130", {"stamp.cuda": "fail"}),
        ("0.33.0+cu129.cu130", {"stamp.cuda": "fail"}),
        ("0.33.0+dirty", {"stamp.dirty": "warn"}),
        ("main", {"stamp.valid": "fail"}),
        ("", {"stamp.valid": "fail"}),
    ],
)
def test_faults_of_a_version(text: str, wanted: dict[str, str]) -> None:
    assert verdicts(judge_version(text, "vllm")) == wanted


@pytest.mark.parametrize(
    ("stamp", "expected", "verdict"),
    [
        (Stamp("v", "0.33.0", "0.33.0", "0.33.0", "0.33.0"), "v0.33.0", Verdict.PASS),
        (Stamp("v", metadata="0.33.0+cu130.sm121"), "0.33.0", Verdict.PASS),
        (Stamp("v", metadata="0.33.0+cu130.sm121"), "0.33.0+cu129.sm121", Verdict.FAIL),
        (Stamp("v", metadata="0.33.0"), "0.33.0+cu130", Verdict.FAIL),
        (Stamp("v", metadata="0.33.0"), "0.33.1", Verdict.FAIL),
        (Stamp("v", metadata="0.33.0"), "latest", Verdict.UNKNOWN),
        (Stamp("v", file_name="0.33.0", module="0.1.dev1"), "", Verdict.FAIL),
        (Stamp("v", file_name="0.33.0", metadata="0.33"), "", Verdict.FAIL),
        (Stamp("v"), "0.33.0", Verdict.UNKNOWN),
    ],
)
def test_the_chain_of_versions(stamp: Stamp, expected: str, verdict: Verdict) -> None:
    assert overall(judge_stamp(stamp, expected)) is verdict


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        ({"vllm_commit": "54dc64d5d", "size": 3}, Verdict.PASS),
        ({"vllm_commit": ""}, Verdict.FAIL),
        ({"git_sha": None}, Verdict.FAIL),
        ({"commit": "main"}, Verdict.FAIL),
        ({"flashinfer_ref": "v0.7.2"}, Verdict.PASS),
    ],
)
def test_commits_of_a_build_record(record: dict[str, object], verdict: Verdict) -> None:
    assert overall(judge_build_record(record)) is verdict


WHEEL = "vllm-0.33.0+cu130-cp38-abi3-manylinux_2_28_aarch64.whl"


@pytest.mark.parametrize(
    ("name", "python", "glibc", "machine", "words"),
    [
        (WHEEL, "3.12", "2.39", "aarch64", ()),
        (WHEEL, "3.12", "", "aarch64", ()),
        (WHEEL, "3.13t", "2.17", "x86_64", ("free-threaded", "2.28", "x86_64")),
        ("x-1-cp312-cp312-linux_aarch64.whl", "3.12", "2.39", "aarch64", ()),
        ("x-1-cp312-cp312-linux_aarch64.whl", "3.13", "2.39", "aarch64", ("cp312",)),
        ("x-1-cp313-abi3-manylinux2014_aarch64.whl", "3.12", "2.39", "aarch64", ("3.13",)),
        ("x-1-py3-none-any.whl", "3.13t", "2.39", "x86_64", ()),
        ("x-1-cp312-cp312-win_amd64.whl", "3.12", "2.39", "x86_64", ("another system",)),
        ("not a wheel", "3.12", "2.39", "x86_64", ("no wheel",)),
    ],
)
def test_where_a_wheel_installs(name: str, python: str, glibc: str, machine: str, words: tuple[str, ...]) -> None:
    findings = list(judge_tags(name, Interpreter.parse(python, glibc, machine)))
    assert overall(findings) is (Verdict.FAIL if words else Verdict.PASS)
    for word in words:
        assert word in findings[0].got


@pytest.mark.parametrize(("python", "glibc"), [("3", ""), ("py312", ""), ("3.12", "glibc 2.39")])
def test_an_interpreter_must_be_one(python: str, glibc: str) -> None:
    with pytest.raises(ValueError, match="looks like"):
        Interpreter.parse(python, glibc)


def test_names_against_what_is_inside() -> None:
    assert overall(judge_name(WHEEL, ["cp38-abi3-manylinux_2_28_aarch64"], "x")) is Verdict.PASS
    assert overall(judge_name(WHEEL, ["cp38-abi3-linux_aarch64"], "x")) is Verdict.INFO
    assert overall(judge_name(WHEEL, ["cp312-cp312-linux_aarch64"], "x")) is Verdict.FAIL
    assert overall(judge_name(WHEEL, [], "x")) is Verdict.WARN
    assert overall(judge_name("x-1-py2.py3-none-any.whl", ["py2-none-any", "py3-none-any"], "x")) is Verdict.PASS


def test_platform_tags_against_real_needs() -> None:
    tag, machines = ["manylinux_2_28_aarch64"], {"a.so": "aarch64"}
    old = {"a.so": {"libc.so.6": ("GLIBC_2.17",), "libcudart.so.13": ("libcudart.so.13",)}}
    new = {"a.so": {"libc.so.6": ("GLIBC_2.34",), "libstdc++.so.6": ("GLIBCXX_3.4.29",)}}
    assert verdicts(judge_platform(tag, machines, old, "x")) == {
        "wheel.machine": "pass",
        "wheel.platform": "pass",
    }
    findings = list(judge_platform(tag, machines, new, "x"))
    (failed,) = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    assert "GLIBC_2.34" in failed.got
    assert "GLIBCXX_3.4.29" in failed.got
    assert "manylinux_2_34_aarch64" in failed.got
    assert verdicts(judge_platform(tag, {"a.so": "x86_64"}, {}, "x"))["wheel.machine"] == "fail"
    assert verdicts(judge_platform(["any"], machines, {}, "x")) == {"wheel.machine": "fail"}
    assert verdicts(judge_platform(["any"], {"a.cubin": "cuda"}, {}, "x")) == {}
    assert verdicts(judge_platform(["linux_aarch64"], machines, new, "x"))["wheel.platform"] == "info"
    assert verdicts(judge_platform(["manylinux_2_99_aarch64"], machines, old, "x"))["wheel.platform"] == "unknown"


def test_equal_files_of_two_owners_are_told_together() -> None:
    rows = [f"pkg/{name}.py,sha256=aa,1" for name in "abc"]
    one, two = distribution("one", "1", rows=rows), distribution("two", "1", rows=rows)
    (finding,) = judge_ownership([one, two])
    assert finding.verdict is Verdict.INFO
    assert "3 files" in finding.got


def test_one_version_of_each_project() -> None:
    assert overall(judge_one_version(["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"])) is Verdict.PASS
    assert overall(judge_one_version(["a==1", "a==1"])) is Verdict.PASS
    assert overall(judge_one_version(["a==1", "A==2", "b==1"])) is Verdict.FAIL
