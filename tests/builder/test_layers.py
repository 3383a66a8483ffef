"""The rooms of the package and who may import whom: data flows one way."""

from __future__ import annotations

import ast
from pathlib import Path

import sm121

PACKAGE = Path(sm121.__file__).parent
ORDER = [
    "errors", "values", "expressions", "target", "findings", "guard", "process", "progress", "tables", "documents",
    "resources", "index", "device", "artifact", "inspector", "pins", "arch_lists", "plan", "sources", "toolchain",
    "compile", "finish", "pack", "manifest", "overlay", "image", "finish_commands", "workspace", "local", "preflight",
    "lines_commands", "steps", "engine", "audit", "cache_options", "build_results", "build_commands", "prove_commands",
    "loop", "overlay_commands", "cli",
]  # fmt: skip
JUDGES = {"device", "artifact", "inspector"}
BUILDER = set(ORDER[ORDER.index("pins") : ORDER.index("audit")])
TOOLS = {"tomllib", "subprocess"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Rooms of sm121 that a module imports, also for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sm121":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {name.name for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("sm121.")}
    return found - {"__version__"}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__main__.py"]


def test_every_module_belongs_to_a_room() -> None:
    assert {room_of(path) for path in modules()} - {"__init__"} <= set(ORDER)


def test_a_room_imports_only_rooms_before_it() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in modules()
        if (room := room_of(path)) != "__init__"
        for other in imports(path)
        if other != room and ORDER.index(other) > ORDER.index(room)
    ]
    assert not wrong


def test_the_judge_shares_nothing_with_the_maker() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in modules()
        if room_of(path) in JUDGES
        for other in imports(path) & BUILDER
    ]
    assert not wrong


def test_programs_are_started_in_one_place() -> None:
    wrong = []
    for path in modules():
        if path.name in {
            "process.py",
            "launcher.py",
            "guard.py",
        }:  # the last two are programs of their own, see their docstrings
            continue
        text = path.read_text()
        if "import subprocess" in text or "os.system" in text or "os.popen" in text:
            wrong.append(str(path.relative_to(PACKAGE)))
    assert not wrong


def test_only_the_command_line_ends_the_process() -> None:
    allowed = {"cli.py", "launcher.py"}
    assert not [p.name for p in modules() if "sys.exit" in p.read_text() and p.name not in allowed]


def test_build_is_a_folder_and_no_package() -> None:
    """PyPI's `build` would be shadowed otherwise."""
    assert not (PACKAGE.parent / "__init__.py").exists()
    assert not (PACKAGE.parent / "__main__.py").exists()
