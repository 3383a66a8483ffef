"""The steps of a validation, each of one server, each with an end."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.audit.smoke.coherence import Fault, read_reply
from sm121.audit.smoke.prompts import RAW, RECORDS, extracted, extraction_prompt, load_prompt, long_prompt
from sm121.findings import Finding, Verdict
from sm121.values import public_version

if TYPE_CHECKING:
    from sm121.audit.smoke.client import Reply, Server
    from sm121.progress import Counter as Bar

_GIVE_UP = 12
"""Failures in a row after which a soak ends: the server is gone."""


def check_version(found: str, wanted: str) -> Finding:
    """Compare what `/version` says with the pin. Only a public version can be met by a build with a local part."""
    if not wanted:
        return Finding(
            "smoke.version", "/version", Verdict.INFO, f"it says {found}", advice="Give --expect-version."
        )
    same = found == wanted or ("+" not in wanted and public_version(found) == public_version(wanted))
    verdict = Verdict.PASS if same else Verdict.FAIL
    advice = (
        ""
        if same
        else "A mis-stamped build is disqualified whatever else it holds: integrations go by the version."
    )
    return Finding("smoke.version", "/version", verdict, f"it says {found}", wanted, advice)


def warm_up(server: Server) -> tuple[Finding, float]:
    """One short request: the first one compiles. Returns its time in seconds too."""
    started = time.monotonic()
    reply = server.complete("Hello", tokens=3)
    took = time.monotonic() - started
    if reply.ok:
        return Finding("smoke.warm-up", "first request", Verdict.PASS, f"it took {took:.1f} s"), took
    advice = "The first request can compile for long: raise --deadline, and read the server's log."
    return Finding("smoke.warm-up", "first request", Verdict.FAIL, reply.failure, "an answer", advice), took


def raw_text(server: Server, bar: Bar) -> list[Finding]:
    """Raw completions: read them, and look for facts that any working model has."""
    findings: list[Finding] = []
    hits = asked = 0
    for number, prompt in enumerate(RAW):
        reply = server.complete(prompt.text, tokens=prompt.tokens)
        bar.update(number + 1)
        subject = f"completion {number + 1}"
        if not reply.ok:
            findings.append(Finding("smoke.completion", subject, Verdict.FAIL, reply.failure, "an answer"))
            continue
        findings.append(_read(reply, subject, prose=prompt.prose))
        if prompt.wanted:
            asked += 1
            hits += any(word in reply.text.lower() for word in prompt.wanted)
    if asked:
        enough = hits * 2 >= asked
        findings.append(
            Finding(
                "smoke.facts",
                "known answers",
                Verdict.PASS if enough else Verdict.WARN,
                f"{hits} of {asked} came",
                "half of them",
                "" if enough else "Compare with the same checkpoint on another backend.",
            )
        )
    return findings


def _read(reply: Reply, subject: str, *, prose: bool) -> Finding:
    reading = read_reply(reply, prose=prose)
    if reading.fault is Fault.BUDGET:
        return Finding("smoke.coherence", subject, Verdict.INFO, str(reading.fault), advice="Raise max_tokens.")
    if reading.coherent:
        return Finding("smoke.coherence", subject, Verdict.PASS, "it reads like language")
    advice = "Garbage without an error: try --linear-backend marlin and --moe-backend marlin, and compare."
    return Finding(
        "smoke.coherence", subject, Verdict.FAIL, f"{reading.fault}: {reading.evidence!r}", "language", advice
    )


@dataclass(frozen=True, slots=True)
class Extraction:
    """How many of the records came out right, and how many requests failed."""

    right: int
    total: int
    failed: int
    wrong: tuple[str, ...] = ()


def extract(server: Server, bar: Bar) -> Extraction:
    """Ask for one JSON object per record."""
    right = failed = 0
    wrong: list[str] = []
    for number, record in enumerate(RECORDS):
        reply = server.complete(extraction_prompt(record), tokens=48)
        bar.update(number + 1)
        if not reply.ok:
            failed += 1
            wrong.append(reply.failure)
        elif extracted(reply.text) == record.wanted:
            right += 1
        else:
            wrong.append(reply.text.strip()[:80])
    return Extraction(right, len(RECORDS), failed, tuple(wrong[:5]))


def judge_extraction(mine: Extraction, control: Extraction | None) -> list[Finding]:
    """Against the number of records, and against the control arm where there is one."""
    verdict = Verdict.PASS if mine.right == mine.total else Verdict.WARN
    if mine.failed or mine.right * 2 < mine.total:
        verdict = Verdict.FAIL
    example = f", e.g. {mine.wrong[0]!r}" if mine.wrong else ""
    findings = [
        Finding(
            "smoke.extraction",
            "structured output",
            verdict,
            f"{mine.right} of {mine.total} right{example}",
            f"{mine.total} of {mine.total}",
            "" if verdict is Verdict.PASS else "A 4-bit lm_head, or speculation, is what breaks it most often.",
        )
    ]
    if control is not None:
        worse = mine.right < control.right
        findings.append(
            Finding(
                "smoke.control",
                "against the control arm",
                Verdict.FAIL if worse else Verdict.PASS,
                f"{mine.right} right",
                f"at least the control's {control.right}",
                "The set-up changes the output: do not trust it." if worse else "",
            )
        )
    return findings


@dataclass(frozen=True, slots=True)
class Soak:
    """The outcome of the load: requests that were sent, failures by kind, and texts that were garbage."""

    wanted: int
    sent: int
    failures: dict[str, int]
    incoherent: int
    example: str
    seconds: float
    tokens: int
    gave_up: str = ""

    @property
    def rate(self) -> float:
        """Tokens a second over all requests."""
        return self.tokens / self.seconds if self.seconds else 0.0


def soak(
    server: Server, bar: Bar, *, requests: int, width: int, seconds: float, stop: threading.Event | None = None
) -> Soak:
    """Send `requests` completions, `width` at a time, for at most `seconds`; give up when the server is gone."""
    stop = stop or threading.Event()
    state = _Load(requests)
    ends = time.monotonic() + seconds
    started = time.monotonic()
    with ThreadPoolExecutor(width) as pool:
        running: set[Future[tuple[Reply, bool]]] = set()
        try:
            while state.open(stop, ends) or running:
                while len(running) < width and state.open(stop, ends):
                    running.add(pool.submit(_one, server, state.next()))
                done, running = wait(running, timeout=1, return_when=FIRST_COMPLETED)
                for future in done:
                    state.count(*future.result())
                bar.update(state.finished, state.note())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return state.result(time.monotonic() - started, stop, ends)


def _one(server: Server, number: int) -> tuple[Reply, bool]:
    prompt = load_prompt(number)
    reply = server.complete(prompt.text, tokens=prompt.tokens, seed=number, stream=number % 2 == 0)
    return reply, reply.ok and not read_reply(reply, prose=False).coherent


class _Load:
    """Counts while a soak runs; used by one thread alone."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.sent = self.finished = self.incoherent = self.tokens = self.row = 0
        self.failures: Counter[str] = Counter()
        self.example = ""

    def open(self, stop: threading.Event, ends: float) -> bool:
        return self.sent < self.wanted and self.row < _GIVE_UP and not stop.is_set() and time.monotonic() < ends

    def next(self) -> int:
        self.sent += 1
        return self.sent

    def count(self, reply: Reply, garbage: bool) -> None:
        self.finished += 1
        self.tokens += reply.tokens or 0
        if not reply.ok:
            self.failures[reply.failure.split(":", 1)[0]] += 1
            self.example = self.example or reply.failure
            self.row += 1
            return
        self.row = 0
        if garbage:
            self.incoherent += 1
            self.example = self.example or reply.text[:80]

    def note(self) -> str:
        failed = sum(self.failures.values())
        return f"{failed} failed, {self.incoherent} garbage" if failed or self.incoherent else ""

    def result(self, seconds: float, stop: threading.Event, ends: float) -> Soak:
        why = ""
        if self.sent < self.wanted:
            gone = f"{_GIVE_UP} failures in a row" if self.row >= _GIVE_UP else ""
            why = gone or (
                "it was stopped" if stop.is_set() else "the time was over" if time.monotonic() >= ends else ""
            )
        return Soak(
            self.wanted,
            self.finished,
            dict(self.failures),
            self.incoherent,
            self.example,
            seconds,
            self.tokens,
            why,
        )


def judge_soak(result: Soak) -> list[Finding]:
    """No failure and no garbage is what passes; an early end is not known to be good."""
    failed = sum(result.failures.values())
    subject = f"{result.sent} requests"
    if failed or result.incoherent:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(result.failures.items()))
        garbage = f"{result.incoherent} garbage" if result.incoherent else ""
        got = f"{'; '.join(filter(None, (kinds, garbage)))}, e.g. {result.example!r}"
        advice = "Read the server's log at that time; MTP and async scheduling are what fails under load only."
        return [Finding("smoke.soak", subject, Verdict.FAIL, got, "no failure", advice)]
    if result.gave_up:
        got = f"ended after {result.sent} of {result.wanted}: {result.gave_up}"
        return [Finding("smoke.soak", subject, Verdict.UNKNOWN, got, f"{result.wanted} requests")]
    return [Finding("smoke.soak", subject, Verdict.PASS, f"all answered, {result.rate:.1f} tokens/s together")]


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of single requests: medians. Seconds to the first token, tokens a second for prefill and decode."""

    first_token: float | None
    prefill: float | None
    decode: float | None
    runs: int


def measure(server: Server, bar: Bar, *, runs: int = 3, words: int = 1500, tokens: int = 128) -> Rates:
    """Measure prefill with long prompts that no cache knows, and time to first token and decode with short ones."""
    prefill: list[float] = []
    first: list[float] = []
    decode: list[float] = []
    began = int(time.time())
    for number in range(runs):
        reply = server.complete(long_prompt(words, began + number), tokens=2, stream=True)
        if reply.ok and reply.prefill_rate is not None:
            prefill.append(reply.prefill_rate)
        reply = server.complete(load_prompt(began % 1000 + number).text, tokens=tokens, stream=True)
        if reply.ok and reply.first is not None:
            first.append(reply.first)
        if reply.ok and reply.decode_rate is not None:
            decode.append(reply.decode_rate)
        bar.update(number + 1)
    return Rates(_median(first), _median(prefill), _median(decode), runs)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
