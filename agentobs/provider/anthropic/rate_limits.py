"""Rate limits: the limits and the remaining amounts in response headers, and the limit that a rejection names.

The provider reports limits per minute of requests and tokens (`...-requests-limit`, `-remaining`, `-reset`), and for
subscriptions the used share of a time window (`...-unified-5h-utilization`).
Sources: platform.claude.com/docs/en/api/rate-limits (2026-11), recorded traffic, and Claude Code 2.1 for the unified
limits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime

from agentobs.records.exchanges import Answer

LIMITS = frozenset(
    {
        "requests", "tokens", "input_tokens", "output_tokens", "priority_input_tokens", "priority_output_tokens",
        "unified", "unified_5h", "unified_7d", "unified_7d_opus", "unified_7d_sonnet", "unified_overage",
    }
)  # fmt: skip
"""The limits that are recorded. Other headers are ignored, because a gateway could put any text into their names."""

_FIELDS = {
    "limit": "limit",
    "remaining": "remaining",
    "reset": "reset_s",
    "utilization": "utilization",
}
"""The last part of a header's name, and the name of the fact."""

_IN_MESSAGE = re.compile(
    r"rate limit of [\d,.]+ (?P<amount>(?:input |output )?tokens|requests) per"
    r"|number of (?P<kind>concurrent connections|(?:input |output )?tokens|requests) has exceeded"
    r"|(?P<concurrent>concurrent connections)",
    re.IGNORECASE,
)
"""How the message of a rejection names the limit (recorded traffic, 2025 to 2026)."""

MESSAGE_CHARACTERS = 2_000
"""How many characters of the message of a rejection are searched. Our choice."""

RATE_LIMITED = 429
"""The HTTP status of a request that exceeds a rate limit."""


def rate_limits(headers: Mapping[str, str], prefix: str) -> dict[str, float]:
    """Return the limits in response headers as `<limit>.<field>`, such as `input_tokens.remaining`.

    The fields are `limit` and `remaining`, in requests or tokens; `reset_s`, when the limit is completely available
    again in seconds since 1970; and `utilization`, the used share of a unified limit from 0 to 1. Invalid values are
    ignored.

    Args:
        headers: the response headers, with names in lower case.
        prefix: the start of the names of headers about limits.
    """
    found: dict[str, float] = {}
    for name, text in headers.items():
        field = name.rpartition("-")[2]
        limit = _limit_of(name, prefix, f"-{field}")
        if limit is not None and field in _FIELDS:
            value = _instant(text) if field == "reset" else _number(text)
            if value is not None:
                found[f"{limit}.{_FIELDS[field]}"] = value
    return found


def limit_hit(answer: Answer, prefix: str) -> str | None:
    """Return the limit because of which a request was rejected; None if it was not rejected, or if that is unknown.

    It is a unified limit that rejects requests, the limit that the error message names, or the only limit of which
    nothing remains. The message takes precedence over the remaining amounts, because a rejected request that is larger
    than the remaining amount does not use it up.
    `concurrent_connections` and `acceleration` are limits without headers. `prefix` is as in `rate_limits`.
    """
    if answer.status != RATE_LIMITED:
        return None
    rejecting = [
        limit
        for name, text in answer.headers.items()
        if text == "rejected" and (limit := _limit_of(name, prefix, "-status")) is not None
    ]
    if rejecting:
        return max(rejecting, key=len)  # `unified_5h` is more specific than `unified`
    if (named := _named(_message(answer.body))) is not None:
        return named
    used_up = [
        name.partition(".")[0]
        for name, value in rate_limits(answer.headers, prefix).items()
        if name.endswith(".remaining") and value <= 0
    ]
    return used_up[0] if len(used_up) == 1 else None


def _limit_of(header: str, prefix: str, ending: str) -> str | None:
    """Return the limit in the name of a header with this ending; None if it is not a known limit."""
    if not (header.startswith(prefix) and header.endswith(ending)):
        return None
    limit = header.removeprefix(prefix).removesuffix(ending).replace("-", "_")
    return limit if limit in LIMITS else None


def _named(message: str) -> str | None:
    """Return the limit that an error message names, or None."""
    if "acceleration limit" in message:
        return "acceleration"
    found = _IN_MESSAGE.search(message)
    if found is None:
        return None
    name = found["amount"] or found["kind"] or found["concurrent"]
    return name.lower().replace(" ", "_")


def _message(body: bytes) -> str:
    """Return the message of an error response; empty if there is none."""
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError):
        return ""
    text = error.get("message") if isinstance(error, dict) else None
    return text[:MESSAGE_CHARACTERS] if isinstance(text, str) else ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _instant(text: str) -> float | None:
    """Return a time in seconds since 1970, from RFC 3339 or from seconds as the unified limits have them."""
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None
