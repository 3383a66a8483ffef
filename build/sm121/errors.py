"""One class per kind of failure, each with an exit code of its own.

A message answers three questions: what was wanted, what was found, what to do. Several problems of one kind
travel in one error, so that a user mends them in one go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class Sm121Error(Exception):
    """A failure that a user can act on.

    `problems` are complete sentences, one per fault; `do` is the next step. The command line prints both and
    ends with `exit_code`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: str | Iterable[str], *, do: str = "") -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.do = do
        super().__init__("\n".join([*self.problems, *([f"What to do: {do}"] if do else [])]))


class UsageError(Sm121Error):
    """The command line asks for something that does not exist."""

    exit_code = 2


class PinsError(Sm121Error):
    """A pin file does not load, or its pins contradict each other."""

    exit_code = 10


class PlanError(Sm121Error):
    """The request cannot become a build: an architecture list, a toolkit, a combination of options."""

    exit_code = 11


class PreflightError(Sm121Error):
    """The machine lacks a program, a header, memory or disk space."""

    exit_code = 12


class FetchError(Sm121Error):
    """A pinned file could not be had: no network, not in the index, broken off."""

    exit_code = 13


class DigestError(Sm121Error):
    """The bytes are not the pinned bytes."""

    exit_code = 14


class UnpackError(Sm121Error):
    """An archive is damaged, or wants to write where it must not."""

    exit_code = 15


class ToolchainError(Sm121Error):
    """The compiler that would run is not the planned one, or does not work."""

    exit_code = 16


class CompileError(Sm121Error):
    """Upstream's sources did not compile."""

    exit_code = 17


class OutOfMemoryError(CompileError):
    """The compiler was ended for want of memory."""

    exit_code = 18


class PackError(Sm121Error):
    """A wheel or image could not be assembled from its parts."""

    exit_code = 19


class StorageError(Sm121Error):
    """The disk is full, or a folder cannot be written."""

    exit_code = 20


class LockedError(Sm121Error):
    """Another build works in the same folder."""

    exit_code = 21


class PatchError(Sm121Error):
    """A patch does not apply, is damaged, or names a file that does not exist."""

    exit_code = 22


class FinishError(Sm121Error):
    """A library could not be finished: its device code is of a kind that must not be rewritten."""

    exit_code = 23


class ImageError(Sm121Error):
    """The container engine or a registry refused, or an image is not what it claims."""

    exit_code = 24


class ProgramError(Sm121Error):
    """A program that was started failed, and no better explanation is known."""

    exit_code = 25


class ArtifactError(Sm121Error):
    """A file given to be read does not exist or is of no kind that can be inspected."""

    exit_code = 26


class DamagedError(ArtifactError):
    """Bytes that claim to be an ELF file, a fatbin, a cubin or an archive, and are not, or not wholly."""

    exit_code = 27


class ServerError(Sm121Error):
    """A server does not answer, or not as a server of its kind does."""

    exit_code = 28


class OverlayError(Sm121Error):
    """An overlay does not fit what is installed, is damaged, or cannot be taken off."""

    exit_code = 34


class VerdictWarning(Sm121Error):  # noqa: N818 -- a verdict, reported like an error
    """The inspection found warnings only, and `--strict` was given."""

    exit_code = 30


class VerdictFail(Sm121Error):  # noqa: N818 -- a verdict, reported like an error
    """The inspection failed."""

    exit_code = 31


class VerdictUnknown(Sm121Error):  # noqa: N818 -- a verdict, reported like an error
    """The inspection could not tell; unknown is never pass."""

    exit_code = 32


class RegressionError(Sm121Error):
    """Machine code became worse than a limit allows."""

    exit_code = 33


class Faults:
    """Collects what is wrong with parts that do not need each other, so that a user mends it in one go."""

    def __init__(self) -> None:
        self._found: list[Sm121Error] = []

    def of(self, part: Callable[[], T]) -> T | None:
        """What `part` gives; None, and its failure kept, if it fails."""
        try:
            return part()
        except Sm121Error as error:
            self._found.append(error)
            return None

    @property
    def problems(self) -> list[str]:
        """Every fault once."""
        return list(dict.fromkeys(problem for error in self._found for problem in error.problems))

    @property
    def do(self) -> str:
        """The next steps of all of them in one sentence."""
        steps = dict.fromkeys(error.do.removesuffix(".") for error in self._found if error.do)
        return "; ".join(steps) + "." if steps else ""

    def end(self) -> None:
        """Raise what was found as one error of the first one's kind; nothing if nothing was."""
        if self._found:
            raise type(self._found[0])(self.problems, do=self.do) from self._found[0]


def exit_codes(kinds: Iterable[type[Sm121Error]]) -> str:
    """Exit codes with what each says, a line each, for a verb's help."""
    chosen = sorted(kinds, key=lambda kind: kind.exit_code)
    return "\n".join(f"  {kind.exit_code:>3}  {(kind.__doc__ or '').partition('.')[0]}" for kind in chosen)
