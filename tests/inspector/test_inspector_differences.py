"""Reports side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

from made_facts import distribution, host_library, library, unit
from rich.console import Console

from sm121.inspector import Report, diff, matrix
from sm121.inspector.codec import decode, encode
from sm121.inspector.differences import Change, Difference, Matrix
from sm121.inspector.facts import ArtifactFacts, LibraryFacts
from sm121.inspector.inspection import Options, judge
from sm121.inspector.tables import diff_text, matrix_text

LOCAL = "_ZN43_INTERNAL_{hash}_12_cuda_view_cu_{hash}4cuda3stdE"


def report(version: str, *libraries: LibraryFacts, requires: tuple[str, ...] = ("torch==2.14.0",)) -> Report:
    facts = ArtifactFacts(
        "wheel", f"vllm-{version}-cp38-abi3-linux_aarch64.whl", 10_000_000, libraries,
        (distribution("vllm", version, requires=requires),), tuple(item.path for item in libraries),
    )  # fmt: skip
    return judge(facts, Options())


def old() -> Report:
    kernels = {"marlin_a": [100], "marlin_b": [100], "gone": [9], LOCAL.format(hash="0a1b2c3d"): [8]}
    host = host_library(["libcudart.so.13"])
    return report(
        "0.26.0", library("vllm/_C.so", [unit(["sm_120"], kernels)], host=host), library("vllm/old.so"),
        requires=("torch==2.11.0", "flashinfer-python==0.6.14"),
    )  # fmt: skip


def new() -> Report:
    kernels = {"marlin_a": [100], "marlin_b": [120], "fresh": [9], LOCAL.format(hash="ffffffff"): [8]}
    units = [unit(["sm_120f"], kernels), unit(["compute_80"], {"later": [0]})]
    return report("0.33.0", library("vllm/_C.so", units, host=host_library(["libcudart.so.13", "libcuda.so.1"])))


def test_nothing_differs_from_itself() -> None:
    assert diff(old(), old()).equal


def test_what_changed_is_named() -> None:
    difference = diff(old(), new())
    changes = set(difference.changes)
    assert Change("version", "vllm", "0.26.0", "0.33.0") in changes
    assert Change("requirement", "torch", "torch==2.11.0", "torch==2.14.0") in changes
    assert Change("requirement", "flashinfer-python", "flashinfer-python==0.6.14", "") in changes
    assert Change("library", "vllm/_C.so", "same-major", "family") in changes
    assert Change("library", "vllm/old.so", "host code", "") in changes
    assert Change("images", "vllm/_C.so", "sm_120 1", "compute_80 1, sm_120f 1") in changes
    assert Change("needed", "vllm/_C.so", "libcudart.so.13", "libcudart.so.13, libcuda.so.1") in changes
    assert Change("PTX to compile", "artifact", "0", "1000") in changes
    assert difference.counts == {
        "gone, same-major": 1,
        "new, family": 1,
        "new, jit": 1,
        "same-major to family": 3,
    }
    # The hashes in names of what is local to a file change with every build, and are no difference.
    assert not any("0a1b2c3d" in item.name for item in difference.kernels if not item.after)


def test_sizes_alone_are_a_difference() -> None:
    one = report("1.0", library("a.so", [unit(["sm_120"], {"k": [100]})]))
    two = report("1.0", library("a.so", [unit(["sm_120"], {"k": [128]})]))
    assert diff(one, two).counts == {"size only": 1}


def test_a_matrix_has_a_column_per_report() -> None:
    table = matrix([old(), new()])
    assert table.columns == ("vllm 0.26.0", "vllm 0.33.0")
    assert [row.heading for row in table.libraries] == ["vllm/_C.so"]
    assert table.libraries[0].cells == ("4 run", "4 run, 1 jit")
    families = {row.heading: row.cells for row in table.families}
    assert families["Marlin/AWQ/GPTQ repack & gemm"] == ("2 run", "2 run")
    assert {row.heading for row in table.general} >= {"verdict", "kernels that run", "PTX to compile", "toolkits"}


def test_both_go_through_json() -> None:
    difference, table = diff(old(), new()), matrix([old()])
    assert decode(Difference, json.loads(json.dumps(encode(difference)))) == difference
    assert decode(Matrix, json.loads(json.dumps(encode(table)))) == table


def text(verbosity: int = 0) -> str:
    out = StringIO()
    console = Console(file=out, width=160, no_color=True)
    diff_text(diff(old(), new()), console, verbosity)
    matrix_text(matrix([old(), new()]), console, verbosity)
    return out.getvalue()


def test_both_are_printed() -> None:
    short, long = text(), text(1)
    assert "torch==2.11.0" in short
    assert "1  new, jit" in short
    assert "later" not in short
    assert "not there -> jit" in long
    assert "vllm 0.33.0" in short
    assert "Marlin/AWQ/GPTQ" not in short.split("kernel family")[1]
    assert "Marlin/AWQ/GPTQ" in long.split("kernel family")[1]


def test_equal_reports_say_so() -> None:
    out = StringIO()
    diff_text(diff(old(), old()), Console(file=out, width=100))
    assert "Nothing differs." in out.getvalue()


def test_a_report_of_headers_alone_has_lost_no_kernels() -> None:
    full = new()
    libraries = tuple(replace(item, toolkits=()) for item in full.libraries)
    question = replace(full.question, kernels=False)
    shallow = replace(full, question=question, kernels=(), families=(), libraries=libraries)
    found = diff(full, shallow)
    assert [(item.what, item.before, item.after) for item in found.changes if item.what == "read"] == [
        ("read", "kernels", "headers only")
    ]
    assert not found.kernels
    assert not {"family", "toolkit"} & {item.what for item in found.changes}
    assert diff(shallow, shallow).equal
