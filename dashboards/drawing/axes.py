"""Axes: positions of values, and ticks. Linear, logarithmic, date and category axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dashboards.drawing import number_formats
from dashboards.drawing.text_layout import Line, lines_of

Kind = Literal["linear", "log", "date", "category"]

_DATE = re.compile(r"\d{4}-\d\d?(-\d\d?([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?)?)?")
_STEPS_MS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0,
    *(1000.0 * n for n in (1, 2, 5, 10, 15, 30)),
    *(60_000.0 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3_600_000.0 * n for n in (1, 2, 3, 6, 12)),
    *(number_formats.DAY_MS * n for n in (1, 2, 4, 7, 14)),
)  # fmt: skip
"""Possible distances of date ticks, below a month."""
PAD = 0.05
"""The empty fraction of an axis at its ends, as in plotly."""
MOST_TICKS = 400
"""The maximum number of ticks, even if a figure requests more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled position on an axis."""

    at: float
    """The coordinate on the axis."""
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Extent:
    """The range of the drawn values along an axis, and whether each end needs padding."""

    low: float = math.inf
    high: float = -math.inf
    pads_low: bool = False
    pads_high: bool = False

    def add(self, value: float | None, *, padded: bool) -> None:
        """Include a value; `padded` means that it must not be drawn on the edge."""
        if value is None or not math.isfinite(value):
            return
        if value < self.low:
            self.low, self.pads_low = value, padded
        if value > self.high:
            self.high, self.pads_high = value, padded


@dataclass(slots=True)
class Axis:
    """One axis of a figure, from plotly's JSON."""

    name: str
    """The name in traces, such as `x` or `y2`."""
    settings: dict[str, Any]
    kind: Kind = "linear"
    places: dict[str, int] = field(default_factory=dict)
    """The coordinate of each category."""
    extent: Extent = field(default_factory=Extent)
    low: float = 0.0
    high: float = 1.0
    """The coordinates of the ends; the axis is reversed if `low` is greater than `high`."""
    start: float = 0.0
    end: float = 1.0
    """The ends in pixels."""
    step: float = 1.0
    """The distance of the ticks."""
    least_step: float = 0.0
    """The minimum distance of the ticks: a day if all values are whole days."""

    @property
    def is_x(self) -> bool:
        """Whether the axis is horizontal."""
        return self.name[0] == "x"

    @property
    def is_shown(self) -> bool:
        """Whether ticks and title are drawn."""
        return self.settings.get("visible") is not False

    @property
    def is_opposite(self) -> bool:
        """Whether the axis is at the top or on the right."""
        return self.settings.get("side") in ("top", "right")

    def determine_kind(self, values: Iterable[Any]) -> None:
        """Determine the kind of the axis from its values, and the coordinates of its categories."""
        known_values = [value for value in values if value is not None]
        type_setting = self.settings.get("type")
        self.kind = (
            type_setting
            if type_setting in ("linear", "log", "date", "category")
            else _kind(known_values)
        )
        if self.kind == "date":
            are_days = all(
                (number_formats.milliseconds(each) or 0) % number_formats.DAY_MS == 0
                for each in known_values
            )
            self.least_step = number_formats.DAY_MS if are_days else 0.0
        if self.kind != "category":
            return
        order = [str(each) for each in self.settings.get("categoryarray") or ()]
        for each in (*order, *map(_name, known_values)):
            self.places.setdefault(each, len(self.places))
        orders = {"category ascending": False, "category descending": True}
        is_descending = orders.get(str(self.settings.get("categoryorder")))
        if is_descending is not None:
            names = sorted(self.places, reverse=is_descending)
            self.places = {name: place for place, name in enumerate(names)}

    def place(self, value: Any) -> float | None:
        """Return the coordinate of a value on the axis; None if the value cannot be drawn."""
        if value is None:
            return None
        if self.kind == "category":
            found = self.places.get(_name(value))
            if found is None and number_formats.is_number(value):
                return float(value)
            return None if found is None else float(found)
        if self.kind == "date":
            return number_formats.milliseconds(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        if self.kind == "log":
            return math.log10(number) if number > 0 else None
        return number if math.isfinite(number) else None

    def pixel(self, place: float) -> float:
        """Return a coordinate in pixels."""
        share = (place - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def pixel_of(self, value: Any) -> float | None:
        """Return a value in pixels; None if the value cannot be drawn."""
        place = self.place(value)
        return None if place is None else self.pixel(place)

    def formatted(self, value: Any, form: str = "") -> str:
        """Return a value as text."""
        if value is None:
            return ""
        if self.kind == "date":
            ms = number_formats.milliseconds(value)
            return (
                ""
                if ms is None
                else number_formats.dated(ms, form or "%b %-d, %Y").replace("<br>", " ")
            )
        if number_formats.is_number(value) and self.kind != "category":
            text = number_formats.number(value, form or str(self.settings.get("hoverformat") or ""))
            prefix, suffix = (
                self.settings.get("tickprefix") or "",
                self.settings.get("ticksuffix") or "",
            )
            return text if form else f"{prefix}{text}{suffix}"
        return str(value)

    def determine_ends(self) -> None:
        """Determine the coordinates of the ends, from the extent and the layout."""
        low, high = self._automatic()
        range_setting = self.settings.get("range")
        if isinstance(range_setting, list | tuple) and len(range_setting) == 2:
            # The range of a logarithmic axis contains exponents; the range of a category axis contains coordinates.
            limits = [
                number_formats.milliseconds(each) if self.kind == "date" else each
                for each in range_setting
            ]
            low = low if limits[0] is None else float(limits[0])
            high = high if limits[1] is None else float(limits[1])
        elif str(self.settings.get("autorange")) == "reversed":
            low, high = high, low
        if low == high:
            low, high = low - 0.5, high + 0.5
        self.low, self.high = low, high

    def _automatic(self) -> tuple[float, float]:
        low, high = self.extent.low, self.extent.high
        if low > high:
            return (-0.5, 0.5) if self.kind == "category" else (0.0, 1.0)
        mode = self.settings.get("rangemode")
        if mode == "tozero" and self.kind == "linear":
            low, high = min(low, 0.0), max(high, 0.0)
        pads_low = self.extent.pads_low and not (mode == "tozero" and low == 0)
        pads_high = self.extent.pads_high and not (mode == "tozero" and high == 0)
        if low == high:
            half = {"date": number_formats.DAY_MS / 2, "log": 0.5}.get(
                self.kind, max(abs(low), 1.0)
            )
            return low - half * pads_low or low - half, high + half
        spread = (high - low) / (1 - PAD * (pads_low + pads_high))
        low, high = low - spread * PAD * pads_low, high + spread * PAD * pads_high
        return (max(low, 0.0) if mode == "nonnegative" and self.kind == "linear" else low), high

    def ticks(self) -> list[Tick]:
        """Return the ticks, lowest first."""
        low, high = min(self.low, self.high), max(self.low, self.high)
        values_setting = self.settings.get("tickvals")
        if values_setting is not None:
            texts = self.settings.get("ticktext")
            ticks = [
                Tick(place, tuple(lines_of(self._tick_text(place) if texts is None else texts[at])))
                for at, value in enumerate(values_setting)
                if (place := self.place(value)) is not None and (texts is None or at < len(texts))
            ]
        else:
            ticks = [
                Tick(at, tuple(lines_of(self._tick_text(at))))
                for at in self._tick_positions(low, high)
            ]
        tolerance = (high - low) * 1e-6
        inside = [tick for tick in ticks if low - tolerance <= tick.at <= high + tolerance]
        return (
            _without_repeats(inside) if self.kind == "date" and values_setting is None else inside
        )

    def _tick_text(self, at: float) -> str:
        form = str(self.settings.get("tickformat") or "")
        prefix, suffix = (
            self.settings.get("tickprefix") or "",
            self.settings.get("ticksuffix") or "",
        )
        if self.kind == "category":
            name = next((name for name, place in self.places.items() if place == at), "")
            return f"{prefix}{name}{suffix}"
        if self.kind == "date":
            return number_formats.dated(at, form, self.step)
        value = 10**at if self.kind == "log" else at
        if not form and self.settings.get("separatethousands"):
            form = ",.10~g" if abs(value) < 1e12 else ""
        return f"{prefix}{number_formats.number(value, form)}{suffix}"

    def _tick_positions(self, low: float, high: float) -> list[float]:
        """Return the positions of the ticks if the layout does not list them."""
        length = abs(self.end - self.start)
        most_ticks = int(self.settings.get("nticks") or 0) or (
            min(max(length / 80, 4), 10) if self.is_x else min(max(length / 40, 3), 10)
        )
        if self.kind == "category":
            least = 1 if self.is_x else 15 * (high - low) / max(length, 1)
            step = max(math.ceil(least), math.ceil(len(self.places) / MOST_TICKS), 1)
            return [float(place) for place in range(0, len(self.places), step)]
        if self.kind == "log":
            return _powers(low, high, most_ticks)
        if self.kind == "date":
            return self._dates(low, high, most_ticks)
        step_setting = self.settings.get("dtick")
        self.step = (
            float(step_setting)
            if number_formats.is_number(step_setting) and step_setting
            else _rounded_step((high - low) / most_ticks)
        )
        first = math.ceil(low / self.step - 1e-6)
        count = min(int((high - first * self.step) / self.step + 1e-6) + 1, MOST_TICKS)
        return [(first + n) * self.step for n in range(count)]

    def _dates(self, low: float, high: float, most_ticks: float) -> list[float]:
        wanted = max((high - low) / most_ticks, self.least_step)
        step_setting = self.settings.get("dtick")
        if number_formats.is_number(step_setting) and step_setting:
            self.step = float(step_setting)
        elif wanted > 14 * number_formats.DAY_MS:
            return self._months(low, high, wanted)
        else:
            self.step = next((each for each in _STEPS_MS if each >= wanted), _STEPS_MS[-1])
        # Weeks start on Monday; the first Monday of 1970 was January 5.
        offset = 4 * number_formats.DAY_MS if self.step % (7 * number_formats.DAY_MS) == 0 else 0.0
        first = math.ceil((low - offset) / self.step - 1e-6)
        count = min(int((high - offset) / self.step - first + 1e-6) + 1, MOST_TICKS)
        return [(first + n) * self.step + offset for n in range(count)]

    def _months(self, low: float, high: float, wanted: float) -> list[float]:
        month_ms = 30.4375 * number_formats.DAY_MS
        step = next(
            (n for n in (1, 2, 3, 6, 12, 24, 60, 120) if n * month_ms >= wanted * 0.75), 600
        )
        self.step = step * month_ms
        first, last = number_formats.moment(low), number_formats.moment(high)
        number = math.ceil((first.year * 12 + first.month - 1) / step) * step
        found = []
        while number <= last.year * 12 + last.month - 1:
            at = number_formats.milliseconds(f"{number // 12:04}-{number % 12 + 1:02}-01")
            found += [at] if at is not None else []
            number += step
        return found


def _without_repeats(ticks: list[Tick]) -> list[Tick]:
    """Return ticks whose labels contain the year, or the day, only if it differs from the previous tick."""
    previous: tuple[Line, ...] = ()
    shortened = []
    for tick in ticks:
        shortened.append(Tick(tick.at, tick.lines[:1]) if tick.lines[1:] == previous else tick)
        previous = tick.lines[1:]
    return shortened


def _kind(values: Sequence[Any]) -> Kind:
    """Return the kind of an axis with these values, by plotly's rules: dates and numbers may be strings."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        is_date = bool(values) and all(hasattr(value, "isoformat") for value in values)
        return "date" if is_date else "linear"
    if all(_DATE.fullmatch(text) for text in texts):
        return "date"
    return "linear" if all(_is_number_text(text) for text in texts) else "category"


def _is_number_text(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _name(value: Any) -> str:
    return str(value)


def _rounded_step(step: float) -> float:
    """Return a step, rounded up to 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next((n * power for n in (1, 2, 5) if n * power >= step * 0.999), 10 * power)


def _powers(low: float, high: float, most_ticks: float) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten, and 2 and 5 times each power if there are few."""
    step = max(math.ceil((high - low) / max(most_ticks, 1)), 1)
    powers = range(math.ceil(low - 1e-6), math.floor(high + 1e-6) + 1, step)
    if len(powers) > 2 or step > 1:
        return [float(power) for power in powers]
    exponents = range(math.floor(low), math.ceil(high) + 1)
    return [power + math.log10(n) for power in exponents for n in (1, 2, 5)]
