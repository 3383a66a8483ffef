"""Environment variables and flags that a version of vLLM knows, read out of its source."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm121.audit.source import SourceTree


def target_of(statement: ast.AST) -> str:
    """The name that an assignment binds, "" if it is none to a single name."""
    if isinstance(statement, ast.AnnAssign):
        return getattr(statement.target, "id", "")
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return getattr(statement.targets[0], "id", "")
    return ""


def read_variables(tree: SourceTree) -> tuple[str, ...]:
    """Names of the environment variables that `vllm/envs.py` reads, sorted."""
    module = tree.module("vllm.envs")
    for statement in module.body if module else ():
        value = getattr(statement, "value", None)
        if target_of(statement) == "environment_variables" and isinstance(value, ast.Dict):
            keys = (key.value for key in value.keys if isinstance(key, ast.Constant))
            return tuple(sorted(str(key) for key in keys))
    return ()


_FLAGS = {"MoEBackend": "--moe-backend", "LinearBackend": "--linear-backend"}


def read_flags(tree: SourceTree) -> dict[str, tuple[str, ...]]:
    """The values that backend options accept, by option."""
    found: dict[str, tuple[str, ...]] = {}
    for name in ("vllm.config.kernel", "vllm.config.vllm", "vllm.config"):
        module = tree.module(name)
        for statement in module.body if module else ():
            value, flag = getattr(statement, "value", None), _FLAGS.get(target_of(statement))
            if flag and isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Tuple):
                words = (item.value for item in value.slice.elts if isinstance(item, ast.Constant))
                found.setdefault(flag, tuple(str(word) for word in words))
    return found


def read_deprecated(tree: SourceTree) -> tuple[str, ...]:
    """Sentences about flags and variables that go, where they are said to the user."""
    found: dict[str, None] = {}
    for name in ("vllm.envs", "vllm.config.kernel", "vllm.engine.arg_utils", "vllm.config.attention"):
        module = tree.module(name)
        for node in ast.walk(module) if module else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 600:
                text = " ".join(node.value.split())
                if re.search(r"deprecated|will be removed", text) and re.search(r"VLLM_\w+|--[a-z]", text):
                    found[text] = None
    return tuple(found)
