"""Rate limits: the limits and the remaining amounts in response headers, and the limit that a rejection names.

The provider reports limits per minute of requests and tokens (`...-requests-limit`, `-remaining`, `-reset`), separate
ones for fast mode (`anthropic-fast-input-tokens-limit`), and for subscriptions the used share of a time window
(`...-unified-5h-utilization`).
Sources: platform.claude.com/docs/en/api/rate-limits and build-with-claude/fast-mode (2026-11), recorded traffic; for
the unified limits Claude Code 2.1 and headers that users have published (github.com/anthropics/claude-code/issues/12829
and 41506, router-for-me/CLIProxyAPI/issues/5915).
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
        "fast_input_tokens", "fast_output_tokens", "unified", "unified_5h", "unified_7d", "unified_7d_opus",
        "unified_7d_sonnet", "unified_7d_oi", "unified_overage",
    }
)  # fmt: skip
"""The limits that are recorded. Other headers are ignored, because a gateway could put any text into their names."""

FAST = "anthropic-fast-"
"""The start of the names of headers about the limits of fast mode."""

_FIELDS = {
    "limit": "limit",
    "remaining": "remaining",
    "reset": "reset_s",
    "utilization": "utilization",
    "surpassed-threshold": "surpassed_threshold",
    "in-use": "in_use",
}
"""The last part of a header's name, and the name of the fact."""

_CLAIMS = {
    "five_hour": "unified_5h",
    "seven_day": "unified_7d",
    "seven_day_opus": "unified_7d_opus",
    "seven_day_sonnet": "unified_7d_sonnet",
    "seven_day_overage_included": "unified_7d_oi",
    "overage": "unified_overage",
}
"""The limits that the header `...-unified-representative-claim` may name as the decisive one."""
_CLAIM = "unified-representative-claim"
_REJECTED = "rejected"

_IN_MESSAGE = re.compile(
    r"rate limit of [\d,.]+ (?P<amount>(?:input |output )?tokens|requests) per"
    r"|number of (?P<kind>concurrent connections|(?:input |output )?tokens|requests) has exceeded"
    r"|(?P<concurrent>concurrent connections)",
    re.IGNORECASE,
)
"""How the message of a rejection names the limit (recorded traffic, 2025 to 2026)."""

MESSAGE_CHARACTERS = 2_000
"""The maximum number of characters of the message of a rejection that are searched. Our choice."""

RATE_LIMITED = 429
"""The HTTP status of a request that exceeds a rate limit."""


def rate_limits(headers: Mapping[str, str], prefix: str) -> dict[str, float]:
    """Return the limits in response headers as `<limit>.<field>`, such as `input_tokens.remaining`.

    The fields are `limit` and `remaining`, in requests or tokens; `reset_s`, when the limit is completely available
    again in seconds since 1970; `utilization`, the used share of a unified limit, more than 1 if it is exceeded;
    `surpassed_threshold`, a share that is exceeded and about which the provider warns; and `in_use`, 1 if the extra
    usage of a subscription is charged, else 0. Invalid values are ignored.

    Args:
        headers: the response headers, with names in lower case.
        prefix: the start of the names of headers about limits.
    """
    found: dict[str, float] = {}
    for name, text in headers.items():
        for ending, field in _FIELDS.items():
            limit = _limit_of(name, prefix, f"-{ending}")
            value = _value(field, text) if limit is not None else None
            if value is not None:
                found[f"{limit}.{field}"] = value
    return found


def limit_hit(answer: Answer, prefix: str) -> str | None:
    """Return the limit that caused the rejection of a request; None if it was not rejected, or if the limit is unknown.

    It is the limit of a subscription that rejects requests, the limit that the error message names, or the only
    exhausted limit. The message takes precedence over the remaining amounts, because a rejected request may be larger
    than the remaining amount. `concurrent_connections` and `acceleration` are limits without headers. `prefix` is as in
    `rate_limits`.
    """
    if answer.status != RATE_LIMITED:
        return None
    if (rejecting := _rejecting(answer.headers, prefix)) is not None:
        return rejecting
    if (named := _named(_message(answer.body))) is not None:
        return named
    used_up = [
        name.partition(".")[0]
        for name, value in rate_limits(answer.headers, prefix).items()
        if name.endswith(".remaining") and value <= 0
    ]
    return used_up[0] if len(used_up) == 1 else None


def _rejecting(headers: Mapping[str, str], prefix: str) -> str | None:
    """Return the limit of a subscription that rejects requests; None if it is another limit.

    The provider names the decisive window. The status of extra usage is also `rejected` if it is switched off, so it
    does not explain a rejection by itself.
    """
    statuses = {
        limit: text
        for name, text in headers.items()
        if (limit := _limit_of(name, prefix, "-status")) is not None
    }
    if statuses.get("unified", _REJECTED) != _REJECTED:
        return None
    rejecting = [limit for limit, text in statuses.items() if text == _REJECTED]
    windows = [limit for limit in rejecting if limit not in ("unified", "unified_overage")]
    claimed = _CLAIMS.get(headers.get(f"{prefix}{_CLAIM}", ""))
    if claimed is not None and (claimed in rejecting or (rejecting and not windows)):
        return claimed
    if windows:
        return max(windows, key=len)  # `unified_7d_opus` is more specific than `unified_7d`
    return "unified" if "unified" in rejecting else None


def _limit_of(header: str, prefix: str, ending: str) -> str | None:
    """Return the limit in the name of a header with this ending; None if it is not a known limit."""
    if not header.endswith(ending):
        return None
    if header.startswith(FAST):
        named = f"fast-{header.removeprefix(FAST)}"
    elif header.startswith(prefix):
        named = header.removeprefix(prefix)
    else:
        return None
    limit = named.removesuffix(ending).replace("-", "_")
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
    except (ValueError, AttributeError, RecursionError):
        return ""
    text = error.get("message") if isinstance(error, dict) else None
    return text[:MESSAGE_CHARACTERS] if isinstance(text, str) else ""


def _value(field: str, text: str) -> float | None:
    if field == "reset_s":
        return _instant(text)
    return _SWITCH.get(text) if field == "in_use" else _number(text)


_SWITCH = {"true": 1.0, "false": 0.0}

INSTANT_MAX = 2**63 / 1e9
"""Times from here on, in the year 2262, are invalid: the store has nanoseconds in 64 bits."""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _instant(text: str) -> float | None:
    """Return a time in seconds since 1970, from RFC 3339 or from seconds as the unified limits have them."""
    if (seconds := _number(text)) is not None:
        return seconds if seconds < INSTANT_MAX else None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None
