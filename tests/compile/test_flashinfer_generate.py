"""FlashInfer's scripts in an interpreter without torch: what they ask is answered, anything else is an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sm121.compile import flashinfer
from sm121.compile.flashinfer.configure import Modules, generate
from sm121.compile.flashinfer.standins import DType, TorchVersion, programs
from sm121.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPTS = Path(flashinfer.__file__).parent
PARAMETERS = (
    "f16_dtype_, f8_dtype_, fa2_head_dim_, fa3_head_dim_, use_sliding_window_, use_logits_soft_cap_, sm_capabilities, "
    "add_comm, add_gemma, add_oai_oss, add_moe, add_act, add_misc, add_xqa"
)
AOT = """
import torch
from torch.utils.cpp_extension import CUDA_HOME
import tvm_ffi
from filelock import FileLock
from .jit import env, JitSpec, get_cuda_version

def get_default_config():
    names = %(parameters)r.replace(" ", "").split(",")
    return {name.removesuffix("_"): [] for name in names if name != "sm_capabilities"} | {"f16_dtype": [torch.float16]}

def detect_sm_capabilities():
    assert get_cuda_version() == "13.0", get_cuda_version()
    return {"sm121": True}

def gen_all_modules(%(parameters)s):
    assert repr(f16_dtype_[0]) == "torch.float16" and f16_dtype_[0].itemsize == 2
    assert sm_capabilities == {"sm121": True}
    %(body)s
    return [JitSpec("page", ["page.cu", "binding.cu"])]
"""
JIT = """
import re, subprocess
from pathlib import Path
from . import env

def get_cuda_version():
    return re.search(r"release ([0-9.]+),", subprocess.check_output(["/x/bin/nvcc", "--version"], text=True))[1]

class JitSpec:
    extra_ldflags = None
    def __init__(self, name, sources):
        self.name, self.sources = name, [Path(source) for source in sources]
    def write_ninja(self):
        folder = env.FLASHINFER_JIT_DIR / self.name
        folder.mkdir(parents=True)
        (folder / "build.ninja").write_text("written")
"""


def lay_out(tree: Path, *, body: str = "pass", parameters: str = PARAMETERS) -> Modules:
    package = tree / "source" / "flashinfer"
    files = {
        "__init__.py": "raise ImportError('the package itself is not imported')",
        "aot.py": AOT % {"parameters": parameters, "body": body},
        "jit/__init__.py": JIT,
        "jit/env.py": "",
        "jit/fp4_quantization.py": "from . import JitSpec\n"
        "def gen_fp4_quantization_sm120f_module():\n    return JitSpec('fp4_quantization_120f', ['quantization.cu'])\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (tree / "generator").mkdir()
    for name in ("generate.py", "standins.py"):
        (tree / "generator" / name).write_text((SCRIPTS / name).read_text())
    (tree / "obj").mkdir()
    return modules({"page": ["binding.cu", "page.cu"], "fp4_quantization_120f": ["quantization.cu"]})


def modules(sources: Mapping[str, list[str]]) -> Modules:
    return Modules(
        sources=sources, extra=("flashinfer.jit.fp4_quantization:gen_fp4_quantization_sm120f_module",),
        arch_list="12.1a", cuda="13.0", torch="2.14.0", compiler="g++", launcher="",
    )  # fmt: skip


@pytest.mark.programs
def test_modules_are_written_down_without_torch_and_without_the_package_itself(tmp_path: Path) -> None:
    wanted = lay_out(tmp_path)
    generate(tmp_path, wanted, sys.executable, tmp_path / "log")
    assert (tmp_path / "obj" / "modules" / "page" / "build.ninja").read_text() == "written"
    assert (tmp_path / "obj" / "modules" / "fp4_quantization_120f" / "build.ninja").exists()
    rows = json.loads((tmp_path / "obj" / "modules.json").read_text())["modules"]
    assert [row["name"] for row in rows] == ["page", "fp4_quantization_120f"]
    assert not list((tmp_path / "source").rglob("__pycache__"))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import subprocess; subprocess.run(['nvcc', 'x.cu'])", "ProgramStarted: nvcc x.cu"),
        ("import subprocess; subprocess.Popen(['which', 'nvcc'])", "ProgramStarted: which nvcc"),
        ("torch.sparse_csr", "FlashInfer asks for torch.sparse_csr"),
        ("import scipy", "No module named 'scipy'"),
        ("getattr(torch, 'compiled_with_cxx11_abi', None)", "asked for torch.compiled_with_cxx11_abi"),
    ],
)
def test_what_no_stand_in_answers_is_an_error_that_names_it(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(CompileError) as caught:
        generate(tmp_path, lay_out(tmp_path, body=body), sys.executable, tmp_path / "log")
    assert said in str(caught.value)


@pytest.mark.programs
def test_the_program_that_fills_a_header_that_nobody_includes_is_not_started(tmp_path: Path) -> None:
    body = "import subprocess; p = subprocess.Popen(['nvcc', '-o', 'x', 'generated/print_kernel_traits.cu'])"
    body += "; assert p.communicate()[0] == b''; subprocess.Popen('bin/print_traits.exe')"
    generate(tmp_path, lay_out(tmp_path, body=body), sys.executable, tmp_path / "log")


@pytest.mark.programs
def test_other_parameters_of_upstreams_generator_are_noticed(tmp_path: Path) -> None:
    changed = lay_out(tmp_path, parameters=PARAMETERS.replace("add_xqa", "add_more"))
    with pytest.raises(CompileError, match="gen_all_modules takes"):
        generate(tmp_path, changed, sys.executable, tmp_path / "log")


@pytest.mark.programs
def test_other_modules_or_sources_than_planned_are_named(tmp_path: Path) -> None:
    lay_out(tmp_path)
    planned = modules({"page": ["page.cu"], "norm": ["norm.cu"]})
    with pytest.raises(CompileError) as caught:
        generate(tmp_path, planned, sys.executable, tmp_path / "log")
    assert caught.value.problems == [
        "FlashInfer makes no module norm for 12.1a.",
        "page is made from binding.cu, page.cu; planned were page.cu.",
    ]


@pytest.mark.programs
def test_the_home_folder_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    body = "import os; open(os.path.join(os.environ['FLASHINFER_WORKSPACE_BASE'] + '.seen'), 'w').close()"
    tree = tmp_path / "tree"
    generate(tree, lay_out(tree, body=body), sys.executable, tmp_path / "log")
    assert (tree / "obj" / "workspace.seen").exists()
    assert not list(home.iterdir())


def test_data_types_are_torchs() -> None:
    assert repr(DType("bfloat16", 2)) == "torch.bfloat16"
    assert DType("int8", 1) == DType("int8", 1)
    assert len({DType("int8", 1), DType("int8", 1), DType("uint8", 1)}) == 2


def test_torchs_versions_are_compared_by_numbers() -> None:
    assert TorchVersion("2.14.0+cu130") > TorchVersion("2.4")
    assert TorchVersion("2.9.1") < TorchVersion("2.14.0")
    assert TorchVersion("2.14.0") == TorchVersion("2.14.0+cu130")
    assert TorchVersion("2.14.0") >= "2.14.0"


def test_stand_in_for_subprocess_answers_nvccs_release_alone() -> None:
    answers = programs("13.0")
    assert "release 13.0," in answers.check_output(["/cuda/bin/nvcc", "--version"], text=True)
    with pytest.raises(Exception, match="gcc --version"):
        answers.check_output(["gcc", "--version"])


@pytest.mark.programs
def test_generating_needs_nothing_on_path(tmp_path: Path) -> None:
    """The interpreter is started with an empty PATH; a program could not be found by accident."""
    seen = tmp_path / "tree" / "path"
    body = f"import os; open({str(seen)!r}, 'w').write(os.environ['PATH'])"
    tree = tmp_path / "tree"
    generate(tree, lay_out(tree, body=body), sys.executable, tmp_path / "log")
    assert seen.read_text() == ""
