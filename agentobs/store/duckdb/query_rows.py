"""The rows that `agentobs.query` returns: a list that can become a DataFrame and that notebooks show as a table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from agentobs.errors import UsageError
from agentobs.installation import install_extra
from agentobs.records.display import text

SHOWN = 50
"""The maximum number of rows that a notebook shows. Our choice: use `df()` for more."""


class QueryRows(list[tuple[Any, ...]]):
    """The rows of a query, as a list of tuples. Notebooks show them as a table."""

    def __init__(self, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Hold the rows of a result.

        Args:
            columns: the names of the columns; a name may occur twice.
            rows: the rows.
        """
        super().__init__(rows)
        self.columns = list(columns)
        """The names of the columns, in order; a name may occur twice."""

    def df(self) -> Any:
        """Return the rows as a pandas DataFrame. Requires the extra `notebooks`.

        Money remains exact: its columns contain `decimal.Decimal`. Use `.astype(float)` to calculate with floats. Times
        are integers, nanoseconds since 1970: `pandas.to_datetime(df.started_ns, utc=True)` converts them.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UsageError(
                f"df() needs a package that is not installed: {error.name}",
                todo=install_extra("notebooks"),
            ) from error
        return pandas.DataFrame(list(self), columns=self.columns)

    def _repr_html_(self) -> str:
        """Return the first rows as an HTML table."""
        head = "".join(f"<th>{escape(text(name))}</th>" for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(text(cell))}</td>' for cell in row)}</tr>"
            for row in self[:SHOWN]
        )
        more = len(self) - SHOWN
        rows = "row" if more == 1 else "rows"
        note = f"<p>and {more:,} more {rows}: use df(), or a LIMIT</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"
