"""The findings in the formats that CI systems read: SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from sm121 import __version__
from sm121.findings import Verdict

if TYPE_CHECKING:
    from sm121.findings import Finding
    from sm121.inspector.report import Report

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {
    Verdict.PASS: ("pass", "none"), Verdict.INFO: ("informational", "none"), Verdict.WARN: ("fail", "warning"),
    Verdict.UNKNOWN: ("open", "none"), Verdict.FAIL: ("fail", "error"),
}  # fmt: skip
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def report_sarif(report: Report) -> str:
    """The report as a SARIF log: one rule per check, one result per finding."""
    checks = sorted({finding.check for finding in report.findings})
    rules = [_rule(check, [item for item in report.findings if item.check == check]) for check in checks]
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "sm121", "version": __version__, "rules": rules}},
                "artifacts": [{"location": {"uri": _uri(report.artifact.name)}, "length": report.artifact.size}],
                "results": [_result(finding, report, checks) for finding in report.findings],
                "properties": {"verdict": str(report.verdict), "capability": report.question.capability},
            }
        ],
    }
    return json.dumps(log, indent=1, sort_keys=True) + "\n"


def report_junit(report: Report) -> str:
    """The report as JUnit XML: one test case per finding; what could not be told is an error."""
    counts = {verdict: sum(1 for item in report.findings if item.verdict is verdict) for verdict in Verdict}
    suite = ET.Element(
        "testsuite", name=_xml(f"sm121 inspect {report.artifact.name} for {report.question.capability}"),
        tests=str(len(report.findings)), failures=str(counts[Verdict.FAIL]), errors=str(counts[Verdict.UNKNOWN]),
        skipped="0",
    )  # fmt: skip
    for finding in report.findings:
        case = ET.SubElement(suite, "testcase", classname=finding.check, name=_xml(finding.subject))
        text = _xml(finding.message)
        if finding.verdict in {Verdict.FAIL, Verdict.UNKNOWN}:
            kind = "failure" if finding.verdict is Verdict.FAIL else "error"
            ET.SubElement(case, kind, message=_xml(finding.got), type=finding.check).text = text
        else:
            ET.SubElement(case, "system-out").text = f"{finding.verdict}: {text}"
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rule(check: str, findings: list[Finding]) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": check}
    if source := next((finding.source for finding in findings if finding.source), ""):
        rule["helpUri"] = source
    return rule


def _result(finding: Finding, report: Report, checks: list[str]) -> dict[str, Any]:
    kind, level = _LEVELS[finding.verdict]
    return {
        "ruleId": finding.check,
        "ruleIndex": checks.index(finding.check),
        "kind": kind,
        "level": level,
        "message": {"text": finding.message},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(report.artifact.name), "index": 0}},
                "logicalLocations": [{"fullyQualifiedName": finding.subject}],
            }
        ],
    }


def _uri(name: str) -> str:
    """A name as a relative URI."""
    return quote(name.rpartition("/")[2] or name)


def _xml(text: str) -> str:
    """Text without the characters that XML has no way to hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
