"""Damaged artifacts, inspected to the last page: each gets a verdict and every report of it, or an error of ours.

A damaged library stands in an artifact whose archive is right, so that what the judge makes of strange facts is tried,
not only what the readers make of strange bytes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import xml.etree.ElementTree as ET
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "build"), str(HERE), str(HERE / "artifact"), str(HERE / "device")]

from device_files import fixture, fixtures  # noqa: E402
from image_maker import ImageMaker, docker_save, layer  # noqa: E402
from jsonschema import Draft202012Validator  # noqa: E402
from rich.console import Console  # noqa: E402
from wheel_maker import FILES, wheel  # noqa: E402

import fuzz_artifact  # noqa: E402
import fuzz_device  # noqa: E402
from sm121.artifact import open_artifact  # noqa: E402
from sm121.errors import Sm121Error  # noqa: E402
from sm121.inspector import (  # noqa: E402
    Options,
    inspect_artifact,
    load_report,
    report_html,
    report_json,
    report_text,
)
from sm121.inspector.ci import report_junit, report_sarif  # noqa: E402

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

TEXTS = ("thing/_version.py", "thing-1.0.dist-info/METADATA", "thing-1.0.dist-info/WHEEL")


def fault_of(path: Path) -> str:
    """What went wrong when this file was inspected and reported on, "" if nothing."""
    try:
        with open_artifact(path) as artifact:
            report = inspect_artifact(artifact, Options(jobs=1))
        document = report_json(report)
        _schema().validate(document)
        assert report_json(load_report(json.dumps(document))) == document, "the report is read differently"
        for verbosity in 0, 2:
            with Path(path.parent, "out.txt").open("w", encoding="utf-8") as out:
                report_text(report, Console(file=out, width=100), verbosity)
        ET.fromstring(report_junit(report))
        json.dumps(report_sarif(report))
        assert "</html>" in report_html(report)
    except Sm121Error as error:
        if not str(error).replace("\n", "").isprintable():
            return f"an unprintable message: {error!r}"
    except Exception:  # noqa: BLE001 -- what is looked for
        return traceback.format_exc()
    return ""


def inputs(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Endless damaged artifacts: a file name, which says the kind, and its bytes."""
    libraries = [fixture(name) for name in fixtures()]
    while True:
        library = chance.choice(libraries)
        if chance.random() < 0.9:
            library = fuzz_device.change(library, chance)
        with tempfile.TemporaryDirectory() as name:
            yield _artifact(library, chance, Path(name))


def _artifact(library: bytes, chance: random.Random, folder: Path) -> tuple[str, bytes]:
    kind = chance.choice((".so", ".whl", ".tar"))
    if kind == ".so":
        return "input.so", library
    if kind == ".tar":
        made = layer(("usr", None), ("usr/lib", None), ("usr/lib/x.so", library))
        return "input.tar", docker_save(folder / "x.tar", ImageMaker([made])).read_bytes()
    members = {**FILES, "thing/_C.abi3.so": library}
    for text in TEXTS:
        if chance.random() < 0.2:
            members[text] = fuzz_artifact.damaged(members[text], chance)
    return "thing-1.0-cp38-abi3-manylinux_2_28_aarch64.whl", wheel(folder, members).read_bytes()


@cache
def _schema() -> Draft202012Validator:
    text = files("sm121.inspector").joinpath("report.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))
