"""Tables on the terminal: readable units, only printable characters.

A table that goes to a file or a pipe has all columns with whole values, and its form does not depend on the terminal.
On a terminal, a table fits the width: columns of low priority are left out, long texts are cut or wrapped, and numbers,
times and IDs remain whole.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentobs import world
from agentobs.cli.terminal.instants import local_instant
from agentobs.cli.terminal.table_layout import (
    EMPTY,
    GAP,
    LEAST,
    LEAST_TEXT,
    OTHER,
    PRIORITY,
    Column,
    fit,
)
from agentobs.records.display import listed, text

Row = Sequence[Any]

WRAPPED = frozenset(
    ("cause", "detail", "comment", "usual_reason", "zones_changed", "changes", "status", "message",
     "total_of_a", "total_of_b", "b_minus_a")
)  # fmt: skip
"""The columns whose texts are wrapped on a terminal; other long texts are cut, so that each row has one line."""
MOST_LINES = {"cause": 2}
"""The maximum number of lines of a wrapped text, by column; the rest is cut. Our choice: a list remains a list."""
_STATES = {
    "red": "failed crashed error errors http_error transport_error diverged raised timeout mismatch",
    "yellow": "incomplete orphaned denied deny interrupted cancelled abandoned unknown broken_off",
    "cyan": "running open",
    "green": "completed matched",
}
STYLES = {word: style for style, words in _STATES.items() for word in words.split()}
"""The color of a state, by the first word of the cell."""
_NAME_WIDTH = 20
"""The width of the names of facts."""
_COLORED = frozenset(("status", "outcome", "state", "result"))
_CUT_LEFT = frozenset(("lane",))
"""The columns whose texts differ at the end: lanes of sub-agents are named after the call that started them."""
_DURATION = re.compile(r"(?:≈ )?-?[\d,.]+ (?:ns|µs|ms|s|min|h|d)(?: \d+ (?:s|min|h))?")
_NUMBER = re.compile(r"(?:[≥≈] )?[+-]?\$[\d,.]+|[+-]?[\d,.]+%|[+-]?\d{1,3}(?:,\d{3})+")
_INSTANT = re.compile(r"(\d{4})-(\d\d-\d\d) (\d\d:\d\d):\d\d")


def console() -> Console:
    """Return a console that prints text unchanged: no markup, no emoji codes, no wrapping in pipes.

    It uses colors only on a terminal, and not if the variable NO_COLOR is set.
    """
    is_terminal = sys.stdout.isatty()
    return Console(
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=is_terminal,
        width=None if is_terminal else 100_000,
        soft_wrap=False,
    )


def show_table(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    keys: Sequence[str] | None = None,
    ids: Mapping[str, str] | None = None,
    whole: bool = False,
) -> None:
    """Print rows as a table; numbers are right-aligned.

    Args:
        columns: the headings.
        rows: the cells.
        keys: the names of the columns, which determine priority and color. Default: the headings.
        ids: short forms of session IDs, which are used on a terminal.
        whole: whether nothing may be left out. A table that is too wide is then printed as one block per row.
    """
    print_table(console(), columns, rows, keys=keys, ids=ids, whole=whole)


def print_table(
    terminal: Console,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    keys: Sequence[str] | None = None,
    ids: Mapping[str, str] | None = None,
    whole: bool = False,
) -> None:
    """Print rows as a table on a console; see `show_table`."""
    values = [list(row) for row in rows]
    keys = [name.replace(" ", "_") for name in columns] if keys is None else keys
    numeric = [any(_is_number(row[at]) for row in values) for at in range(len(columns))]
    cells = [[text(value) for value in row] for row in values]
    if not terminal.is_terminal:
        _print_all(terminal, columns, cells, numeric)
        return
    cells = [[(ids or {}).get(cell, cell) for cell in row] for row in cells]
    rigid = [
        (is_number and key not in WRAPPED)
        or key == "session_id"
        or any(_INSTANT.fullmatch(row[at]) for row in cells)
        for at, (key, is_number) in enumerate(zip(keys, numeric, strict=True))
    ]
    layout = _measured(columns, cells, keys, rigid, whole=whole)
    if sum(each.natural + GAP for each in layout) - GAP > terminal.width:
        year = str(local_instant(world.now()))[:4]
        cells = [[cell if whole else _brief(cell, year) for cell in row] for row in cells]
        layout = _measured(columns, cells, keys, rigid, whole=whole)
    widths = fit(layout, terminal.width)
    if whole and len(widths) < len(columns):
        _print_blocks(terminal, columns, cells)
        return
    table = Table(header_style="bold", pad_edge=False, box=None)
    for at, width in widths.items():
        justify: Literal["left", "right"] = "right" if numeric[at] else "left"
        table.add_column(Text(columns[at]), justify=justify, width=width, overflow="fold")
    for row in cells:
        table.add_row(
            *(
                _wrapped_cell(terminal, keys[at], row[at], width)
                if keys[at] in MOST_LINES and not whole
                else _cell(keys[at], row[at], None if whole or keys[at] in WRAPPED else width)
                for at, width in widths.items()
            )
        )
    terminal.print(table)
    if len(widths) < len(columns):
        hidden = [name for at, name in enumerate(columns) if at not in widths and name]
        for line in _wrapped(f"columns left out: {listed(hidden)}", hidden, terminal.width):
            terminal.print(Text(line, style="dim"))


def _wrapped(line: str, names: Sequence[str], width: int) -> list[str]:
    """Return a line in parts of at most `width` characters; names are not split."""
    joined = line
    for name in sorted(names, key=len, reverse=True):
        joined = joined.replace(name, name.replace(" ", "\0"))
    parts = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in parts]


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one fact per line. On a terminal, long values are wrapped below their beginning."""
    terminal = console()
    if not terminal.is_terminal:
        for name, value in facts:
            terminal.print(Text(f"{name:<{_NAME_WIDTH}} {value}"))
        return
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=min(_NAME_WIDTH, terminal.width // 2), overflow="fold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    terminal.print(table)


def print_line(line: str, style: str = "") -> None:
    """Print a printable text. On a terminal, it is wrapped between words, and has the style, such as `bold red`."""
    console().print(Text(line, style=style))


def _print_all(
    terminal: Console, columns: Sequence[str], cells: Sequence[Row], numeric: Sequence[bool]
) -> None:
    """Print all columns with whole values, one line per row."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name, is_number in zip(columns, numeric, strict=True):
        table.add_column(Text(name), justify="right" if is_number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    terminal.print(table)


def _print_blocks(terminal: Console, columns: Sequence[str], cells: Sequence[Row]) -> None:
    """Print each row as a block with one value per line."""
    broadest = max(cell_len(name) for name in columns)
    for number, row in enumerate(cells, 1):
        terminal.print(Text(f"row {number:,}", style="bold"))
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(width=min(broadest, terminal.width // 2), overflow="fold")
        table.add_column(overflow="fold")
        for name, cell in zip(columns, row, strict=True):
            table.add_row(Text(name, style="dim"), Text(cell))
        terminal.print(table)


def _measured(
    columns: Sequence[str],
    cells: Sequence[Row],
    keys: Sequence[str],
    rigid: Sequence[bool],
    *,
    whole: bool,
) -> list[Column]:
    measured = []
    for at, name in enumerate(columns):
        words = max((cell_len(word) for word in name.split()), default=0)
        cell = max((cell_len(row[at]) for row in cells), default=0)
        natural = max(words, cell)
        least = natural if rigid[at] else max(words, min(natural, LEAST.get(keys[at], LEAST_TEXT)))
        is_empty = not whole and bool(cells) and all(row[at] in ("", "-") for row in cells)
        priority = EMPTY if is_empty else OTHER if whole else PRIORITY.get(keys[at], OTHER)
        measured.append(Column(priority, least, max(natural, cell_len(name))))
    return measured


def _brief(cell: str, year: str) -> str:
    """Return the short form of a time: day and minute in this year, else the date. Other cells are unchanged."""
    found = _INSTANT.fullmatch(cell)
    if found is None:
        return cell
    return f"{found[2]} {found[3]}" if found[1] == year else f"{found[1]}-{found[2]}"


def _cell(key: str, cell: str, width: int | None) -> Text:
    """Return a cell with the color of its state, cut at a width."""
    if width is not None and key in _CUT_LEFT and cell_len(cell) > width:
        cell = f"…{cell[len(cell) - width + 1 :]}"
    shown = Text(cell, style=_style(key, cell))
    if width is not None:
        shown.truncate(width, overflow="ellipsis")
    return shown


def _wrapped_cell(terminal: Console, key: str, cell: str, width: int) -> Text:
    """Return a cell that is wrapped at a width, with at most `MOST_LINES`; the last line is cut."""
    lines = [each.plain.rstrip() for each in Text(cell).wrap(terminal, width)]
    kept = MOST_LINES[key] - 1
    last = Text(" ".join(lines[kept:]))
    last.truncate(width, overflow="ellipsis")
    shown = [*lines[:kept], *([last.plain] if last else [])]
    return Text("\n".join(shown), style=_style(key, cell))


def _style(key: str, cell: str) -> str:
    if key not in _COLORED:
        return ""
    words = cell.replace(",", " ").split()
    return STYLES.get(words[0], "") if words else ""


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return bool(_DURATION.fullmatch(value) or _NUMBER.fullmatch(value))
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
