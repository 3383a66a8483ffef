"""The verb as it is typed: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from test_overlay import LIBRARY, VERSION, elf, environment, snapshot

from sm121.cli import run
from sm121.errors import OverlayError, UsageError

if TYPE_CHECKING:
    import pytest


def said(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["overlay", *map(str, words), "--json"]) == status
    out = capsys.readouterr().out
    return json.loads(out) if out else {}


def test_from_a_library_to_a_server_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = environment(tmp_path / "env")
    before = snapshot(env)
    file = tmp_path / "edited.so"
    file.write_bytes(elf("edited"))
    made = said(capsys, "make", "--library", f"{LIBRARY}={file}", "--onto", env, "-o", tmp_path / "out")
    assert Path(made["overlay"]).parent == tmp_path / "out"
    assert made["next"] == f"sm121 overlay apply {made['overlay']} ENV"
    assert said(capsys, "status", env) == {"state": "release", "version": VERSION}
    applied = said(capsys, "apply", made["overlay"], env)
    assert applied["installed"] == f"vllm {VERSION}.overlay.{made['overlay'].rpartition('.')[2]}"
    assert applied["over"] == VERSION
    now = said(capsys, "status", env)
    assert (now["state"], now["libraries"], now["made of"]) == (
        "applied",
        LIBRARY,
        "the libraries were given as files",
    )
    assert said(capsys, "remove", env) == {"installed": f"vllm {VERSION}"}
    assert snapshot(env) == before


def test_people_get_the_command_that_takes_it_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = environment(tmp_path / "env")
    file = tmp_path / "edited.so"
    file.write_bytes(elf("edited"))
    made = said(capsys, "make", "--library", f"{LIBRARY}={file}", "--onto", env, "-o", tmp_path / "out")
    assert run(["overlay", "apply", made["overlay"], str(env)]) == 0
    assert f"sm121 overlay remove {env}" in capsys.readouterr().out


def test_what_is_refused_has_a_status_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = environment(tmp_path / "env")
    (tmp_path / "edited.so").write_bytes(elf("edited"))
    library = f"{LIBRARY}={tmp_path / 'edited.so'}"
    said(capsys, "remove", env, status=OverlayError.exit_code)
    said(capsys, "apply", tmp_path, env, status=OverlayError.exit_code)
    said(capsys, "make", "--library", library, "--onto", tmp_path, status=OverlayError.exit_code)
    said(capsys, "make", "--library", library, "--ext", "spinloop", "--onto", env, status=UsageError.exit_code)
    said(
        capsys,
        "make",
        "--library",
        "vllm/x.so=/nothing",
        "--library",
        "y",
        "--onto",
        env,
        status=UsageError.exit_code,
    )
    said(capsys, "make", "--library", library, "--onto", tmp_path / "nothing.whl", status=UsageError.exit_code)
