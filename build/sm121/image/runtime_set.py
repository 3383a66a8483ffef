"""The locked runtime environment: what `sm121 pins lock` wrote, read back, and its wheels brought by hash."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from sm121 import index
from sm121.documents import read_text_document
from sm121.errors import PinsError, Sm121Error
from sm121.pins.choose import tags
from sm121.pins.model import Cpu, FilePin
from sm121.sources.fetch import fetch
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from packaging.tags import Tag

    from sm121.index import IndexFile
    from sm121.progress import Progress

_HEAD = re.compile(r"# Runtime environment of line (?P<line>\S+) for vLLM (?P<vllm>[^:\s]+):")
_PLACE = re.compile(
    r"# Linux (?P<cpu>\w+), glibc (?P<libc>\d+\.\d+) or newer, Python (?P<python>3\.\d+)\.", re.ASCII
)
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;]+)((?:\s+--hash=sha256:[0-9a-f]{64})+)"
)
_WORKERS = 12


@dataclass(frozen=True, slots=True)
class Locked:
    """One distribution of the set, with the hashes that its wheel may have."""

    name: str
    version: str
    hashes: frozenset[Sha256]


@dataclass(frozen=True, slots=True)
class RuntimeSet:
    """A whole lock. `digest` is of its text; `python` and `libc` are (major, minor)."""

    line: str
    vllm: str
    cpu: Cpu
    python: tuple[int, int]
    libc: tuple[int, int]
    packages: tuple[Locked, ...]
    digest: Sha256

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; raises PinsError that names every fault."""
        try:
            text = read_text_document(path)
        except (OSError, UnicodeDecodeError) as error:
            raise PinsError(
                f"{path} cannot be read as a lock: {error}.", do="write one: `sm121 pins lock`."
            ) from error
        return cls.parse(text, path.name)

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read the text; `name` is for messages."""
        head, place = _HEAD.search(text), _PLACE.search(text)
        faults = [] if head and place else [f"{name}: the two lines that say line, CPU and Python are missing."]
        packages: dict[str, Locked] = {}
        for line in _logical(text):
            match = _PIN.fullmatch(line)
            if match is None:
                faults.append(f"{name}: {index.public_text(line)[:80]!r} is no NAME==VERSION with a sha256.")
                continue
            key = canonicalize_name(match["name"])
            if key in packages:
                faults.append(f"{name}: {key} stands there twice.")
            hashes = frozenset(Sha256(word) for word in re.findall(r"[0-9a-f]{64}", match[3]))
            packages[key] = Locked(key, match["version"], hashes)
        if not packages:
            faults.append(f"{name}: it locks nothing.")
        if place and place["cpu"] not in {*Cpu}:
            faults.append(f"{name}: {place['cpu']!r} is no CPU that is known here.")
        if faults or head is None or place is None:
            raise PinsError(faults, do="write it anew with `sm121 pins lock --output FILE`.")
        return cls(
            head["line"], head["vllm"], Cpu(place["cpu"]), _pair(place["python"]), _pair(place["libc"]),
            tuple(packages[key] for key in sorted(packages)), Sha256.of_bytes(text.encode()),
        )  # fmt: skip

    @property
    def python_name(self) -> str:
        """`3.12`."""
        return f"{self.python[0]}.{self.python[1]}"


def wheels_of(locked: RuntimeSet, store: Path, progress: Progress, mirror: Path | None = None) -> list[Path]:
    """Bring every wheel of the set into `store`, proven by hash; sorted by the distribution's name.

    `mirror` is a folder that holds them, or earlier stores: then no index is asked. Raises PinsError for a hash that
    no wheel has, and what fetching raises.
    """
    ranks = tags(locked.cpu, python=locked.python, libc=locked.libc)
    pins = _from_folder(locked, mirror, ranks) if mirror is not None else _from_index(locked, store, ranks)
    files = fetch(pins, store, mirror=mirror, progress=progress)
    return [files[pin.filename] for pin in sorted(pins, key=lambda pin: pin.name)]


def _from_index(locked: RuntimeSet, store: Path, ranks: Mapping[Tag, int]) -> list[FilePin]:
    """What the store holds is known by its hash; the index is asked for the rest only."""
    found: list[FilePin] = []
    asked: list[Locked] = []
    for package in locked.packages:
        pin = _stored(package, store, ranks)
        if pin is not None:
            found.append(pin)
        else:
            asked.append(package)
    with ThreadPoolExecutor(_WORKERS) as pool:
        answers = list(pool.map(partial(_offered, ranks=ranks), asked))
    problems = [answer for answer in answers if isinstance(answer, Sm121Error)]
    if problems:
        texts = [text for problem in problems for text in problem.problems]
        raise type(problems[0])(texts, do=problems[0].do)
    return [*found, *(answer for answer in answers if isinstance(answer, FilePin))]


def _stored(package: Locked, store: Path, ranks: Mapping[Tag, int]) -> FilePin | None:
    files = [path for digest in package.hashes for path in sorted((store / digest.hex).glob("*.whl"))]
    fitting = [path for path in files if _fits(path.name, package, ranks)]
    if not fitting:
        return None
    path = fitting[0]
    return FilePin(
        package.name, package.version, path.name, path.stat().st_size, Sha256(path.parent.name), "store"
    )


def _offered(package: Locked, ranks: Mapping[Tag, int]) -> FilePin | Sm121Error:
    try:
        files = index.project_files(package.name)
    except Sm121Error as error:
        return error
    known = [file for file in files if file.sha256 in package.hashes]
    fitting = [file for file in known if _fits(file.filename, package, ranks)]
    if not fitting:
        there = f"it lists {known[0].filename}" if known else "it lists no file with that hash"
        return PinsError(
            f"{package.name} {package.version}: no wheel of the index that fits has the locked hash; {there}.",
            do="write the lock anew with `sm121 pins lock`, for the CPU and Python of the image.",
        )
    return _pinned(package, min(fitting, key=lambda file: _rank(file.filename, ranks)))


def _pinned(package: Locked, file: IndexFile) -> FilePin | Sm121Error:
    if file.size is None or file.sha256 is None:
        return PinsError(
            f"the index gives no size for {file.filename}.", do="use an index that does, or a mirror."
        )
    return FilePin(package.name, package.version, file.filename, file.size, file.sha256, "index")


def _from_folder(locked: RuntimeSet, mirror: Path, ranks: Mapping[Tag, int]) -> list[FilePin]:
    """Pins for the wheels of a folder; the hash of each candidate is computed."""
    names: dict[tuple[str, str], list[Path]] = {}
    for path in sorted([*mirror.glob("*.whl"), *mirror.glob("*/*.whl")]):
        if key := _key(path.name):
            names.setdefault(key, []).append(path)
    pins, missing = [], []
    for package in locked.packages:
        candidates = names.get((package.name, package.version), [])
        for path in sorted(candidates, key=lambda path: _rank(path.name, ranks)):
            if _rank(path.name, ranks) < len(ranks) and (digest := Sha256.of_file(path)) in package.hashes:
                size = path.stat().st_size
                pins.append(FilePin(package.name, package.version, path.name, size, digest, "mirror"))
                break
        else:
            missing.append(f"{package.name} {package.version} with the locked hash is not in {mirror}.")
    if missing:
        raise PinsError(missing, do="fill the folder, or leave --mirror out.")
    return pins


def _key(filename: str) -> tuple[str, str] | None:
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    return name, str(version)


def _fits(filename: str, package: Locked, ranks: Mapping[Tag, int]) -> bool:
    return (
        _key(filename) is not None
        and package.name == (_key(filename) or ("",))[0]
        and _rank(filename, ranks) < len(ranks)
    )


def _rank(filename: str, ranks: Mapping[Tag, int]) -> int:
    """0 is best; the number of tags if the wheel is not for the image at all."""
    try:
        own = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return len(ranks)
    return min((ranks[tag] for tag in own if tag in ranks), default=len(ranks))


def _logical(text: str) -> Iterable[str]:
    """Lines joined at backslashes, without comments and empty ones."""
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        bare = re.sub(r"(?:^|\s)#.*", "", line).strip()
        if bare:
            yield " ".join(bare.split())


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)
