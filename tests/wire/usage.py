"""The expected usage rows of a response, and the query that returns the rows of the store in the same order."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.wire.corpus import Exchange

ROWS = """
    SELECT session_id, iteration, billed, usage.model, input_tokens, output_tokens, reasoning_tokens, cache_read_tokens,
        cache_write_5m_tokens, cache_write_1h_tokens, web_search_requests, service_tier,
        regexp_replace(inference_geo, '^digest:[0-9a-f]{24}$', 'digest'), certainty
    FROM usage JOIN attempts USING (session_id, attempt_id) ORDER BY started_ns, iteration
"""
"""Returns the usage rows of all sessions, each in the order of `usage_rows`."""


def usage_rows(exchange: Exchange) -> list[tuple[Any, ...]]:
    """Return the expected usage rows of a response: first the total, then its iterations, each with the last reported
    counts.
    """
    if exchange.path.partition("?")[0].endswith("/results"):
        results = [json.loads(line)["result"] for line in exchange.text.splitlines()]
        return [
            row for result in results if "message" in result for row in _rows(result["message"])
        ]
    if exchange.path.partition("?")[0] == "/v1/complete" and exchange.status == 200:
        # The legacy endpoint does not report usage, so zeros are recorded as a lower bound.
        return [
            (0, True, exchange.body["model"], 0, 0, None, 0, 0, 0, 0, None, None, "lower_bound")
        ]
    return [] if exchange.message is None else _rows(exchange.message)


def _rows(message: dict[str, Any]) -> list[tuple[Any, ...]]:
    usage = message["usage"]
    iterations = usage.get("iterations") or []
    rows = [_row(0, not iterations, message["model"], usage, usage)]
    for number, entry in enumerate(iterations, 1):
        rows.append(_row(number, True, entry.get("model", message["model"]), entry, usage))
    return rows


def _row(
    number: int, billed: bool, model: str, counts: dict[str, Any], usage: dict[str, Any]
) -> tuple[Any, ...]:
    written = counts.get("cache_creation_input_tokens") or 0
    split = counts.get("cache_creation") or {"ephemeral_5m_input_tokens": written}
    searches = (usage.get("server_tool_use") or {}).get("web_search_requests") or 0
    return (
        number,
        billed,
        model,
        counts["input_tokens"],
        counts["output_tokens"],
        (counts.get("output_tokens_details") or {}).get("thinking_tokens"),
        counts.get("cache_read_input_tokens") or 0,
        split["ephemeral_5m_input_tokens"],
        split.get("ephemeral_1h_input_tokens", 0),
        searches if number < 2 else 0,
        usage.get("service_tier"),
        _label(usage.get("inference_geo")),
        "exact",
    )


def _label(text: str | None) -> str | None:
    """Return a name as it appears in facts: `digest` if it is not a label (a placeholder of the source)."""
    return "digest" if text is not None and not re.fullmatch(r"[\w.:/@-]{1,128}", text) else text
