"""What two sessions were made with: only what differs is named, and what was not recorded is named as such."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.records.outcome_difference import error_of, outcome_difference
from agentobs.records.setup_difference import NOT_RECORDED, setup_changes, setup_unknown

SETUP: dict[str, Any] = {
    "name": "desk",
    "entry": "shop.agents:run",
    "source": "recorded",
    "sdk_version": "2.12.0",
    "agentobs_version": "0.1.0",
    "python_version": "3.11.7",
    "platform": "linux",
    "repository": "example.com/shop",
    "branch": "main",
    "commit": "63c5f8e2f37b1539afe6c482f92b6605291585f5",
    "dirty": False,
    "directory": None,
    "tags": {"team": "shop"},
}
DIGESTS = f"digest:{'a' * 24}", f"digest:{'b' * 24}"


def changes(**changed: Any) -> list[tuple[str, ...]]:
    """Return the differences between a setup and the same one with changed facts."""
    return [tuple(each) for each in setup_changes({"setup": SETUP}, {"setup": SETUP | changed})]


def test_only_what_differs_is_named() -> None:
    """Equal facts are left out, those that neither session recorded too; commits are as short as elsewhere."""
    assert changes() == []
    assert changes(
        sdk_version="2.13.0",
        branch="fix",
        commit="0123456789abcdef",
        dirty=True,
        tags={"team": "x"},
    ) == [
        ("version of anthropic", "2.12.0", "2.13.0", ""),
        ("git branch", "main", "fix", ""),
        ("git commit", "63c5f8e2f37b", "0123456789ab", ""),
        ("uncommitted changes", "no", "yes", ""),
        ("tag team", "shop", "x", ""),
    ]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"entry": None}, "entry"),
        ({"python_version": None}, "version of Python"),
        ({"branch": None}, "git branch"),
        ({"dirty": None}, "uncommitted changes"),
        ({"tags": {}}, "tag team"),
        ({"tags": None}, "tag team"),
    ],
)
def test_a_missing_value_is_named(changed: dict[str, Any], name: str) -> None:
    """If only one session recorded a fact, the difference states this."""
    [(found, before, now, note)] = changes(**changed)
    assert (found, now, note) == (name, NOT_RECORDED, "")
    assert before != NOT_RECORDED


def test_a_fixture_differs_only_in_facts_that_it_can_have() -> None:
    """A fixture has no branch and no tags, so these are left out."""
    fixture = {"name": "desk", "entry": "shop.agents:run", "sdk_version": "2.13.0"}
    [change] = setup_changes({"setup": SETUP}, {"setup": fixture})
    assert change == ("version of anthropic", "2.12.0", "2.13.0", "")
    assert setup_changes({}, {"setup": SETUP}) == []


def test_facts_that_neither_session_recorded_are_named() -> None:
    """Such facts may differ. The directory is left out, because only imported logs contain it."""
    one = SETUP | {"branch": None, "python_version": None}
    assert setup_unknown({"setup": one}, {"setup": one}) == ["version of Python", "git branch"]
    assert setup_unknown({"setup": one}, {"setup": SETUP}) == []
    assert setup_unknown({}, {"setup": one}) == []


def test_values_that_people_chose_can_be_left_out() -> None:
    """Without values, a difference of branches or tags is named, but the values are not shown."""
    other = SETUP | {"branch": None, "tags": {"team": "canary"}, "platform": "darwin"}
    found = setup_changes({"setup": SETUP}, {"setup": other}, has_values=False)
    assert [each[:3] for each in found] == [
        ("platform", "linux", "darwin"),
        ("git branch", "value omitted", NOT_RECORDED),
        ("tag team", "value omitted", "value omitted"),
    ]


def test_digests_of_different_homes_may_be_equal() -> None:
    """Digests of two homes differ even if the texts are equal; digests of one home differ only if the texts do."""
    one, other = (SETUP | {"branch": digest} for digest in DIGESTS)
    [same_home] = setup_changes({"setup": one}, {"setup": other})
    assert same_home == ("git branch", *DIGESTS, "")
    [foreign] = setup_changes({"setup": one}, {"setup": other | {"from_bundle": True}})
    assert foreign.note == "may be equal: recorded in different homes"


FAILURE: dict[str, Any] = dict.fromkeys(
    ("cause", "reason", "error_class", "step_class", "step_outcome")
)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ({"cause": "result", "reason": "max_turns", "step_class": "TimeoutError"}, "max_turns"),
        ({"cause": "result", "step_class": "TimeoutError"}, "TimeoutError"),
        ({"cause": "exception", "error_class": "KeyError"}, "KeyError"),
        ({"error_class": "ToolError", "step_class": "RateLimitError"}, "RateLimitError"),
        ({"cause": "declared", "reason": "lost", "step_outcome": "invalid"}, "invalid"),
        ({"cause": "crash", "step_outcome": "unfinished"}, None),
        ({"cause": "unknown"}, None),
    ],
)
def test_the_class_of_an_error_is_that_of_the_banner(
    failure: dict[str, Any], error: str | None
) -> None:
    """A limit that ended the session precedes the class of the step's error, which precedes that of the session."""
    assert error_of(FAILURE | failure) == error


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            "max_turns",
            "KeyError",
            "both failed, for different causes: max_turns in A, KeyError in B",
        ),
        ("KeyError", None, "both failed, for different causes: KeyError in A, unknown error in B"),
        ("KeyError", "KeyError", "both failed with KeyError, for different causes"),
        (None, None, "both failed, for different causes"),
    ],
)
def test_different_causes_have_their_classes(a: str | None, b: str | None, words: str) -> None:
    """The difference of two outcomes names the classes of both errors."""
    sides = [
        {"outcome": "failed", "cause": cause, "error_class": error}
        for cause, error in (("in refund", a), ("in pack", b))
    ]
    assert outcome_difference(*sides) == words
