"""What a request changed: by facts on the page, word by word on a click, and nothing that is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home
from dashboards.app.edits import LINE, MOST_EDITS, MOST_LINES, Line, edits, text_lines
from tests.dashboards.opening import Client, attempts, opened, weather
from tests.exporters.making_rich import rich_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return weather(tmp_path_factory.mktemp("changed"), prompt="canary-prompt")


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with opened(home) as made:
        yield made


def request(**parts: Any) -> dict[str, Any]:
    usual = {
        "model": "m",
        "max_tokens": 8,
        "system": "Be brief.",
        "messages": [said("user", "one")],
    }
    return {**usual, **parts}


def said(role: str, words: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": words, **more}]}


def plain(lines: tuple[Line, ...] | list[Line]) -> list[str]:
    """Return lines with their signs, and what is marked in brackets."""
    signs = {"same": " ", "added": "+", "removed": "-", "left": "…"}
    return [
        signs[line.sign]
        + "".join(f"[{p.text}]" if p.is_changed and p.text else p.text for p in line.pieces)
        for line in lines
    ]


def told(old: Any, new: Any) -> dict[str, tuple[str, list[tuple[str, str, list[str]]]]]:
    return {
        part.name: (part.says, [(e.path, e.change, plain(e.lines)) for e in part.edits])
        for part in edits(old, new).parts
    }


def test_facts_of_both_stand_on_the_page_without_a_click(home: Home, client: Client) -> None:
    """Messages and bytes before and now, and which zones of the prompt changed, from their digests."""
    got = client.get(f"/attempts/{attempts(home)[1]}/diff")
    assert "messages 1 3 changed" in got.words
    assert "tools: unchanged" in got.words
    assert "earlier messages: unchanged" in got.words
    assert "canary" not in got.html


def test_the_words_come_on_a_click(home: Home, client: Client) -> None:
    """What was added is shown, what is the same is left out."""
    words = client.press(f"/attempts/{attempts(home)[1]}/diff/words").words
    assert "Messages: 1 of 1 message unchanged, 2 added" in words
    assert "System: unchanged" in words
    assert "+ Looking." in words
    assert "canary-prompt" not in words
    third = client.press(f"/attempts/{attempts(home)[2]}/diff/words").words
    assert "3 of 3 messages unchanged, 2 added" in third


def test_of_the_first_request_of_a_lane_all_is_new(home: Home, client: Client) -> None:
    """There is nothing before it: the page says so, and a click shows all of it."""
    first = attempts(home)[0]
    assert "First request of its lane" in client.get(f"/attempts/{first}/diff").words
    words = client.press(f"/attempts/{first}/diff/words").words
    assert "0 of 0 messages unchanged, 1 added" in words
    assert "canary-prompt" in words


def test_a_retry_is_compared_with_the_try_before_it(tmp_path: Path) -> None:
    """It changes nothing, and each part says so."""
    home = rich_home(tmp_path)
    with opened(home) as client:
        words = client.press(f"/attempts/{attempts(home)[1]}/diff/words").words
    for part in (
        "Options: unchanged",
        "Tools: unchanged",
        "System: unchanged",
        "1 of 1 message unchanged",
    ):
        assert part in words


def test_each_part_tells_its_own_changes() -> None:
    """Options, tools, system prompt and messages; a place that changed is named, with both its values."""
    old = request(tools=[{"name": "look", "description": "Looks."}])
    new = request(
        model="n",
        tools=[{"name": "look", "description": "Looks twice."}],
        system="Be very brief.",
        messages=[said("user", "two"), said("assistant", "yes")],
    )
    found = told(old, new)
    assert found["options"] == ("1 place changed", [("$.model", "changed", ["-[m]", "+[n]"])])
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


def test_marks_of_the_cache_are_told_apart() -> None:
    """A mark that moves changes no message; where marks stood and stand is listed."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "Be brief."}]
    old = request(messages=[said("user", "one", **mark)], system=system)
    new = request(
        messages=[said("user", "one"), said("user", "two", **mark)], system=[{**system[0], **mark}]
    )
    found = edits(old, new)
    assert (found.marks.before, found.marks.after) == (
        ("messages[0].content[0] (1h)",),
        ("system[0] (1h)", "messages[1].content[0] (1h)"),
    )
    assert told(old, new)["system"] == ("unchanged", [])
    assert told(old, new)["messages"][0] == "1 of 1 message unchanged, 1 added"


def test_equal_lines_are_left_out_but_for_those_around() -> None:
    """Two lines before and behind a change stay, and how many are left out is said."""
    old = "\n".join(f"line {n}" for n in range(20))
    new = old.replace("line 10", "line ten")
    assert plain(text_lines(old, new)) == [
        "…8 equal lines",
        " line 8",
        " line 9",
        "-line [10]",
        "+line [ten]",
        " line 11",
        " line 12",
        "…7 equal lines",
    ]


def test_tools_in_another_order_are_said_to_be() -> None:
    """Their order breaks the cache, though none of them changed."""
    tools = [{"name": "a"}, {"name": "b"}]
    [(path, change, lines)] = told(request(tools=tools), request(tools=tools[::-1]))["tools"][1]
    assert (path, change) == ("$.tools", "reordered")
    assert lines[0] == "…same elements, different order"


def test_ten_million_letters_are_compared_in_little_room() -> None:
    """Of a line that is as long as a book only what differs is shown, with how much is left out on both sides."""
    old = "x" * 5_000_000 + "A" + "y" * 5_000_000
    new = old.replace("A", "B")
    [(_, _, lines)] = told(request(system=old), request(system=new))["system"][1]
    assert len(lines) == 2
    assert all(len(line) < 3 * LINE for line in lines)
    assert "[A]" in lines[0]
    assert "[B]" in lines[1]
    assert lines[0].count("4,999,900 characters") == 2
    [(_, _, lines)] = told(request(system=old), request(system="z" * 10_000_000))["system"][1]
    assert [len(line) < 3 * LINE for line in lines] == [True, True]


def test_what_is_shown_is_bounded_and_says_what_is_not() -> None:
    """Thousands of changes and lines are counted, not listed."""
    old = request(**{f"option{n}": 1 for n in range(1000)})
    new = request(**{f"option{n}": 2 for n in range(1000)}, system="\n".join(map(str, range(5000))))
    options, _, system, _ = edits(old, new).parts
    assert (len(options.edits), options.more) == (MOST_EDITS, 1000 - MOST_EDITS)
    assert len(system.edits[0].lines) == MOST_LINES
    assert system.edits[0].more > 4000


def test_a_body_that_is_no_json_is_compared_as_text() -> None:
    """Nothing is raised, whatever a client sent."""
    assert edits(None, {"messages": "none"}).parts
    assert edits([1, 2], "text").parts
    assert edits({"messages": [1, None, {"role": 2}]}, {"messages": {"a": 1}}).parts
