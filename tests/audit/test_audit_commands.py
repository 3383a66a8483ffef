"""The verbs from argument to exit status."""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from fake_vllm import FILES
from test_bootlog import GOOD

from sm121.audit.commands import add_audit_commands
from sm121.audit.output import write_text
from sm121.audit.smoke.client import Server
from sm121.audit.source import is_sdist
from sm121.errors import ArtifactError, ServerError, UsageError

FOLDER = Path(__file__).parent / "checkpoints"


def run(*words: str) -> int:
    top = argparse.ArgumentParser()
    add_audit_commands(top.add_subparsers())
    arguments = top.parse_args([*words, "-q"])
    status: int = arguments.run(arguments)
    return status


@pytest.fixture
def sdist(tmp_path: Path) -> str:
    """A source distribution of the small package."""
    path = tmp_path / "vllm-9.9.9.tar.gz"
    packages = {name.rpartition(".")[0] for name in FILES} | {"vllm.model_executor.layers.fused_moe.oracle"}
    with tarfile.open(path, "w:gz") as archive:
        files = {"vllm-9.9.9/PKG-INFO": "Name: vllm\nVersion: 9.9.9\nRequires-Dist: flashinfer-python==0.7.2\n"}
        for name, text in FILES.items():
            inner = "/__init__.py" if name in packages else ".py"
            files[f"vllm-9.9.9/{name.replace('.', '/')}{inner}"] = dedent(text)
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return str(path)


def test_an_image_archive_is_no_source_distribution(tmp_path: Path, sdist: str) -> None:
    assert is_sdist(sdist)
    for first in ("blobs/sha256/x", "manifest.json", f"{'0a' * 32}/layer.tar", "oci-layout"):
        path = tmp_path / "image.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(first))
        assert not is_sdist(path)
    (tmp_path / "image.tar.gz").write_bytes(b"no tar at all")
    assert not is_sdist(tmp_path / "image.tar.gz")


def checkpoint(name: str) -> str:
    return str(FOLDER / f"{name}.json")


def test_explain_of_a_source_distribution_cannot_tell_about_code(
    sdist: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(
        "explain", "--checkpoint", checkpoint("dense-nvfp4-w4a16"), "--artifact", sdist, "--cuda", "13.0"
    )
    assert status == 32
    assert "MarlinNvFp4LinearKernel" in capsys.readouterr().out


def test_explain_as_json_with_answers(sdist: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ("the program nvcc is on the machine=no", "torch.ops._C.cutlass_scaled_mm_supports_fp4(121)=yes")
    words = [word for answer in answers for word in ("--answer", answer)]
    run("explain", "--checkpoint", checkpoint("moe-nvfp4-w4a4"), "--artifact", sdist, "--json", *words)
    found = json.loads(capsys.readouterr().out)
    taken = [(row["layer"], choice["backend"]) for row in found["layers"] for choice in row["choices"]]
    assert taken == [
        ("dense", "CutlassNvFp4LinearKernel"), ("experts", "VLLM_CUTLASS"), ("attention", "FlashAttentionBackend"),
    ]  # fmt: skip
    assert found["artifact"]["vllm"] == "9.9.9"


def test_oracle_and_its_difference(sdist: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("oracle", sdist) == 0
    assert "FLASHINFER_CUTLASS" in capsys.readouterr().out
    assert run("oracle", "--diff", sdist, sdist) == 0
    assert "nothing that selection reads changed" in capsys.readouterr().out
    assert run("oracle", sdist, "--json", "--target", "10.0") == 0
    assert json.loads(capsys.readouterr().out)["capability"] == "10.0"


SIZES = {"model_type": "x", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 1024}


def memory_of(folder: Path, config: object, *words: str) -> int:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return run("memory", "--checkpoint", str(path), *words)


def test_memory_of_a_sound_configuration_passes(tmp_path: Path) -> None:
    assert memory_of(tmp_path, SIZES, "--weights-gib", "2") == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_key_value_heads": -2}, {"num_key_value_heads": "8"}, {"num_key_value_heads": 3}, {"head_dim": -1},
        {"head_dim": "128"}, {"head_dim": True}, {"head_dim": 1 << 30}, {"sliding_window": -1}, {"sliding_window": [4]},
        {"layer_types": [1, 2]}, {"layer_types": ["full_attention"]}, {"layer_types": "full_attention"},
        {"attn_layer_indices": [-1, 2]}, {"attn_layer_indices": [0, 9]}, {"attn_layer_indices": {"a": 1}},
        {"num_nextn_predict_layers": -3}, {"hybrid_override_pattern": 7},
    ],
)  # fmt: skip
def test_a_size_that_cannot_be_right_is_not_known(wrong: dict[str, object], tmp_path: Path) -> None:
    assert memory_of(tmp_path, {**SIZES, **wrong}, "--weights-gib", "2") == 32


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_hidden_layers": -4}, {"num_hidden_layers": "4"}, {"num_hidden_layers": 1e300}, {"num_hidden_layers": 99999},
        {"num_hidden_layers": float("nan")}, {"num_hidden_layers": None}, {"num_attention_heads": 0},
        {"hidden_size": -1024}, {"hidden_size": 1023}, {"torch_dtype": "bogus"}, {"hidden_size": {}},
    ],
)  # fmt: skip
def test_without_a_usable_size_nothing_is_computed(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        memory_of(tmp_path, {**SIZES, **wrong}, "--weights-gib", "2")


@pytest.mark.parametrize("config", [[], 3, "x", None, {}, {"text_config": 3}])
def test_a_configuration_of_any_shape_is_refused_in_words(config: object, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        memory_of(tmp_path, config)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"model_type": "x", "hidden', "Unterminated string starting, line 1, column 21, at '\"hidden'"),
        (b'{"a": 1,\n "b": }', "Expecting value, line 2, column 7, at '}'"),
        (b'{"a": [1,', "Expecting value, line 1, column 10, where the file ends"),
        (b'{"a": 1,\n "\xff"}', "byte 11, in line 2, is not UTF-8 text"),
        (b"[" * 100_000, "nested too deep"),
        (b"\n", "is empty; wanted JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of git-lfs"),
    ],
)
def test_broken_json_is_told_with_its_place_and_a_way_out(data: bytes, told: str, tmp_path: Path) -> None:
    for name in ("config.json", "hf_quant_config.json"):
        (tmp_path / "config.json").write_text(json.dumps(SIZES))
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ArtifactError) as caught:
            run("memory", "--checkpoint", str(tmp_path))
        assert str(caught.value).startswith(f"{tmp_path / name} is ")
        assert told in caught.value.problems[0]
        assert "download that file" in caught.value.do or "git lfs pull" in caught.value.do


def test_weights_that_nobody_knows_are_not_a_pass(tmp_path: Path) -> None:
    assert memory_of(tmp_path, SIZES) == 32
    (tmp_path / "model.safetensors").write_bytes(bytes(4096))
    assert memory_of(tmp_path, SIZES) == 0
    assert run("memory", "--checkpoint", str(tmp_path)) == 0
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs")
    assert run("memory", "--checkpoint", str(tmp_path)) == 32


@pytest.mark.parametrize(
    "words",
    [
        ("--max-num-seqs", "-5"), ("--max-num-seqs", "0"), ("--max-model-len", "1.5"), ("--max-num-seqs", "9" * 30),
        ("--weights-gib", "-1"), ("--weights-gib", "nan"), ("--total-gib", "inf"), ("--gpu-memory-utilization", "0"),
    ],
)  # fmt: skip
def test_numbers_of_memory_that_cannot_be_meant(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        memory_of(tmp_path, SIZES, *words)


@pytest.mark.parametrize("words", [("--host-gib", "200"), ("--max-num-seqs", "4"), ("--max-model-len", "4096")])
def test_numbers_of_memory_that_contradict(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        memory_of(tmp_path, SIZES, *words)


def test_the_models_longest_context_is_taken_as_vllm_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**SIZES, "max_position_embeddings": 4096}
    assert memory_of(tmp_path, config, "--weights-gib", "2", "--max-num-seqs", "4") == 0
    assert "4 sequences of 4096 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gib", "tokens"),
    [
        ("-6.78", "584,000"),
        ("6.7.8", "584,000"),
        ("9" * 60, "584,000"),
        ("6.78", "0"),
        ("6.78", ",,"),
        ("0.0", "5"),
    ],
)
def test_memory_of_a_log_with_impossible_numbers(gib: str, tokens: str, tmp_path: Path) -> None:
    log = tmp_path / "boot.log"
    log.write_text(f"Available KV cache memory: {gib} GiB\nGPU KV cache size: {tokens} tokens\n")
    with pytest.raises(ArtifactError, match="no usable pair"):
        run("memory", "--bootlog", str(log))


@pytest.mark.parametrize("words", [("oracle",), ("oracle", "a", "--diff", "b", "c")])
def test_oracle_wants_one_thing(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(*words)


def test_memory_from_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--max-num-seqs", "8", "--max-model-len", "32768", "--weights-gib", "17")
    assert run("memory", "--checkpoint", checkpoint("moe-nvfp4-w4a4"), *words) == 0
    assert "98.3 kB per token" in capsys.readouterr().out


def test_memory_from_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "boot.log"
    log.write_text(GOOD)
    assert run("memory", "--bootlog", str(log), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert 12_400 < found["bytes_per_token"] < 12_500
    log.write_text("nothing")
    with pytest.raises(ArtifactError, match="no usable pair of lines"):
        run("memory", "--bootlog", str(log))


def test_bootlog_of_a_file_and_of_a_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "boot.log"
    log.write_text(GOOD)
    assert run("bootlog", str(log)) == 0
    assert "12.5 kB per token" in capsys.readouterr().out
    bad = (GOOD + "RuntimeError: no kernel image is available for execution on the device\n").encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bad)))
    assert run("bootlog", "-", "--json") == 31
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["check"] == "bootlog.no-kernel-image"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/dev/zero", "line 1 is longer than 8 MiB, reading stopped there"),
        ("/proc/self/mem", "cannot be read on behind line 0"),
    ],
)
def test_a_log_without_an_end_is_cut(path: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bootlog", path, "--json") == 32
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["findings"][0]["check"]) == ("unknown", "bootlog.cut")
    assert told in found["findings"][0]["got"]
    with pytest.raises(ArtifactError, match=f"{path} cannot be taken as a log: .*{told}"):
        run("memory", "--bootlog", path)


def test_a_log_that_goes_on_for_ever_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless:
        def readline(self, _size: int) -> bytes:
            return b"INFO nothing\n"

    monkeypatch.setattr("sm121.audit.log_lines._MOST", 1 << 16)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Endless()))
    assert run("bootlog", "-") == 32
    assert "reading stopped at line 5042" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr("sm121.audit.log_lines._MOST_LINES", 1000)
    assert run("bootlog", "-") == 32
    assert "more than the 1,000 lines" in " ".join(capsys.readouterr().out.split())


def test_what_stands_behind_the_head_of_a_long_line_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "boot.log"
    log.write_text(f"{'x' * 300_000}no kernel image is available for execution on the device\n{GOOD}")
    assert run("bootlog", str(log), "--json") == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 1 + GOOD.count("\n")


def test_bootlog_compared_with_a_prediction(
    sdist: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "boot.log"
    log.write_text(GOOD.replace("0.33.0", "9.9.9"))
    words = ("--checkpoint", checkpoint("moe-nvfp4-w4a4"), "--artifact", sdist, "--cuda", "13.0")
    assert run("bootlog", str(log), *words) == 0
    assert "VLLM_CUTLASS was taken, as predicted" in capsys.readouterr().out
    with pytest.raises(UsageError):
        run("bootlog", str(log), "--artifact", sdist)


@pytest.mark.parametrize(
    "words",
    [
        ("--env", "NOVALUE"), ("--answer", "q=maybe"), ("--answer", "q"),
    ],
)  # fmt: skip
def test_words_that_are_not_understood(words: tuple[str, ...], sdist: str) -> None:
    with pytest.raises(UsageError):
        run("explain", "--checkpoint", checkpoint("plain"), "--artifact", sdist, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("smoke", "--url", "a=http://x", "--url", "a=http://y"),
        ("smoke", "--url", "http://x", "--log", "b=/tmp/x"),
        ("smoke", "--url", "http://x", "--width", "0"),
        ("smoke", "--url", "http://x", "--api-key-from", "SM121_NO_SUCH_VARIABLE"),
    ],
)
def test_smoke_arguments_that_contradict(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(*words)


@pytest.mark.parametrize(
    "words",
    [("memory", "--checkpoint", "x", "--gpu-memory-utilization", "1.5"), ("oracle", "x", "--target", "zz")],
)
def test_numbers_out_of_range_end_in_a_message(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*words)
    assert "error" in capsys.readouterr().err


def test_what_a_server_says_is_written_even_if_it_is_no_text(tmp_path: Path) -> None:
    write_text(tmp_path / "results", "a\ud800b")
    assert (tmp_path / "results").read_text() == "a\\ud800b"


def test_a_server_that_redirects_to_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def redirected(*_arguments: object, **_keywords: object) -> None:
        raise ValueError("Invalid IPv6 URL")  # as the library does, while it reads the Location

    monkeypatch.setattr("requests.get", redirected)
    monkeypatch.setattr("requests.post", redirected)
    server = Server("http://127.0.0.1:9", "tiny")
    with pytest.raises(ServerError, match="cannot be read"):
        server.version()
    assert server.complete("x").failure.startswith("connection lost")
