"""Attaches what a machine with the chip measured to the manifest of a build.

The report comes from `tests/hardware/test_gb10.py`. It names the sha256 of every library that it loaded, so it proves
something about exactly one build: the one whose manifest has the same libraries. The manifest itself is not changed,
since others may have its digest; the attachment stands beside it and names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121.audit.explain_report import finding_json, findings_text
from sm121.audit.loose import Loose, load_json
from sm121.audit.output import as_json, exit_status, print_json, standard_output, write_text
from sm121.documents import read_document
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict, overall
from sm121.manifest import Manifest
from sm121.values import Sha256

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

VERSION = 1
CASES = ("nvfp4_gemm", "nvfp4_moe", "fp8_gemm", "marlin")
"""What a report must hold; a case that is not there has not passed."""


@dataclass(frozen=True, slots=True)
class HardwareReport:
    """One report. `libraries` maps a path, as in the wheel, to its digest and the error of loading it ("" if none)."""

    vllm: str
    device: str
    capability: str
    libraries: dict[str, tuple[str, str]]
    cases: dict[str, tuple[str, str]]
    """Name -> state and what it rests on: the error against the reference, or a reason."""
    compiled: tuple[str, ...]
    """Files that were compiled while the cases ran."""

    @classmethod
    def read(cls, path: Path) -> HardwareReport:
        """Read a report. Raises ArtifactError that names every fault."""
        table = Loose.of(load_json(path, do="copy the report from that machine again."), path.name)
        version = table.count("version")
        numbers = table.counts("capability")
        libraries = table.table("extensions") or Loose({}, "extensions")
        cases = table.table("cases") or Loose({}, "cases")
        report = cls(
            table.text("vllm") or "", table.text("device") or "", ".".join(map(str, numbers)),
            {name: (row.text("sha256") or "", row.text("error") or "") for name, row in libraries.tables()},
            {name: (row.text("state") or "", _ground(row)) for name, row in cases.tables()},
            table.names("compiled"),
        )  # fmt: skip
        problems = list(table.problems)
        if version != VERSION:
            problems.append(f"{path.name}: version is {version}, wanted {VERSION}")
        lacking = [key for key in ("vllm", "capability", "extensions", "cases", "compiled") if not table.has(key)]
        problems += [f"{path.name}: {key} is missing" for key in lacking]
        if problems:
            raise ArtifactError(
                [f"{text}." for text in dict.fromkeys(problems)],
                do="give the file that SM121_HARDWARE_REPORT=FILE pytest -m hardware tests/hardware wrote.",
            )
        return report

    def judge(self, manifest: Manifest) -> list[Finding]:
        """All findings: is it this build, on this chip, and did everything load and compute right?"""
        return [
            _equal("hardware.version", "vLLM", self.vllm, manifest.subject.version),
            _equal("hardware.chip", self.device or "the chip", self.capability, manifest.subject.capability),
            *self._identity(manifest),
            *self._loading(),
            *self._computing(),
            Finding(
                "hardware.jit", "caches", Verdict.FAIL if self.compiled else Verdict.PASS,
                f"{len(self.compiled)} files were compiled on the way{_first(self.compiled)}", "none",
                "The code is not in the wheel: run `sm121 inspect` on it." if self.compiled else "",
            ),
        ]  # fmt: skip

    def _identity(self, manifest: Manifest) -> list[Finding]:
        wanted = {library.path: library.sha256.hex for library in manifest.libraries}
        other = [
            path
            for path, digest in wanted.items()
            if path in self.libraries and self.libraries[path][0] != digest
        ]
        absent = [path for path in wanted if path not in self.libraries]
        if not wanted:
            got = "the manifest names no library, so it is not known what was tested"
            return [Finding("hardware.identity", "libraries", Verdict.UNKNOWN, got)]
        if other or absent:
            got = f"{len(other)} are others{_first(other)}, {len(absent)} were not there{_first(absent)}"
            advice = "The report is of another build: test the wheel that this manifest describes."
            return [
                Finding("hardware.identity", "libraries", Verdict.FAIL, got, "the manifest's libraries", advice)
            ]
        return [
            Finding(
                "hardware.identity", "libraries", Verdict.PASS, f"all {len(wanted)} have the manifest's digests"
            )
        ]

    def _loading(self) -> list[Finding]:
        found = [
            Finding("hardware.load", path, Verdict.FAIL, error, "it loads")
            for path, (_, error) in self.libraries.items() if error
        ]  # fmt: skip
        if not self.libraries:
            return [Finding("hardware.load", "libraries", Verdict.UNKNOWN, "none was loaded")]
        return found or [Finding("hardware.load", "libraries", Verdict.PASS, f"all {len(self.libraries)} load")]

    def _computing(self) -> list[Finding]:
        verdicts = {"passed": Verdict.PASS, "failed": Verdict.FAIL}
        found = []
        for name in dict.fromkeys((*CASES, *self.cases)):
            state, ground = self.cases.get(name, ("not run", ""))
            verdict = verdicts.get(state, Verdict.UNKNOWN)
            found.append(
                Finding("hardware.kernel", name, verdict, f"{state}{f': {ground}' if ground else ''}", "passed")
            )
        return found


def _ground(row: Loose) -> str:
    error = row.members.get("relative_error")
    if isinstance(error, int | float) and not isinstance(error, bool):
        return f"relative error {error:.2g}"
    return row.text("reason") or ""


def _equal(check: str, subject: str, got: str, wanted: str) -> Finding:
    return Finding(
        check, subject, Verdict.PASS if got == wanted else Verdict.FAIL, f"it is {got or 'not said'}", wanted
    )


def _first(names: tuple[str, ...] | list[str]) -> str:
    return f" ({names[0]}{', ...' if len(names) > 1 else ''})" if names else ""


def run_hardware(arguments: argparse.Namespace) -> int:
    """The verb hardware; returns the exit status. A report that fails is attached too: it is what was found."""
    try:
        data = read_document(arguments.manifest)
    except OSError as error:
        raise ArtifactError(
            f"{arguments.manifest} cannot be read: {error.strerror or error}.",
            do="name the manifest that the build put beside its wheel.",
        ) from error
    manifest = Manifest.from_json(data, arguments.manifest.name)
    report = HardwareReport.read(arguments.report)
    findings = report.judge(manifest)
    attachment = _attachment(arguments, data, findings)
    target = arguments.output or arguments.manifest.with_suffix(".hardware.json")
    write_text(target, as_json(attachment) + "\n")
    if arguments.json:
        print_json(attachment)
    else:
        console = standard_output()
        findings_text(findings, console, least=Verdict.PASS)
        console.print(f"attached: {target}", markup=False, soft_wrap=True)
    return exit_status(overall(findings), strict=arguments.strict)


def _attachment(arguments: argparse.Namespace, manifest: bytes, findings: list[Finding]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "verdict": str(overall(findings)),
        "manifest": {"name": arguments.manifest.name, "sha256": Sha256.of_bytes(manifest).hex},
        "report": load_json(arguments.report),
        "findings": [finding_json(finding) for finding in findings],
    }
