"""The modules of agentobs and their syntax trees, for tests that check the source code.

A tree is parsed once per process, so these tests belong to the group `source code`.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module and package by its name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {name_of(path): path for path in paths}


def name_of(path: Path) -> str:
    """Return the name of the module in a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    # Without collections while trees are kept: each would examine all the trees so far.
    gc.disable()
    try:
        return ast.parse(modules()[module].read_text())
    finally:
        gc.enable()


@cache
def statements(module: str) -> tuple[tuple[ast.stmt, bool], ...]:
    """Return all statements of a module, and whether each of them is inside a function."""
    return tuple(_statements(tree_of(module), False))


def _statements(parent: ast.AST, deep: bool) -> Iterator[tuple[ast.stmt, bool]]:
    inside = deep or isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(parent, field, ()):
            if isinstance(child, ast.stmt):
                yield child, inside
            yield from _statements(child, inside)
