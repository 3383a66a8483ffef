"""Does the CUDA runtime that a library will meet export what the library asks of it?

A library may be compiled by a newer toolkit than the runtime it meets (line cu128: nvcc 12.9, torch and runtime 12.8), so
the symbols decide, each with its version. What is asked is compared with a runtime in hand, or with the dated lists of
every release (data/cudart.toml).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.rules import Runtime
from sm121.inspector.words import joined, listed, shown
from sm121.progress import plural
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sm121.device import HostLibrary
    from sm121.inspector.judge.symbols import Needs

LIBRARY = re.compile(r"libcudart\.so\.(\d+)(?:\.\d+)*")
"""The runtime's file name."""
_SYMBOL = re.compile(r"(__)?cuda[A-Z]")
_MOST = 20
_OLDER = "Build with that line's own headers and runtime, or leave out what asks for it."


def runtime_of(host: HostLibrary, name: str, version: str = "") -> Runtime | None:
    """The runtime that a libcudart is, None if it is none; `name` says where it is, `version` is its package's."""
    match = LIBRARY.fullmatch(host.soname)
    if match is None:
        return None
    try:
        read = CudaVersion.parse(version)
    except ValueError:
        read = CudaVersion(int(match[1]), 0)
    symbols = {symbol: read.release for symbol in host.defined if _SYMBOL.match(symbol)}
    return Runtime(int(match[1]), (read,), symbols, host.versions, name)


def judge_runtime(
    needs: Needs, runtimes: Mapping[int, Runtime], line: CudaVersion | None, given: Runtime | None = None
) -> Iterator[Finding]:
    """Judge one library: by the runtime in hand (`given`), else by what the runtime of `line` exports.

    Without a line, any release of the major that the library asks for will do.
    """
    majors = sorted({int(match[1]) for name in needs.needed if (match := LIBRARY.fullmatch(name))})
    asked = _asked(needs)
    if given is not None:
        if majors:
            yield from _by_runtime(needs, asked, majors, given)
        return
    for major in majors:
        if (known := runtimes.get(major)) is not None:
            yield from _by_lists(needs, asked, known, line if line and line.major == major else None)


def _asked(needs: Needs) -> dict[str, str]:
    """The runtime's symbols that are asked for, with the version that binds each (\"\" if none does)."""
    asked = {}
    for symbol in needs.undefined:
        library, version = needs.versioned.get(symbol, ("", ""))
        if LIBRARY.fullmatch(library) or (not library and _SYMBOL.match(symbol)):
            asked[symbol] = version
    return asked


def _by_runtime(needs: Needs, asked: Mapping[str, str], majors: list[int], given: Runtime) -> Iterator[Finding]:
    if majors != [given.major]:
        yield _fail(
            needs, f"needs {joined([f'libcudart.so.{major}' for major in majors])}",
            f"libcudart.so.{given.major}, as {given.given} has it", "Take the build of that CUDA major.",
        )  # fmt: skip
        return
    missing = sorted(symbol for symbol in asked if symbol not in given.symbols)
    for symbol in missing[:_MOST]:
        yield _fail(
            needs, f"asks for {shown(symbol)}", f"a symbol of {given.given}, which does not export it", _OLDER
        )
    if len(missing) > _MOST:
        yield _fail(needs, f"asks for {len(missing) - _MOST} more symbols", f"symbols of {given.given}", _OLDER)
    strange = sorted({version for symbol, version in asked.items() if version and version not in given.versions})
    if strange:
        has = joined(sorted(given.versions)) or "none"
        yield _fail(
            needs, f"asks for symbol versions {listed(strange)}", f"those of {given.given}: {has}", _OLDER
        )
    if not missing and not strange:
        got = f"{given.given} exports all {plural(len(asked), 'runtime symbol')} that it asks for"
        yield Finding("line.runtime", needs.library, Verdict.PASS, got)


def _by_lists(
    needs: Needs, asked: Mapping[str, str], runtime: Runtime, line: CudaVersion | None
) -> Iterator[Finding]:
    unknown = sorted(symbol for symbol in asked if symbol not in runtime.symbols)
    newest = max(runtime.read).release
    for symbol in unknown[:_MOST]:
        beyond = line is not None and line.release > newest
        yield Finding(
            "line.runtime", needs.library, Verdict.UNKNOWN if beyond else Verdict.FAIL,
            f"asks for {shown(symbol)}, which no CUDA {runtime.major} runtime up to {newest} exports",
            f"symbols of libcudart.so.{runtime.major}",
        )  # fmt: skip
    if len(unknown) > _MOST:
        yield _fail(
            needs, f"asks for {len(unknown) - _MOST} more symbols", f"symbols of CUDA {runtime.major}", ""
        )
    release = max((runtime.symbols[symbol] for symbol in asked if symbol in runtime.symbols), default=None)
    if release is None:
        return
    late = sorted(symbol for symbol in asked if runtime.symbols.get(symbol) == release)
    if line is not None and line.release < release:
        got = f"asks for {listed(late, 3)}, which the CUDA runtime exports from {release} on"
        yield _fail(needs, got, f"only what {line} exports", _OLDER)
    elif not unknown:
        oldest = min(runtime.read).release
        what = f"a CUDA {runtime.major} runtime" + (f" of {release} or later" if release > oldest else "")
        yield Finding(
            "line.runtime", needs.library, Verdict.PASS, f"its {plural(len(asked), 'runtime symbol')} need {what}"
        )


def _fail(needs: Needs, got: str, wanted: str, advice: str) -> Finding:
    return Finding("line.runtime", needs.library, Verdict.FAIL, got, wanted, advice)
