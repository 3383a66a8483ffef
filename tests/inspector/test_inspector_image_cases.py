"""Every published case about container images, and the rules at their edges."""

from __future__ import annotations

from typing import Any

import pytest
from made_facts import cases
from test_inspector_cases import check

from sm121.findings import Finding, Verdict, overall
from sm121.inspector.container import Container, Hidden
from sm121.inspector.container_rules import container_rules
from sm121.inspector.judge.container import judge_container
from sm121.inspector.judge.leftovers import judge_caches, judge_files, judge_secrets, judge_waste, judge_wheels
from sm121.inspector.judge.machines import driver_cuda, judge_compat, judge_machines
from sm121.inspector.judge.naming import judge_base, judge_cuda_claims, judge_labels, judge_reference
from sm121.inspector.judge.tools import (
    judge_cuda_home,
    judge_flashinfer,
    judge_gate,
    judge_headers,
    judge_ptxas,
    nvcc_of_base,
)
from sm121.target import GB10, Capability

RULES = container_rules()
ELSEWHERE = {"B57-a"}
"""Cases about a build that has not begun: tests/engine."""


def _files(given: dict[str, Any]) -> dict[str, str]:
    """Path, without its first slash, to content."""
    files = given.get("files", {})
    named = files.items() if isinstance(files, dict) else ((path, "") for path in files)
    return {path.lstrip("/"): text for path, text in named}


def _container(given: dict[str, Any]) -> Container:
    """An image of which no more is known than the case says."""
    nvcc = given.get("nvcc")
    files = _files(given)
    reference = given.get("reference", "")
    loader = {path: text for path, text in files.items() if RULES.loader.fullmatch(path)}
    headers = tuple(path for path in files if path.endswith("/Python.h"))
    absent = any("Python.h" in path for path in given.get("missing", ()))
    return Container(
        reference=reference,
        pinned=bool(given.get("digest")) or "@sha256:" in reference,
        env={**given.get("env", {}), **given.get("config_env", {})},
        labels=given.get("labels", {}),
        history=tuple(given.get("history", ())),
        base=given.get("base", ""),
        ptxas=given.get("ptxas"),
        nvcc=None if nvcc is None else {"usr/local/cuda/bin/nvcc": nvcc} if nvcc else {},
        loader=loader or None,
        headers=headers if headers or absent else None,
    )


def findings_of(given: dict[str, Any]) -> list[Finding]:
    installed = dict(item.split("==") for item in given.get("installed", ()))
    container = _container(given)
    # A case that lists nothing but the loader's configuration does not list the image.
    listed = [
        path for path in _files(given) if not RULES.loader.fullmatch(path) and not path.endswith("/Python.h")
    ]
    found = list(
        judge_container(
            container, installed, capability=Capability.parse(given.get("target", "12.1")),
            python=given.get("python", ""), driver=driver_cuda(given.get("driver", ""), RULES),
            torch=given.get("torch", ""), paths=listed or None,
        )
    )  # fmt: skip
    # What cases leave out, most images have: the claims that a case is not about must not decide.
    about = "digest" in given or container.pinned
    return [item for item in found if item.check != "image.reference" or about]


MINE = [case for case in cases("images") if case["id"] not in ELSEWHERE]


@pytest.mark.parametrize("case", MINE, ids=[case["id"] for case in MINE])
def test_case(case: dict[str, Any]) -> None:
    findings = findings_of(case["given"])
    assert findings
    check(case, findings)


def test_every_case_is_judged_somewhere() -> None:
    known = {case["id"] for case in cases("images")}
    assert known > ELSEWHERE
    assert len(MINE) == len(known) - len(ELSEWHERE) == 12


def verdict(findings: Any) -> Verdict:
    return overall(list(findings))


TRITON = "opt/vllm/lib/python3.12/site-packages/triton/backends/nvidia/bin"


@pytest.mark.parametrize(
    ("ptxas", "env", "expected"),
    [
        ({f"{TRITON}/ptxas": "12.9.86"}, {}, Verdict.PASS),
        ({f"{TRITON}/ptxas": ""}, {}, Verdict.UNKNOWN),
        ({f"{TRITON}/ptxas": "12.8.93", f"{TRITON}/ptxas-blackwell": "12.8.93"}, {}, Verdict.FAIL),
        # Triton with a ptxas for Blackwell does not ask the other variable for 12.x.
        (
            {f"{TRITON}/ptxas": "13.0.88", f"{TRITON}/ptxas-blackwell": "12.8.93", "/c/ptxas": "13.0.88"},
            {"TRITON_PTXAS_PATH": "/c/ptxas"},
            Verdict.FAIL,
        ),
        (
            {f"{TRITON}/ptxas-blackwell": "12.8.93", "/c/ptxas": "13.0.88"},
            {"TRITON_PTXAS_BLACKWELL_PATH": "/c/ptxas"},
            Verdict.INFO,
        ),
        ({f"{TRITON}/ptxas": "13.0.88"}, {"TRITON_PTXAS_PATH": "/gone/ptxas"}, Verdict.FAIL),
        ({}, {}, Verdict.WARN),
    ],
)
def test_the_ptxas_that_triton_takes(ptxas: dict[str, str], env: dict[str, str], expected: Verdict) -> None:
    assert verdict(judge_ptxas(ptxas, env, GB10, RULES)) is expected


def test_an_old_ptxas_is_enough_for_an_older_chip() -> None:
    old = {f"{TRITON}/ptxas": "12.8.93"}
    assert verdict(judge_ptxas(old, {}, Capability.parse("12.0"), RULES)) is Verdict.PASS
    assert verdict(judge_ptxas(old, {}, Capability.parse("13.7"), RULES)) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("installed", "nvcc", "expected"),
    [
        ({"flashinfer-python": "0.6.16", "flashinfer-jit-cache": "0.6.16+cu130"}, {}, Verdict.PASS),
        ({"flashinfer-python": "0.6.16", "flashinfer-jit-cache-sm121a": "0.6.16+cu130.sm121"}, {}, Verdict.PASS),
        ({"flashinfer-python": "0.6.16", "flashinfer-jit-cache": "0.6.14+cu130"}, {}, Verdict.FAIL),
        (
            {"flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.1"},
            {"cuda/bin/nvcc": "13.0.88"},
            Verdict.WARN,
        ),
        ({"flashinfer-python": "0.7.2", "flashinfer-jit-cache-sm121a": "0.7.2+cu130"}, {}, Verdict.FAIL),
        (
            {
                "flashinfer-python": "0.7.2",
                "flashinfer-jit-cache": "0.7.2+cu130.sm121",
                "flashinfer-jit-cache-sm121a": "0.7.2+cu130.sm121",
            },
            {},
            Verdict.PASS,
        ),
        ({"flashinfer-python": "0.6.16"}, {"cuda/bin/nvcc": "12.8.93"}, Verdict.FAIL),
        ({"flashinfer-python": "0.6.16"}, {"cuda/bin/nvcc": ""}, Verdict.WARN),
    ],
)
def test_flashinfer_finds_its_modules_or_compiles_them(
    installed: dict[str, str], nvcc: dict[str, str], expected: Verdict
) -> None:
    assert verdict(judge_flashinfer(installed, nvcc, GB10, RULES)) is expected


def test_a_finder_without_modules_is_no_cache() -> None:
    installed = {"flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130"}
    assert verdict(judge_flashinfer(installed, {}, GB10, RULES, modules=0)) is Verdict.FAIL
    assert verdict(judge_flashinfer(installed, {}, GB10, RULES, modules=200)) is Verdict.PASS


@pytest.mark.parametrize(
    ("more", "nvcc", "env", "expected"),
    [
        ({}, {}, {}, Verdict.WARN),
        ({}, {"opt/x/nvidia/cu13/bin/nvcc": "13.0.88"}, {"PATH": "/usr/bin"}, Verdict.WARN),
        ({}, {"opt/x/nvidia/cu13/bin/nvcc": "13.0.88"}, {"CUDA_HOME": "/opt/x/nvidia/cu13"}, Verdict.PASS),
        ({}, {"usr/local/cuda-13.0/bin/nvcc": "13.0.88"}, {}, Verdict.PASS),
        ({}, {}, {"VLLM_HAS_FLASHINFER_CUBIN": "1"}, Verdict.PASS),
        ({"flashinfer-cubin": "0.6.13"}, {}, {}, Verdict.PASS),
    ],
)
def test_vllm_uses_flashinfer_where_it_may(
    more: dict[str, str], nvcc: dict[str, str], env: dict[str, str], expected: Verdict
) -> None:
    installed = {"vllm": "0.33.0", "flashinfer-python": "0.7.2", **more}
    assert verdict(judge_gate(installed, nvcc, env)) is expected


def test_what_a_base_is_called_says_whether_it_has_nvcc() -> None:
    assert nvcc_of_base("docker.io/nvidia/cuda:12.9.1-cudnn-devel-ubuntu24.04", RULES) == {
        "usr/local/cuda/bin/nvcc": "12.9.1"
    }
    assert nvcc_of_base("nvidia/cuda:13.0.1-base-ubuntu24.04", RULES) == {}
    assert nvcc_of_base("ubuntu:24.04", RULES) is None
    assert nvcc_of_base("localhost:5000/devel/thing", RULES) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/usr/local/cuda", Verdict.PASS),
        ("", Verdict.WARN),
        ("usr/local/cuda", Verdict.FAIL),
        ("/usr/local/cuda:", Verdict.FAIL),
        ("${CUDA}", Verdict.FAIL),
        ('"/usr/local/cuda"', Verdict.FAIL),
    ],
)
def test_cuda_home(value: str, expected: Verdict) -> None:
    assert verdict(judge_cuda_home({"CUDA_HOME": value}, None)) is expected


def test_cuda_home_is_of_torchs_major() -> None:
    env = {"CUDA_HOME": "/usr/local/cuda-12.8"}
    assert verdict(judge_cuda_home(env, None, "2.14.0+cu130")) is Verdict.WARN
    assert verdict(judge_cuda_home(env, None, "2.14.0+cu129")) is Verdict.PASS


def test_cuda_home_must_exist() -> None:
    assert verdict(judge_cuda_home({"CUDA_PATH": "/cuda"}, {"CUDA_PATH": False})) is Verdict.FAIL
    assert list(judge_cuda_home({}, {})) == []


def test_headers_are_those_of_the_python_in_use() -> None:
    debian = ["usr/include/python3.11/Python.h"]
    assert verdict(judge_headers("3.12", debian, compiler=True, triton=True)) is Verdict.WARN
    assert verdict(judge_headers("3.11", debian, compiler=True, triton=True)) is Verdict.PASS
    assert verdict(judge_headers("3.11", debian, compiler=False, triton=True)) is Verdict.WARN
    assert list(judge_headers("3.11", (), compiler=False, triton=False)) == []


@pytest.mark.parametrize(
    ("reference", "env", "torch", "expected"),
    [
        ("vllm-openai:cu130-nightly", {"CUDA_VERSION": "13.0.1"}, "2.14.0+cu130", Verdict.PASS),
        # Compiled by 12.9 for torch of 12.8, compiled by 13.5 for torch of 13.0: majors agree.
        ("r/vllm:0.33.0-cu128", {"CUDA_VERSION": "12.9.1"}, "2.14.0+cu128", Verdict.INFO),
        ("r/vllm:latest", {"CUDA_VERSION": "13.0.1"}, "2.14.0+cu129", Verdict.FAIL),
        ("localhost:5000/cu129/vllm:13", {}, "2.14.0+cu130", Verdict.UNKNOWN),
    ],
)
def test_claims_about_cuda(reference: str, env: dict[str, str], torch: str, expected: Verdict) -> None:
    assert verdict(judge_cuda_claims(reference, env, torch, {})) is expected


def test_a_name_by_digest_passes_and_a_file_has_none() -> None:
    assert verdict(judge_reference("r/vllm@sha256:" + "0" * 64, pinned=True)) is Verdict.PASS
    assert list(judge_reference("", pinned=False)) == []


def test_labels_are_compared_with_metadata() -> None:
    installed = {"vllm": "0.33.0+cu130.sm121", "flashinfer-python": "0.7.2.post1", "torch": "2.14.0"}
    good = {"sm121.vllm.version": "0.33.0+cu130.sm121", "org.opencontainers.image.version": "24.04"}
    assert verdict(judge_labels(good, {"VLLM_VERSION": "0.33.0"}, installed)) is Verdict.PASS
    bad = list(judge_labels({"ai.vllm.version": "0.26.1rc1.dev5"}, {}, installed))
    assert verdict(bad) is Verdict.FAIL
    assert "0.33.0+cu130.sm121" in bad[0].got
    assert verdict(judge_labels({}, {"FLASHINFER_PYTHON_VERSION": "0.6.14"}, installed)) is Verdict.WARN
    assert list(judge_labels({"version": "1", "maintainer": "x"}, {}, installed)) == []


def test_the_base_is_what_the_image_begins_with() -> None:
    base = "r/base@sha256:" + "1" * 64
    label = {"org.opencontainers.image.base.digest": "sha256:" + "1" * 64}
    assert verdict(judge_base(("a", "b", "c"), label, base=base, layers=("a", "b"))) is Verdict.PASS
    assert verdict(judge_base(("a", "x", "c"), label, base=base, layers=("a", "b"))) is Verdict.FAIL
    assert verdict(judge_base(("a",), {}, base=base, layers=("a", "b"))) is Verdict.FAIL
    wrong = {"org.opencontainers.image.base.digest": "sha256:" + "2" * 64}
    assert verdict(judge_base(("a", "b"), wrong, base=base, layers=("a", "b"))) is Verdict.FAIL


@pytest.mark.parametrize(
    ("env", "history", "secret"),
    [
        ({"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx"}, (), True),
        ({"MY_API_KEY": "0123456789abcdef"}, (), True),
        ({"SETTINGS": "https://bob:hunter22@host/path"}, (), True),
        ({}, ("RUN |1 GITHUB_TOKEN=ghp_abcdefghijklmnopqrstuvwxyz0123456789 /bin/sh -c make",), True),
        ({}, ("RUN /bin/sh -c curl -H 'Authorization: glpat-abcdefghijklmnopqrst' x",), True),
        ({}, ('ENV DB_PASSWORD="tr0ub4dor&3"',), True),
        # A public key of a release manager, switches, files that hold the secret elsewhere, and a pinned address.
        ({"GPG_KEY": "A035C8C19219BA821ECEA86B64E628F8D684696D"}, (), False),
        ({"TOKENIZERS_PARALLELISM": "false", "VLLM_MAX_TOKENS": "8192"}, (), False),
        ({"HF_TOKEN_PATH": "/run/secrets/hf", "HF_TOKEN": ""}, (), False),
        ({"OPENAI_API_KEY": "EMPTY", "PAD_TOKEN": "[PAD]", "EOS_TOKEN": "<|endoftext|>"}, (), False),
        ({"INDEX": "https://host.example/simple"}, ("RUN pip install torch==2.14.0",), False),
    ],
)
def test_secrets(env: dict[str, str], history: tuple[str, ...], secret: bool) -> None:
    findings = list(judge_secrets(env, {}, history, RULES))
    assert verdict(findings) is (Verdict.FAIL if secret else Verdict.PASS)
    text = "\n".join(finding.message for finding in findings)
    for value in (*env.values(), "ghp_abc", "glpat-abc", "tr0ub4dor"):
        assert len(value) < 6 or value not in text


def test_files_of_credentials_also_where_a_layer_hides_them() -> None:
    hidden = (Hidden("root/.netrc", 100, 2),)
    assert verdict(judge_files([], hidden, RULES)) is Verdict.FAIL
    assert verdict(judge_files(["root/.docker/config.json"], (), RULES)) is Verdict.FAIL
    assert list(judge_files(["usr/lib/python3/test/keycert.pem", "etc/ssl/private/README"], (), RULES)) == []


def test_caches_of_compilers() -> None:
    baked = ["root/.cache/flashinfer/0.6.14/121a/cached_ops/x/x.so", "home/u/.triton/cache/ab/k.cubin"]
    findings = list(judge_caches(baked, RULES))
    assert [finding.subject for finding in findings] == ["FlashInfer", "Triton"]
    assert verdict(findings) is Verdict.WARN
    assert verdict(judge_caches(["opt/vllm/lib/python3.12/site-packages/triton/cache.py"], RULES)) is Verdict.PASS


def test_wheels_left_behind() -> None:
    bundled = ["usr/lib/python3.12/ensurepip/_bundled/pip-24-py3-none-any.whl"]
    assert verdict(judge_wheels(bundled, (), RULES)) is Verdict.PASS
    assert verdict(judge_wheels(["tmp/vllm-1-py3-none-any.whl"], (), RULES)) is Verdict.WARN
    lost = list(judge_wheels([], (Hidden("tmp/vllm-1-py3-none-any.whl", 334_000_000, 3),), RULES))
    assert verdict(lost) is Verdict.WARN
    assert "334.0 MB" in lost[0].got


def test_waste_is_a_warning_where_it_is_large() -> None:
    assert list(judge_waste(())) == []
    assert verdict(judge_waste((Hidden("var/lib/dpkg/status", 90_000, 1),))) is Verdict.INFO
    assert verdict(judge_waste((Hidden("opt/big", 1 << 30, 1),))) is Verdict.WARN


def test_machines() -> None:
    mixed = {"opt/a.so": "aarch64", "opt/b.so": "x86_64", "opt/k.cubin": "cuda"}
    assert verdict(judge_machines(mixed, "aarch64", ["opt/b.so"])) is Verdict.FAIL
    assert verdict(judge_machines(mixed, "aarch64", ["opt/a.so"])) is Verdict.WARN
    assert verdict(judge_machines({"a": "aarch64"}, "aarch64", [])) is Verdict.PASS


def test_a_compat_folder_counts_where_it_holds_a_libcuda() -> None:
    loader = {"etc/ld.so.conf.d/x.conf": "# /usr/local/cuda/compat\n/usr/lib/compatible\n"}
    assert verdict(judge_compat(loader, {}, None, driver=None, cuda="")) is Verdict.PASS
    env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/cuda/compat"}
    there = ["usr/local/cuda-13.0/compat/libcuda.so.580.95.05"]
    assert verdict(judge_compat({}, env, there, driver=None, cuda="13.0")) is Verdict.WARN
    assert verdict(judge_compat({}, env, ["usr/bin/env"], driver=None, cuda="13.0")) is Verdict.INFO
