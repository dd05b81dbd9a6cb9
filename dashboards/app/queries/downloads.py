"""Downloads of rows as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import Response

FORMULA_SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The signs with which a formula starts in a spreadsheet."""


def csv_download(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Response:
    """Return rows as a CSV file, which spreadsheets open without running formulas in it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([csv_cell(column) for column in columns])
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return _download(f"{name}.csv", "text/csv; charset=utf-8", text.getvalue())


def json_download(name: str, value: Any) -> Response:
    """Return a value as a JSON file. Amounts are exact decimals and times are timestamps, so both are texts."""
    text = json.dumps(_finite(value), default=str, ensure_ascii=False, allow_nan=False)
    return _download(f"{name}.json", "application/json", text)


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV file; lists are words, and a text that looks like a formula is quoted."""
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    # Spreadsheets run texts that start with these signs; some of them even after white space, or in full width.
    is_formula = isinstance(text, str) and text.lstrip().startswith(FORMULA_SIGNS)
    return f"'{text}" if is_formula else text


def _finite(value: Any) -> Any:
    """Return a value for JSON: numbers that JSON cannot represent become strings, as do keys."""
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case _:
            return value


def _download(name: str, media_type: str, text: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8", "replace"), media_type=media_type, headers=headers)
