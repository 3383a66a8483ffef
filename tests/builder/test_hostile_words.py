"""Words of the command line that nobody means: a message and a status, never a traceback, never a password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm121 import cli
from sm121.errors import UsageError
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.programs
@pytest.mark.parametrize("word", ["a{99999999999}", "x" * 5000, "/dev/zero", "(" * 5000 + ")" * 5000])
def test_modules_that_are_none(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--work", str(tmp_path / "w"), "--dist", str(tmp_path / "d")]
    words = ["build", "--only", "flashinfer", "--modules", word, "--dry-run", *places]
    assert cli.run(words) == UsageError.exit_code
    assert "what to do" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["a{99999999999}", "("])
def test_a_kernel_that_is_no_expression(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bisect", "artifacts", "one.whl", "two.whl", "--kernel", word]) == UsageError.exit_code
    assert "is no regular expression" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--url", "--control"])
def test_a_password_in_a_servers_address(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--url", "http://127.0.0.1:9"] if option == "--control" else []
    given = [*words, option, "http://me:geheim@127.0.0.1:9", "--work", str(tmp_path / "w")]
    assert cli.run(["smoke", *given]) == UsageError.exit_code
    said = capsys.readouterr()
    assert "geheim" not in said.out + said.err
    assert "--api-key-from" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_line_without_an_end_hides_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    found = "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 100,000 tokens\n"
    log.write_bytes(b"\0" * (1 << 20) + b"\n" + found.encode())
    cli.run(["memory", "--bootlog", str(log), "--total-gib", "120"])
    assert "no usable pair" not in capsys.readouterr().err


def test_a_version_of_too_many_digits() -> None:
    with pytest.raises(ValueError, match="looks like"):
        CudaVersion.parse("9" * 5000 + ".0")
