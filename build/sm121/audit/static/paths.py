"""Walks code along every combination of answers to what is not known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

MOST_PATHS = 192
"""Combinations that are walked before the answer is called undecided."""


class StuckError(Exception):
    """The code cannot be followed further on this path; the text says at what."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something worth telling that happened on a path.

    `kind` is gate (a support check answered), backend (one was taken up) or log (a line vLLM will write).
    """

    kind: str
    subject: str
    answer: object = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Answer(Generic[Result]):
    """The result on one path. `conditions` are the questions and the answers that lead there."""

    value: Result | None
    conditions: tuple[tuple[str, bool], ...]
    steps: tuple[Step, ...]
    error: str = ""
    """An exception that upstream's code raises on this path, as `ValueError: text`."""
    stuck: str = ""
    """Why the code could not be followed to its end on this path; then there is no value."""


@dataclass
class Path:
    """One walk: decisions taken over from the walk before, and new ones."""

    script: list[bool]
    asked: list[str] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def decide(self, question: str) -> bool:
        """Answer a question, the same way each time it is asked on this path."""
        if question in self.asked:
            return self.answers[self.asked.index(question)]
        place = len(self.answers)
        answer = self.script[place] if place < len(self.script) else True
        self.asked.append(question)
        self.answers.append(answer)
        return answer

    def conditions(self) -> tuple[tuple[str, bool], ...]:
        return tuple(zip(self.asked, self.answers, strict=True))

    def following(self) -> list[bool] | None:
        """Decisions for the next walk: the last that was yes becomes no."""
        answers = list(self.answers)
        while answers and not answers[-1]:
            answers.pop()
        if not answers:
            return None
        answers[-1] = False
        return answers


class UpstreamError(Exception):
    """An exception that upstream's code raises."""

    def __init__(self, kind: str, text: str = "") -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"{kind}: {text}" if text else kind)


def explore(walk: Callable[[Path], Result], *, most: int = MOST_PATHS) -> list[Answer[Result]]:
    """Walk every path. One answer that is stuck ends the list if there are more paths than `most`."""
    answers: list[Answer[Result]] = []
    script: list[bool] | None = []
    while script is not None:
        if len(answers) >= most:
            answers.append(Answer(None, (), (), stuck=f"more than {most} combinations of unknown conditions"))
            break
        path = Path(script)
        try:
            value = walk(path)
        except UpstreamError as error:
            answers.append(Answer(None, path.conditions(), tuple(path.steps), error=str(error)))
        except (StuckError, RecursionError) as error:
            answers.append(
                Answer(None, path.conditions(), tuple(path.steps), stuck=str(error) or "it calls itself")
            )
        else:
            answers.append(Answer(value, path.conditions(), tuple(path.steps)))
        script = path.following()
    return answers
