"""Rate limits in response headers, and the limit that a rejection names; checked with recorded traffic."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from agentobs.provider.anthropic.rate_limits import LIMITS, limit_hit, rate_limits
from agentobs.provider.registry import recorded_response_headers
from agentobs.records.exchanges import Answer, Chunk
from tests.wire import corpus

NEEDS_WIRE = pytest.mark.skipif(
    not (corpus.folder() / "manifest.json").is_file(), reason=corpus.HINT.format(corpus.folder())
)
PREFIX = "anthropic-ratelimit-"
MESSAGE = (
    "This request would exceed your organization's rate limit of 450,000 {} per minute (org: 1)."
)


def rejected(message: str = "", status: int = 429, **headers: str) -> Answer:
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": message}}
    named = {f"{PREFIX}{name.replace('__', '-')}": value for name, value in headers.items()}
    return Answer(status, named, (Chunk(json.dumps(body).encode(), 1),), "complete")


def test_limits_are_read_from_headers() -> None:
    """Each known limit has its amount, the remaining amount, its reset and its utilization; anything else is
    ignored.
    """
    headers = {
        "content-type": "application/json",
        f"{PREFIX}requests-limit": "4000",
        f"{PREFIX}requests-remaining": "3999",
        f"{PREFIX}requests-reset": "2026-05-06T23:51:27Z",
        f"{PREFIX}input-tokens-remaining": "0",
        f"{PREFIX}unified-5h-utilization": "0.25",
        f"{PREFIX}unified-5h-reset": "1790000000",
        f"{PREFIX}unified-5h-status": "allowed",
        f"{PREFIX}unified-representative-claim": "five_hour",
        f"{PREFIX}customer-anna-remaining": "7",
        f"{PREFIX}tokens-limit": "many",
        f"{PREFIX}tokens-remaining": "nan",
        f"{PREFIX}tokens-reset": "soon",
        f"{PREFIX}output-tokens-reset": "2026-05-06T23:51:27",
    }
    assert rate_limits(headers, PREFIX) == {
        "requests.limit": 4000.0,
        "requests.remaining": 3999.0,
        "requests.reset_s": datetime.fromisoformat("2026-05-06T23:51:27+00:00").timestamp(),
        "input_tokens.remaining": 0.0,
        "unified_5h.utilization": 0.25,
        "unified_5h.reset_s": 1790000000.0,
    }


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (rejected(MESSAGE.format("input tokens")), "input_tokens"),
        (rejected(MESSAGE.format("output tokens")), "output_tokens"),
        (rejected(MESSAGE.format("requests")), "requests"),
        (rejected("Number of requests has exceeded your per-minute rate limit"), "requests"),
        (rejected("Number of concurrent connections has exceeded your rate limit"), "concurrent_connections"),
        (rejected("This request would exceed the acceleration limit"), "acceleration"),
        (rejected("Error", requests__remaining="0", tokens__remaining="5"), "requests"),
        (rejected("Error", requests__remaining="0", tokens__remaining="0"), None),
        (rejected("Error"), None),
        (rejected("Error", unified__status="rejected", unified__5h__status="rejected"), "unified_5h"),
        (rejected(MESSAGE.format("input tokens"), requests__remaining="0"), "input_tokens"),
        (rejected(MESSAGE.format("input tokens"), status=400), None),
        (Answer(429, {}, (Chunk(b"not JSON", 1),), "complete"), None),
        (Answer(429, {}, (Chunk(b"[1]", 1),), "complete"), None),
        (Answer(429, {}, (Chunk(b"[" * 100_000, 1),), "complete"), None),
    ],
)  # fmt: skip
def test_a_rejection_names_its_limit(answer: Answer, expected: str | None) -> None:
    """The limit is the rejecting subscription's, the one in the message, or the only exhausted one."""
    assert limit_hit(answer, PREFIX) == expected


PUBLISHED = {
    "unified-5h-status": "allowed",
    "unified-5h-reset": "1785711600",
    "unified-5h-utilization": "0.0",
    "unified-7d-status": "allowed_warning",
    "unified-7d-reset": "2026-08-03T06:00:00Z",
    "unified-7d-surpassed-threshold": "0.75",
    "unified-7d-utilization": "0.94",
    "unified-7d_oi-reset": "1785736800",
    "unified-7d_oi-status": "rejected",
    "unified-7d_oi-surpassed-threshold": "1.0",
    "unified-7d_oi-utilization": "1.02",
    "unified-fallback-percentage": "0.5",
    "unified-overage-disabled-reason": "org_level_disabled",
    "unified-overage-in-use": "false",
    "unified-overage-status": "rejected",
    "unified-representative-claim": "seven_day_overage_included",
    "unified-reset": "1785736800",
    "unified-status": "rejected",
}
"""The headers of a rejection that a user of a subscription has published (2026)."""


def of_subscription(**changed: str | None) -> Answer:
    """Return a response with the published headers; keys have `__` for `-`, and None removes a header."""
    headers = dict(PUBLISHED)
    for name, value in changed.items():
        if value is None:
            del headers[name.replace("__", "-")]
        else:
            headers[name.replace("__", "-")] = value
    named = {f"{PREFIX}{name}": value for name, value in headers.items()}
    return Answer(429, named, (Chunk(b"{}", 1),), "complete")


def test_limits_of_a_subscription_are_read_from_headers() -> None:
    """Each window has its used share, its reset and the threshold that it exceeds."""
    assert rate_limits(of_subscription().headers, PREFIX) == {
        "unified.reset_s": 1785736800.0,
        "unified_5h.reset_s": 1785711600.0,
        "unified_5h.utilization": 0.0,
        "unified_7d.reset_s": 1785736800.0,
        "unified_7d.surpassed_threshold": 0.75,
        "unified_7d.utilization": 0.94,
        "unified_7d_oi.reset_s": 1785736800.0,
        "unified_7d_oi.surpassed_threshold": 1.0,
        "unified_7d_oi.utilization": 1.02,
        "unified_overage.in_use": 0.0,
    }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "unified_7d_oi"),
        ({"unified__representative__claim": None}, "unified_7d_oi"),
        ({"unified__representative__claim": "another"}, "unified_7d_oi"),
        ({"unified__5h__status": "rejected", "unified__representative__claim": "five_hour"}, "unified_5h"),
        ({"unified__7d_oi__status": None, "unified__representative__claim": "seven_day"}, "unified_7d"),
        ({"unified__7d_oi__status": None, "unified__representative__claim": "overage"}, "unified_overage"),
        ({"unified__7d_oi__status": None, "unified__representative__claim": None}, "unified"),
        ({"unified__status": "allowed", "unified__7d_oi__status": "allowed"}, None),
        ({"unified__status": None, "unified__7d_oi__status": None, "unified__representative__claim": None}, None),
    ],
)  # fmt: skip
def test_a_rejection_of_a_subscription_names_its_window(
    changed: dict[str, str | None], expected: str | None
) -> None:
    """The limit is the decisive window; extra usage that is switched off is not the reason."""
    assert limit_hit(of_subscription(**changed), PREFIX) == expected


def test_limits_of_fast_mode_are_read_from_headers() -> None:
    """Fast mode has its own limits, whose headers have another name."""
    headers = {
        "anthropic-fast-input-tokens-limit": "200000",
        "anthropic-fast-input-tokens-remaining": "1000",
        "anthropic-fast-output-tokens-reset": "1785736800",
        "anthropic-fast-lane-remaining": "5",
    }
    assert rate_limits(headers, PREFIX) == {
        "fast_input_tokens.limit": 200_000.0,
        "fast_input_tokens.remaining": 1000.0,
        "fast_output_tokens.reset_s": 1785736800.0,
    }
    assert recorded_response_headers(headers) == headers
    assert "fast_input_tokens" in LIMITS


def test_a_reset_that_the_store_cannot_represent_is_ignored() -> None:
    """A gateway may send any number; the store has nanoseconds in 64 bits."""
    values = {"9223372036": 9223372036.0, "9223372037": None, "1e300": None}
    for text, seconds in values.items():
        found = rate_limits({f"{PREFIX}tokens-reset": text}, PREFIX)
        assert found.get("tokens.reset_s") == seconds


def exchanges() -> list[corpus.Exchange]:
    return [each for name in corpus.files() for each in corpus.read(name).exchanges]


@NEEDS_WIRE
def test_all_limits_in_recorded_traffic_are_read() -> None:
    """Every header of a limit in the recorded traffic is a fact with the same value; all rejections name a limit."""
    seen: Counter[str] = Counter()
    hits = []
    for exchange in exchanges():
        headers = {name.lower(): value for name, value in exchange.headers.items()}
        expected: dict[str, Any] = {}
        for name, value in headers.items():
            if name.startswith(PREFIX):
                limit, _, field = name.removeprefix(PREFIX).rpartition("-")
                key = f"{limit.replace('-', '_')}.{'reset_s' if field == 'reset' else field}"
                is_time = field == "reset"
                moment = value.replace("Z", "+00:00")
                expected[key] = (
                    datetime.fromisoformat(moment).timestamp() if is_time else float(value)
                )
        assert rate_limits(headers, PREFIX) == expected
        seen.update(key.partition(".")[0] for key in expected)
        if exchange.status == 429:
            body = (Chunk(exchange.text.encode(), 1),)
            hits.append(limit_hit(Answer(429, headers, body, "complete"), PREFIX))
    assert set(seen) == {"requests", "tokens", "input_tokens", "output_tokens"}
    assert set(seen) <= LIMITS
    assert seen["requests"] > 300
    assert hits == ["input_tokens"] * 8
