"""The overlay: prices in addition to genai-prices, from a file of ours and one of the user's.

  [[price]]                              # replaces listed prices
  models = ["claude-opus-5-5"]           # canonical names, or exact ones
  speed = "fast"                         # and service_tier, inference_geo: the context that it applies to
  since = 2026-11-01                     # and until: the first day, and the first day after
  prompt_tokens_above = 200_000          # applies to longer prompts only
  input = 8.00                           # USD per million: input, output, cache_read, cache_write_5m, cache_write_1h
  source = "contract of 2026-11-01"
  checked = 2026-11-22

  [[factor]]                             # multiplies all token prices
  name = "discount"                      # of factors with one name, the last that applies counts
  times = 0.9

  [web_search]
  usd_per_thousand = 10

A price without a context replaces everything that is listed for its models. Numbers are read as
decimals, never as floats. A malformed file raises one error with the line, what was found and what
was expected.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentobs.errors import UsageError
from agentobs.ledger.model_names import canonical_model

DIGITS = 6
"""Maximum decimal places of a price per million: the price of a single token has twelve."""
CONTEXT = ("service_tier", "inference_geo", "speed")
"""The parts of a call's context that an entry may require."""
CLASSES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "web_search")
"""The classes that an entry may price."""

USUAL: dict[str, tuple[str | None, ...]] = {
    "service_tier": (None, "standard"),
    "inference_geo": (None, "global", "not_available"),
    "speed": (None, "standard"),
}
"""Context values that do not affect prices."""

_EXACT = re.compile(r"20\d{6}|20\d\d-\d\d-\d\d|[@:/]|anthropic\.|-v\d")
"""Marks the name of a single release or platform, which only matches itself."""

Money = Annotated[Decimal, Field(ge=0, lt=10**9, decimal_places=DIGITS)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: Annotated[str, Field(min_length=1)]
    """Where the price was read: a URL, or the user's source."""
    checked: dt.date
    """When the price was read."""


class _Dated(_Entry):
    service_tier: Literal["standard", "priority", "batch"] | None = None
    """Applies only to calls of this tier."""
    inference_geo: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{1,31}$")] | None = None
    """Applies only to calls that ran there."""
    speed: Literal["standard", "fast"] | None = None
    """Applies only to calls of this speed."""
    since: dt.date | None = None
    """The first day on which it applies (UTC)."""
    until: dt.date | None = None
    """The first day on which it no longer applies."""

    @property
    def conditions(self) -> dict[str, str]:
        """The context values that it requires."""
        required = {name: getattr(self, name) for name in CONTEXT}
        return {name: value for name, value in required.items() if value is not None}

    def holds(self, context: object, day: dt.date) -> bool:
        """Return whether it applies to a context on a day."""
        begun = self.since is None or self.since <= day
        over = self.until is not None and self.until <= day
        fits = all(
            _is_same(name, getattr(context, name), value) for name, value in self.conditions.items()
        )
        return begun and not over and fits

    @model_validator(mode="after")
    def _in_order(self) -> _Dated:
        if self.since and self.until and self.since >= self.until:
            raise ValueError("since must be before until")
        return self


def _is_same(name: str, value: str | None, required: str) -> bool:
    return value == required or (required in USUAL[name] and value in USUAL[name])


def _is_named(model: str, names: Iterable[str]) -> bool:
    """Return whether any name refers to a model, in any spelling; a dated ID only matches itself."""
    return any(
        name == model
        or (not _EXACT.search(name) and canonical_model(name) == canonical_model(model))
        for name in names
    )


class Price(_Dated):
    """Prices of some models."""

    models: Annotated[list[str], Field(min_length=1)]
    """Canonical names, or exact ones."""
    prompt_tokens_above: Annotated[int, Field(ge=0)] | None = None
    """Applies only to prompts with more tokens."""
    input: Money | None = None
    """USD per million tokens, like the four that follow."""
    output: Money | None = None
    cache_read: Money | None = None
    cache_write_5m: Money | None = None
    cache_write_1h: Money | None = None
    web_search: Money | None = None
    """USD per thousand searches."""

    def is_of(self, model: str) -> bool:
        """Return whether it is a price of this model."""
        return _is_named(model, self.models)

    @model_validator(mode="after")
    def _has_one(self) -> Price:
        if not self.rates:
            raise ValueError(f"a price names at least one of {', '.join(CLASSES)}")
        return self

    @property
    def rates(self) -> dict[str, Decimal]:
        """The prices that it sets, by class."""
        found = {name: getattr(self, name) for name in CLASSES}
        return {name: value for name, value in found.items() if value is not None}


class Factor(_Dated):
    """A multiplier for all token prices."""

    name: Annotated[str, Field(min_length=1)]
    """Of the factors with one name that apply to a call, the last one counts."""
    times: Annotated[Decimal, Field(ge=0, lt=1000, decimal_places=DIGITS)]
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """Applies only to these models."""
    except_models: list[str] = []
    """Does not apply to these models."""
    unless_listed: bool = False
    """Does not apply if a price for its context is listed."""

    def is_of(self, model: str) -> bool:
        """Return whether it applies to this model."""
        applies = self.models is None or _is_named(model, self.models)
        return applies and not _is_named(model, self.except_models)


class WebSearch(_Entry):
    """The price of web searches, unless a price of the model sets another."""

    usd_per_thousand: Money


class Overlay(BaseModel):
    """One price file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    price: list[Price] = []
    factor: list[Factor] = []
    web_search: WebSearch | None = None


def parse(data: bytes, where: str) -> Overlay:
    """Parse a price file.

    Raises:
        UsageError: it is malformed; the message has the line, what was found and what was expected.
    """
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        return Overlay.model_validate(_strict(tomllib.loads(text, parse_float=Decimal)))
    except UnicodeDecodeError as error:
        raise _bad(where, None, "not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+)", str(error))
        line = int(place[1]) if place else text.rstrip().count("\n") + 1
        raise _bad(where, line, f"no TOML: {str(error).partition(' (at')[0]}") from error
    except RecursionError as error:
        raise _bad(where, None, "nested too deeply") from error
    except ValidationError as error:
        # Report a mistyped key before the missing key that results from it.
        found = error.errors(include_url=False)
        first = min(found, key=lambda each: each["type"] != "extra_forbidden")
        raise _bad(where, _line_of(text, first["loc"]), _described(first)) from error


def _strict(value: Any) -> Any:
    """Return the value with integers converted to decimals for prices."""
    if isinstance(value, dict):
        return {key: _as_money(key, _strict(inner)) for key, inner in value.items()}
    return [_strict(inner) for inner in value] if isinstance(value, list) else value


def _as_money(key: str, value: Any) -> Any:
    is_money = key in (*CLASSES, "times", "usd_per_thousand")
    return Decimal(value) if is_money and type(value) is int else value


def _described(error: Any) -> str:
    """Describe what was found and what was expected, in one sentence."""
    name = _field(error["loc"], "the file") if error["loc"] else "the file"
    found = repr(error["input"])
    shown = found if len(found) <= 60 else found[:57] + "..."
    match error["type"]:
        case "extra_forbidden":
            keys = ", ".join(_keys(error["loc"]))
            return f"{name} is not a key here; expected one of {keys}"
        case "missing":
            return f"{name} is missing"
        case "decimal_type" | "is_instance_of":
            return f"{name} is {shown}; expected a number without quotes"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    return f"{name} is {shown}, which is not allowed: {message[:1].lower()}{message[1:]}"


def _keys(location: tuple[Any, ...]) -> Iterator[str]:
    kinds: dict[str, type[BaseModel]] = {"price": Price, "factor": Factor, "web_search": WebSearch}
    kind = kinds[location[0]] if len(location) > 1 else Overlay
    yield from kind.model_fields


def _line_of(text: str, location: tuple[Any, ...]) -> int | None:
    """Return the line of a key, or of the table that lacks it."""
    lines = text.split("\n")
    table, number, key = location[0], 0, str(location[-1])
    if len(location) > 1 and isinstance(location[1], int):
        number = location[1]
    lines = _without_texts(text).split("\n")
    heads = [n for n, line in enumerate(lines) if re.match(rf"\s*\[+\s*{table}\s*\]", line)]
    if number >= len(heads):
        starts = [n for n, line in enumerate(lines) if re.match(rf"\s*\W*{table}\b", line)]
        return starts[0] + 1 if starts else None
    for offset in range(heads[number] + 1, len(lines)):
        if lines[offset].lstrip().startswith("["):
            break
        if len(location) > 1 and re.match(
            rf"""\s*["']?{re.escape(_field(location, key))}\b""", lines[offset]
        ):
            return offset + 1
    return heads[number] + 1


def _without_texts(text: str) -> str:
    """Return the text with multi-line strings blanked, because they may contain text that looks like a table."""
    return re.sub(
        r'"""(?:.|\n)*?"""' + r"|'''(?:.|\n)*?'''", lambda found: "\n" * found[0].count("\n"), text
    )


def _field(location: tuple[Any, ...], key: str) -> str:
    """Return the name of the field; for a list entry, that of the list."""
    return next((str(part) for part in reversed(location) if isinstance(part, str)), key)


def _bad(where: str, line: int | None, found: str) -> UsageError:
    place = f"{where}, line {line}" if line else where
    return UsageError(
        found,
        where=place,
        todo="Correct the line; docs/prices.md has an example of each kind of entry",
    )
