"""The workflows: their steps are run as they stand, with the real sessions; what they may do is little and pinned."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(ROOT.glob(".github/workflows/*.yml"))}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"]]
WRITES = {
    ("images", "image"): {"packages"},
    ("pins", "propose"): {"contents", "pull-requests"},
    ("release", "publish"): {"contents", "id-token", "attestations"},
}
"""All that any job may write."""


def steps(workflow: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WORKFLOWS[workflow]["jobs"][job].get("steps", [])
    return found


def test_they_are_there() -> None:
    assert set(WORKFLOWS) == {"check", "hardware", "images", "pins", "release", "wheels"}


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_actions_are_pinned_by_commit(workflow: str, job: str) -> None:
    used = [step["uses"] for step in steps(workflow, job) if "uses" in step]
    called = WORKFLOWS[workflow]["jobs"][job].get("uses")
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    assert called is None or (called.startswith("./") and (ROOT / called).is_file())
    assert used or called


def test_a_pinned_commit_says_its_version() -> None:
    lines = [line for path in ROOT.glob(".github/workflows/*.yml") for line in path.read_text().splitlines()]
    used = [line for line in lines if re.search(r"uses: [\w-]+/", line)]
    assert used
    assert not [line for line in used if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)]


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_permissions_are_the_least(workflow: str, job: str) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    own = WORKFLOWS[workflow]["jobs"][job].get("permissions", {})
    assert {name for name, right in own.items() if right == "write"} == WRITES.get((workflow, job), set())


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_a_job_ends_and_keeps_no_credentials(workflow: str, job: str) -> None:
    if "uses" not in WORKFLOWS[workflow]["jobs"][job]:
        assert WORKFLOWS[workflow]["jobs"][job]["timeout-minutes"] <= 360
    for step in steps(workflow, job):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_inputs_reach_the_shell_as_variables_only() -> None:
    for workflow, job in JOBS:
        assert not [step["run"] for step in steps(workflow, job) if "${{" in step.get("run", "")]


def test_a_release_inspects_before_it_attests_and_publishes() -> None:
    order = [step.get("uses", step.get("run", "")) for step in steps("release", "publish")]
    place = {
        word: next(n for n, text in enumerate(order) if word in text)
        for word in ("inspect", "attest", "gh release")
    }
    assert place["inspect"] < place["attest"] < place["gh release"]


def test_own_machines_run_the_default_branch_only() -> None:
    job = WORKFLOWS["hardware"]["jobs"]["gb10"]
    assert "github.ref_name == github.event.repository.default_branch" in job["if"]
    assert not {"pull_request", "pull_request_target", "push"} & set(WORKFLOWS["hardware"][True])


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """Runs a step as the runner does; gives its output file's lines and the commands that its sessions ran."""
    program = tmp_path / "bin" / "nox"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("session_runner.py")} "$@"\n')
    program.chmod(0o755)

    def run(text: str, **variables: str) -> tuple[list[str], list[str], str]:
        out, ran = tmp_path / "out", tmp_path / "ran"
        out.write_text("")
        ran.write_text("")
        environment = {
            **os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(out),
            "SM121_RAN": str(ran), **variables,
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text], env=environment, cwd=tmp_path, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0 or done.stderr
        return out.read_text().splitlines(), ran.read_text().splitlines(), done.stderr

    return run


@pytest.mark.programs
@pytest.mark.parametrize(
    ("wanted", "lines"), [("", ["cu130", "cu135"]), ("cu135", ["cu135"]), ("cu130 cu135", ["cu130", "cu135"])]
)
def test_the_plan_gives_the_matrix(shell: Any, wanted: str, lines: list[str]) -> None:
    step = next(step for step in steps("wheels", "plan") if step.get("id") == "matrix")
    out, ran, errors = shell(step["run"], LINES=wanted)
    assert not errors
    assert len(ran) == 1
    name, _, value = out[0].partition("=")
    assert name == "lines"
    # Lines whose toolkit must be installed are there where it is.
    assert [line for line in json.loads(value) if line in {"cu130", "cu135"}] == lines


@pytest.mark.programs
def test_every_session_that_a_step_names_exists_and_takes_its_arguments(shell: Any) -> None:
    named = set()
    for workflow, job in JOBS:
        for step in steps(workflow, job):
            for command in re.findall(r"^(?:.*; do )?(nox -s .*?)(?:;.*)?$", step.get("run", ""), re.MULTILINE):
                if "> lines.json" not in command:
                    named.add(command)
    sample = {
        "LINE": "cu130", "BASE": f"registry.example/base@sha256:{'0' * 64}", "REPOSITORY": "Registry.example/Team/vllm",
        "wheel": "none.whl",
    }  # fmt: skip
    assert len(named) >= 7
    for command in sorted(named):
        if "update" in command or "pins check" in command:
            command += " --help"  # noqa: PLW2901 -- it would ask the index
        _, ran, errors = shell(command, **sample)
        assert ran, command
        # A missing wheel is an answer; what the command line does not take is none.
        assert "usage: " not in errors, command
