"""The main arguments of tool calls: which one identifies a call, and that only a click shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboards.app.call_arguments import LENGTH, main_argument, shown_argument
from tests.dashboards.live_app import only_session, serving
from tests.store.recordings import a_home, attempt, end, record, start
from tests.store.wire_conversations import WireConversation


def test_the_main_argument_identifies_a_call() -> None:
    """The command, the path or the pattern is preferred to other arguments; lines are joined, and no input is empty."""
    assert main_argument({"description": "Run tests", "command": "pytest\n -q"}) == "pytest -q"
    assert main_argument({"limit": 3, "path": "a.py"}) == "a.py"
    assert main_argument({"enabled": True, "city": "Bern"}) == "Bern"
    assert main_argument({"order": 7}) == "7"
    for nothing in ({}, {"list": [1]}, None, "text", {"command": "  "}):
        assert main_argument(nothing) == ""


def test_shown_arguments_are_short_and_visible() -> None:
    """A long argument is cut, and invisible characters are escapes."""
    assert len(shown_argument("x" * 500)) == LENGTH
    assert shown_argument("cd /srv/shop && git log") == "git log"
    assert shown_argument("cd /srv/shop") == "cd /srv/shop"
    assert shown_argument("a\u202eb") == "a\\u202eb"


@pytest.mark.slow
def test_arguments_are_only_sent_for_a_post(tmp_path: Path) -> None:
    """A GET, as from a link, is redirected, and invalid numbers have no arguments."""
    home = a_home(tmp_path)
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "<i>Bern"}}
    record(home, [start(1), attempt(1, 1, content=[call]), end(1)])
    with serving(home) as client:
        page = f"/sessions/{only_session(home)}"
        assert client.get(f"{page}/arguments?numbers=1,2,3").status == 303
        assert client.get(f"{page}/matches?find=bern").status == 303
        shown = client.press(f"{page}/arguments", numbers="1,2,3,99,-1,x")
        assert shown.headers["content-type"].startswith("application/json")
        assert "<i>Bern" in shown.body.decode()
        found = client.press(f"{page}/matches", find="bern")
        assert "1 step matches" in found.words
        assert "Bern" not in found.words
        assert "0 steps match" in client.get(f"{page}/tree?find=bern").words


@pytest.mark.slow
def test_interactions_have_numbers_and_after_a_click_their_prompts(tmp_path: Path) -> None:
    """The tree and the path of a step name an interaction by its number; only a POST sends the start of its prompt."""
    talk = WireConversation()
    talk.messages[0]["content"] = "Where is my parcel?"
    talk.says("On its way.")
    talk.prompt("When does it arrive? " + "Tell me more. " * 9)
    [call] = talk.calls(("track", {"parcel": 7}))
    talk.result(call)
    talk.says("Tomorrow.")
    home = a_home(tmp_path)
    record(home, talk.whole())
    with serving(home) as client:
        page = f"/sessions/{only_session(home)}"
        got = client.get(page)
        assert "interaction 1 " in got.words
        assert "interaction 2 " in got.words
        assert "Where is" not in client.get(f"{page}/tree").words
        found = client.get(f"{page}/tree?find=interaction+2")
        assert found.words.count("interaction 2 ") == 1
        numbers = [
            values["data-number"]
            for _, values in client.get(f"{page}/tree").tags
            if "interaction" in (values.get("class") or "").split()
        ]
        shown = client.press(f"{page}/arguments", numbers=",".join(map(str, numbers)))
        texts = list(json.loads(shown.body).values())
        assert texts[0] == "Where is my parcel?"
        assert texts[1].startswith("When does it arrive? Tell me more.")
        assert len(texts[1]) == LENGTH
        found = client.press(f"{page}/matches", find="where is my")
        assert "1 step matches" in found.words
        assert "interaction 1 " in found.words
