"""Small images through the whole inspection: what is read of them, and what is said."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from made_images import OCI_CONFIG, OCI_MANIFEST, elf, sha256, wheel_file
from sm121 import cli
from sm121.artifact import Wheel
from sm121.artifact.imagedocs import LINUX_ARM64
from sm121.artifact.layout import open_layout
from sm121.findings import Verdict
from sm121.inspector.container import read_version
from sm121.inspector.inspection import BaseImage, ExpectedWheel, Options, inspect_artifact
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sm121.inspector.report import Report

SITE = "opt/sm121/lib/python3.12/site-packages"
PTXAS = b"\0Cuda compilation tools, release 12.8, V12.8.93\0Build cuda_12.8.r12.8\0"
NEW = PTXAS.replace(b"12.8, V12.8.93", b"13.0, V13.0.88")


def layer(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            header = tarfile.TarInfo(path)
            header.size, header.mode = len(content), 0o755
            archive.addfile(header, io.BytesIO(content))
    return out.getvalue()


def installed(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> tuple[Path, dict[str, bytes]]:
    """A wheel, and its files as an installer lays them out."""
    wheel = wheel_file(folder, name, version, files)
    with Wheel(wheel) as opened:
        return wheel, {f"{SITE}/{member.path}": member.read() for member in opened.members()}


def image(
    folder: Path,
    *layers: Mapping[str, bytes],
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Path:
    run = {
        "Env": [f"{name}={value}" for name, value in (env or {}).items()], "Labels": dict(labels or {}), "User": "10001",
        "Entrypoint": ["vllm", "serve"],
    }  # fmt: skip
    stored = [layer(files) for files in layers]
    config = {
        "architecture": "arm64", "os": "linux", "config": run,
        "rootfs": {"type": "layers", "diff_ids": [sha256(data) for data in stored]}, "history": [{"created_by": "made"}],
    }  # fmt: skip
    return layout(folder, json.dumps(config).encode(), stored)


def layout(folder: Path, config: bytes, layers: list[bytes]) -> Path:
    def descriptor(kind: str, data: bytes) -> dict[str, Any]:
        return {"mediaType": kind, "digest": sha256(data), "size": len(data)}

    manifest = json.dumps(
        {
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": descriptor(OCI_CONFIG, config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", data) for data in layers],
        }
    ).encode()  # fmt: skip
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data in (config, manifest, *layers):
        (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"manifests": [descriptor(OCI_MANIFEST, manifest)]}))
    return folder


def inspected(path: Path, options: Options | None = None) -> Report:
    with open_layout(path, LINUX_ARM64) as opened:
        return inspect_artifact(opened, options or Options(jobs=1))


def said(report: Report, check: str) -> list[tuple[Verdict, str]]:
    return [(finding.verdict, finding.message) for finding in report.findings if finding.check == check]


def verdict(report: Report, check: str) -> Verdict:
    return max((verdict for verdict, _ in said(report, check)), key=lambda each: each.rank)


def test_versions_of_programs_are_read_from_their_bytes() -> None:
    assert read_version(PTXAS) == "12.8.93"
    assert read_version(b"#!/bin/sh\nexec ptxas\n") == ""


def test_tools_are_found_where_they_lie(tmp_path: Path) -> None:
    _, triton = installed(
        tmp_path / "wheels", "triton", "3.4.0",
        {"triton/__init__.py": b"", "triton/backends/nvidia/bin/ptxas": elf() + PTXAS},
    )  # fmt: skip
    _, flashinfer = installed(tmp_path / "wheels", "flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    cuda = {
        "usr/local/cuda-13.0/bin/ptxas": elf() + NEW, "usr/local/cuda-13.0/bin/nvcc": elf() + NEW,
        "usr/bin/python3.12": elf(), "usr/bin/gcc": elf(), "usr/include/python3.12/Python.h": b"",
        "etc/ld.so.conf.d/000_cuda.conf": b"/usr/local/cuda-13.0/compat\n",
        "usr/local/cuda-13.0/compat/libcuda.so.580.95.05": elf(),
    }  # fmt: skip
    plain = inspected(image(tmp_path / "plain", cuda, triton, flashinfer))
    assert verdict(plain, "image.ptxas") is Verdict.FAIL
    assert verdict(plain, "image.flashinfer") is Verdict.WARN
    assert verdict(plain, "image.headers") is Verdict.PASS
    assert verdict(plain, "image.compat") is Verdict.WARN
    # The path in a variable leads through a link of the image.
    env = {"TRITON_PTXAS_PATH": "/usr/local/cuda-13.0/bin/ptxas", "CUDA_HOME": "/usr/local/cuda-13.0"}
    pointed = inspected(image(tmp_path / "pointed", cuda, triton, flashinfer, env=env))
    assert verdict(pointed, "image.ptxas") is Verdict.INFO
    assert verdict(pointed, "image.cuda-home") is Verdict.PASS
    lost = inspected(image(tmp_path / "lost", cuda, triton, env={"CUDA_HOME": "/usr/local/cuda"}))
    assert verdict(lost, "image.cuda-home") is Verdict.FAIL


def test_an_image_without_tools(tmp_path: Path) -> None:
    _, triton = installed(tmp_path / "wheels", "triton", "3.8.0", {"triton/__init__.py": b""})
    _, flashinfer = installed(tmp_path / "wheels", "flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    report = inspected(image(tmp_path / "image", triton, flashinfer))
    assert verdict(report, "image.flashinfer") is Verdict.FAIL
    assert verdict(report, "image.headers") is Verdict.WARN
    assert verdict(report, "image.ptxas") is Verdict.WARN
    assert verdict(report, "image.environment") is Verdict.FAIL  # no interpreter


def test_what_lower_layers_still_carry(tmp_path: Path) -> None:
    first = {
        "root/.netrc": b"machine x login y password z\n",
        "tmp/vllm-1.0-py3-none-any.whl": bytes(1000),
        "etc/motd": b"1",
    }
    second = {"root/.wh..netrc": b"", "tmp/.wh.vllm-1.0-py3-none-any.whl": b"", "etc/motd": b"2"}
    report = inspected(image(tmp_path / "image", first, second))
    assert verdict(report, "image.secret") is Verdict.FAIL
    assert "layer 0 still holds it" in said(report, "image.secret")[0][1]
    assert verdict(report, "image.wheels") is Verdict.WARN
    assert "1.0 kB in 3 files" in said(report, "image.waste")[0][1]


def test_another_cpu_in_an_image(tmp_path: Path) -> None:
    _, vllm = installed(tmp_path / "wheels", "vllm", "0.33.0", {"vllm/__init__.py": b"", "vllm/x.so": elf(0x3E)})
    report = inspected(image(tmp_path / "image", vllm))
    assert verdict(report, "image.machine") is Verdict.FAIL
    assert "x86_64" in said(report, "image.machine")[0][1]


def test_two_environments(tmp_path: Path) -> None:
    _, one = installed(tmp_path / "wheels", "vllm", "0.33.0", {"vllm/__init__.py": b""})
    _, other = installed(tmp_path / "wheels", "vllm", "0.26.0", {"vllm/__init__.py": b""})
    system = {path.replace(SITE, "usr/lib/python3/dist-packages"): data for path, data in other.items()}
    report = inspected(image(tmp_path / "image", one, system))
    assert verdict(report, "image.environment") is Verdict.FAIL
    # Each environment by itself holds one version: that they differ is told once.
    assert verdict(report, "set.version") is Verdict.PASS


def test_the_wheel_and_the_base_that_were_meant(tmp_path: Path) -> None:
    wheel, files = installed(
        tmp_path / "wheels", "vllm", "0.33.0", {"vllm/__init__.py": b"", "vllm/a.py": b"a = 1\n"}
    )
    with Wheel(wheel) as opened:
        distribution = opened.identify().distribution
    assert distribution is not None
    bottom = {"usr/bin/python3.12": elf()}
    base = BaseImage("r/base@sha256:" + "1" * 64, (str(Sha256.of_bytes(layer(bottom))),))
    options = Options(jobs=1, wheels=(ExpectedWheel(distribution, Sha256.of_file(wheel).hex),), base=base)
    right = inspected(image(tmp_path / "right", bottom, files, labels={"sm121.vllm.version": "0.33.0"}), options)
    assert (
        verdict(right, "image.wheel")
        is verdict(right, "image.base")
        is verdict(right, "image.label")
        is Verdict.PASS
    )
    headers = inspected(tmp_path / "right", Options(jobs=1, kernels=False, wheels=options.wheels))
    assert verdict(headers, "image.wheel") is Verdict.PASS
    changed = {**files, f"{SITE}/vllm/a.py": b"a = 2\n"}
    wrong = inspected(image(tmp_path / "wrong", changed, labels={"sm121.vllm.version": "0.32.0"}), options)
    assert (
        verdict(wrong, "image.wheel")
        is verdict(wrong, "image.base")
        is verdict(wrong, "image.label")
        is Verdict.FAIL
    )
    assert "vllm/a.py" in said(wrong, "image.wheel")[0][1]
    missing = inspected(image(tmp_path / "missing", bottom), options)
    assert "is not installed" in said(missing, "image.wheel")[0][1]


def test_the_command_line_takes_wheels_and_platforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel, files = installed(tmp_path / "wheels", "vllm", "0.33.0", {"vllm/__init__.py": b""})
    path = image(tmp_path / "image", files)
    cli.run(["inspect", str(path), "--wheel", str(wheel), "-vv"])
    assert "is the wheel sha256:" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["inspect", str(path), "--platform", "linux/amd64"]) == 24
    assert "linux/arm64" in capsys.readouterr().err
    assert cli.run(["inspect", str(path), "--wheel", str(tmp_path / "none.whl")]) == 26
    assert "none.whl" in capsys.readouterr().err
    assert cli.run(["inspect", str(path), "--base", "docker.io/library/ubuntu:24.04"]) == 2
    assert "digest" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.run(["inspect", str(path), "--platform", "arm64"])
