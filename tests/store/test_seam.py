"""The boundary of the store: other packages contain no SQL, and do not import the database."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentobs.recording.journal.home import open_home
from agentobs.store.backend import open_store
from agentobs.store.named_queries import internal_query_names, query_names
from tests.source_code import modules

IMPLEMENTATION = "agentobs.store.duckdb"
IMPORTERS = {
    "agentobs": "the public names `connect`, `query` and `Limits`",
}
"""The modules outside the store that import its implementation, each with the reason."""
SQL = re.compile(
    r"^\s*(?:WITH\s+\w+\s+AS\b|SELECT\s.*\bFROM\b|FROM\s+\w+\s+(?:WHERE|SELECT|ORDER|GROUP|LIMIT)\b"
    r"|INSERT\s+INTO\b|CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP\w*\s+)?(?:TABLE|VIEW|MACRO)\b"
    r"|(?:DELETE\s+FROM|UPDATE\s+\w+\s+SET|ATTACH|COPY)\b)",
    re.DOTALL,
)
SHOWN = {
    "dashboards.report.html_report": "prints the command that shows the same rows",
}
"""The modules outside the store that show SQL to users."""


def outside(word: re.Pattern[str]) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules outside the store that contain a word; parsing takes longer than searching."""
    for name, path in modules().items():
        if f"{name}.".startswith("agentobs.store."):
            continue
        if word.search(source := path.read_text()):
            yield name, ast.parse(source)


def docstrings(tree: ast.Module) -> set[int]:
    """Return the IDs of the nodes that are docstrings."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def test_only_the_store_imports_the_database() -> None:
    """Only the store imports the driver, and only the listed modules import the store's implementation."""
    drivers, importers = [], set()
    for name, tree in outside(re.compile("duckdb")):
        for node in ast.walk(tree):
            imported = [node.module] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            drivers += [name for each in imported if each and each.split(".")[0] == "duckdb"]
            if any(each and each.startswith(IMPLEMENTATION) for each in imported):
                importers.add(name)
    assert drivers == []
    assert importers == IMPORTERS.keys()


def test_only_the_store_contains_sql() -> None:
    """Statements are files of the store, and other modules refer to them by name."""
    found = set()
    keyword = re.compile(r"\b(?:WITH|SELECT|FROM|INSERT|CREATE|DELETE|UPDATE|ATTACH|COPY)\b")
    for name, tree in outside(keyword):
        skipped = docstrings(tree)
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        if any(SQL.match(str(node.value)) for node in texts if id(node) not in skipped):
            found.add(name)
    assert found == SHOWN.keys()


@pytest.mark.slow
def test_each_named_query_runs(tmp_path: Path) -> None:
    """Each named query can run without parameters on an empty home."""
    with open_store(open_home(tmp_path / "home")) as store:
        store.prepare_listing()
        names = [*query_names(), *internal_query_names()]
        assert len(names) > 90
        for name in names:
            assert store.rows(name).columns, name
