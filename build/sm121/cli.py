"""The command line: verbs, their arguments, and the only place that ends the process."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import re
import sys
import textwrap
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from sm121 import __version__
from sm121.errors import Sm121Error, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = "Builds vLLM and FlashInfer for compute capability 12.1 (DGX Spark / GB10) and proves what it built."


_VERBS = (
    ("sm121.build_commands", "add_build_commands", ("build",)),
    ("sm121.lines_commands", "add_lines_command", ("lines",)),
    ("sm121.finish_commands", "add_finish_commands", ("finish",)),
    ("sm121.engine.commands", "add_image_command", ("image",)),
    ("sm121.image.commands", "add_exchange_commands", ("push", "copy", "promote", "resolve", "list", "verify")),
    ("sm121.inspector.commands", "add_inspect_commands", ("inspect", "diff", "matrix")),
    ("sm121.prove_commands", "add_prove_commands", ("prove",)),
    ("sm121.pins.commands", "add_pins_commands", ("pins",)),
    ("sm121.sources.patch_commands", "add_patch_commands", ("patches",)),
    ("sm121.loop.commands", "add_kernel_commands", ("kernels",)),
    ("sm121.overlay_commands", "add_overlay_commands", ("overlay",)),
    ("sm121.loop.bisect_commands", "add_bisect_commands", ("bisect",)),
    (
        "sm121.audit.commands",
        "add_audit_commands",
        ("explain", "oracle", "memory", "bootlog", "hardware", "smoke"),
    ),
)
"""Module, the function in it that adds verbs, and these verbs, in the order of the help."""


PIPE_GONE = 141
"""Exit status, as of any program that SIGPIPE ends: what was judged could not be said, so it is no pass."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps between words alone: `docker-daemon:NAME` and `--max-model-len` are copied. Texts of lines stay as they are."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(
            " ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


class _Parser(argparse.ArgumentParser):
    """A parser that names what was probably meant, and where the help is. Its verbs get parsers of the same kind."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "formatter_class": _Help})
        self.set_defaults(parser=self)  # of nested ones the innermost is told: its usage and options are meant

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the words, and end with exit status 2."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        options = re.search(r"unrecognized arguments: (-\S+)", message)
        if wrong:
            message += _meant(wrong[1], re.findall(r"[^',\s]+", wrong[2]))
        elif options:
            message += _meant(options[1], re.findall(r"--[a-z][a-z-]*", self.format_help()))
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n`{self.prog} --help` explains it.\n")


def _meant(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f", did you mean {near[0]}?" if near else ""


def parser(wanted: str = "") -> argparse.ArgumentParser:
    """The whole command line; with a verb, that verb's part alone: to load every part takes a second and more."""
    top = _Parser(prog="sm121", description=ABOUT)
    top.add_argument("--version", action="version", version=f"sm121 {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for module, adder, _ in [row for row in _VERBS if wanted in row[2]] or _VERBS:
        getattr(import_module(module), adder)(verbs)
    return top


def run(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status; every failure a user can cause is a message, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no fault
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except Sm121Error as error:
        console = Console(stderr=True, highlight=False)
        for problem in error.problems:
            console.print(f"error: {problem}", style="red", markup=False, soft_wrap=True)
        if error.do:
            console.print(f"what to do: {error.do}", markup=False, soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what is finished is kept, run the same command to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`).
        _silence()
        return PIPE_GONE
    except OSError as error:
        return _unusable(error)


def _run(words: Sequence[str]) -> int:
    try:
        arguments, unknown = parser(next(iter(words), "")).parse_known_args(words)
        if unknown:
            arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        status: int = arguments.run(arguments)
    except SystemExit as end:
        # rich ends the process by itself, with status 1, where a pipe's reader has gone; argparse after its help.
        if isinstance(end.__context__, BrokenPipeError):
            return PIPE_GONE
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


def _unusable(error: OSError) -> int:
    """A file, or the output, that cannot be used; any other fault is ours and is raised on."""
    if error.filename:
        name = os.fsdecode(error.filename) if not isinstance(error.filename, int) else str(error.filename)
        print(f"error: {name!r}: {error.strerror}.", file=sys.stderr)
        print("what to do: see that it is there and that this user may use it.", file=sys.stderr)
        return StorageError.exit_code
    if error.errno not in {errno.ENOSPC, errno.EIO}:
        raise error
    print(f"error: the output cannot be written: {error.strerror}.", file=sys.stderr)
    _silence()
    return StorageError.exit_code


def _silence() -> None:
    """Nothing more can be said, at the end of the process neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point."""
    sys.exit(run())
