"""The command line: verbs, their arguments, and the only place that ends the process."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from sm121 import __version__
from sm121.audit.commands import add_audit_commands
from sm121.build_commands import add_build_commands
from sm121.engine.commands import add_image_command
from sm121.errors import Sm121Error, StorageError
from sm121.finish_commands import add_finish_commands
from sm121.image.commands import add_exchange_commands
from sm121.inspector.commands import add_inspect_commands
from sm121.lines_commands import add_lines_command
from sm121.loop.bisect_commands import add_bisect_commands
from sm121.loop.commands import add_kernel_commands
from sm121.overlay_commands import add_overlay_commands
from sm121.pins import commands as pins_commands
from sm121.prove_commands import add_prove_commands
from sm121.sources.patch_commands import add_patch_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = "Builds vLLM and FlashInfer for compute capability 12.1 (DGX Spark / GB10) and proves what it built."


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="sm121", description=ABOUT)
    top.add_argument("--version", action="version", version=f"sm121 {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    add_build_commands(verbs)
    add_lines_command(verbs)
    add_finish_commands(verbs)
    add_image_command(verbs)
    add_exchange_commands(verbs)
    add_inspect_commands(verbs)
    add_prove_commands(verbs)
    pins = verbs.add_parser(
        "pins", help="check, update, lock or explain the pins", description="Looks after the pins."
    )
    pins_commands.add_arguments(pins)
    pins.set_defaults(run=pins_commands.run)
    add_patch_commands(verbs)
    add_kernel_commands(verbs)
    add_overlay_commands(verbs)
    add_bisect_commands(verbs)
    add_audit_commands(verbs)
    return top


def run(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status; every failure a user can cause is a message, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no fault
    arguments = parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
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
        # The reader of our output has gone (`| head`): nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EIO} or error.filename:
            raise
        print(f"error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return StorageError.exit_code
    return status


def main() -> None:
    """Entry point."""
    sys.exit(run())
