"""The page of the changes of a request shows facts, and on demand the text without unchanged parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home
from dashboards.content.edits import (
    MOST_CHARACTERS,
    MOST_EDITS,
    MOST_LINES,
    Line,
    edits,
    text_lines,
)
from tests.dashboards.live_app import Client, attempts, record_weather_agent, serving
from tests.exporters.sample_session import sample_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return record_weather_agent(tmp_path_factory.mktemp("changed"), prompt="canary-prompt")


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


def request(**parts: Any) -> dict[str, Any]:
    usual = {
        "model": "m",
        "max_tokens": 8,
        "system": "Be brief.",
        "messages": [message("user", "one")],
    }
    return {**usual, **parts}


def message(role: str, words: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": words, **more}]}


def marked_lines(lines: tuple[Line, ...] | list[Line]) -> list[str]:
    """Return the lines of the comparison with their signs, and with changes in brackets."""
    signs = {"same": " ", "added": "+", "removed": "-", "omitted": "…"}
    return [
        signs[line.sign]
        + "".join(f"[{p.text}]" if p.is_changed and p.text else p.text for p in line.fragments)
        for line in lines
    ]


def changes_by_part(old: Any, new: Any) -> dict[str, tuple[str, list[tuple[str, str, list[str]]]]]:
    return {
        part.name: (part.summary, [(e.path, e.change, marked_lines(e.lines)) for e in part.edits])
        for part in edits(old, new).parts
    }


@pytest.mark.slow
def test_facts_of_both_requests_are_shown_without_a_click(home: Home, client: Client) -> None:
    """The page shows previous and current counts of messages and bytes, and the changed zones of the prompt."""
    got = client.get(f"/attempts/{attempts(home)[1]}/diff")
    assert "messages 1 3 changed" in got.words
    assert "tools: unchanged" in got.words
    assert "earlier messages: unchanged" in got.words
    assert "canary" not in got.html


@pytest.mark.slow
def test_changed_text_is_shown_on_demand(home: Home, client: Client) -> None:
    """On demand, added text is shown and unchanged text is omitted."""
    words = client.press(f"/attempts/{attempts(home)[1]}/diff/words").words
    assert "Messages: 1 of 1 message unchanged, 2 added" in words
    assert "System: unchanged" in words
    assert "+ Looking." in words
    assert "canary-prompt" not in words
    third = client.press(f"/attempts/{attempts(home)[2]}/diff/words").words
    assert "3 of 3 messages unchanged, 2 added" in third


def test_the_first_request_of_a_lane_is_all_new(home: Home, client: Client) -> None:
    """If there is no previous request in the lane, the page states this, and on demand shows the complete request."""
    first = attempts(home)[0]
    assert "First request of its lane" in client.get(f"/attempts/{first}/diff").words
    words = client.press(f"/attempts/{first}/diff/words").words
    assert "0 of 0 messages unchanged, 1 added" in words
    assert "canary-prompt" in words


@pytest.mark.slow
def test_a_retry_is_compared_with_the_previous_attempt(tmp_path: Path) -> None:
    """The comparison of a retry with the previous attempt shows that each part is unchanged."""
    home = sample_home(tmp_path)
    with serving(home) as client:
        words = client.press(f"/attempts/{attempts(home)[1]}/diff/words").words
    for part in (
        "Options: unchanged",
        "Tools: unchanged",
        "System: unchanged",
        "1 of 1 message unchanged",
    ):
        assert part in words


def test_changes_are_listed_by_part() -> None:
    """Options, tools, system prompt and messages are compared separately; a change has its path and both values."""
    old = request(tools=[{"name": "look", "description": "Looks."}])
    new = request(
        model="n",
        tools=[{"name": "look", "description": "Looks twice."}],
        system="Be very brief.",
        messages=[message("user", "two"), message("assistant", "yes")],
    )
    found = changes_by_part(old, new)
    assert found["options"] == ("1 change", [("$.model", "changed", ["-[m]", "+[n]"])])
    assert found["tools"][1] == [
        ("$.tools[0].description", "changed", ["-Looks.", "+Looks[ twice]."])
    ]
    assert found["system"][1] == [("$.system", "changed", ["-Be brief.", "+Be [very ]brief."])]
    assert found["messages"] == (
        "0 of 1 message unchanged, 1 added, 1 changed",
        [
            ("$.messages[0].content[0].text", "changed", ["-[one]", "+[two]"]),
            ("$.messages[1]", "added", ["+assistant:", "+yes"]),
        ],
    )


def test_cache_breakpoints_are_listed_separately() -> None:
    """A cache breakpoint that moved changes no message; its old and new position are listed."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "Be brief."}]
    old = request(messages=[message("user", "one", **mark)], system=system)
    new = request(
        messages=[message("user", "one"), message("user", "two", **mark)],
        system=[{**system[0], **mark}],
    )
    found = edits(old, new)
    assert (found.breakpoints.before, found.breakpoints.after) == (
        ("messages[0].content[0] (1h)",),
        ("system[0] (1h)", "messages[1].content[0] (1h)"),
    )
    assert changes_by_part(old, new)["system"] == ("unchanged", [])
    assert changes_by_part(old, new)["messages"][0] == "1 of 1 message unchanged, 1 added"


def test_unchanged_lines_are_omitted_except_near_changes() -> None:
    """Two lines before and after each change are shown, and the number of omitted lines."""
    old = "\n".join(f"line {n}" for n in range(20))
    new = old.replace("line 10", "line ten")
    assert marked_lines(text_lines(old, new)) == [
        "…8 unchanged lines",
        " line 8",
        " line 9",
        "-line [10]",
        "+line [ten]",
        " line 11",
        " line 12",
        "…7 unchanged lines",
    ]


def test_reordered_tools_are_reported() -> None:
    """A different order of tools is reported, because it breaks the cache although no tool changed."""
    tools = [{"name": "a"}, {"name": "b"}]
    [(path, change, lines)] = changes_by_part(request(tools=tools), request(tools=tools[::-1]))[
        "tools"
    ][1]
    assert (path, change) == ("$.tools", "reordered")
    assert lines[0] == "…same elements, different order"


def test_changes_in_huge_lines_are_short() -> None:
    """Of a line as long as a book, only the change is shown, with the numbers of characters omitted on both sides."""
    old = "x" * 5_000_000 + "A" + "y" * 5_000_000
    new = old.replace("A", "B")
    [(_, _, lines)] = changes_by_part(request(system=old), request(system=new))["system"][1]
    assert len(lines) == 2
    assert all(len(line) < 3 * MOST_CHARACTERS for line in lines)
    assert "[A]" in lines[0]
    assert "[B]" in lines[1]
    assert lines[0].count("4,999,900 characters") == 2
    [(_, _, lines)] = changes_by_part(request(system=old), request(system="z" * 10_000_000))[
        "system"
    ][1]
    assert [len(line) < 3 * MOST_CHARACTERS for line in lines] == [True, True]


def test_long_lists_of_changes_are_bounded() -> None:
    """Of thousands of changes and lines, a bounded number is listed; the remaining ones are counted."""
    old = request(**{f"option{n}": 1 for n in range(1000)})
    new = request(**{f"option{n}": 2 for n in range(1000)}, system="\n".join(map(str, range(5000))))
    options, _, system, _ = edits(old, new).parts
    assert (len(options.edits), options.more) == (MOST_EDITS, 1000 - MOST_EDITS)
    assert len(system.edits[0].lines) == MOST_LINES
    assert system.edits[0].more > 4000


def test_a_body_that_is_not_json_is_compared_as_text() -> None:
    """A request body that is not JSON is compared as text without an error."""
    assert edits(None, {"messages": "none"}).parts
    assert edits([1, 2], "text").parts
    assert edits({"messages": [1, None, {"role": 2}]}, {"messages": {"a": 1}}).parts
