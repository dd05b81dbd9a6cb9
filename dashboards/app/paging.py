"""Pages of tables: the position in a list of rows, and the links to the other pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from agentobs.records.whole_numbers import whole_number
from dashboards.app.store_view import Row


@dataclass(frozen=True, slots=True)
class Pages:
    """One page of rows, and the links to the other pages."""

    rows: Sequence[Row]
    number: int
    """The page number, from 1."""
    count: int
    """The number of pages, at least 1."""
    total: int
    """The total number of rows."""
    first: int
    """The number of the first row of the page, from 1; 0 if there are no rows."""
    parameters: Mapping[str, str]
    """The other parameters of the URL, which the links keep."""

    def link(self, number: int) -> str:
        """Return the query string of another page."""
        return f"?{urlencode({**self.parameters, 'page': number})}"


def page_of(
    rows: Sequence[Row], requested: str | None, parameters: Mapping[str, str], size: int
) -> Pages:
    """Return the requested page of rows, or the nearest existing page."""
    number, count, start = page_position(len(rows), requested, size)
    page_rows = rows[start : start + size]
    return Pages(page_rows, number, count, len(rows), start + 1 if page_rows else 0, parameters)


def page_position(total: int, requested: str | None, size: int) -> tuple[int, int, int]:
    """Return the number of the nearest existing page, the number of pages, and the index (from 0) of its first row."""
    count = max(-(-total // size), 1)
    number = min(max(whole_number(requested) or 1, 1), count)
    return number, count, (number - 1) * size
