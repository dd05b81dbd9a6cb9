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
"""The maximum number of ticks, whatever a figure requests."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled position on an axis."""

    at: float
    """Its coordinate on the axis."""
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Reach:
    """The extent of what is drawn along an axis, and whether it needs padding."""

    low: float = math.inf
    high: float = -math.inf
    pads_low: bool = False
    pads_high: bool = False

    def add(self, value: float | None, *, padded: bool) -> None:
        """Include a value; `padded` if it must not be on the edge."""
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
    """Its name in traces: x, y2."""
    told: dict[str, Any]
    kind: Kind = "linear"
    places: dict[str, int] = field(default_factory=dict)
    """The number of each category."""
    reach: Reach = field(default_factory=Reach)
    low: float = 0.0
    high: float = 1.0
    """The values at its ends; reversed if the first is greater."""
    start: float = 0.0
    end: float = 1.0
    """The pixels of its ends."""
    step: float = 1.0
    """The distance of its ticks."""
    least_step: float = 0.0
    """The minimum distance of ticks: whole days if all values are."""

    @property
    def is_x(self) -> bool:
        """Whether it is horizontal."""
        return self.name[0] == "x"

    @property
    def is_shown(self) -> bool:
        """Whether ticks and title are drawn."""
        return self.told.get("visible") is not False

    @property
    def is_opposite(self) -> bool:
        """Whether it is at the top, or on the right."""
        return self.told.get("side") in ("top", "right")

    def learn(self, values: Iterable[Any]) -> None:
        """Determine the type of its values."""
        known = [value for value in values if value is not None]
        told = self.told.get("type")
        self.kind = told if told in ("linear", "log", "date", "category") else _kind(known)
        if self.kind == "date":
            whole = all(
                (number_formats.milliseconds(each) or 0) % number_formats.DAY_MS == 0
                for each in known
            )
            self.least_step = number_formats.DAY_MS if whole else 0.0
        if self.kind != "category":
            return
        order = [str(each) for each in self.told.get("categoryarray") or ()]
        for each in (*order, *map(_name, known)):
            self.places.setdefault(each, len(self.places))
        rising = {"category ascending": False, "category descending": True}
        by = rising.get(str(self.told.get("categoryorder")))
        if by is not None:
            names = sorted(self.places, reverse=by)
            self.places = {name: place for place, name in enumerate(names)}

    def place(self, value: Any) -> float | None:
        """Return the coordinate of a value on the axis; None if it has none."""
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

    def px(self, place: float) -> float:
        """Return the pixel of a coordinate."""
        share = (place - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def pixels(self, value: Any) -> float | None:
        """Return the pixel of a value; None if it has none."""
        place = self.place(value)
        return None if place is None else self.px(place)

    def written(self, value: Any, form: str = "") -> str:
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
            text = number_formats.number(value, form or str(self.told.get("hoverformat") or ""))
            prefix, suffix = self.told.get("tickprefix") or "", self.told.get("ticksuffix") or ""
            return text if form else f"{prefix}{text}{suffix}"
        return str(value)

    def settle(self) -> None:
        """Determine the values at its ends, from the extent and the layout."""
        low, high = self._automatic()
        given = self.told.get("range")
        if isinstance(given, list | tuple) and len(given) == 2:
            # A range of a logarithmic axis has exponents, one of categories has their numbers.
            ends = [
                number_formats.milliseconds(each) if self.kind == "date" else each for each in given
            ]
            low = low if ends[0] is None else float(ends[0])
            high = high if ends[1] is None else float(ends[1])
        elif str(self.told.get("autorange")) == "reversed":
            low, high = high, low
        if low == high:
            low, high = low - 0.5, high + 0.5
        self.low, self.high = low, high

    def _automatic(self) -> tuple[float, float]:
        low, high = self.reach.low, self.reach.high
        if low > high:
            return (-0.5, 0.5) if self.kind == "category" else (0.0, 1.0)
        mode = self.told.get("rangemode")
        if mode == "tozero" and self.kind == "linear":
            low, high = min(low, 0.0), max(high, 0.0)
        pads_low = self.reach.pads_low and not (mode == "tozero" and low == 0)
        pads_high = self.reach.pads_high and not (mode == "tozero" and high == 0)
        if low == high:
            half = {"date": number_formats.DAY_MS / 2, "log": 0.5}.get(
                self.kind, max(abs(low), 1.0)
            )
            return low - half * pads_low or low - half, high + half
        spread = (high - low) / (1 - PAD * (pads_low + pads_high))
        low, high = low - spread * PAD * pads_low, high + spread * PAD * pads_high
        return (max(low, 0.0) if mode == "nonnegative" and self.kind == "linear" else low), high

    def ticks(self) -> list[Tick]:
        """Return its ticks, the lowest first."""
        low, high = min(self.low, self.high), max(self.low, self.high)
        named = self.told.get("tickvals")
        if named is not None:
            texts = self.told.get("ticktext")
            ticks = [
                Tick(place, tuple(lines_of(self._tick_text(place) if texts is None else texts[at])))
                for at, value in enumerate(named)
                if (place := self.place(value)) is not None and (texts is None or at < len(texts))
            ]
        else:
            ticks = [
                Tick(at, tuple(lines_of(self._tick_text(at)))) for at in self._places(low, high)
            ]
        slack = (high - low) * 1e-6
        inside = [tick for tick in ticks if low - slack <= tick.at <= high + slack]
        return _said_once(inside) if self.kind == "date" and named is None else inside

    def _tick_text(self, at: float) -> str:
        form = str(self.told.get("tickformat") or "")
        prefix, suffix = self.told.get("tickprefix") or "", self.told.get("ticksuffix") or ""
        if self.kind == "category":
            name = next((name for name, place in self.places.items() if place == at), "")
            return f"{prefix}{name}{suffix}"
        if self.kind == "date":
            return number_formats.dated(at, form, self.step)
        value = 10**at if self.kind == "log" else at
        if not form and self.told.get("separatethousands"):
            form = ",.10~g" if abs(value) < 1e12 else ""
        return f"{prefix}{number_formats.number(value, form)}{suffix}"

    def _places(self, low: float, high: float) -> list[float]:
        """Return the positions of ticks that the layout does not list."""
        length = abs(self.end - self.start)
        room = int(self.told.get("nticks") or 0) or (
            min(max(length / 80, 4), 10) if self.is_x else min(max(length / 40, 3), 10)
        )
        if self.kind == "category":
            least = 1 if self.is_x else 15 * (high - low) / max(length, 1)
            step = max(math.ceil(least), math.ceil(len(self.places) / MOST_TICKS), 1)
            return [float(place) for place in range(0, len(self.places), step)]
        if self.kind == "log":
            return _powers(low, high, room)
        if self.kind == "date":
            return self._dates(low, high, room)
        given = self.told.get("dtick")
        self.step = (
            float(given)
            if number_formats.is_number(given) and given
            else _nice((high - low) / room)
        )
        first = math.ceil(low / self.step - 1e-6)
        count = min(int((high - first * self.step) / self.step + 1e-6) + 1, MOST_TICKS)
        return [(first + n) * self.step for n in range(count)]

    def _dates(self, low: float, high: float, room: float) -> list[float]:
        wanted = max((high - low) / room, self.least_step)
        given = self.told.get("dtick")
        if number_formats.is_number(given) and given:
            self.step = float(given)
        elif wanted > 14 * number_formats.DAY_MS:
            return self._months(low, high, wanted)
        else:
            self.step = next((each for each in _STEPS_MS if each >= wanted), _STEPS_MS[-1])
        # Weeks begin on Monday; the first one of 1970 was its fifth day.
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


def _said_once(ticks: list[Tick]) -> list[Tick]:
    """Return ticks whose labels contain the year, or the day, only if it differs from the previous one."""
    said: tuple[Line, ...] = ()
    told = []
    for tick in ticks:
        told.append(Tick(tick.at, tick.lines[:1]) if tick.lines[1:] == said else tick)
        said = tick.lines[1:]
    return told


def _kind(values: Sequence[Any]) -> Kind:
    """Return the type of values by plotly's rules: dates and numbers may be strings."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        is_date = bool(values) and all(hasattr(value, "isoformat") for value in values)
        return "date" if is_date else "linear"
    if all(_DATE.fullmatch(text) for text in texts):
        return "date"
    return "linear" if all(_reads(text) for text in texts) else "category"


def _reads(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _name(value: Any) -> str:
    return str(value)


def _nice(step: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten that is not below a step."""
    power = 10 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next((n * power for n in (1, 2, 5) if n * power >= step * 0.999), 10 * power)


def _powers(low: float, high: float, room: float) -> list[float]:
    """Return ticks of a logarithmic axis: powers of ten, with 2 and 5 times those if there are few."""
    step = max(math.ceil((high - low) / max(room, 1)), 1)
    powers = range(math.ceil(low - 1e-6), math.floor(high + 1e-6) + 1, step)
    if len(powers) > 2 or step > 1:
        return [float(power) for power in powers]
    every = range(math.floor(low), math.ceil(high) + 1)
    return [power + math.log10(n) for power in every for n in (1, 2, 5)]
