"""Values that a client or a file chooses freely: they never cause an error."""

from __future__ import annotations

import pytest

from agentobs.provider.anthropic.composition import sdk_events
from agentobs.provider.registry import dialect_of


@pytest.mark.parametrize(
    ("value", "expected"), [("0", 0), ("3", 3), ("x", 1), ("", 1), ("²", 1), ("9" * 5000, 1)]
)
def test_the_number_of_a_retry(value: str, expected: int) -> None:
    """A header that is not a number that a client counts to is a retry."""
    headers = {"x-stainless-retry-count": value}
    assert dialect_of("/v1/messages").retry_number(headers) == expected


def test_events_without_a_type_are_left_out() -> None:
    """Only events whose type is known are part of the stream, whatever the type of the others is."""
    events = [{"type": {}}, {"type": ["ping"]}, {}, "ping", {"type": "ping"}]
    assert sdk_events(events) == b'event: ping\ndata: {"type":"ping"}\n\n'
