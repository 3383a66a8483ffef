"""What the command line makes of faults that no verb foresaw."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from sm121 import cli
from sm121.errors import StorageError

if TYPE_CHECKING:
    import argparse


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/some/file"),
            "'/some/file': Permission denied.",
        ),
        (OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), b"\xff\n"), "File name too long."),
    ],
)
def test_a_file_that_cannot_be_used_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: OSError, said: str
) -> None:
    def fail(_arguments: argparse.Namespace) -> NoReturn:
        raise fault

    monkeypatch.setattr("sm121.lines_commands.run", fail)
    assert cli.run(["lines"]) == StorageError.exit_code
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") <= 2


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_arguments: argparse.Namespace) -> NoReturn:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("sm121.lines_commands.run", fail)
    with pytest.raises(OSError, match="Bad file"):
        cli.run(["lines"])
