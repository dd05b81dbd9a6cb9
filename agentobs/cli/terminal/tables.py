"""Tables on the terminal: readable units, only printable characters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentobs.records.display import text

Row = Sequence[Any]


def console() -> Console:
    """Return a console that prints text unchanged: no markup, no emoji codes, no wrapping in pipes."""
    width = None if sys.stdout.isatty() else 400
    return Console(markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def show_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print rows as a table; numbers are right-aligned."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    listed = [list(row) for row in rows]
    for number, name in enumerate(columns):
        numeric = any(_is_number(row[number]) for row in listed)
        table.add_column(
            Text(name),
            justify="right" if numeric else "left",
            no_wrap=not sys.stdout.isatty(),
            overflow="fold",
        )
    for row in listed:
        table.add_row(*(Text(text(value)) for value in row))
    console().print(table)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("$") or value.endswith((" ms", " s"))
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
