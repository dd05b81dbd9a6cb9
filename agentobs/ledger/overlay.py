"""The overlay: prices in addition to genai-prices, from the file of agentobs and from the user's file.

  [[price]]                              # replaces listed prices
  models = ["claude-opus-5-5"]           # canonical names, or names of single releases
  speed = "fast"                         # and service_tier, inference_geo: the context that it applies to
  since = 2026-11-01                     # and until: the first day, and the first day after
  prompt_tokens_above = 200_000          # applies to longer prompts only
  input = 8.00                           # USD per million: input, output, cache_read, cache_write_5m, cache_write_1h
  source = "contract of 2026-11-01"
  checked = 2026-11-22

  [[factor]]                             # multiplies all token prices
  name = "discount"                      # of factors with the same name, the last one that applies is used
  times = 0.9

  [web_search]
  usd_per_thousand = 10

A price without a context replaces all listed prices of its models. Numbers are read as decimals, never as floats. A
malformed file raises one error, with the line, the value that was found and the value that was expected.
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
"""The token classes, and web searches, for which an entry may set a price."""

NEUTRAL_VALUES: dict[str, tuple[str | None, ...]] = {
    "service_tier": (None, "standard"),
    "inference_geo": (None, "global", "not_available"),
    "speed": (None, "standard"),
}
"""Context values that do not affect prices."""

_SINGLE_RELEASE = re.compile(r"20\d{6}|20\d\d-\d\d-\d\d|[@:/]|anthropic\.|-v\d")
"""Matches a part of the name of a single release or platform. An entry for such a name applies only to that exact name.
"""

Money = Annotated[Decimal, Field(ge=0, lt=10**9, decimal_places=DIGITS)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: Annotated[str, Field(min_length=1)]
    """The source of the price, such as a URL."""
    checked: dt.date
    """The day on which the source was read."""


class _Dated(_Entry):
    service_tier: Literal["standard", "priority", "batch"] | None = None
    """The service tier of the calls to which the entry applies; None for all."""
    inference_geo: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{1,31}$")] | None = None
    """The inference location of the calls to which the entry applies; None for all."""
    speed: Literal["standard", "fast"] | None = None
    """The speed of the calls to which the entry applies; None for all."""
    since: dt.date | None = None
    """The first day on which the entry applies (UTC)."""
    until: dt.date | None = None
    """The first day on which the entry no longer applies (UTC)."""

    @property
    def conditions(self) -> dict[str, str]:
        """The context values that a call must have, by name."""
        required = {name: getattr(self, name) for name in CONTEXT}
        return {name: value for name, value in required.items() if value is not None}

    def applies(self, context: object, day: dt.date) -> bool:
        """Return whether the entry applies to a context on a day."""
        has_started = self.since is None or self.since <= day
        has_ended = self.until is not None and self.until <= day
        matches = all(
            _is_same(name, getattr(context, name), value) for name, value in self.conditions.items()
        )
        return has_started and not has_ended and matches

    @model_validator(mode="after")
    def _check_order(self) -> _Dated:
        if self.since and self.until and self.since >= self.until:
            raise ValueError("since must be before until")
        return self


def _is_same(name: str, value: str | None, required: str) -> bool:
    return value == required or (required in NEUTRAL_VALUES[name] and value in NEUTRAL_VALUES[name])


def _is_named(model: str, names: Iterable[str]) -> bool:
    """Return whether one of the names refers to a model, in any spelling; a dated ID matches only itself."""
    return any(
        name == model
        or (not _SINGLE_RELEASE.search(name) and canonical_model(name) == canonical_model(model))
        for name in names
    )


class Price(_Dated):
    """Prices of some models."""

    models: Annotated[list[str], Field(min_length=1)]
    """Model names, either canonical or exactly as the provider reports them."""
    prompt_tokens_above: Annotated[int, Field(ge=0)] | None = None
    """The price applies only to prompts with more tokens than this; None for all prompts."""
    input: Money | None = None
    """USD per million tokens, like the next four prices."""
    output: Money | None = None
    cache_read: Money | None = None
    cache_write_5m: Money | None = None
    cache_write_1h: Money | None = None
    web_search: Money | None = None
    """USD per thousand searches."""

    def covers(self, model: str) -> bool:
        """Return whether this price applies to a model."""
        return _is_named(model, self.models)

    @model_validator(mode="after")
    def _check_prices(self) -> Price:
        if not self.rates:
            raise ValueError(f"a price needs at least one of {', '.join(CLASSES)}")
        return self

    @property
    def rates(self) -> dict[str, Decimal]:
        """The prices that this entry sets, by class."""
        found = {name: getattr(self, name) for name in CLASSES}
        return {name: value for name, value in found.items() if value is not None}


class Factor(_Dated):
    """A multiplier for all token prices."""

    name: Annotated[str, Field(min_length=1)]
    """If several factors with the same name apply to a call, only the last one is used."""
    times: Annotated[Decimal, Field(ge=0, lt=1000, decimal_places=DIGITS)]
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """The models to which the factor applies; None for all."""
    except_models: list[str] = []
    """Models to which the factor does not apply."""
    unless_listed: bool = False
    """Whether the factor is ignored if a price is listed for the context values that the factor requires."""

    def covers(self, model: str) -> bool:
        """Return whether the factor applies to a model."""
        applies = self.models is None or _is_named(model, self.models)
        return applies and not _is_named(model, self.except_models)


class WebSearch(_Entry):
    """The price of web searches, unless an entry for the model sets another price."""

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
        UsageError: the file is malformed; the message contains the line, the value found and the value expected.
    """
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        return Overlay.model_validate(_with_decimals(tomllib.loads(text, parse_float=Decimal)))
    except UnicodeDecodeError as error:
        raise _file_error(where, None, "not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+)", str(error))
        line = int(place[1]) if place else text.rstrip().count("\n") + 1
        raise _file_error(
            where, line, f"not valid TOML: {str(error).partition(' (at')[0]}"
        ) from error
    except RecursionError as error:
        raise _file_error(where, None, "nested too deeply") from error
    except ValidationError as error:
        # A misspelled key also causes an error about a missing key; report the misspelled key.
        found = error.errors(include_url=False)
        first = min(found, key=lambda each: each["type"] != "extra_forbidden")
        raise _file_error(where, _line_number(text, first["loc"]), _describe(first)) from error
    except (
        ValueError,
        ArithmeticError,
    ) as error:  # Python refuses integers with thousands of digits
        raise _file_error(where, None, "a number with too many digits") from error


def _with_decimals(value: Any) -> Any:
    """Return the value with the integers of prices converted to decimals."""
    if isinstance(value, dict):
        return {key: _as_decimal(key, _with_decimals(inner)) for key, inner in value.items()}
    return [_with_decimals(inner) for inner in value] if isinstance(value, list) else value


def _as_decimal(key: str, value: Any) -> Any:
    is_money = key in (*CLASSES, "times", "usd_per_thousand")
    return Decimal(value) if is_money and type(value) is int else value


def _describe(error: Any) -> str:
    """Describe the value that was found and the value that was expected, in one sentence."""
    name = _field(error["loc"], "the file") if error["loc"] else "the file"
    shown = _shown(error["input"])
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


def _shown(value: Any) -> str:
    """Return a value for an error message, shortened."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "a number with too many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(location: tuple[Any, ...]) -> Iterator[str]:
    kinds: dict[str, type[BaseModel]] = {"price": Price, "factor": Factor, "web_search": WebSearch}
    kind = kinds[location[0]] if len(location) > 1 else Overlay
    yield from kind.model_fields


def _line_number(text: str, location: tuple[Any, ...]) -> int | None:
    """Return the line of a key, or of its table if the key is missing."""
    table, number, key = location[0], 0, str(location[-1])
    if len(location) > 1 and isinstance(location[1], int):
        number = location[1]
    lines = _without_texts(text).split("\n")
    header_lines = [n for n, line in enumerate(lines) if re.match(rf"\s*\[+\s*{table}\s*\]", line)]
    if number >= len(header_lines):
        starts = [n for n, line in enumerate(lines) if re.match(rf"\s*\W*{table}\b", line)]
        return starts[0] + 1 if starts else None
    for offset in range(header_lines[number] + 1, len(lines)):
        if lines[offset].lstrip().startswith("["):
            break
        if len(location) > 1 and re.match(
            rf"""\s*["']?{re.escape(_field(location, key))}\b""", lines[offset]
        ):
            return offset + 1
    return header_lines[number] + 1


def _without_texts(text: str) -> str:
    """Return the text with multi-line strings blanked, because they may contain text that looks like a table."""
    return re.sub(
        r'"""(?:.|\n)*?"""' + r"|'''(?:.|\n)*?'''", lambda found: "\n" * found[0].count("\n"), text
    )


def _field(location: tuple[Any, ...], key: str) -> str:
    """Return the name of the field; for a list item, the name of the list."""
    return next((str(part) for part in reversed(location) if isinstance(part, str)), key)


def _file_error(where: str, line: int | None, found: str) -> UsageError:
    place = f"{where}, line {line}" if line else where
    return UsageError(
        found,
        where=place,
        todo="Correct the line; docs/prices.md has an example of each kind of entry",
    )
