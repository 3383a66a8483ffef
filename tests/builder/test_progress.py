"""Progress on terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sm121.progress import Progress, shortened

NAME = "nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"


@pytest.mark.parametrize(
    ("width", "wanted"), [(0, ""), (1, "a"), (2, "a…"), (3, "a…g"), (6, "abc…fg"), (7, "abcdefg"), (9, "abcdefg")]
)
def test_a_text_is_cut_in_its_middle(width: int, wanted: str) -> None:
    assert shortened("abcdefg", width) == wanted


@pytest.mark.parametrize(
    ("width", "note"), [(60, ""), (80, "nvidia_cud…x86_64.whl"), (200, NAME)], ids=["60", "80", "200"]
)
def test_a_long_note_leaves_the_bar_its_place(width: int, note: str) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, color_system=None)
    with Progress(console).counter("ask the package index", 71, "questions") as counter:
        counter.update(12, NAME)
    line = next(line for line in reversed(text.getvalue().splitlines()) if "12/71" in line)
    assert "ask the package index ━" in line
    assert "12/71 0:00:00" in line
    assert line.partition("0:00:00")[2].strip() == note


def test_bytes_are_sizes_on_a_terminal_too() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, color_system=None)
    with Progress(console).counter("fetch 2 files", 1_445_613_366, "B") as counter:
        counter.update(79_912_335, NAME)
    assert "79.9 MB of 1.45 GB 0:00:00 nvidia_cuda" in text.getvalue()
    assert "79912335" not in text.getvalue()
