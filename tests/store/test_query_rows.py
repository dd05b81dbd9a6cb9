"""The table that a notebook shows of the rows of a query."""

from __future__ import annotations

import pytest

from agentobs.store.duckdb.query_rows import SHOWN, QueryRows


@pytest.mark.parametrize(
    ("count", "note"),
    [(0, ""), (SHOWN, ""), (SHOWN + 1, "1 more row:"), (SHOWN + 2, "2 more rows:")],
)
def test_a_note_tells_only_of_rows_that_are_not_shown(count: int, note: str) -> None:
    """If all rows are shown, no note states that there are more."""
    html = QueryRows(["n"], [(number,) for number in range(count)])._repr_html_()
    assert html.count("<tr>") == 1 + min(count, SHOWN)
    assert (note in html) if note else ("more row" not in html)
