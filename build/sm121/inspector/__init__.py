"""The judge: what an artifact holds for a compute capability, proven from its bytes.

facts (`gather`) -> rules (`policy`) -> findings (`judge`) -> report (`report`, and its views).
"""

from sm121.inspector.differences import Difference, Matrix, diff, matrix
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.inspector.page import report_html
from sm121.inspector.promise import Promise
from sm121.inspector.report import Report, dump_report, load_report, report_json
from sm121.inspector.text import report_text

__all__ = [
    "Difference",
    "Matrix",
    "Options",
    "Promise",
    "Report",
    "diff",
    "dump_report",
    "inspect_artifact",
    "load_report",
    "matrix",
    "report_html",
    "report_json",
    "report_text",
]
