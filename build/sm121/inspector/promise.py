"""What a maker promised, as plain data: the judge shares no code with the builder.

As JSON (alone, or under `promise` in a larger document):

    {"version": "0.33.0+cu130.sm121",
     "requested": ["12.0f"],
     "configured": {"generic": ["12.0"], "gated": ["12.0f"]},
     "gencodes": {"vllm/_C_stable_libtorch.abi3.so": {"sm_120": 39, "sm_120f": 35}},
     "libraries": {"vllm/_C_stable_libtorch.abi3.so": {"sm_120": 39, "sm_120f": 35}},
     "families": ["Marlin dense"],
     "left_out": ["vllm/_deepselect_C.abi3.so"]}

`gencodes` are targets that the build files ask the compiler for, `libraries` the images expected in each library.
A manifest of a finished build is understood too: its version, and the digests of its libraries and outputs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sm121.documents import read_text_document
from sm121.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_LEFT_OUT = "left-out"


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise. Empty parts were not promised and are not compared."""

    version: str = ""
    requested: tuple[str, ...] = ()
    configured: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gencodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    libraries: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 (hexadecimal) of each library, by its path."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each file that was made, by its name."""
    record: Mapping[str, object] = field(default_factory=dict)
    """Other top-level words of the document: commits are checked."""

    @classmethod
    def of(cls, document: object) -> Self:
        """Read a document; UsageError names every fault."""
        faults: list[str] = []
        if not isinstance(document, dict):
            raise UsageError(f"a manifest is a JSON object, found {type(document).__name__}.")
        if "subject" in document:
            return cls._of_manifest(document)
        data = document.get("promise", document)
        if not isinstance(data, dict):
            raise UsageError(f"a promise is a JSON object, found {type(data).__name__}.")
        promise = cls(
            _text(data, "version", faults),
            _texts(data, "requested", faults),
            {
                key: _texts({key: value}, key, faults)
                for key, value in _mapping(data, "configured", faults).items()
            },
            _targets(data, "gencodes", faults),
            _targets(data, "libraries", faults),
            _texts(data, "families", faults),
            _texts(data, "left_out", faults),
            record={key: value for key, value in document.items() if key != "promise"},
        )
        if faults:
            raise UsageError(faults, do="compare the file with the documentation of --manifest.")
        return promise

    @classmethod
    def _of_manifest(cls, document: Mapping[str, object]) -> Self:
        faults: list[str] = []
        libraries = _rows(document, "libraries", ("path", "origin", "sha256"), faults)
        outputs = _rows(document, "outputs", ("name", "sha256"), faults)
        promise = cls(
            version=_text(_mapping(document, "subject", faults), "version", faults),
            left_out=tuple(row["path"] for row in libraries if row["origin"] == _LEFT_OUT),
            digests={row["path"]: row["sha256"] for row in libraries if row["origin"] != _LEFT_OUT},
            outputs={row["name"]: row["sha256"] for row in outputs},
        )
        if faults:
            raise UsageError(faults, do="give the manifest that stands beside the wheel.")
        return promise

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; UsageError if it cannot be read or is no promise."""
        try:
            return cls.of(json.loads(read_text_document(path)))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is no JSON: {error}.") from error


def _rows(
    data: Mapping[str, object], key: str, words: tuple[str, ...], faults: list[str]
) -> list[Mapping[str, str]]:
    """A list of objects that each have `words` as strings."""
    found: list[Mapping[str, str]] = []
    value = data.get(key)
    for row in value if isinstance(value, list) else ():
        if isinstance(row, dict) and all(isinstance(row.get(word), str) for word in words):
            found.append(row)
        else:
            faults.append(f"{key}: wanted objects with {', '.join(words)}, found {row!r:.80}.")
    if not isinstance(value, list):
        faults.append(f"{key}: wanted a list, found {type(value).__name__}.")
    return found


def _text(data: Mapping[str, object], key: str, faults: list[str]) -> str:
    value = data.get(key, "")
    if isinstance(value, int):
        return ""  # the version number of a document's format, not of a wheel
    if not isinstance(value, str):
        faults.append(f"{key}: wanted a string, found {type(value).__name__}.")
        return ""
    return value


def _texts(data: Mapping[str, object], key: str, faults: list[str]) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        faults.append(f"{key}: wanted a list of strings.")
        return ()
    return tuple(value)


def _mapping(data: Mapping[str, object], key: str, faults: list[str]) -> Mapping[str, object]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        faults.append(f"{key}: wanted an object, found {type(value).__name__}.")
        return {}
    return value


def _targets(data: Mapping[str, object], key: str, faults: list[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    if isinstance(data.get(key), list):
        return found  # a list of that name belongs to another document
    for library, value in _mapping(data, key, faults).items():
        if not isinstance(value, dict) or not all(isinstance(count, int) for count in value.values()):
            faults.append(f"{key}: wanted an object of target and count for {library}.")
            continue
        found[library] = dict(value)
    return found
