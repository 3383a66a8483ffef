"""Regular expressions of others: what could be searched for without end is not searched for, whichever verb is asked."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from sm121 import build_commands, cli
from sm121.errors import UsageError
from sm121.expressions import compiled, typed
from sm121.loop.choose import by_words
from sm121.loop.ground import Ground
from sm121.plan.model import Host
from sm121.resources import GIB, Machine

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host(
    cpu="x86_64", machine=Machine(cpus=2, memory_total=24 * GIB, memory_available=20 * GIB), python="3.11.7",
    compiler="aarch64-linux-gnu-g++ 12.2.0",
)  # fmt: skip
ENDLESS = ["(a+)+$", "(a|a)*$", "((.+))+x", "(.?){60}x", "((a)?){60}x", ".*.*.*.*.*.*x"]


@pytest.mark.parametrize("expression", ENDLESS)
def test_neither_kind_is_searched_for(expression: str) -> None:
    assert compiled(expression) is None
    with pytest.raises(ValueError, match="for ever"):
        typed(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "page", "batch_(prefill|decode)_.*", r"xqa_.*_page_size_\d{2,3}_.*", "a?b?c?", "(?:norm|page)", "[(+*]x",
        "_ZN7cutlass" + "13device_kernel" * 300, "|".join(f"module_{number:0100}" for number in range(30)),
    ],
)  # fmt: skip
def test_what_people_ask_for_is_taken(expression: str) -> None:
    assert typed(expression).pattern == expression


@pytest.mark.parametrize(
    ("expression", "said"), [("(", "is no regular"), ("x.*" * 2000, "too long"), ("a{9999999999}", "no")]
)
def test_what_is_none_says_so(expression: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        typed(expression)


@pytest.mark.parametrize("expression", ENDLESS)
def test_every_verb_refuses_at_once(
    expression: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_commands, "read_host", lambda _cpu: HOST)
    started = time.monotonic()
    words = ["build", "--only", "flashinfer", "--modules", expression, "--modules", "pages", "--dry-run"]
    assert cli.run(words) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "for ever" in said
    assert "'pages'" in said, "all problems at once"
    assert cli.run(["bisect", "artifacts", "one.whl", "two.whl", "--kernel", expression]) == UsageError.exit_code
    assert "for ever" in capsys.readouterr().err
    like_a_file = ["--kernel", f"{expression}.cu"]
    assert cli.run(["bisect", "artifacts", "one.whl", "two.whl", *like_a_file]) == UsageError.exit_code
    assert "for ever" in capsys.readouterr().err
    places = ["--work", str(tmp_path / "work"), "--patches", str(tmp_path)]
    for verb in (["kernels", "--fail-on", "speed"], ["bisect", "patches"]):
        assert cli.run([*verb, expression, *places]) == UsageError.exit_code
        assert "for ever" in capsys.readouterr().err
    assert not (tmp_path / "work").exists(), "nothing was laid out to find that out"
    with pytest.raises(UsageError, match="for ever"):
        by_words(Ground({}, {}, (), {}, {}, tmp_path / "names.json"), [expression])
    assert time.monotonic() - started < 30
