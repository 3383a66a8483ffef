"""The command line as a whole: every verb is found, alone and among all."""

from __future__ import annotations

import argparse
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
