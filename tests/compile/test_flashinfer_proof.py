"""The proof by FlashInfer itself: every module and every call is asked for, and what is missing is named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from sm121.compile.flashinfer.proof import Proof, prove
from sm121.errors import PackError
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """
__version__ = "2.14.0+cu130"
class version: cuda = "13.0"
class cuda: is_available = staticmethod(lambda: False)
bfloat16 = "bf16"
"""
ENV = """
import os
from types import SimpleNamespace
MODULES = {modules!r}
FLASHINFER_AOT_PROVIDERS = (SimpleNamespace(distribution="d", version="1+cu130", cuda_architectures={{"sm121a"}}),)
assert os.environ["FLASHINFER_DISABLE_JIT"] == "1"
assert os.environ["FLASHINFER_WORKSPACE_BASE"] == os.environ["HOME"]
"""
CORE = """
import os
from types import SimpleNamespace
from . import env
current_compilation_context = SimpleNamespace(TARGET_CUDA_ARCHS={{(12, "1a")}})
assert os.environ["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
class Missing(RuntimeError):
    def __init__(self, spec): self.spec = spec
class JitSpecNvcc:
    def __init__(self, name, sources, **rest): self.name = name
    @property
    def is_aot(self): return self.name in env.MODULES
    def build_and_load(self):
        if self.name in {broken!r}: raise OSError("undefined symbol: foo")
        if not self.is_aot: raise Missing(self)
"""
PAGE = """
from .jit.core import JitSpecNvcc
def get_page_module(): JitSpecNvcc("page", []).build_and_load()
def get_other(kind): JitSpecNvcc(f"other_{kind}", []).build_and_load()
"""


def answer(
    tmp_path: Path, modules: list[str], calls: list[str], *, there: list[str], broken: tuple[str, ...] = ()
) -> Proof:
    package = tmp_path / "packages" / "flashinfer"
    (package / "jit").mkdir(parents=True)
    for name, text in {
        "__init__.py": "", "page.py": PAGE, "jit/__init__.py": "", "jit/env.py": ENV.format(modules=there),
        "jit/core.py": CORE.format(broken=list(broken)), "../torch.py": TORCH,
    }.items():  # fmt: skip
        (package / name).write_text(text)
    return prove(
        python=[sys.executable],
        paths=[tmp_path / "packages"],
        modules=modules,
        calls=calls,
        arch=ArchSpec(12, 1, "a"),
    )


@pytest.mark.programs
def test_all_is_there(tmp_path: Path) -> None:
    proof = answer(
        tmp_path, ["page", "other_bf16"],
        ["flashinfer.page:get_page_module()", "flashinfer.page:get_other(torch.bfloat16)"], there=["page", "other_bf16"],
    )  # fmt: skip
    assert proof.complete
    assert (proof.prebuilt, proof.opened, proof.served) == (2, 2, 2)
    assert proof.providers == (("d", "1+cu130", ("sm121a",)),)
    assert (proof.torch, proof.cuda, proof.gpu) == ("2.14.0+cu130", "13.0", False)


@pytest.mark.programs
def test_what_would_be_compiled_is_named(tmp_path: Path) -> None:
    calls = ["flashinfer.page:get_page_module()", "flashinfer.page:get_other('x')"]
    proof = answer(tmp_path, ["page"], calls, there=["page"])
    assert not proof.complete
    assert proof.faults == ("flashinfer.page:get_other('x'): the module other_x would be compiled",)


@pytest.mark.programs
def test_modules_that_are_not_found_or_do_not_open(tmp_path: Path) -> None:
    proof = answer(tmp_path, ["page", "norm", "rope"], [], there=["page", "rope"], broken=("rope",))
    assert (proof.prebuilt, proof.opened) == (2, 1)
    assert proof.faults == (
        "norm is not reported as compiled ahead of time",
        "rope does not open: OSError: undefined symbol: foo",
    )


@pytest.mark.programs
def test_a_call_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    proof = answer(tmp_path, ["page"], ["flashinfer.absent:f()", "flashinfer.page:nothing()"], there=["page"])
    assert [fault.split(": ")[1] for fault in proof.faults] == ["ModuleNotFoundError", "NameError"]
    assert not proof.complete


@pytest.mark.programs
def test_nothing_asked_is_no_proof(tmp_path: Path) -> None:
    assert not answer(tmp_path, [], [], there=[]).complete


@pytest.mark.programs
def test_an_interpreter_that_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="No module named 'flashinfer'"):
        prove(python=[sys.executable], paths=[tmp_path], modules=["page"], calls=[], arch=ArchSpec(12, 1, "a"))
    with pytest.raises(PackError, match="was not found"):
        prove(python=["/no/python"], paths=[tmp_path], modules=["page"], calls=[], arch=ArchSpec(12, 1, "a"))
