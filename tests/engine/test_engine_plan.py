"""Plans of images: what is refused, what the Dockerfile is told, what the build command looks like."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sm121 import cli, pins
from sm121.engine.context import direct_requirements, fill_context, locked_requirements
from sm121.engine.features import BuildCall, Features, build_command, docker_environment
from sm121.engine.plan import ImagePlan, Request, plan_image, plan_json, show_plan
from sm121.errors import PackError, PinsError, PlanError, UsageError
from sm121.findings import Verdict
from sm121.image.record import BuiltWheel
from sm121.image.runtime_set import RuntimeSet
from sm121.manifest import Command, Host, Input, Inspection, Manifest, Output, Subject, Tool
from sm121.pins import FilePin
from sm121.pins.images import load_images
from sm121.values import Sha256

ROOT = Path(__file__).resolve().parents[2]
PINS = pins.load(ROOT / "pins")
IMAGES = load_images(ROOT / "pins")
DIGEST = "sha256:" + "1" * 64
BASE = f"docker.io/library/ubuntu@{DIGEST}"
LOCK = ROOT / "pins" / "runtime" / "cu130-aarch64.txt"
RUNTIME = RuntimeSet.read(LOCK)
DOCKERFILE = (ROOT / "dockerfiles" / "runtime").read_bytes()


def wheel(
    project: str = "vllm", version: str = "0.33.0+cu130.sm121", base: str = "0.33.0", line: str = "cu130",
    cpu: str = "aarch64",
) -> BuiltWheel:  # fmt: skip
    name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
    digest = Sha256.of_bytes(name.encode())
    pin = FilePin(project, base, f"{project}.tar.gz", 1, digest, "index")
    manifest = Manifest(
        subject=Subject(project, version, base, line, "12.1", cpu, "any"), plan=digest,
        inputs=(Input.of(pin, "sources"),), patches=(), tools=(Tool("nvcc", "13.0.88"),),
        host=Host("Linux", "x86_64", 2, 1, "3.11"), commands=(Command("libraries", ("ninja",)),), libraries=(),
        outputs=(Output(name, digest, 10),), inspection=Inspection(Verdict.PASS, digest),
    )  # fmt: skip
    return BuiltWheel(name, digest, 10, digest, "g4ba787ec9", manifest, digest)


FINDER = wheel("flashinfer-jit-cache", "0.7.2.post1+cu130.sm121", "0.7.2.post1")
MODULES = wheel("flashinfer-jit-cache-sm121a", "0.7.2.post1+cu130.sm121", "0.7.2.post1")


def plan(*wheels: BuiltWheel, runtime: RuntimeSet = RUNTIME, line: str = "cu130", **asked: Any) -> ImagePlan:
    request = Request(**{"base": BASE, **asked})
    given = wheels or (MODULES, FINDER, wheel())
    return plan_image(
        request, PINS.line(line), PINS.vllm("0.33.0"), IMAGES, given, runtime, LOCK.name, DOCKERFILE
    )


def refused(*wheels: BuiltWheel, **asked: Any) -> str:
    with pytest.raises(PlanError) as raised:
        plan(*wheels, **asked)
    assert raised.value.do
    return str(raised.value)


def test_a_plan_says_everything() -> None:
    made = plan(repository="registry.example/team/vllm")
    data = plan_json(made)
    assert data["platform"] == "linux/arm64"
    assert data["target"] == "prebuilt"
    assert data["arguments"]["BASE"] == BASE
    assert data["arguments"]["PYTHON"] == "3.12"
    assert "gcc" in data["arguments"]["APT_PACKAGES"].split()
    assert data["network"] == "default"
    assert [item["filename"].split("-")[0] for item in data["wheels"]] == [
        "vllm", "flashinfer_jit_cache_sm121a", "flashinfer_jit_cache"
    ]  # fmt: skip
    labels = made.labels
    assert labels["org.opencontainers.image.version"] == "0.33.0+cu130.sm121"
    assert labels["org.opencontainers.image.base.digest"] == DIGEST
    assert labels["sm121.vllm.wheel.sha256"] == made.wheels[0].sha256.hex
    assert labels["sm121.torch.version"] == "2.14.0"
    assert labels["sm121.flashinfer-python.version"] == "0.7.2.post1"
    assert labels["sm121.lock.sha256"] == RUNTIME.digest.hex
    json.dumps(data)


def test_where_it_goes_does_not_change_what_it_is() -> None:
    assert plan().digest == plan(repository="registry.example/team/vllm").digest
    assert plan().digest != plan(packages=()).digest
    assert plan().digest != plan(base=f"docker.io/library/ubuntu@sha256:{'2' * 64}").digest


def test_without_packages_nothing_reaches_a_network() -> None:
    made = plan(packages=())
    assert made.network == "none"
    assert made.arguments["APT_PACKAGES"] == ""


def test_no_digest_is_made_up() -> None:
    assert IMAGES.runtime.image is None, "this test is for pins without a digest"
    told = refused(base="")
    assert "no base is pinned by digest" in told
    assert "sm121 resolve" in told


def test_inputs_by_tag_and_outputs_by_digest_are_refused() -> None:
    assert "without a digest" in refused(base="docker.io/library/ubuntu:24.04")
    assert "cannot be pushed to" in refused(repository=f"registry.example/team/vllm@{DIGEST}")
    assert "cannot be pushed to" in refused(repository="registry.example/team/vllm:cu130")


def test_all_faults_are_told_at_once() -> None:
    told = refused(wheel(line="cu129"), base="ubuntu:24.04", repository="registry.example/x:y", network="bridge")
    for word in ("without a digest", "cannot be pushed to", "line cu129", "jit-cache", "network"):
        assert word in told


@pytest.mark.parametrize(
    ("wheels", "word"),
    [
        ((MODULES,), "one vLLM wheel is wanted, found 0"),
        ((wheel(), wheel(), MODULES), "found 2"),
        ((wheel(cpu="x86_64"), MODULES), "for x86_64"),
        ((wheel(base="0.26.0"), MODULES), "vLLM 0.26.0"),
        ((wheel(), MODULES, wheel("torch", "2.14.0", "2.14.0")), "of which wheels were given"),
        ((wheel(), MODULES), "that finds the modules is missing"),
        ((wheel(), FINDER), "with the modules is missing"),
        ((wheel(), wheel("flashinfer-jit-cache", "0.6.14+cu130.sm121", "0.6.14")), "does not belong to"),
    ],
)
def test_wheels_that_do_not_belong_together(wheels: tuple[BuiltWheel, ...], word: str) -> None:
    assert word in refused(*wheels)


def test_a_locked_set_of_another_line_or_torch_is_refused() -> None:
    packages = tuple(
        replace(each, version="2.13.0") if each.name == "torch" else each for each in RUNTIME.packages
    )
    assert "torch 2.13.0" in refused(runtime=replace(RUNTIME, packages=packages))
    assert "wanted cu135" in refused(line="cu135")


def test_flashinfer_never_compiles_unless_that_is_accepted() -> None:
    assert "would compile its modules" in refused(wheel())
    made = plan(wheel(), flashinfer="nvcc")
    assert made.modules == "nvcc"
    assert made.arguments["CUDA_HOME"] == "/opt/sm121/lib/python3.12/site-packages/nvidia/cu13"
    assert plan().environment == {"FLASHINFER_DISABLE_JIT": "1", "VLLM_HAS_FLASHINFER_CUBIN": "1"}
    bare = replace(RUNTIME, packages=tuple(p for p in RUNTIME.packages if p.name != "nvidia-cuda-nvcc"))
    assert "holds no nvcc" in refused(wheel(), flashinfer="nvcc", runtime=bare)
    old = tuple(replace(p, version="12.8.93") if p.name == "nvidia-cuda-nvcc" else p for p in RUNTIME.packages)
    assert "12.9 is the first" in refused(wheel(), flashinfer="nvcc", runtime=replace(RUNTIME, packages=old))


def test_a_base_of_files_is_for_the_builder_without_an_engine() -> None:
    made = plan(base=f"oci:base@{DIGEST}", builder="oci")
    assert (made.base, str(made.base_digest)) == (f"oci:base@{DIGEST}", DIGEST)
    assert "digest" in refused(base="oci:base", builder="oci")
    assert refused(base=f"oci:base@{DIGEST}")


def test_a_plan_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(plan(), Console(width=60, highlight=False))
    assert DIGEST in "".join(capsys.readouterr().out.split())


OLD = Features("/usr/bin/docker", (20, 10), None, (20, 10), "x86_64")
NEW = Features("docker", (29, 1), (0, 30), (29, 1), "aarch64", driver="docker-container")


def call(tmp_path: Path) -> BuildCall:
    return BuildCall(
        context=tmp_path, dockerfile=tmp_path / "Dockerfile", platform="linux/arm64", target="prebuilt",
        arguments={"BASE": BASE}, labels={"a": "b c"}, network="none", iidfile=tmp_path / "iid",
        secrets={"ca": Path("/ca.pem")}, epoch=315532800,
    )  # fmt: skip


def test_an_old_engine_is_asked_for_what_it_has(tmp_path: Path) -> None:
    words = build_command(OLD, call(tmp_path))
    assert words[:2] == ["/usr/bin/docker", "build"]
    assert not {"buildx", "--load", "--provenance=false", "--metadata-file"} & set(words)
    assert f"BASE={BASE}" in words
    assert "id=ca,src=/ca.pem" in words
    assert "a=b c" in words
    assert not [word for word in words if word.startswith("SOURCE_DATE_EPOCH")]
    assert words[-1] == str(tmp_path)


def test_a_new_one_adds_no_statements_of_its_own(tmp_path: Path) -> None:
    words = build_command(NEW, replace(call(tmp_path), no_cache=True))
    assert words[:4] == ["docker", "buildx", "build", "--load"]
    assert {"--provenance=false", "--sbom=false", "--no-cache", "SOURCE_DATE_EPOCH=315532800"} <= set(words)


def test_what_the_user_set_for_docker_reaches_it() -> None:
    said = {
        "DOCKER_HOST": "ssh://spark",
        "BUILDX_BUILDER": "spark",
        "DOCKER_CONFIG": "/x",
        "HF_TOKEN": "secret",
        "PATH": "/bin",
    }
    child = docker_environment(said)
    assert (child["DOCKER_HOST"], child["BUILDX_BUILDER"], child["PATH"]) == ("ssh://spark", "spark", "/bin")
    assert child["DOCKER_BUILDKIT"] == "1"
    assert "HF_TOKEN" not in child


def test_the_dockerfiles_use_what_an_old_engine_has() -> None:
    for name in ("runtime", "builder"):
        text = (ROOT / "dockerfiles" / name).read_text()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert not text.lower().startswith("# syntax")
        for absent in ("<<", "COPY --link", "RUN --network", "source=$"):
            assert absent not in "\n".join(lines)
        assert next(line for line in lines if line.startswith("FROM")).startswith("FROM ${BASE}")
        assert ".whl" not in "\n".join(line for line in lines if line.startswith(("COPY", "ADD")))


def test_every_argument_of_the_plan_is_one_of_the_dockerfile() -> None:
    named = {
        line.split()[1].partition("=")[0] for line in DOCKERFILE.decode().splitlines() if line.startswith("ARG ")
    }
    assert {*plan().arguments, *plan(wheel(), flashinfer="nvcc").arguments} <= named


def test_requirements_name_hashes(tmp_path: Path) -> None:
    files = []
    for name in (
        "two_parts-2.0-py3-none-any.whl",
        "vllm-0.33.0+cu130.sm121-cp38-abi3-manylinux_2_34_aarch64.whl",
    ):
        file = tmp_path / name
        file.write_bytes(name.encode())
        files.append(file)
    digest = Sha256.of_file(files[0]).hex
    assert locked_requirements(files[:1]) == f"two-parts==2.0 --hash=sha256:{digest}\n"
    direct = direct_requirements(files[1:])
    assert direct.startswith("vllm @ file:///mnt/vllm-0.33.0%2Bcu130.sm121-cp38")
    assert direct.endswith(f" --hash=sha256:{Sha256.of_file(files[1]).hex}\n")


def test_a_context_is_made_anew(tmp_path: Path) -> None:
    from made_images import wheel_file  # noqa: PLC0415

    folder = tmp_path / "context"
    (folder / "ours").mkdir(parents=True)
    (folder / "ours" / "old.whl").write_text("left from before")
    pip = wheel_file(tmp_path, "pip", "26.3", {"pip/__main__.py": b""})
    one = wheel_file(tmp_path, "one", "1.0", {"one/__init__.py": b""})
    fill_context(folder, ROOT / "dockerfiles" / "runtime", pip, [one], [])
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"Dockerfile", "tools/pip/__main__.py", "runtime/requirements.txt", f"runtime/{one.name}"} <= there
    assert "ours/old.whl" not in there


def test_image_pins_without_day_or_digest_do_not_load(tmp_path: Path) -> None:
    good = (ROOT / "pins" / "images.toml").read_text()
    pinned = good.replace("\n[runtime]\n", f'\n[runtime]\nimage = "{BASE}"\nread = "registry, 2026-11-30"\n')
    (tmp_path / "images.toml").write_text(pinned)
    loaded = load_images(tmp_path).runtime
    assert str(loaded.image) == BASE
    for change, word in (
        ((BASE, "docker.io/library/ubuntu:24.04"), "digest is needed"),
        (("registry, 2026-11-30", "somewhere"), "2026-11-30"),
        (('"gcc"', '"gcc; rm"'), "no name of a Debian package"),
        (("proposed =", "propsed ="), "did you mean proposed"),
    ):
        (tmp_path / "images.toml").write_text(pinned.replace(*change))
        with pytest.raises(PinsError, match=word):
            load_images(tmp_path)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            "0.33.0+cu130.sm121.partial",
            "no complete wheel of vLLM 0.33.0, line cu130, for aarch64; parts are never",
        ),
        ("0.33.0+cu135.sm121", "no wheel of vLLM 0.33.0, line cu130, for aarch64."),
    ],
)
def test_a_part_is_not_taken_unasked_and_told(
    version: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = wheel(version=version, line=version[7:12])
    (tmp_path / part.filename).write_bytes(b"")
    (tmp_path / f"{part.filename}.manifest.json").write_bytes(part.manifest.to_json())
    words = ["image", "--dry-run", "--dist", str(tmp_path), "--pins", str(ROOT / "pins")]
    assert cli.run(words) == PackError.exit_code
    error = capsys.readouterr().err
    assert said in error
    assert (part.filename in error) is version.endswith(".partial")
    assert "--wheel" in error


def said(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> str:
    assert cli.run(["image", "--pins", str(ROOT / "pins"), *words]) == status
    return capsys.readouterr().err


@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_a_missing_wheel_hides_nothing_else(
    dry: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent"
    places = ("--dist", str(tmp_path / "dist"), "--work", str(tmp_path / "work"))
    wrong = ("--base", "ubuntu:24.04", "--repository", "registry.example/x:y", "--mirror", str(absent))
    files = ("--lock", str(absent), "--dockerfile", str(absent))
    error = said(capsys, PackError.exit_code, *places, *wrong, *files, *dry)
    for problem in (
        "holds no wheel of vLLM 0.33.0", "there is no locked runtime set", f"the mirror {absent} does not exist",
        f"{absent} cannot be read", "without a digest", "cannot be pushed to",
    ):  # fmt: skip
        assert error.count(problem) == 1, problem
    for step in (
        "sm121 build --line cu130",
        "sm121 pins lock --line cu130",
        "--mirror",
        "--dockerfile",
        "sm121 resolve",
    ):
        assert step in error, step
    assert not (tmp_path / "work").exists()


def test_what_is_there_is_judged_without_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No wheel of vLLM, and the locked set is of another line: both are told, the wheel once."""
    words = ("--dist", str(tmp_path), "--base", BASE, "--lock", str(LOCK), "--line", "cu135", "--dry-run")
    error = said(capsys, PackError.exit_code, *words)
    assert error.count("wheel of vLLM") == 1
    assert "one vLLM wheel is wanted" not in error
    assert f"{LOCK.name} is of line cu130 for aarch64, wanted cu135" in error


def test_lines_and_versions_that_are_not_pinned_hide_no_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--line", "cu13", "--vllm", "3", "--wheel", str(tmp_path / "absent.whl"), "--dry-run")
    error = said(capsys, UsageError.exit_code, *words)
    for problem in ("no line 'cu13'", "vLLM 3 is not pinned", "absent.whl does not exist"):
        assert problem in error
