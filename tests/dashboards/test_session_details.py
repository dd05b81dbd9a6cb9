"""The page of a session states what is estimated, what was not seen, and what about the cache is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home
from agentobs.records.display import seconds
from agentobs.records.exchanges import ErrorCause, ModelExchange, Place, ToolAnswer
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.analysis.diagnosis import diagnose
from agentobs.store.analysis.wall_time import interaction_times, time_outside
from agentobs.store.backend import open_store
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import query_rows, serving
from tests.dashboards.test_context_growth import context_event
from tests.dashboards.test_waterfall import span
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
from tests.store.wire_conversations import WireConversation

SESSION = session_id(1)
ESTIMATED = "estimated from wire timing, including any wait for approval (not recorded)"


def of_agent(call_id: str, at_s: float, turn: int = 1, **usage: Any) -> ModelExchange:
    """Return a request of a sub-agent; its prompt depends only on its turn."""
    made = attempt(1, turn, at=T0 + int(at_s * SECOND), **usage)
    return replace(
        made, place=Place(SESSION, None, lane=f"main/{call_id}", query_source="sub_agent")
    )


def starting(*call_ids: str) -> ModelExchange:
    """Return a request of the main agent whose response starts sub-agents."""
    calls = [{"type": "tool_use", "id": each, "name": "agent", "input": {}} for each in call_ids]
    return attempt(1, 1, content=calls)


def a_session(home: Home, *records: Record) -> None:
    record(home, [start(1, "agents"), *records, end(1)])


@pytest.mark.slow
def test_the_times_of_tools_that_another_client_ran_are_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All places show the same time of a call that was not measured, each with a sign; SQL has it as an estimate."""
    talk = WireConversation()
    [call] = talk.calls(("read", {}))
    talk.result(call)
    talk.says("Hm.")
    last = talk.records[-1]
    assert isinstance(last, ModelExchange)
    talk.records[-1] = replace(last, answer=replace(last.answer, ending="cut"))
    home = a_home(tmp_path)
    record(home, [*talk.records, end(1, T0 + 9 * SECOND, failed=True)])
    columns = "duration_ns, estimated_ns, name, attempt_id, tool_use_id"
    [[duration, estimate, name, attempt_id, call_id]] = query_rows(
        home, f"SELECT {columns} FROM tool_calls"
    )
    assert (duration, estimate, name) == (None, SECOND // 2, "read")
    with serving(home) as client:
        page = f"/sessions/{SESSION}"
        step = client.get(f"{page}?step={attempt_id}%201%20{call_id}").words
        assert f"Duration ≈ 500 ms, {ESTIMATED}" in step
        assert "≈ 500 ms" in step.partition("Tool call read")[0]
        times = client.get(f"{page}?tab=time").words
        assert "≈ 500 ms call read" in times
        assert f"≈: {ESTIMATED}" in times
        assert "≈ 500 ms" in client.get(f"{page}?tab=overview").words
        assert "≈ 500 ms" in client.get(f"/attempts/{attempt_id}").words
    shell = Shell(home.path, capsys)
    for command in (("show", SESSION), ("show", SESSION, "--turn", "1")):
        out = shell(*command).out
        assert "≈ 500 ms" in out
        assert f"≈: {ESTIMATED}" in out


@pytest.mark.slow
def test_the_longest_time_of_agent_code_is_named_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest time of agent code is one of the longest steps, with the step after which it was."""
    talk = WireConversation()
    talk.says("Hm.")
    last = talk.records[-1]
    assert isinstance(last, ModelExchange)
    talk.records[-1] = replace(last, answer=replace(last.answer, ending="cut"))
    home = a_home(tmp_path)
    record(home, [*talk.records, end(1, T0 + 9 * SECOND, failed=True)])
    with serving(home) as client:
        times = client.get(f"/sessions/{SESSION}?tab=time").words
        assert "agent code after" in times.partition("Longest steps")[2]
    out = Shell(home.path, capsys)("time", SESSION).out
    assert "longest time of agent code: " in out
    assert " of main\n" in out


@pytest.mark.slow
def test_the_duration_names_the_time_in_interactions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tile shows how much of the duration was in interactions, between and after them, with the numbers of `show`
    and `time`, which are the whole duration.
    """
    talk = WireConversation()
    talk.says("Hello.")
    talk.prompt()
    talk.says("Goodbye.")
    last = talk.records[-1]
    assert isinstance(last, ModelExchange)
    later = last.started_ns + 7_200 * SECOND
    talk.records[-1] = replace(last, started_ns=later)
    home = a_home(tmp_path)
    record(home, [*talk.records, end(1, later + 30 * SECOND)])
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}").words
        trace = client.get(f"/sessions/{SESSION}?tab=trace")
        times = client.get(f"/sessions/{SESSION}?tab=time").words
    longest = times.partition("Longest steps and pauses")[2]
    assert longest.split(" between interactions 1 and 2")[0].strip() == "2 h"
    off = [attributes for _, attributes in trace.tags if attributes.get("class") == "button off"]
    assert [each.get("aria-disabled") for each in off] == ["true", "true"]
    tile = re.search(
        r"Duration 2 h 1 min (.*?) in interactions, (.*? between and .*? after them)", words
    )
    assert tile is not None
    shell = Shell(home.path, capsys)
    for command in ("show", "time"):
        shown = shell(command, SESSION).out
        assert f"{tile[1]} in interactions: " in shown
        assert f"; {tile[2]}" in shown
    with open_store(home, ingest=False) as store:
        [about] = store.rows("internal/session", session_id=SESSION).dicts()
        splits = interaction_times(store, SESSION)
        parts = time_outside(splits, about["started_ns"], about["duration_ns"])
    assert sum(parts) + sum(split.wall_ns for split in splits) == about["duration_ns"]
    busy = a_home(tmp_path / "busy")
    talk = WireConversation()
    talk.says("Hello.", takes=200 * SECOND)
    record(busy, [*talk.records, end(1, T0 + 201 * SECOND)])
    with serving(busy) as client:
        assert "in interactions" not in client.get(f"/sessions/{SESSION}").words


@pytest.mark.slow
def test_a_short_time_before_the_first_interaction_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a short session, even less than a second before its first interaction is named, with equal numbers in the
    tile, the sentence, the longest steps and the terminal.
    """
    talk = WireConversation()
    talk.says("Hello.", takes=SECOND // 10)
    first = talk.records[-1]
    assert isinstance(first, ModelExchange)
    talk.records[-1] = replace(first, started_ns=T0 + 9 * SECOND // 10)
    home = a_home(tmp_path)
    record(home, [*talk.records, end(1, T0 + SECOND)])
    with open_store(home, ingest=True) as store:
        [about] = store.rows("internal/session", session_id=SESSION).dicts()
        splits = interaction_times(store, SESSION)
        before, _, _ = time_outside(splits, about["started_ns"], about["duration_ns"])
    named = f"{seconds(before)} before them"
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}?tab=time").words
    assert re.search(rf"Duration [^a-z]+ m?s .*? in interactions, {named}", words)
    assert f"Outside of interactions: {named}." in words
    assert f"{seconds(before)} before the first interaction" in words.partition("Longest steps")[2]
    shell = Shell(home.path, capsys)
    for command in ("show", "time"):
        assert f"; {named}" in shell(command, SESSION).out


@pytest.mark.slow
@pytest.mark.parametrize("is_error", [False, True])
def test_a_completed_session_states_whether_anything_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_error: bool
) -> None:
    """If nothing failed, the page, `show` and `diagnose` say so with the same numbers; `diagnose` begins with the
    status and names no threshold.
    """
    talk = WireConversation()
    [call] = talk.calls(("read", {}))
    talk.result(call, "no such file" if is_error else "text", is_error=is_error)
    talk.says("Done.")
    home = a_home(tmp_path)
    record(home, talk.whole())
    shell = Shell(home.path, capsys)
    with serving(home) as client:
        page = client.get(f"/sessions/{SESSION}").words
    sentence = "Nothing failed: 1 tool call and 2 requests succeeded"
    diagnosed = shell("diagnose", SESSION).out
    shown = (f"{sentence}." in page, f"{sentence}\n" in shell("show", SESSION).out)
    assert shown == (not is_error, not is_error)
    first = "completed, but 1 tool call failed:" if is_error else f"completed. {sentence}"
    assert diagnosed.splitlines()[2] == first
    assert "threshold" not in diagnosed


@pytest.mark.slow
def test_a_failed_span_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If a span failed in a session that completed, neither the page nor `show` states that nothing failed."""
    home = a_home(tmp_path)
    a_session(home, *span("app", 0.0, 2.0, 9, status="error"), attempt(1, 1))
    with serving(home) as client:
        assert "Nothing failed" not in client.get(f"/sessions/{SESSION}").words
    for command in ("show", "diagnose"):
        assert "Nothing failed" not in Shell(home.path, capsys)(command, SESSION).out


@pytest.mark.slow
def test_no_caching_is_not_called_an_unchanged_prefix(tmp_path: Path) -> None:
    """Without cache reads and writes, no prompt caching was used; a first request is called a first request."""
    home = a_home(tmp_path)
    a_session(home, attempt(1, 1), attempt(1, 2))
    first, second = (
        row[0] for row in query_rows(home, "SELECT attempt_id FROM attempts ORDER BY turn")
    )
    with serving(home) as client:
        page = f"/sessions/{SESSION}"
        cost = client.get(f"{page}?tab=cost").words
        assert "No prompt caching was used." in cost
        assert "Nothing was wasted: no cache misses" in cost
        words = client.get(f"{page}?step={second}").words
        assert "No prompt caching was used." in words
        assert "The cached prefix is the same" not in words
        assert "This is the first request" not in words
        words = client.get(f"{page}?step={first}").words
        assert "This is the first request of the main agent" in words


@pytest.mark.slow
def test_the_same_prefix_that_several_agents_wrote_is_named(tmp_path: Path) -> None:
    """Cache misses are only found within one agent, so equal first prompts that several agents wrote are named; a write
    after the lifetime of the cache is not one of them.
    """
    home = a_home(tmp_path)
    written = {"cache_creation_input_tokens": 14_014}
    times = {"toolu_1": 2.0, "toolu_2": 60.0, "toolu_3": 120.0, "toolu_4": 900.0}
    requests = [of_agent(call_id, at, **written) for call_id, at in times.items()]
    a_session(home, starting(*times), *requests)
    step_of = dict(query_rows(home, "SELECT lane, attempt_id FROM attempts"))
    with serving(home) as client:
        cost = client.get(f"/sessions/{SESSION}?tab=cost").words
        sentence = re.search(
            r"about \$[0-9.]+ \(\d+% of the cost of the session\) on a first prompt that 3 sub-agents sent with the "
            r"same model, tools, system prompt and messages: each wrote 14,014 tokens of it to the cache, 2 of them "
            r"while it was still cached",
            cost,
        )
        assert sentence is not None
        assert "Nothing was wasted" not in cost
        words = client.get(f"/sessions/{SESSION}?step={step_of['main/toolu_2']}").words
        assert "This is the first request of this agent" in words
        assert "The cached prefix is the same" not in words


@pytest.mark.slow
def test_a_failed_call_whose_id_is_a_digest_has_its_error(tmp_path: Path) -> None:
    """The details of a call name the place of its error, and the filter counts it, even if its ID is not clear text."""
    home = a_home(tmp_path)
    call_id = "what a person wrote"
    calls = [{"type": "tool_use", "id": call_id, "name": "send", "input": {}}]
    error = ErrorCause("raised", Label("KeyError"), Label("shop/orders.py"), 12)
    answer = ToolAnswer("no", True, "failed", error=error)
    ran = replace(tool(1, call_id, "send", at=T0 + 2 * SECOND), answer=answer)
    a_session(home, attempt(1, 1, content=calls), ran)
    with serving(home) as client:
        found = client.get(f"/sessions/{SESSION}/tree?failed=1")
        step = found.links("/sessions/")[-1].replace("?step=", "/step?step=")
        assert "shop/orders.py" in client.get(step).words
    # The interaction was interrupted by the end of the session.
    summary = "1 tool call failed; also marked as failed: 1 interaction."
    assert summary in found.words


@pytest.mark.slow
def test_agents_of_equal_cost_are_in_the_order_of_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents are listed with the most expensive one first. A difference that the amounts do not show does not
    change the order of their numbers.
    """
    home = a_home(tmp_path)
    times = {f"toolu_{number}": number * 60.0 for number in (11, 12, 13)}
    tokens = {"toolu_11": 1_000, "toolu_12": 1_001, "toolu_13": 9_000}
    requests = [
        of_agent(call_id, at, cache_creation_input_tokens=tokens[call_id])
        for call_id, at in times.items()
    ]
    a_session(home, starting(*times), *requests)
    shown = Shell(home.path, capsys)("show", SESSION).out.splitlines()
    at = shown.index("agents, most expensive first:")
    names = [line.split("  ")[0].strip() for line in shown[at + 2 : at + 6]]
    sub_agents = [name for name in names if name != "main"]
    assert [name[-1] for name in sub_agents] == ["3", "1", "2"]
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}/ledger").words
    _, _, listed = words.partition("By agent, most expensive first")
    assert sorted(names, key=listed.index) == names


@pytest.mark.slow
def test_a_prompt_that_was_read_from_the_cache_was_not_written_again(tmp_path: Path) -> None:
    """A sub-agent that read the prefix from the cache did not write it again."""
    home = a_home(tmp_path)
    read = {"cache_read_input_tokens": 14_014, "cache_creation_input_tokens": 5}
    first = of_agent("toolu_1", 2, cache_creation_input_tokens=14_014)
    a_session(home, starting("toolu_1", "toolu_2"), first, of_agent("toolu_2", 60, **read))
    with serving(home) as client:
        assert "on a first prompt" not in client.get(f"/sessions/{SESSION}?tab=cost").words


@pytest.mark.slow
def test_the_cost_of_summaries_is_shown(tmp_path: Path) -> None:
    """The tab with the cost has what the requests for summaries cost, if it is known."""
    home = a_home(tmp_path)
    place = Place(SESSION, None, lane="main/compaction:1", query_source="compaction")
    summary = replace(attempt(1, 2), place=place)
    compaction = replace(
        context_event("compaction", 2.5, "auto", tokens_before=9_000), session_id=SESSION
    )
    a_session(home, attempt(1, 1), summary, compaction, attempt(1, 3))
    [[cost]] = query_rows(
        home,
        "SELECT printf('%.4f', sum(cost_usd)) FROM costs WHERE attempt_id = "
        "(SELECT attempt_id FROM attempts WHERE query_source = 'compaction')",
    )
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}?tab=cost").words
    assert (
        f"${cost} on 1 compaction (turn 2), not counted as waste: 1 summary cost ${cost}" in words
    )


@pytest.mark.slow
def test_a_turn_of_a_sub_agent_is_opened_by_its_number(tmp_path: Path) -> None:
    """If there are sub-agents, the agent of the turn can be chosen; the main agent is the default."""
    home = a_home(tmp_path)
    requests = [of_agent("toolu_1", 2), of_agent("toolu_1", 3, turn=2)]
    a_session(home, starting("toolu_1"), *requests, attempt(1, 4))
    found = query_rows(home, "SELECT lane, turn, attempt_id FROM attempts")
    step_of = {(lane, turn): attempt_id for lane, turn, attempt_id in found}
    with serving(home) as client:
        page = f"/sessions/{SESSION}"
        for query, place in (
            ("turn=2", ("main", 2)),
            ("turn=2&agent=main", ("main", 2)),
            ("turn=2&agent=main/toolu_1", ("main/toolu_1", 2)),
        ):
            got = client.get(f"{page}?{query}")
            assert (got.status, got.headers["location"]) == (303, f"{page}?step={step_of[place]}")
        shown = client.get(page)
        chosen = [attributes["value"] for tag, attributes in shown.tags if tag == "option"][-2:]
        assert chosen == ["main", "main/toolu_1"]
        assert "main agent (1–2)" in shown.words
        wrong = client.get(f"{page}?turn=9&agent=main/toolu_1")
        assert wrong.status == 404
        assert "this agent has no such turn" in wrong.words
        assert client.get(f"{page}?turn=1&agent=none").status == 404


@pytest.mark.slow
def test_advice_contains_the_id_of_the_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands in the advice about a session can be copied: they contain its ID and no placeholder."""
    home = a_home(tmp_path)
    talk = WireConversation()
    for _ in range(2):
        talk.says("Hm.", cache_creation_input_tokens=90_000)
        talk.prompt()
    record(home, [*talk.records, attempt(1, 9, status=529), end(1, failed=True)])
    with open_store(home, ingest=False) as store:
        advice = {each.signature: each.todo for each in diagnose(store, SESSION)}
    assert advice["cache_rewrites"].startswith(f"agentobs cache {SESSION} shows each request")
    assert not [todo for todo in advice.values() if "SESSION" in todo]
    out = Shell(home.path, capsys)("diagnose", SESSION).out
    assert "SESSION" not in out
    assert f"agentobs show {SESSION} --content" in out
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}?tab=overview").words
    assert f"agentobs cache {SESSION} shows each request" in words


@pytest.mark.slow
def test_counts_name_what_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page counts requests and tool calls separately, and the card names partly known usage, as `show`
    does; a retry is not another request.
    """
    home = a_home(tmp_path)
    whole = attempt(1, 2)
    cut = replace(whole, answer=replace(whole.answer, ending="cut"))
    a_session(home, starting("toolu_1"), of_agent("toolu_1", 2), cut)
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}").words
    assert "Steps 3 requests, 1 call" in words
    [[partly, calls]] = query_rows(
        home, "SELECT count(*) FILTER (WHERE cost_status = 'lower_bound'), count(*) FROM costs"
    )
    note = f"usage of {partly} of {calls} calls is only partly known"
    assert (partly, calls) == (1, 3)
    assert note in words
    assert f"({note})" in Shell(home.path, capsys)("show", SESSION).out
