"""The command line as a whole: every verb is found, alone and among all."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import import_module

import pytest

from sm121 import cli


def verbs_of(parser: argparse.ArgumentParser) -> list[str]:
    (action,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return [*action.choices]


@pytest.mark.parametrize("row", cli._VERBS, ids=[row[1] for row in cli._VERBS])
def test_a_module_adds_the_verbs_that_it_is_listed_with(row: tuple[str, str, tuple[str, ...]]) -> None:
    module, adder, names = row
    top = argparse.ArgumentParser()
    added = top.add_subparsers()
    getattr(import_module(module), adder)(added)
    assert tuple(added.choices) == names
    assert set(names) <= {*verbs_of(cli.parser(names[0]))}


def test_the_whole_has_every_verb_once() -> None:
    listed = [name for _, _, names in cli._VERBS for name in names]
    assert len(listed) == len({*listed})
    for word in ("", "--help", "nonsense"):
        assert verbs_of(cli.parser(word)) == listed


@pytest.mark.programs
def test_a_verb_loads_its_own_part() -> None:
    code = "import sys; from sm121 import cli; cli.parser('kernels'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    loaded = {*done.stdout.split()}
    assert "sm121.loop.commands" in loaded
    assert not loaded & {"sm121.audit.commands", "sm121.engine.commands", "docker", "pypi_simple"}


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        ("bild", "sm121 [-h]", "did you mean build?"),
        ("build --dry-rn", "sm121 build", "--dry-rn, did you mean --dry-run?"),
        ("build --cpu aarch46", "sm121 build", "did you mean aarch64?"),
        ("pins chek", "sm121 pins", "did you mean check?"),
        ("pins check --ofline", "sm121 pins check", "--ofline, did you mean --offline?"),
        ("pins", "sm121 pins", "required: ACTION\n`sm121 pins --help` explains it."),
        ("lines zzz", "sm121 lines", "unrecognized arguments: zzz\n`sm121 lines --help` explains it."),
    ],
)
def test_a_slip_names_what_was_meant_and_where_the_help_is(
    words: str, usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(words.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: {usage}")
    assert said in error


def test_help_breaks_no_word_that_is_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["inspect"], ["smoke"], ["kernels"], ["build"]):
        with pytest.raises(SystemExit):
            cli.run([*words, "--help"])
    printed = capsys.readouterr().out
    assert "docker-daemon:NAME" in printed
    assert '"--max-model-len 8192"' in printed
    assert "Compiles exactly the translation units that an edit or a patch reaches, in a\n" in printed
    assert "\n  sm121 build --line cu130 --only vllm --ext spinloop --no-finish\n" in printed


@pytest.mark.programs
@pytest.mark.parametrize("words", ["lines", "lines --json", "build --dry-run --only vllm", "--help"])
def test_where_the_outputs_reader_has_gone_nothing_has_passed(words: str) -> None:
    """The same status whether rich or Python finds the pipe broken; never 0, never a traceback."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "sm121", *words.split()],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (cli.PIPE_GONE, "")
