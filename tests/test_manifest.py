from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from sm121.compile.caching import CacheUse
from sm121.errors import PackError
from sm121.findings import Verdict
from sm121.manifest import Command, Host, Input, Inspection, Manifest, Output, Subject, Tool
from sm121.pack.ledger import Library, Origin, Patch
from sm121.pins import FilePin
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "vllm-0.33.0+cu130.sm121-cp38-abi3-manylinux_2_28_aarch64.whl"
SHA = Sha256.of_bytes


def example() -> Manifest:
    pins = [
        FilePin("vllm", "0.33.0", "vllm-0.33.0.tar.gz", 47101396, SHA(b"sdist"), "index, 2026-11-29"),
        FilePin("ninja", "1.13.2", "ninja-1.13.2-py3-none-any.whl", 183365, SHA(b"ninja"), "index, 2026-11-29"),
    ]
    return Manifest(
        subject=Subject(
            "vllm", "0.33.0+cu130.sm121", "0.33.0", "cu130", "12.1", "aarch64", "manylinux_2_28_aarch64"
        ),
        plan=SHA(b"plan"),
        inputs=tuple(Input.of(pin, role) for pin, role in zip(pins, ("sources", "tool"), strict=True)),
        patches=(Patch("0001-a.patch", SHA(b"a"), "applied"), Patch("0000-b.patch", SHA(b"b"), "already")),
        tools=(Tool("nvcc", "13.0.88", SHA(b"nvcc")), Tool("g++", "12.2.0")),
        host=Host("Debian GNU/Linux 12", "x86_64", 2, 25_000_000_000, "3.11.7"),
        commands=(Command("libraries", ("ninja", "-j", "2"), ("LC_ALL=C", "CUDA=a b=c")),),
        libraries=(
            Library("vllm/_moe_C.so", Origin.LEFT_OUT, SHA(b"m"), 1),
            Library("vllm/_C.so", Origin.SOURCE, SHA(b"c"), 2),
        ),
        outputs=(Output(NAME, SHA(b"wheel"), 287295854),),
        inspection=Inspection(Verdict.WARN, SHA(b"report")),
        notes=("CUTLASS 4.5.0 from the official wheel; upstream pins 4.4.2: ü",),
        compiler_cache=CacheUse(
            "ccache", "redis://cache", read_only=True, hits=3, misses=1, shared_hits=2, failures=0
        ),
    )


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    data = json.loads(example().to_json())
    change(data)
    return json.dumps(data).encode()


def test_it_follows_its_schema() -> None:
    schema = json.loads(resources.files("sm121").joinpath("manifest.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate(json.loads(example().to_json()))
    for key in schema["required"]:
        assert not validator.is_valid(json.loads(edited(lambda data, key=key: data.pop(key))))  # type: ignore[misc]


def test_it_is_stable_and_loads_back() -> None:
    text = example().to_json()
    loaded = Manifest.from_json(text, "manifest.json")
    assert loaded.to_json() == text
    assert loaded.output(NAME) == Output(NAME, SHA(b"wheel"), 287295854)
    assert loaded.output("another.whl") is None
    assert loaded.verdict is Verdict.WARN
    assert [patch.name for patch in loaded.patches] == ["0001-a.patch", "0000-b.patch"], (
        "patches keep their order"
    )
    assert loaded.libraries[0].path == "vllm/_C.so"
    assert loaded.compiler_cache == example().compiler_cache
    turned = replace(
        example(), inputs=example().inputs[::-1], tools=example().tools[::-1], libraries=example().libraries[::-1]
    )
    assert turned.to_json() == text


def test_a_build_without_a_cache_says_nothing_of_one() -> None:
    text = replace(example(), compiler_cache=None).to_json()
    assert b"compiler_cache" not in text
    assert Manifest.from_json(text, "manifest.json").compiler_cache is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.update(colour="red"), "colour"),
        (lambda data: data.pop("plan"), "plan is missing"),
        (lambda data: data["host"].pop("cores"), "host.cores is missing"),
        (lambda data: data["host"].update(corse=1), "corse"),
        (lambda data: data["inputs"][0].update(sha256="abc"), "inputs[0].sha256"),
        (lambda data: data["inputs"][0].update(size=-1), "inputs[0].size = -1"),
        (lambda data: data["inputs"][0].update(size=True), "inputs[0].size"),
        (lambda data: data["tools"][0].update(sha256=""), "tools[0].sha256"),
        (lambda data: data["commands"][0].update(argv="ninja -j 2"), "commands[0].argv"),
        (lambda data: data["libraries"][0].update(origin="found"), "libraries[0].origin"),
        (lambda data: data["inspection"].update(verdict="ok"), "inspection.verdict"),
        (lambda data: data["compiler_cache"].update(hits=-1), "compiler_cache.hits"),
        (lambda data: data["compiler_cache"].pop("misses"), "compiler_cache.misses"),
        (lambda data: data.update(outputs=[]), "outputs is empty"),
        (lambda data: data.update(outputs=["wheel"]), "outputs[0]"),
        (lambda data: data.update(version=2), "version 2, wanted 1"),
        (lambda data: data.update(version="1"), "version"),
        (lambda data: data["subject"].update(line=""), "subject.line is empty"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused(change: Callable[[dict[str, Any]], None], told: str) -> None:
    with pytest.raises(PackError) as raised:
        Manifest.from_json(edited(change), "some.manifest.json")
    assert told in str(raised.value)
    assert "some.manifest.json" in str(raised.value)


def test_all_faults_come_at_once() -> None:
    def spoil(data: dict[str, Any]) -> None:
        data["host"].pop("cores")
        data["inputs"][1]["sha256"] = "abc"
        data["colour"] = "red"

    with pytest.raises(PackError) as raised:
        Manifest.from_json(edited(spoil), "x")
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"\xff", b'{"version": 1, "version": 1}', b"[" * 100_000, b"{}", b"null"]
)
def test_what_is_no_manifest_is_said_so(data: bytes) -> None:
    with pytest.raises(PackError):
        Manifest.from_json(data, "x")
