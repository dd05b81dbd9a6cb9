"""Date axes of days, or of weeks, months or years if there are many days, so that bars stay visible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import plotly.graph_objects as go

Unit = Literal["day", "week", "month", "year"]
MOST = 120
"""The maximum number of bars side by side, including empty ones. Our choice."""
FEWEST = 7
"""The minimum number of days of an axis, because the bar of a single day would fill the figure. Our choice."""
TICKS = 8
"""The maximum number of dates below an axis, so that they fit into 700 pixels. Our choice."""
_DAYS: dict[Unit, int] = {"day": 1, "week": 7, "month": 31, "year": 366}
_ABOUT: dict[Unit, int] = {"day": 1, "week": 7, "month": 30, "year": 365}
_STEPS: dict[Unit, tuple[int, ...]] = {
    "day": (1, 2, 3, 7, 14, 28),
    "week": (1, 2, 4, 8, 13, 26),
    "month": (1, 2, 3, 6, 12, 24),
    "year": (1, 2, 5, 10, 20, 50, 100, 500, 2000),
}
"""The possible distances of two dates below an axis, in units."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The periods of a date axis."""

    unit: Unit
    first: date
    """The first day of the first period."""
    last: date
    """The first day of the last period."""

    def start(self, day: date) -> date:
        """Return the first day of the period that contains a day; weeks begin on Monday (ISO 8601)."""
        match self.unit:
            case "day":
                return day
            case "week":
                return date.fromordinal(max(day.toordinal() - day.weekday(), 1))
            case "month":
                return day.replace(day=1)
            case "year":
                return day.replace(month=1, day=1)

    def middle(self, start: date) -> str:
        """Return the position of the bar of a period. The bar of a day is exactly above its date."""
        return _days_later(start, _ABOUT[self.unit] // 2).isoformat()

    def periods(self, starts: Iterable[date]) -> dict[str, list[str]]:
        """Return the first and the last day of periods, by the position of their bars."""
        found = {}
        for start in starts:
            following = self.start(_days_later(start, _DAYS[self.unit]))
            last = start if following <= start else _days_later(following, -1)
            found[self.middle(start)] = [start.isoformat(), last.isoformat()]
        return found

    @property
    def width_ms(self) -> float:
        """The width of a bar in milliseconds."""
        return _ABOUT[self.unit] * 86_400_000 * 0.8

    def name(self, start: date) -> str:
        """Return the display name of a period."""
        match self.unit:
            case "day":
                return f"{start:%A}, {start:%B} {start.day}, {start.year}"
            case "week":
                return f"week of {start:%B} {start.day}, {start.year}"
            case "month":
                return f"{start:%B} {start.year}"
            case "year":
                return str(start.year)

    @property
    def title(self) -> str:
        """The title of the axis."""
        names = {"day": "day", "week": "week, starting on Monday", "month": "month", "year": "year"}
        return f"{names[self.unit]} (UTC)"


def day_of(value: Any) -> date | None:
    """Return the day in a value from a row or from JSON; None if the value is not a day."""
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError:
        return None


def calendar(days: Iterable[date]) -> Calendar | None:
    """Return the axis for these days; None if there are no days."""
    all_days = list(days)
    if not all_days:
        return None
    first, last = min(all_days), max(all_days)
    span = (last - first).days + 1
    units: tuple[Unit, ...] = ("day", "week", "month", "year")
    unit: Unit = next((each for each in units if span <= MOST * _ABOUT[each]), "year")
    unsnapped = Calendar(unit, first, last)
    return Calendar(unit, unsnapped.start(first), unsnapped.start(last))


def draw_days(figure: go.Figure, axis: Calendar) -> None:
    """Make the x axis of a figure a date axis, with as many labels as fit."""
    padding = max(0, FEWEST - (axis.last - axis.first).days - 1) // 2
    half = _ABOUT[axis.unit] / 2
    middle, end = _ABOUT[axis.unit] // 2, axis.middle(axis.last)
    ticks = _ticks(axis)
    figure.update_xaxes(
        type="date",
        title_text=axis.title,
        range=[
            f"{_days_later(axis.first, middle - padding - int(half) - 1).isoformat()}T12:00:00",
            f"{_days_later(date.fromisoformat(end), padding + int(half)).isoformat()}T12:00:00",
        ],
        tickmode="array",
        tickvals=[axis.middle(tick) for tick in ticks],
        ticktext=_labels(axis.unit, ticks),
        showgrid=False,
    )


def _ticks(axis: Calendar) -> list[date]:
    starts: list[date] = []
    at = axis.first
    while at <= axis.last and len(starts) < 20_000:
        starts.append(at)
        following = axis.start(_days_later(at, _DAYS[axis.unit]))
        if following <= at:
            break
        at = following
    step = next(
        (each for each in _STEPS[axis.unit] if -(-len(starts) // each) <= TICKS), len(starts)
    )
    return starts[::step]


def _labels(unit: Unit, ticks: list[date]) -> list[str]:
    """Return the labels of an axis. A label contains the year only if it differs from the previous year."""
    labels: list[str] = []
    for previous, tick in zip([None, *ticks], ticks, strict=False):
        is_new = previous is None or previous.year != tick.year
        if unit == "year":
            labels.append(str(tick.year))
            continue
        label = f"{tick:%b}" if unit == "month" else f"{tick.day} {tick:%b}"
        labels.append(f"{label}<br>{tick.year}" if is_new else label)
    return labels


def _days_later(day: date, days: int) -> date:
    number = min(max(day.toordinal() + days, 1), date.max.toordinal())
    return date.fromordinal(number)
