"""Numbers and dates as plotly formats them: the d3 formats that figures use, and plotly's defaults without a format."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

_FORMAT = re.compile(r"([+ ]?)(\$?)(0?)(\d*)(,?)(?:\.(\d+))?(~?)([bcdeEfFgGnosxX%pr]?)")
"""d3-format's mini-language, without fill and alignment: https://d3js.org/d3-format#locale_format."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SI = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_SI_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
DAY_MS = 86_400_000.0
_LAST_MS = 253_402_300_799_000.0
"""The last second of the year 9999, after which no date can be formatted."""


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def number(value: Any, form: str = "") -> str:
    """Return a number in a d3 format; without a format, in plotly's default format."""
    found = _FORMAT.fullmatch(form)
    if found is None or not form:
        return _short(float(value))
    sign, dollar, _, _, comma, places, trim, kind = found.groups()
    amount = float(value)
    scaled, unit = amount, ""
    precision = 6 if places is None else int(places)
    if kind in ("%", "p"):
        scaled, unit, kind = amount * 100, "%", "f"
    elif kind == "s":
        factor, unit = next(
            (each for each in (*_SI, *_SI_SMALL) if abs(amount) >= each[0]),
            (1.0, "") if amount == 0 else _SI_SMALL[-1],
        )
        unit = "G" if unit == "B" else unit
        scaled = amount / factor
        integer_digits = len(f"{abs(scaled):.0f}")
        precision, kind = max(precision - integer_digits, 0), "f"
    if kind == "" and places is None:
        text = f"{abs(scaled):{comma}.12g}"
    elif kind == "d":
        text = f"{abs(scaled):{comma}.0f}"
    else:
        text = f"{abs(scaled):{comma}.{precision}{kind or 'g'}}"
    if trim and "." in text:
        text = text.rstrip("0").rstrip(".")
    minus = "−" if amount < 0 and any(c in "123456789" for c in text) else sign
    return f"{minus}{dollar}{text}{unit}"


def _short(value: float) -> str:
    """Return a number in plotly's default format: 0.25, 5000, 12k, 3M."""
    if not math.isfinite(value):
        return "-"
    for factor, unit in _SI:
        if abs(value) >= factor and abs(value) >= 1e4:
            return f"{value / factor:.6g}{unit}".replace("-", "−")
    if value != 0 and abs(value) < 1e-6:
        return f"{value:.4g}".replace("-", "−")
    return f"{value:.9f}".rstrip("0").rstrip(".").replace("-", "−")


def milliseconds(value: Any) -> float | None:
    """Return a date as milliseconds since 1970 (UTC), as in plotly; None if it is not a date."""
    if isinstance(value, datetime):
        at = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        at = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif is_number(value):
        return float(value)
    else:
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            return None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - _EPOCH) / timedelta(milliseconds=1)


def moment(ms: float) -> datetime:
    """Return the time that is this many milliseconds after 1970, within the range of `datetime`."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, -62_135_596_800_000.0), _LAST_MS))


def dated(ms: float, form: str = "", step_ms: float = DAY_MS) -> str:
    """Return a date as text, in a strftime format, or in a default format for ticks with this distance."""
    at = moment(ms)
    if form:
        return at.strftime(form.replace("%-d", str(at.day)).replace("%e", f"{at.day}"))
    if step_ms >= 28 * DAY_MS:
        return f"{at:%b %Y}"
    if step_ms >= DAY_MS:
        return f"{at:%b} {at.day}<br>{at.year}"
    return f"{at:%H:%M}<br>{at:%b} {at.day}" if step_ms >= 60_000 else f"{at:%H:%M:%S}"
