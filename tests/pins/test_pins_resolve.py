"""uv's answers, read; and what uv is asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from sm121 import index, process
from sm121.errors import FetchError, PinsError, PreflightError
from sm121.index import Settings
from sm121.pins import Cpu
from sm121.pins import resolve as module
from sm121.pins.resolve import resolve
from sm121.process import Completed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ANSWER = """\
apache-tvm-ffi==0.1.11
    # via
    #   -c constraints.txt
    #   vllm
    #   flashinfer-python
Jinja2==3.1.6
    # via torch
torch==2.14.0 ; sys_platform == 'linux'
    # via vllm
vllm==0.33.0
    # via -r requirements.in
"""

CONFLICT = """\
error: No solution found when resolving dependencies
  cause: Because flashinfer-python[b12x]==0.7.2.post1 depends on nvidia-cutlass-dsl==4.7.1 and
         vllm depends on nvidia-cutlass-dsl[cu13]==4.8.0, they are incompatible.

hint: Wheels are required for `x` because building from source is disabled
"""

OLDER_CONFLICT = """\
  \u00d7 No solution found when resolving dependencies:
  ╰─▶ Because a depends on c==1 and b depends on c==2, we can conclude that a and b are incompatible.
"""


class Fake:
    """Stands in for process.run and keeps what was asked."""

    def __init__(self, code: int, out: str = "", err: str = "") -> None:
        self.answer = (code, out, err)
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.files: dict[str, str] = {}

    def __call__(self, argv: Sequence[str | Path], *, env: dict[str, str], cwd: Path, **_: Any) -> Completed:
        self.argv = [str(word) for word in argv]
        self.env = env
        self.files = {path.name: path.read_text(encoding="utf-8") for path in cwd.iterdir()}
        return Completed(tuple(self.argv), *self.answer)


def uv(monkeypatch: pytest.MonkeyPatch, fake: Fake, settings: Settings | None = None) -> Fake:
    monkeypatch.setattr(process, "run", fake)
    monkeypatch.setattr(module, "uv_program", lambda: "uv")
    monkeypatch.setattr(index, "settings", lambda: settings or Settings(("https://index.example/simple",)))
    return fake


def test_the_set_and_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = uv(monkeypatch, Fake(0, ANSWER))
    found = resolve(["vllm==0.33.0"], ["torch==2.14.0"], Cpu.AARCH64)
    assert found.versions == {"apache-tvm-ffi": "0.1.11", "jinja2": "3.1.6", "torch": "2.14.0", "vllm": "0.33.0"}
    assert found.via["apache-tvm-ffi"] == ("vllm", "flashinfer-python")
    assert found.via["jinja2"] == ("torch",)
    assert found.via["vllm"] == ()
    assert fake.files == {"requirements.in": "vllm==0.33.0\n", "constraints.txt": "torch==2.14.0\n"}


def test_what_uv_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = uv(monkeypatch, Fake(0, ANSWER))
    resolve(["vllm"], [], Cpu.X86_64)
    command = " ".join(fake.argv)
    for wanted in (
        "pip compile", "--only-binary :all:", "--python-version 3.12", "--python-platform x86_64-manylinux_2_34",
        "--no-config", "--no-python-downloads",
    ):  # fmt: skip
        assert wanted in command


def test_a_password_is_not_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ("https://user:secret@a.example/simple", "https://b.example/simple", "https://c.example/simple")
    fake = uv(monkeypatch, Fake(0, ANSWER), Settings(urls, "/etc/ca.pem"))
    resolve(["vllm"], [], Cpu.AARCH64)
    assert "secret" not in " ".join(fake.argv)
    assert fake.env["UV_DEFAULT_INDEX"] == urls[0]
    assert fake.env["UV_INDEX"] == f"{urls[1]} {urls[2]}"
    assert fake.env["SSL_CERT_FILE"] == "/etc/ca.pem"


def test_no_index_means_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = uv(monkeypatch, Fake(0, ANSWER), Settings(()))
    resolve(["vllm"], [], Cpu.AARCH64)
    assert fake.env["UV_OFFLINE"] == "1"


@pytest.mark.parametrize("said", [CONFLICT, OLDER_CONFLICT], ids=["plain", "drawn"])
def test_a_conflict_names_both_owners(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    uv(monkeypatch, Fake(1, "", said))
    with pytest.raises(PinsError) as caught:
        resolve(["vllm"], [], Cpu.AARCH64)
    assert caught.value.problems[0].startswith("no set of versions satisfies everybody: Because ")
    assert "depends on" in caught.value.problems[0]
    assert "\n" not in caught.value.problems[0]
    assert caught.value.do


def test_no_network_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "error: Failed to fetch: `https://user:secret@index.example/simple/vllm/`\n  cause: dns error\n"
    uv(monkeypatch, Fake(2, "", said))
    with pytest.raises(FetchError) as caught:
        resolve(["vllm"], [], Cpu.AARCH64)
    assert "secret" not in str(caught.value)


def test_anything_else_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    uv(monkeypatch, Fake(2, "", "error: unexpected argument '--frob'"))
    with pytest.raises(PinsError, match="unexpected argument '--frob'"):
        resolve(["vllm"], [], Cpu.AARCH64)


def test_without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(process, "find", lambda _program: None)
    with pytest.raises(PreflightError, match="uv, which resolves versions, was not found") as caught:
        resolve(["vllm"], [], Cpu.AARCH64)
    assert caught.value.do == "pip install uv"
