"""The CUDA runtime that a library will meet: by the dated lists, by a runtime in hand, by the pinned ones."""

from __future__ import annotations

import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest
from made_facts import distribution, host_library, library

from pinned_wheels import PINS, fetched
from sm121 import cli
from sm121.artifact import Kind
from sm121.device import HostLibrary, read_host
from sm121.errors import UsageError, VerdictFail
from sm121.findings import Finding, Verdict, overall
from sm121.inspector.facts import ArtifactFacts
from sm121.inspector.inspection import Options, judge
from sm121.inspector.judge.runtime import judge_runtime, runtime_of
from sm121.inspector.judge.symbols import Needs
from sm121.inspector.policy import policy
from sm121.inspector.runtimes import read_runtime
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.inspector.rules import Runtime

RUNTIMES = policy().runtimes
TWELVE, THIRTEEN = "libcudart.so.12", "libcudart.so.13"


def needs(*symbols: str, library: str = TWELVE, version: str | None = None) -> Needs:
    """A library that asks `library` for `symbols`, each bound to its one version as real ones are."""
    bound = dict.fromkeys(symbols, (library, library if version is None else version)) if version != "" else {}
    return Needs("a.so", frozenset(symbols) | {"_Z1fv"}, ("libtorch.so", library), bound)


def runtime(*symbols: str, soname: str = TWELVE) -> Runtime:
    host = HostLibrary(
        "aarch64", "shared", soname, defined=frozenset(symbols) | {soname, "helper"}, versions=frozenset({soname})
    )
    made = runtime_of(host, f"{soname} of nvidia_cuda_runtime_cu12 12.8.90", "12.8.90")
    assert made is not None
    return made


@pytest.mark.parametrize("version", [None, ""])
@pytest.mark.parametrize(
    ("symbol", "line", "verdict"),
    [
        ("cudaMalloc", None, Verdict.PASS),
        ("cudaMalloc", CudaVersion(12, 8), Verdict.PASS),
        ("cudaEventElapsedTime_v2", CudaVersion(12, 9), Verdict.PASS),
        ("cudaEventElapsedTime_v2", CudaVersion(12, 8), Verdict.PASS),
        ("cudaEventElapsedTime_v2", CudaVersion(12, 6), Verdict.FAIL),
        ("cudaNoSuchThing", CudaVersion(12, 9), Verdict.FAIL),
        ("cudaNoSuchThing", CudaVersion(12, 99), Verdict.UNKNOWN),
        ("__cudaRegisterFatBinary", CudaVersion(12, 8), Verdict.PASS),
    ],
)
def test_by_the_dated_lists(symbol: str, line: CudaVersion | None, verdict: Verdict, version: str | None) -> None:
    assert overall(judge_runtime(needs(symbol, version=version), RUNTIMES, line)) is verdict


def test_no_runtime_symbols_no_finding() -> None:
    assert list(judge_runtime(needs("cuLaunchKernel", version=""), RUNTIMES, None)) == []


def test_a_name_that_is_bound_elsewhere_is_not_asked_of_the_runtime() -> None:
    other = Needs("a.so", frozenset({"cudaLike"}), (TWELVE, "libother.so"), {"cudaLike": ("libother.so", "V1")})
    assert list(judge_runtime(other, RUNTIMES, CudaVersion(12, 8))) == []


def test_a_symbol_that_only_the_newer_runtime_has_fails_on_the_older() -> None:
    """As on line cu128, which compiles with nvcc and headers of 12.9 and meets the runtime of 12.8."""
    older, newer = runtime("cudaMalloc"), runtime("cudaMalloc", "cudaOfTwelveNine")
    asked = needs("cudaMalloc", "cudaOfTwelveNine")
    assert overall(judge_runtime(asked, RUNTIMES, None, newer)) is Verdict.PASS
    (finding,) = judge_runtime(asked, RUNTIMES, None, older)
    assert finding.verdict is Verdict.FAIL
    assert "cudaOfTwelveNine" in finding.message
    assert "nvidia_cuda_runtime_cu12 12.8.90" in finding.message


def test_the_version_counts_as_well_as_the_name() -> None:
    (finding,) = judge_runtime(
        needs("cudaMalloc", version="libcudart.so.12.9"), RUNTIMES, None, runtime("cudaMalloc")
    )
    assert finding.verdict is Verdict.FAIL
    assert "libcudart.so.12.9" in finding.message


def test_another_major_is_told_before_its_symbols() -> None:
    findings = list(judge_runtime(needs("cudaMalloc", library=THIRTEEN), RUNTIMES, None, runtime("cudaFree")))
    assert [finding.verdict for finding in findings] == [Verdict.FAIL]
    assert THIRTEEN in findings[0].got


def test_very_many_missing_symbols_are_counted() -> None:
    asked = needs(*(f"cudaNo{number}" for number in range(100)))
    for findings in (
        list(judge_runtime(asked, RUNTIMES, CudaVersion(12, 8), runtime("cudaMalloc"))),
        list(judge_runtime(asked, RUNTIMES, CudaVersion(12, 8))),
    ):
        assert len(findings) == 21
        assert "80 more" in findings[-1].got


def test_what_is_no_runtime() -> None:
    assert runtime_of(HostLibrary("aarch64", "shared", "libcudadevrt.so.12"), "x") is None
    assert runtime_of(HostLibrary("aarch64"), "x") is None


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + bytes(40)])
def test_a_file_that_is_no_runtime_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libcudart.so.12"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="libcudart"):
        read_runtime(str(path))


def test_a_wheel_without_a_runtime_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nvidia_cuda_runtime_cu12-12.8.90-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nvidia/cuda_runtime/__init__.py", "")
    with pytest.raises(UsageError, match="holds no CUDA runtime"):
        read_runtime(str(path))


def link(
    folder: Path, name: str, symbols: list[str], *, against: Path | None = None, compiler: str = "gcc"
) -> Path:
    """A library that defines `symbols`, or asks `against` for them."""
    body = "extern void {0}(void);" if against else "void {0}(void) {{}}"
    source = "".join(body.format(symbol) + "\n" for symbol in symbols)
    if against:
        source += "void *all[] = {" + ",".join(f"(void *){symbol}" for symbol in symbols) + "};\n"
    script = folder / f"{name}.map"
    script.write_text(f"{TWELVE} {{ global: *; }};\n")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    extra = [str(against)] if against else [f"-Wl,-soname,{TWELVE}", f"-Wl,--version-script={script}"]
    subprocess.run(
        [compiler, "-shared", "-nostdlib", "-fPIC", "-o", path, "-x", "c", "-", "-x", "none", *extra],
        input=source, text=True, check=True,
    )  # fmt: skip
    return path


@pytest.mark.programs
def test_real_libraries_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old = link(tmp_path / "old", TWELVE, ["cudaMalloc"])
    new = link(tmp_path / "new", TWELVE, ["cudaMalloc", "cudaOfTwelveNine"])
    user = link(tmp_path, "user.so", ["cudaMalloc", "cudaOfTwelveNine"], against=new)
    assert read_host(user.read_bytes()).bound == dict.fromkeys(
        ["cudaMalloc", "cudaOfTwelveNine"], (TWELVE, TWELVE)
    )
    assert cli.run(["inspect", str(user), "--runtime", str(new)]) == 0
    assert cli.run(["inspect", str(user), "--runtime", str(old)]) == VerdictFail.exit_code
    assert "cudaOfTwelveNine" in capsys.readouterr().out
    assert cli.run(["inspect", str(user), "--runtime", str(user)]) == UsageError.exit_code
    assert "libcudart.so.12" in capsys.readouterr().err


@pytest.mark.programs
def test_an_environment_is_judged_by_its_own_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    (site / "vllm").mkdir(parents=True)
    home = site / "nvidia" / "cuda_runtime" / "lib"
    home.mkdir(parents=True)
    new = link(tmp_path, TWELVE, ["cudaMalloc", "cudaOfTwelveNine"])
    link(site / "vllm", "_C.abi3.so", ["cudaOfTwelveNine"], against=new)
    for project, files in (("vllm", ["vllm/_C.abi3.so"]), ("nvidia_cuda_runtime_cu12", [])):
        info = site / f"{project}-12.8.90.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: 12.8.90\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    link(home, TWELVE, ["cudaMalloc"])
    cli.run(["inspect", str(site)])
    said = "".join(capsys.readouterr().out.split())
    assert "cudaOfTwelveNine" in said
    link(home, TWELVE, ["cudaMalloc", "cudaOfTwelveNine"])
    cli.run(["inspect", str(site)])
    assert "cudaOfTwelveNine" not in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("torch", "verdict"), [("", Verdict.PASS), ("2.14.0+cu135", Verdict.PASS), ("2.14.0+cu130", Verdict.FAIL)]
)
def test_the_runtime_is_torchs_whatever_compiled_the_wheel(torch: str, verdict: Verdict) -> None:
    host = host_library([THIRTEEN], undefined=["cudaMalloc", "cudaMemGetLocationInfo"])
    wheel = "vllm-0.33.0+cu135.sm121-cp38-abi3-manylinux_2_28_aarch64.whl"
    facts = ArtifactFacts(
        Kind.WHEEL, wheel, 1, (library("vllm/_C.abi3.so", host=host),),
        (distribution("vllm", "0.33.0+cu135.sm121", requires=["torch==2.14.0"]),), paths=("vllm/_C.abi3.so",),
    )  # fmt: skip
    found = [
        finding for finding in judge(facts, Options(torch=torch)).findings if finding.check == "line.runtime"
    ]
    assert found
    assert overall(found) is verdict


@pytest.fixture(scope="module")
def pinned() -> dict[str, Path]:
    """The runtime wheels that the lines pin for aarch64, by version."""
    parts = {
        part.version: part.file("aarch64")
        for line in PINS.lines
        for part in line.runtime_toolkit.parts
        if part.name.startswith("nvidia-cuda-runtime")
    }
    found = fetched(*parts.values())
    return {version: found[pin.filename] for version, pin in parts.items()}


@pytest.mark.network
def test_the_pinned_runtimes_are_as_the_dated_lists_say(pinned: dict[str, Path]) -> None:
    assert {"12.8.90", "12.9.79", "13.0.96"} <= set(pinned)
    for version, wheel in pinned.items():
        found, release = read_runtime(str(wheel)), CudaVersion.parse(version).release
        listed = {symbol for symbol, since in RUNTIMES[found.major].symbols.items() if since <= release}
        assert {*found.symbols} == listed, version
        assert found.versions == {f"libcudart.so.{found.major}"}
        assert version in found.given


@pytest.mark.network
def test_libcudart_12_9_exports_nothing_that_12_8_lacks(pinned: dict[str, Path]) -> None:
    """Why line cu128 can be compiled with 12.9: whatever is linked against its runtime finds all of it in 12.8."""
    eight, nine = (read_runtime(str(pinned[version])) for version in ("12.8.90", "12.9.79"))
    assert {*eight.symbols} == {*nine.symbols}
    assert len(eight.symbols) == 435


@pytest.mark.network
@pytest.mark.programs
def test_a_library_linked_against_12_9_finds_all_of_it_in_12_8(pinned: dict[str, Path], tmp_path: Path) -> None:
    """Real aarch64 libraries, linked against the runtimes of the wheels."""
    homes = {}
    for version in ("12.8.90", "12.9.79", "13.0.96"):
        homes[version] = tmp_path / version
        with zipfile.ZipFile(pinned[version]) as archive:
            (name,) = (name for name in archive.namelist() if "/libcudart.so." in name)
            homes[version].write_bytes(archive.read(name))
    nine, eight = read_runtime(str(pinned["12.9.79"])), read_runtime(str(pinned["12.8.90"]))
    judged: dict[str, Verdict] = {}
    for version in ("12.9.79", "13.0.96"):
        symbols = sorted(read_runtime(str(pinned[version])).symbols)
        user = link(
            tmp_path, f"user-{version}.so", symbols, against=homes[version], compiler="aarch64-linux-gnu-gcc"
        )
        host = read_host(user.read_bytes())
        assert {*symbols} <= host.undefined
        asked = Needs(user.name, host.undefined, host.needed, host.bound)
        findings: list[Finding] = list(judge_runtime(asked, RUNTIMES, None, eight))
        judged[version] = overall(findings)
    assert len(nine.symbols) == 435
    assert judged == {"12.9.79": Verdict.PASS, "13.0.96": Verdict.FAIL}
