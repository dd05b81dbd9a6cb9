"""The requests of a fixture that got no response, counted as those of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from agentobs.cli.replay.fixture_requests import (
    failed_requests_of_fixture,
    turns_of_fixture,
)


def test_a_request_failed_if_all_its_attempts_did() -> None:
    """The attempts of a turn are one request. A canceled request did not fail, and one outside of turns counts."""
    attempts = [
        ("main", 1, "complete", "529"),
        ("main", 1, "complete", "ok"),
        ("main", 2, "complete", "529"),
        ("main", 2, "cut", "ok"),
        ("main", 3, "cancelled", "ok"),
        ("main", None, "complete", "429"),
        ("main", None, "complete", "ok"),
    ]
    requests = [
        SimpleNamespace(lane=lane, turn=turn, number=number, answer=SimpleNamespace(ending=ending))
        for number, (lane, turn, ending, _) in enumerate(attempts, 1)
    ]
    parts = [SimpleNamespace(kind="request", outcome=outcome) for *_, outcome in attempts]
    fixture = cast(Any, SimpleNamespace(requests=requests))
    assert failed_requests_of_fixture(fixture, cast(Any, parts)) == 2
    assert turns_of_fixture(fixture, cast(Any, parts))[0] == 1
