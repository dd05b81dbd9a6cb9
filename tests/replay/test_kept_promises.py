"""Small promises of matching and of faults, each of which a change of one line would break."""

from __future__ import annotations

from pathlib import Path

from replay.comparison.normalizers import Normalizing
from replay.comparison.placeholders import Renaming
from replay.fixture.format import Ask, Fixture
from replay.matching.lane import Lane
from replay.matching.spine import spine_of
from replay.scenario.faults import Faults
from tests.provider_script import streamed, text


def test_the_message_before_is_of_the_spine() -> None:
    """Two requests that go on in a thread are other ones where they go on from other messages."""
    said = [{"role": "user", "content": "Go on."}]
    spines = {
        spine_of({"messages": said, "thread": {"previous_message_id": before}})
        for before in ("msg_1", "msg_2")
    }
    assert len(spines | {spine_of({"messages": said})}) == 3


def test_unequal_counts_of_values_do_not_belong_together() -> None:
    """One that is new beside the recorded ones is a difference, whichever pairs could be made of the rest."""
    one, two = "6f1ed002-ab5f-4c1b-9f4e-0c8f6a1c2d01", "6f1ed002-ab5f-4c1b-9f4e-0c8f6a1c2d02"
    rules = Normalizing(["uuid"])
    assert rules.plain(f"{one}", f"{two}")[2] == [("uuid", one, two)]
    assert rules.plain(f"{one} {one}", f"{two}")[2] is None
    assert not Renaming(normalizing=rules).same(f"{one} {one}", f"{two}")


def ask(number: int, lane: str, after: frozenset[int] | None) -> Ask:
    answer = streamed(text("Hi."), number=number)
    return Ask(number, lane, 1, "POST", "/v1/messages", {}, after, {"body": {}}, answer)


def held(*asks: Ask) -> Fixture:
    return Fixture(Path("recording.jsonl"), {}, list(asks), [])


def test_faults_are_the_main_agents() -> None:
    """A fault waits for a request of the agent itself; one of an agent that it started does not take it."""
    faults = Faults(["529"])
    for name, is_hit in (("main/toolu_1", False), ("main", True)):
        due = ask(1, name, None)
        lane = Lane(held(due), name, Renaming())
        assert (faults.answer(due, lane) is not None) == is_hit


def test_a_request_waits_for_those_it_goes_on_from() -> None:
    """Of requests beside each other the one that goes on from both is due only when both were asked."""
    asks = [
        ask(1, "main", frozenset()),
        ask(2, "main", frozenset()),
        ask(3, "main", frozenset({1, 2})),
    ]
    lane = Lane(held(*asks), "main", Renaming())
    assert [each.number for each in lane.due()] == [1, 2]
