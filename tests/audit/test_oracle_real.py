"""The lists of real releases, read from their source distributions, which are known by their hashes."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from sm121.audit.checkpoint import Checkpoint
from sm121.audit.compiled import compiled_answers
from sm121.audit.modules import Role
from sm121.audit.oracle import Oracle, Serves, read_oracle
from sm121.audit.oracle_report import diff
from sm121.audit.selection import Selection, select_attention, select_dense, select_experts
from sm121.audit.source import SourceTree
from sm121.audit.static import Facts
from sm121.progress import Progress
from sm121.sources.fetch import fetch
from sm121.target import GB10
from sm121.values import CudaVersion, Sha256

pytestmark = pytest.mark.network

SDISTS = {
    "0.22.0": (36239170, "6d41581a9e5288cd69278518a550c6d7ce510ae27a506556a3427d01284be7fe"),
    "0.23.0": (36624042, "760269db3d9611e12e524681df1bca0977d5d2f5fcb4481cc34d33efc4ae7ff5"),
    "0.24.0": (37236989, "0862453adc1f3339f1a0c9dca1179c34d6ed6e118f87b6e5bddd120af614ac66"),
    "0.25.1": (37731826, "ddbdec3f1c0f21afa70b7eb6ddf3faa29d26b1302ee4b5d5e00ec3af41b0c2e4"),
    "0.26.0": (38353572, "23e9fa19d7e20ce7dcc1c074d41503e2116d23f19e688f5d5ea91b741f958502"),
    "0.27.1": (39257426, "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646"),
    "0.28.0": (39991441, "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a"),
    "0.29.0": (40906181, "c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97"),
    "0.30.0": (42432229, "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b"),
    "0.31.0": (43419411, "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380"),
    "0.32.0": (44549956, "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"),
    "0.33.0": (47101396, "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"),
}
CHECKPOINTS = Path(__file__).parent / "checkpoints"
SETTINGS = {
    "kernel_config.linear_backend": "auto", "kernel_config.moe_backend": "auto", "model_config.quantization_config": None,
    "model_config.hf_text_config.model_type": "x", "lora_config": None,
}  # fmt: skip


class Pin(NamedTuple):
    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256


@lru_cache(maxsize=8)
def tree(version: str) -> SourceTree:
    size, digest = SDISTS[version]
    pin = Pin("vllm", version, f"vllm-{version}.tar.gz", size, Sha256(digest))
    folder = Path(tempfile.gettempdir()) / "sm121-tests-sdists"
    quiet = Progress(Console(file=StringIO()), quiet=True)
    return SourceTree.read([fetch([pin], folder, progress=quiet)[pin.filename]])


def facts(*, there: bool | None = True, moe: str = "auto", reached: bool = False) -> Facts:
    """A machine with nvcc and without FlashInfer's cubins; `there`: kernels are compiled in."""
    cuda = CudaVersion(13, 0)
    compiled = compiled_answers(GB10, cuda, lambda _family: there)
    return Facts(
        cuda=cuda,
        native=lambda text: reached if text.endswith("can be reached from the machine") else compiled(text),
        settings={**SETTINGS, "kernel_config.moe_backend": moe},
        answers={
            "the program nvcc is on the machine": True, "the program ninja is on the machine": True,
            "flashinfer_cubin can be imported": False, "deep_gemm can be imported": False,
        },
    )  # fmt: skip


@lru_cache(maxsize=8)
def oracle(version: str) -> Oracle:
    return read_oracle(tree(version), Facts(cuda=CudaVersion(13, 0)))


def order(version: str, table: str) -> tuple[str, ...]:
    found = oracle(version).table(table)
    assert found is not None
    return found.order


@pytest.mark.parametrize("version", SDISTS)
def test_every_list_of_every_release_is_read(version: str) -> None:
    found = oracle(version)
    assert found.version == version
    assert not found.problems
    names = {table.name for table in found.tables}
    assert {"dense NVFP4", "dense FP8", "dense FP8_BLOCK", "dense MXFP4", "dense WNA16"} <= names
    assert {"MoE nvfp4", "MoE mxfp4", "MoE fp8", "MoE unquantized", "attention", "attention MLA"} <= names
    unknown = [item.name for table in found.tables for item in table.entries if item.serves is Serves.UNKNOWN]
    assert not unknown
    assert len(found.variables) > 200
    assert "marlin" in found.flags["--moe-backend"]


def test_moe_order_stands_as_it_was_read_by_hand() -> None:
    assert order("0.33.0", "MoE nvfp4") == (
        "FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED", "FLASHINFER_CUTLASS", "VLLM_CUTLASS",
        "MARLIN", "HUMMING", "EMULATION",
    )  # fmt: skip
    assert "B12X" not in order("0.33.0", "MoE nvfp4")


def test_dense_order_stands_as_it_was_read_by_hand() -> None:
    assert order("0.22.0", "dense NVFP4")[:3] == (
        "FlashInferCutlassNvFp4LinearKernel", "CutlassNvFp4LinearKernel", "MarlinNvFp4LinearKernel",
    )  # fmt: skip
    newest = order("0.33.0", "dense NVFP4")
    assert newest.index("FlashInferCuteDslNvFp4W4A16LinearKernel") > newest.index("CutlassNvFp4LinearKernel")


def test_b12x_came_on_request_and_variables_went() -> None:
    text = "\n".join(str(change) for change in diff(oracle("0.28.0"), oracle("0.29.0")))
    assert "MoE nvfp4: new, taken on request: B12X" in text
    text = "\n".join(str(change) for change in diff(oracle("0.22.0"), oracle("0.25.1")))
    assert "environment: removed: VLLM_NVFP4_GEMM_BACKEND" in text


def decided(selection: Selection) -> str:
    choice = selection.decided
    assert choice is not None, selection
    return choice.backend


@pytest.mark.parametrize("version", SDISTS)
def test_what_gb10_takes_with_everything_delivered(version: str) -> None:
    source, known = tree(version), facts()
    wanted = {
        ("moe-nvfp4-w4a4", Role.ATTENTION): "FlashInferCutlassNvFp4LinearKernel",
        ("moe-nvfp4-w4a4", Role.EXPERTS): "FLASHINFER_CUTLASS",
        ("dense-nvfp4-w4a16", Role.DENSE): "MarlinNvFp4LinearKernel",
        ("modelopt-w4a16", Role.EXPERTS): "MARLIN",
        ("hybrid-modelopt-nvfp4", Role.EXPERTS): "FLASHINFER_CUTLASS",
        ("gpt-oss-mxfp4", Role.EXPERTS): "MARLIN",
        ("awq", Role.DENSE): "MarlinLinearKernel",
        ("fp8-token", Role.DENSE): "CutlassFP8ScaledMMLinearKernel",
        ("deepseek-fp8-block", Role.EXPERTS): "TRITON",
    }  # fmt: skip
    for (name, role), backend in wanted.items():
        checkpoint = Checkpoint.read(CHECKPOINTS / f"{name}.json")
        scheme = checkpoint.scheme(role)
        assert scheme is not None
        select = select_experts if role is Role.EXPERTS else select_dense
        assert decided(select(source, known, scheme, checkpoint)) == backend, (name, role)


@pytest.mark.parametrize("version", SDISTS)
def test_attention_on_gb10(version: str) -> None:
    for name, backend in (
        ("plain", "FlashAttentionBackend"), ("gpt-oss-mxfp4", "TritonAttentionBackend"),
        ("deepseek-fp8-block", "TritonMLABackend"),
    ):  # fmt: skip
        checkpoint = Checkpoint.read(CHECKPOINTS / f"{name}.json")
        assert decided(select_attention(tree(version), facts(), checkpoint)) == backend


def test_attention_of_a_model_with_sinks_hung_on_a_server_of_nvidias() -> None:
    checkpoint = Checkpoint.read(CHECKPOINTS / "gpt-oss-mxfp4.json")
    assert decided(select_attention(tree("0.30.0"), facts(reached=True), checkpoint)) == "FlashInferBackend"
    assert decided(select_attention(tree("0.26.0"), facts(reached=True), checkpoint)) == "TritonAttentionBackend"


def test_without_the_compiled_kernel_marlin_is_left() -> None:
    checkpoint = Checkpoint.read(CHECKPOINTS / "moe-nvfp4-w4a4.json")
    scheme = checkpoint.scheme(Role.ATTENTION)
    assert scheme is not None
    selection = select_dense(tree("0.26.0"), facts(there=False), scheme, checkpoint)
    assert decided(selection) == "MarlinNvFp4LinearKernel"
    choice = selection.choices[0]
    passed = {item.kernel: item.reason for item in choice.candidates if not item.taken}
    assert "CUTLASS FP4 kernels not available" in passed["CutlassNvFp4LinearKernel"]
    assert choice.log == "Using MarlinNvFp4LinearKernel for NVFP4 GEMM"


def test_a_forced_backend_is_followed_or_refused_in_upstreams_words() -> None:
    checkpoint = Checkpoint.read(CHECKPOINTS / "moe-nvfp4-w4a4.json")
    scheme = checkpoint.scheme(Role.EXPERTS)
    assert scheme is not None
    forced = facts(moe="marlin")
    assert decided(select_experts(tree("0.33.0"), forced, scheme, checkpoint)) == "MARLIN"
    wrong = facts(moe="b12x")
    refused = select_experts(tree("0.26.0"), wrong, scheme, checkpoint).choices[0]
    assert "moe_backend='b12x' is not supported" in refused.error


def test_the_line_that_vllm_will_write() -> None:
    checkpoint = Checkpoint.read(CHECKPOINTS / "moe-nvfp4-w4a4.json")
    scheme = checkpoint.scheme(Role.EXPERTS)
    assert scheme is not None
    choice = select_experts(tree("0.33.0"), facts(), scheme, checkpoint).decided
    assert choice is not None
    assert choice.log.startswith("Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: [")


WHEELS = {
    "flashinfer_python-0.7.2.post1-py3-none-any.whl": (
        62052965, "bfdc18b9e1e4d8d0730fe4343dc0e284cd0c160086de80f99888bc4867922d49",
    ),
    "b12x-1.5.1-py3-none-any.whl": (
        2434952, "8731e23571d8d45db26d78e7699ec0b23e7ba20b52487adf8c1063c8d8b53a3d",
    ),
}  # fmt: skip


def beside(filename: str) -> SourceTree:
    """vLLM 0.33.0 with another wheel installed beside it."""
    size, digest = WHEELS[filename]
    name, version = filename.split("-")[:2]
    pins = [
        Pin(name.replace("_", "-"), version, filename, size, Sha256(digest)),
        Pin("vllm", "0.33.0", "vllm-0.33.0.tar.gz", SDISTS["0.33.0"][0], Sha256(SDISTS["0.33.0"][1])),
    ]
    folder = Path(tempfile.gettempdir()) / "sm121-tests-sdists"
    found = fetch(pins, folder, progress=Progress(Console(file=StringIO()), quiet=True))
    return SourceTree.read([found["vllm-0.33.0.tar.gz"], found[filename]])


def test_b12x_itself_accepts_the_chip_when_it_is_asked_for() -> None:
    source = beside("b12x-1.5.1-py3-none-any.whl")
    assert source.answers_import("b12x") == "b12x"
    checkpoint = Checkpoint.read(CHECKPOINTS / "moe-nvfp4-w4a4.json")
    scheme = checkpoint.scheme(Role.EXPERTS)
    assert scheme is not None
    assert decided(select_experts(source, facts(moe="b12x"), scheme, checkpoint)) == "B12X"


def test_flashinfer_answers_import_b12x_with_its_own_copy() -> None:
    source = beside("flashinfer_python-0.7.2.post1-py3-none-any.whl")
    assert source.answers_import("b12x") == "flashinfer-python"
    assert "b12x.moe.fused_moe.api" in source.files
    checkpoint = Checkpoint.read(CHECKPOINTS / "moe-nvfp4-w4a4.json")
    scheme = checkpoint.scheme(Role.EXPERTS)
    assert scheme is not None
    automatic = select_experts(source, facts(), scheme, checkpoint)
    assert decided(automatic) == "FLASHINFER_CUTLASS"
    assert not automatic.choices[0].assumed
