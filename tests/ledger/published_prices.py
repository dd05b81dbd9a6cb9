"""Compute the cost of calls from published prices, in fractions of dollars and without code of the ledger."""

from __future__ import annotations

import datetime as dt
import functools
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

PARTS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "server_tools")
WEB_SEARCH = Fraction(10, 1000)
"""USD for one search: https://platform.claude.com/docs/en/about-claude/pricing, 2026-08."""
BATCH = Fraction(1, 2)
"""https://platform.claude.com/docs/en/build-with-claude/batch-processing, 2026-08."""
IN_THE_US = Fraction(11, 10)
"""https://platform.claude.com/docs/en/manage-claude/data-residency, 2026-08."""


@functools.cache
def table() -> dict[str, list[dict[str, Any]]]:
    """Return the published unit prices, by model."""
    return tomllib.loads(Path(__file__).with_name("expected.toml").read_text())


def parts(
    model: str, usage: dict[str, Any], whole: dict[str, Any], day: dt.date, *, first: bool = True
) -> dict[str, Fraction]:
    """Return the cost of one usage row, by part.

    Args:
        model: the model of the row.
        usage: the counts of the row, which is an iteration or a response without iterations.
        whole: the usage object of the response.
        day: the day of the request.
        first: whether to include the requests of server tools.
    """
    split = usage.get("cache_creation")
    written = usage.get("cache_creation_input_tokens") or 0
    five, hour = written, 0
    if split:
        five, hour = split["ephemeral_5m_input_tokens"], split["ephemeral_1h_input_tokens"]
        rest = written - five - hour  # the last counts of a stream may only contain the total
        five, hour = (five, hour + rest) if hour and not five else (five + rest, hour)
    read = usage.get("cache_read_input_tokens") or 0
    counts = (usage["input_tokens"], usage["output_tokens"], read, five, hour)
    prompt = counts[0] + read + five + hour
    times = Fraction(1, 1_000_000)
    if whole.get("service_tier") == "batch":
        times *= BATCH
    if whole.get("inference_geo") == "us":
        times *= IN_THE_US
    prices = _prices(model, prompt, whole.get("speed") or "standard", day)
    money = [count * price * times for count, price in zip(counts, prices, strict=True)]
    searches = (
        ((whole.get("server_tool_use") or {}).get("web_search_requests") or 0) if first else 0
    )
    return dict(zip(PARTS, (*money, searches * WEB_SEARCH), strict=True))


def _prices(model: str, prompt: int, speed: str, day: dt.date) -> list[Fraction]:
    """Return the prices of the last entry that applies."""
    applicable = [
        entry
        for entry in table()[model]
        if prompt > entry.get("prompt_tokens_above", -1)
        and entry.get("speed", "standard") == speed
        and day < entry.get("until", dt.date.max)
    ]
    return [Fraction(price) for price in applicable[-1]["usd"]]


def rows(message: dict[str, Any], day: dt.date) -> list[dict[str, Fraction]]:
    """Return the cost of a response: one entry per iteration, or one entry if there are no iterations."""
    usage, model = message["usage"], message["model"]
    iterations = usage.get("iterations") or [usage]
    return [
        parts(entry.get("model") or model, entry, usage, day, first=number == 0)
        for number, entry in enumerate(iterations)
    ]
