"""The display names of lanes."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentobs.store.analysis.lane_names import lane_names, name_of_lane, names_of_rows, with_agents


def test_a_type_is_a_name_and_several_of_one_type_are_numbered_in_order() -> None:
    names = lane_names(
        [
            ("main", "chat"),
            ("main/toolu_b", "Explore"),
            ("main/toolu_a", "Explore"),
            ("main/toolu_c", "reviewer"),
        ]
    )
    assert names == {
        "main": "main",
        "main/toolu_b": "Explore 1",
        "main/toolu_a": "Explore 2",
        "main/toolu_c": "reviewer",
    }


def test_an_unknown_type_is_always_numbered() -> None:
    digest = "digest:" + "0" * 24
    lanes = [("main", None), ("main/x", None), ("main/x/y", digest), ("main/z", " ")]
    assert list(lane_names(lanes).values()) == ["main", "agent 1", "agent 2", "agent 3"]


def test_names_are_unique_whatever_the_types_are() -> None:
    types = ["a 1", "a", "a", "main", "agent", "agent 1", "a 1", "x" * 30, "x" * 40, None]
    lanes = [("main", None), *((f"main/{number}", each) for number, each in enumerate(types))]
    names = list(lane_names(lanes).values())
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 23


def test_a_lane_of_auxiliary_requests_has_their_purpose() -> None:
    lanes = [
        ("main", None),
        ("main/compaction:1", None),
        ("main/hook:a", None),
        ("main/hook:b", None),
    ]
    assert list(lane_names(lanes).values()) == ["main", "compaction", "hook 1", "hook 2"]


def test_the_first_known_type_of_a_lane_counts() -> None:
    assert lane_names([("main/a", None), ("main/a", "x"), ("main/a", "y")]) == {"main/a": "x"}


def test_a_lane_has_the_same_name_under_its_digest_and_its_text() -> None:
    digest = "digest:" + "0" * 24
    rows: list[dict[str, Any]] = [
        {"lane": f"main/{digest}", "agent_type": None},
        {"lane": "main/call 7", "agent_type": "Explore"},
    ]

    def restored(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "lane": each["lane"].replace(digest, "call 7")} for each in given]

    assert names_of_rows(rows, restored) == {f"main/{digest}": "Explore", "main/call 7": "Explore"}


def test_rows_have_the_names_of_their_lanes() -> None:
    names = lane_names([("main", None), ("main/toolu_0123456789", "Explore")])
    rows: list[dict[str, Any]] = [
        {"lane": "main/toolu_0123456789", "step_lane": "main"},
        {"lane": None},
        {"turn": 1},
    ]
    assert with_agents(rows, names) == [
        {**rows[0], "agent": "Explore", "step_agent": "main"},
        {"lane": None},
        {"turn": 1},
    ]
    assert name_of_lane("main/toolu_9876543210", names) == "agent …543210"
