"""The content of a step: messages, a call with its result, and the text of an error, each only after a click."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agentobs.determinism.values import error_to_json
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import ToolAnswer
from agentobs.records.labels import DIGEST
from dashboards.content.message_view import earlier_messages
from dashboards.content.visible_text import SHOWN
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import (
    Client,
    attempts,
    only_session,
    query_rows,
    record_weather_agent,
    serving,
)
from tests.exporters.sample_session import sample_home
from tests.provider_script import call, streamed, text
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    tool,
)

LONG = "word " * SHOWN


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with an agent that does not use agentobs: the results of its tools are only in its requests."""
    return record_weather_agent(
        tmp_path_factory.mktemp("said"),
        prompt="canary-prompt **bold**",
        weather={"Oslo": "canary-result", "Rome": LONG},
        answers=[
            streamed(call(1, "weather", city="Oslo"), call(2, "weather", city="Rome"), number=1),
            streamed(text("canary-answer"), number=2),
        ],
    )


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


@pytest.mark.slow
def test_the_messages_of_a_request(home: Home, client: Client) -> None:
    """The new messages of a request and its response are rendered, or shown as plain text."""
    first, second = attempts(home)
    got = client.press(f"/attempts/{first}/messages")
    assert "canary-prompt <strong>bold</strong>" in got.html
    assert "canary-answer" not in got.html
    assert "canary-prompt **bold**" in client.press(f"/attempts/{first}/messages", raw=1).html
    later = client.press(f"/attempts/{second}/messages")
    assert "canary-prompt" not in later.html
    assert "canary-answer" in later.html


@pytest.mark.slow
def test_the_messages_of_a_request_are_counted_as_in_the_terminal(
    home: Home, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page and `show` say with the same words how many messages are new; the other ones can be shown in place."""
    _, second = attempts(home)
    counts = "3, 1 of them new since the previous request and its response"
    later = client.press(f"/attempts/{second}/messages")
    assert f"Messages in this request: {counts}." in later.words
    assert f'action="/attempts/{second}/earlier" data-into="earlier-2"' in later.html
    assert "Show the 2 earlier messages" in later.words
    shown = Shell(home.path, capsys)("show", only_session(home), "--turn", "2", "--content").out
    assert f"\nmessages: {counts}; --turn with an earlier turn shows the others\n" in shown
    assert "calls weather" not in shown
    earlier = client.press(f"/attempts/{second}/earlier", before=2).html
    assert "canary-prompt <strong>bold</strong>" in earlier
    assert "canary-result" not in earlier
    assert "canary-prompt" not in client.press(f"/attempts/{second}/earlier", before=0).html
    whole = client.press(f"/attempts/{second}/earlier", before=99, part=False)
    assert "canary-result" in whole.html
    assert "Earlier messages of " in whole.words


def test_earlier_messages_are_shown_in_parts() -> None:
    """The messages before a position are shown up to a limit, the nearest ones."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": str(n)} for n in range(25)]}
    start, found = earlier_messages(body, 24, 10)
    assert start == 14
    assert [each.blocks[0].text.shown for each in found] == [str(n) for n in range(14, 24)]
    assert earlier_messages(body, 4, 10)[0] == 0
    assert earlier_messages({}, 4, 10) == (0, [])


@pytest.mark.slow
def test_a_call_is_shown_with_the_result_that_the_model_got(home: Home, client: Client) -> None:
    """The input and the result of a call are shown without those of other calls; a long result can be downloaded."""
    first, second = attempts(home)
    oslo = client.press(f"/attempts/{first}/call", ordinal=1)
    assert ("city Oslo" in oslo.words, "Rome" in oslo.words) == (True, False)
    assert "Result from weather" in oslo.words
    assert "canary-result" in oslo.html
    rome = client.press(f"/attempts/{first}/call", ordinal=2)
    assert "canary-result" not in rome.html
    [path] = re.findall(f'action="(/attempts/{second}/text)"', rome.html)
    [keys] = re.findall('name="keys" value="([^"]*)"', rome.html)
    saved = client.press(path, side="request", keys=keys.replace("&#34;", '"'))
    assert saved.body.decode() == LONG
    assert client.press(f"/attempts/{first}/call", ordinal=9).status == 404


def test_a_get_shows_no_content(home: Home, client: Client) -> None:
    """A link to the content of a step leads to the facts of its request."""
    first, _ = attempts(home)
    for name in ("messages", "earlier", "call", "error"):
        got = client.get(f"/attempts/{first}/{name}", **{"x-agentobs": "part"})
        assert (got.status, got.headers["location"]) == (303, f"/attempts/{first}")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """The home of an agent of our loop, with failed attempts and calls."""
    home = sample_home(tmp_path_factory.mktemp("sample"))
    with serving(home) as made:
        yield home, made


@pytest.mark.slow
def test_the_results_of_our_agent_loop(sample: tuple[Home, Client]) -> None:
    """A result that was recorded when the tool ran is shown, even if no request contains it."""
    home, client = sample
    rows = query_rows(
        home, "SELECT attempt_id, ordinal FROM tool_calls WHERE name = 'look' ORDER BY requested_ns"
    )
    got = client.press(f"/attempts/{rows[0][0]}/call", ordinal=rows[0][1])
    assert "Calls look" in got.words
    assert "Result from look" in got.words


@pytest.mark.slow
def test_the_error_of_a_request_and_of_a_call(sample: tuple[Home, Client]) -> None:
    """The text of an error is shown after a click: what the provider responded, or the result of the tool."""
    home, client = sample
    session = only_session(home)
    [[failed]] = query_rows(home, "SELECT attempt_id FROM attempts WHERE outcome = 'http_error'")
    [call_row] = query_rows(
        home, "SELECT attempt_id, ordinal, tool_use_id FROM tool_calls WHERE is_error"
    )
    got = client.press(f"/attempts/{failed}/error", step=failed)
    assert "Provider error" in got.words
    assert "overloaded" in got.words
    step = " ".join(map(str, call_row))
    found = client.press(f"/attempts/{call_row[0]}/error", step=step)
    assert "Error from look" in found.words
    page = client.get(f"/sessions/{session}")
    assert "Provider error" not in page.words
    steps = [
        parse_qs(urlsplit(each).query)["step"][0]
        for each in page.links("/sessions/")
        if "step=" in each
    ]
    assert {failed, step} <= set(steps)


TOOL = "write the report"
"""The name of a tool that facts contain as a digest."""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """Two sessions that failed after a call failed: that of TOOL, and one that raised an exception."""
    home = a_home(tmp_path_factory.mktemp("failures"))
    raised = error_to_json(TimeoutError("no answer from db-primary"))
    answers = (TOOL, ToolAnswer("no disk", True)), ("look", ToolAnswer(raised, True, "failed"))
    for number, (name, answer) in enumerate(answers, start=1):
        calls = [{"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}]
        failed = replace(tool(number, "toolu_1", name, at=T0 + 2 * SECOND), answer=answer)
        asked = attempt(number, 1, content=calls)
        record(home, [start(number), asked, failed, end(number, failed=True)])
    with serving(home) as made:
        yield home, made


def call_of(home: Home, session: str) -> list[str]:
    """Return the attempt, the ordinal, the ID and the name of the only tool call of a session."""
    [row] = query_rows(
        home,
        "SELECT attempt_id, ordinal, tool_use_id, name FROM tool_calls "
        f"WHERE session_id = '{session}'",
    )
    return [str(each) for each in row]


@pytest.mark.slow
def test_the_error_names_the_tool_as_the_page_does(failures: tuple[Home, Client]) -> None:
    """If facts have a digest in place of the name of a tool, its error is titled with the original name."""
    home, client = failures
    attempt_id, *others, stored_name = call_of(home, session_id(1))
    assert stored_name.startswith(DIGEST)
    step = " ".join((attempt_id, *others))
    found = client.press(f"/attempts/{attempt_id}/error", step=step)
    assert f"Error from {TOOL}" in found.words
    assert DIGEST not in found.html
    page = client.get(f"/sessions/{session_id(1)}")
    assert f"tool call {TOOL}" in page.words
    assert "Before it" not in page.words


@pytest.mark.slow
def test_an_exception_is_shown_as_its_class_and_message(failures: tuple[Home, Client]) -> None:
    """An exception that a tool raised is one line, in the error, the input and result, and the transcript."""
    home, client = failures
    attempt_id, ordinal, call_id, _ = call_of(home, session_id(2))
    shown = (
        client.press(f"/attempts/{attempt_id}/error", step=f"{attempt_id} {ordinal} {call_id}"),
        client.press(f"/attempts/{attempt_id}/call", ordinal=ordinal),
        client.press(f"/sessions/{session_id(2)}/transcript"),
    )
    for each in shown:
        assert "Error from look TimeoutError: no answer from db-primary" in each.words
        assert each.words.count("no answer from db-primary") == 1
        assert "builtins" not in each.html


@pytest.mark.slow
def test_a_retry_shows_the_messages_of_its_request(sample: tuple[Home, Client]) -> None:
    """The messages of a retry are new since the previous request, not since the failed attempt."""
    home, client = sample
    first, retry = attempts(home)[:2]
    shown = [client.press(f"/attempts/{each}/messages").html for each in (first, retry)]
    question = re.compile(r'<div class="message user.*?</div>\s*</div>', re.DOTALL)
    assert question.findall(shown[0])
    assert question.findall(shown[0]) == question.findall(shown[1])
