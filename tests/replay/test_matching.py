"""Details of matching and of faults that a change of a single line could break."""

from __future__ import annotations

import json
from pathlib import Path

from agentobs.records.exchanges import Question
from replay.comparison.normalizers import ActiveNormalizers
from replay.comparison.placeholders import Renaming
from replay.fixture.format import Fixture, RecordedRequest
from replay.matching.lane import Lane, Mismatch
from replay.matching.spine import spine_of
from replay.scenario.faults import Faults
from tests.provider_script import streamed, text


def test_the_previous_message_is_part_of_the_spine() -> None:
    """Two requests of a message thread differ if they continue from different messages."""
    messages = [{"role": "user", "content": "Go on."}]
    spines = {
        spine_of({"messages": messages, "thread": {"previous_message_id": before}})
        for before in ("msg_1", "msg_2")
    }
    assert len(spines | {spine_of({"messages": messages})}) == 3


def test_a_different_number_of_values_does_not_match() -> None:
    """Two occurrences of a value do not match a single occurrence."""
    one, two = "6f1ed002-ab5f-4c1b-9f4e-0c8f6a1c2d01", "6f1ed002-ab5f-4c1b-9f4e-0c8f6a1c2d02"
    rules = ActiveNormalizers(["uuid"])
    assert rules.normalized(f"{one}", f"{two}")[2] == [("uuid", one, two)]
    assert rules.normalized(f"{one} {one}", f"{two}")[2] is None
    assert not Renaming(normalizers=rules).matches(f"{one} {one}", f"{two}")


def recorded_request(
    number: int, lane: str, after: frozenset[int] | None, **body: str
) -> RecordedRequest:
    answer = streamed(text("Hi."), number=number)
    return RecordedRequest(
        number, lane, 1, "POST", "/v1/messages", {}, after, {"body": body}, answer
    )


def fixture_of(*requests: RecordedRequest) -> Fixture:
    return Fixture(Path("recording.jsonl"), {}, list(requests), [])


def test_faults_apply_to_the_main_agent() -> None:
    """A request of the main agent triggers a fault, and a request of a sub-agent does not."""
    faults = Faults(["529"])
    for name, is_hit in (("main/toolu_1", False), ("main", True)):
        due = recorded_request(1, name, None)
        lane = Lane(fixture_of(due), name, Renaming())
        assert (faults.response(due, lane) is not None) == is_hit


def test_a_request_is_due_after_all_its_predecessors() -> None:
    """A request that follows two concurrent requests is not due until both are sent."""
    requests = [
        recorded_request(1, "main", frozenset()),
        recorded_request(2, "main", frozenset()),
        recorded_request(3, "main", frozenset({1, 2})),
    ]
    lane = Lane(fixture_of(*requests), "main", Renaming())
    assert [each.number for each in lane.due()] == [1, 2]


def test_a_later_request_is_compared_with_the_most_similar_one_that_is_due() -> None:
    """After the first request of a lane, a report also considers requests that were sent after others had ended."""
    requests = [
        recorded_request(1, "main", frozenset()),
        recorded_request(2, "main", frozenset({1}), model="small"),
        recorded_request(3, "main", frozenset({1}), model="large"),
    ]
    lane = Lane(fixture_of(*requests), "main", Renaming())
    lane.use(requests[0])
    body = json.dumps({"model": "large", "max_tokens": 2}).encode()
    found = lane.match(Question("POST", "/v1/messages", {}, body))
    assert isinstance(found, Mismatch)
    assert found.expected is requests[2]
