"""`agentobs show`: failed steps, decisions about tool calls, steering messages, and aborts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.events import Event, ToolDone
from agentobs.agent.execution.live_answers import Consent, Reply
from agentobs.cli.inspection.failure_output import print_failed_steps
from agentobs.cli.inspection.sessions import LONG_ROWS
from agentobs.records.exchanges import Answer, Chunk, Failure, ToolAnswer, ToolOutcome
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.analysis.failed_steps import group_failed_steps
from agentobs.store.analysis.shown_steps import shown_steps
from agentobs.store.analysis.wall_time import Split, named_pauses, time_between
from tests.cli.test_commands import Shell
from tests.provider_script import call, streamed, text
from tests.replay.mailer import Mailer, recorded_run
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    permission,
    record,
    start,
    tool,
)


def person(agent: Mailer, consent: Consent) -> Reply:
    to = consent.about["input"]["to"]
    if to == "ann":
        agent.inbox.steer("What was said stays in the content files.")
    return Reply(allow=to == "ann", reason="not her")


def stop_at_the_second(agent: Mailer, event: Event) -> None:
    if len([e for e in agent.events if isinstance(e, ToolDone)]) == 2:
        agent.abort.stop()


@pytest.mark.slow
def test_the_timeline_shows_decisions_messages_and_aborts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The timeline lists decisions with their outcome, the length of messages, and the point of an abort.

    It contains no content.
    """
    given = [
        streamed(call(1, "look"), call(2, "send", to="eve"), number=1),
        streamed(call(3, "send", to="ann"), call(4, "send", to="bob"), number=2),
        streamed(text("Done."), number=3),
    ]
    recorded_run(tmp_path, given, person=person)
    shell = Shell(tmp_path / "home", capsys)
    result = shell("show", "mailer").out
    rows = [" ".join(line.split()) for line in result.splitlines()]
    assert rows[:3] == [
        "completed, but 1 tool call failed, and 1 tool call was denied:",
        "1 × call send: denied (turn 1)",
        "1 × call send: skipped (turn 2)",
    ]
    [denied] = [row for row in rows if "permission send" in row and "deny" in row]
    assert "person" in denied
    assert len([row for row in rows if "permission send" in row and "allow" in row]) == 1
    assert not [row for row in rows if "permission look" in row]
    [message] = [row for row in rows if " steering " in row]
    assert message.endswith("45 bytes -")
    tools = [row.split()[-2] for row in rows if row.split()[2:3] == ["call"] and "×" not in row]
    assert tools == ["executed", "denied", "executed", "skipped"]
    assert "content files" not in result
    assert "content files" in shell("show", "mailer", "--content").out


@pytest.mark.slow
def test_the_timeline_shows_an_abort(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An abort is one line of the timeline, with the point at which the run was stopped."""
    calls = [call(number, "send", to="ann") for number in (1, 2, 3)]
    recorded_run(tmp_path, [streamed(*calls, number=1)], on=stop_at_the_second)
    result = Shell(tmp_path / "home", capsys)("show", "mailer").out
    rows = [line.split() for line in result.splitlines()]
    [stopped] = [row for row in rows if "abort" in row]
    assert "1:tools" in stopped
    tools = [row[-2] for row in rows if row[2:4] == ["call", "send"] and "×" not in row]
    assert tools == ["executed", "executed", "aborted"]


@pytest.mark.slow
def test_turns_without_a_complete_response_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A turn whose response was cut is listed with its lower bound, and named next to the number of turns. A turn of
    which a retry succeeded is listed once.
    """
    home = a_home(tmp_path)
    cut = attempt(1, 2)
    body = cut.answer.chunks[0].data
    broken = replace(cut.answer, chunks=(Chunk(body, 2_000_000),), ending="cut")
    overloaded, succeeded = attempt(1, 3, status=529), attempt(1, 3, at=T0 + 4 * SECOND)
    for number, each in enumerate((overloaded, succeeded)):
        each.question.headers["x-stainless-retry-count"] = str(number)
    record(
        home, [start(1), attempt(1, 1), replace(cut, answer=broken), overloaded, succeeded, end(1)]
    )
    shown = Shell(home.path, capsys)("show", "story").out
    assert ", 2 complete turns and 1 cut off, " in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("main ")]
    assert [row[1] for row in rows] == ["1", "2", "3"]
    assert [row.count("cut") for row in rows] == [0, 1, 0]


@pytest.mark.slow
def test_tags_and_the_log_of_an_import_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary names the tags that people chose, and that a session was imported from a log."""
    home = a_home(tmp_path)
    imported = start(1, team="shop", unlogged_calls="3", client_session="12")
    imported = replace(imported, start=replace(imported.start, source=Label("claude-code")))
    record(home, [imported, attempt(1, 1), end(1)])
    record(home, [start(2, "plain"), attempt(2, 1), end(2)])
    shell = Shell(home.path, capsys)
    lines = shell("show", "story").out.splitlines()
    assert [each for each in lines if each.startswith(("tags ", "recording "))] == [
        "tags                 team=shop",
        "recording            imported from a log of claude-code",
    ]
    assert "tags" not in shell("show", "plain").out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        ("failed", "last failed step: tool call look"),
        ("denied", "last denied step: tool call look"),
    ],
)
def test_a_limit_is_not_the_failure_of_the_last_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], outcome: ToolOutcome, line: str
) -> None:
    """If a limit ended the session, the last step that failed or was denied is named as such."""
    home = a_home(tmp_path)
    called = [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]
    ran = tool(1, "toolu_1", "look", at=T0 + 2 * SECOND)
    ran = replace(ran, answer=ToolAnswer("no", is_error=True, outcome=outcome))
    limited = replace(
        end(1, failed=True), reason=Label("max_turns"), signature=Label("result:max_turns")
    )
    record(home, [start(1), attempt(1, 1, content=called), ran, limited])
    shown = Shell(home.path, capsys)("show", "story").out
    assert f"\n{line}" in shown


def test_failed_steps_are_grouped_by_what_failed_and_where() -> None:
    """Errors of one tool or model with the same class, place and agent are one group; retried requests come last."""
    error = {
        "kind": "tool_call", "name": "run", "outcome": "failed", "error_class": "RuntimeError", "status": None,
        "error_file": "tools.py", "error_line": 7, "lane": "main/call_1",
    }  # fmt: skip
    overloaded = {
        **error, "kind": "attempt", "name": "model", "outcome": "http_error", "error_class": "overloaded_error",
        "status": 529, "error_file": None, "error_line": None, "lane": "main",
    }  # fmt: skip
    errors = [
        *({**overloaded, "turn": turn, "id": f"attempt_{turn}"} for turn in (1, 2, 3)),
        *({**error, "turn": turn, "id": f"run_{turn}"} for turn in (1, 4)),
        {**error, "name": "agent", "lane": "main", "turn": 1, "id": "call_1", "error_class": None, "error_file": None},
        {**error, "kind": "session", "turn": None, "id": "session"},
    ]  # fmt: skip
    turns = [{"lane": "main", "turn": turn} for turn in (1, 2, 3)]
    groups = group_failed_steps(errors, turns)
    assert [(each.name, each.count, list(each.turns), each.retried) for each in groups] == [
        ("run", 2, [1, 4], 0),
        ("agent", 1, [1], 0),
        ("model", 3, [1, 2, 3], 3),
    ]


def test_failed_steps_are_one_line_per_group(capsys: pytest.CaptureFixture[str]) -> None:
    """A line names the number, the step, its error, its place, and the sub-agent by its label."""
    turns = [{"lane": "main", "turn": 3}]
    fields = (
        "kind",
        "name",
        "outcome",
        "error_class",
        "status",
        "error_file",
        "error_line",
        "lane",
        "turn",
        "id",
    )
    rows = (
        ("tool_call", "run", "failed", "RuntimeError", None, "tools.py", 7, "main/call_1", 1, "run_1"),
        ("tool_call", "run", "failed", "RuntimeError", None, "tools.py", 7, "main/call_1", 2, "run_2"),
        ("tool_call", "agent", "failed", None, None, None, None, "main", 1, "call_1"),
        ("attempt", "model", "http_error", "overloaded_error", 529, None, None, "main", 3, "attempt_3"),
    )  # fmt: skip
    errors = [dict(zip(fields, row, strict=True)) for row in rows]
    print_failed_steps(group_failed_steps(errors, turns), {"main/call_1": "tests"}, "completed")
    first = capsys.readouterr().out
    unknown = [{**errors[0], "error_class": None, "id": f"run_{turn}"} for turn in (1, 2)]
    print_failed_steps(group_failed_steps(unknown, turns), {}, None)
    assert capsys.readouterr().out == (
        "2 tool calls failed in this session:\n"
        "  2 × call run: no error class recorded at tools.py:7 (sub-agent main/call_1, turn 1)\n"
    )
    scattered = [{**errors[0], "turn": turn, "id": f"run_{turn}"} for turn in (37, 74, 999)]
    print_failed_steps(group_failed_steps(scattered, turns), {}, None)
    assert capsys.readouterr().out.endswith(
        "(sub-agent main/call_1, 3 turns, the first 37 and the last 999)\n"
    )
    assert first == (
        "completed, but 3 tool calls and 1 request attempt (retried) failed:\n"
        "  2 × call run: RuntimeError at tools.py:7 (sub-agent tests, turns 1 and 2)\n"
        "  1 × sub-agent tests: failed (turn 1)\n"
        "  1 × request to model: HTTP 529 overloaded_error (turn 3), retried\n"
    )


@pytest.fixture(scope="module")
def long_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a completed session of 120 turns, in which 12 calls failed, and a failed session of one turn."""
    home = a_home(tmp_path_factory.mktemp("long"))
    turns: list[Record] = []
    for turn in range(1, 121):
        called: dict[str, Any] = {
            "type": "tool_use",
            "id": f"toolu_{turn}",
            "name": "look",
            "input": {},
        }
        output = 5_000 if turn == 60 else 7
        turns.append(attempt(1, turn, content=[called], output_tokens=output))
        took = SECOND // 2 if turn == 33 else 1_000
        ran = tool(1, called["id"], "look", at=T0 + turn * SECOND + 6_000_000, took=took)
        failed = ToolAnswer("no", is_error=True, outcome="failed")
        turns.append(replace(ran, answer=failed) if turn % 10 == 0 else ran)
    record(home, [start(1, "long"), *turns, end(1)])
    record(home, [start(2, "short", at=T0 - 9 * SECOND), attempt(2, 1), end(2, failed=True)])
    return home.path


@pytest.mark.slow
def test_a_long_session_is_shown_by_its_notable_turns(
    long_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show` of a long session prints failed, slow and expensive turns and the longest steps; `--all` prints all."""
    shell = Shell(long_home, capsys)
    shown = shell("show", "long").out.splitlines()
    assert len(shown) < 60
    at = next(at for at, line in enumerate(shown) if "of 120 turns" in line)
    assert shown[at].endswith(
        " of 120 turns: failed (10 of 12), slow or expensive; --all shows all turns and steps"
    )
    notable = {line.split()[1]: line for line in shown[at + 2 :] if line.startswith("main")}
    assert "failed" in notable["10"]
    assert "slow" in notable["33"]
    assert "failed, expensive" in notable["60"]
    at = next(at for at, line in enumerate(shown) if line.startswith("the longest 10 of "))
    assert shown[at + 2].split()[:2] == ["1.00", "s"]
    assert "before the first interaction" in shown[at + 2]
    assert shown[at + 3].split()[:2] == ["500", "ms"]
    assert "33" in shown[at + 3].split()
    everything = shell("show", "long", "--all").out.splitlines()
    assert sum(line.startswith("main") for line in everything) == 120
    assert "turns:" not in shell("show", "short").out


@pytest.mark.slow
def test_a_long_session_may_have_no_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session with many steps but without turns has no table of notable turns."""
    home = a_home(tmp_path)
    decisions = [
        permission(1, f"toolu_{number}", at=T0 + number * SECOND) for number in range(LONG_ROWS + 1)
    ]
    record(home, [start(1), *decisions, end(1)])
    shown = Shell(home.path, capsys)("show", "story")
    assert (shown.code, shown.err) == (0, "")
    assert "\nno turns; --all shows all turns and steps\n" in shown.out


@pytest.mark.slow
def test_sessions_show_what_failed_and_which_need_attention(
    long_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list shows the cause of a failure, and failed calls of a completed session. `--attention` lists failed
    sessions first, even if they are older.
    """
    shell = Shell(long_home, capsys)
    listed = [" ".join(line.split()) for line in shell("sessions").out.splitlines()[1:]]
    assert [line.split()[1] for line in listed] == ["long", "short"]
    assert " completed 12 calls of " in listed[0]
    assert " failed ValueError " in listed[1]
    ordered = shell("sessions", "--attention", "--limit", "1").out.splitlines()[1:]
    assert [line.split()[1] for line in ordered] == ["short"]
    columns = json.loads(shell("sessions", "--attention", "--json").out.splitlines()[0])
    assert columns["name"] == "short"


@pytest.mark.slow
def test_completed_sessions_with_failed_calls_need_attention_before_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the failed sessions, `--attention` lists those with a denied call, even if others cost more."""
    home = a_home(tmp_path)
    denied = ToolAnswer("no", is_error=True, outcome="denied")
    called = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    asked = attempt(1, 1, content=[called])
    ran = replace(tool(1, "toolu_1", "look", at=T0 + SECOND), answer=denied)
    dear = attempt(2, 1, output_tokens=9_000)
    record(home, [
        start(1, "denied"), asked, ran, attempt(1, 2), end(1),
        start(2, "dear"), dear, end(2),
        start(3, "failed"), attempt(3, 1), end(3, failed=True),
    ])  # fmt: skip
    listed = Shell(home.path, capsys)("sessions", "--attention").out.splitlines()[1:]
    assert [line.split()[1] for line in listed] == ["failed", "denied", "dear"]


@pytest.mark.slow
def test_the_list_says_that_there_are_more_sessions(
    long_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the list has more sessions than the limit, one line on standard error names the option, in each form."""
    shell = Shell(long_home, capsys)
    for form in ((), ("--csv",), ("--json",), ("--attention",)):
        cut = shell("sessions", "--limit", "1", *form)
        assert cut.err.strip() == "only the first 1 session is shown; --limit N shows more"
        assert len(cut.out.splitlines()) == (1 if form == ("--json",) else 2)
        assert shell("sessions", "--limit", "2", *form).err == ""


@pytest.mark.slow
def test_a_session_that_was_not_searched_has_no_sign_of_no_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--attention`, signatures are not searched: the cell of the cause is empty, or the whole column is left
    out, and one line on standard error names the option. A searched session without findings has `-`.
    """
    home = a_home(tmp_path)
    record(home, [start(1, "clean"), attempt(1, 1), end(1)])
    shell = Shell(home.path, capsys)
    hint = "failure signatures were not searched; --attention shows them"
    alone = shell("sessions")
    assert " cause " not in alone.out
    assert alone.err.strip() == hint
    record(home, [start(2, "broken"), attempt(2, 1), end(2, failed=True)])
    head, *rows = shell("sessions").out.splitlines()
    place = head.index("cause")
    causes = {line.split()[1]: line[place:].split("  ")[0] for line in rows}
    assert causes == {"clean": "", "broken": "ValueError"}
    searched = shell("sessions", "--attention")
    head, *rows = searched.out.splitlines()
    place = head.index("cause")
    assert {line[place:].split()[0] for line in rows} == {"-", "ValueError"}
    assert searched.err == ""
    assert shell("sessions", "--failed").err == ""
    assert shell("sessions", "--json").err == ""


@pytest.mark.slow
def test_a_cut_response_is_explained_and_its_cost_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show` explains that the response was cut, shows what the failed requests cost, and `--content` each turn."""
    home = a_home(tmp_path)
    events = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
        b'"role":"assistant","model":"claude-sonnet-5-5","content":[],"usage":{"input_tokens":1000,"output_tokens":1}}}\n\n'
    )
    stream = {"content-type": "text/event-stream"}
    cut = Answer(
        200, stream, (Chunk(events, 2_000_000),), "cut", Failure("RemoteProtocolError", "closed")
    )
    ended = replace(end(1, failed=True), reason=Label("RemoteProtocolError"))
    record(home, [start(1), attempt(1, 1), replace(attempt(1, 2), answer=cut), ended])
    shell = Shell(home.path, capsys)
    lines = [
        " ".join(line.split()) for line in shell("show", "story", "--content").out.splitlines()
    ]
    assert lines[0] == ("failed: the response was cut: RemoteProtocolError from claude-sonnet-5-5")
    assert "turn 2 of main: the response was cut: the connection was closed" in lines[1]
    assert [line for line in lines if line.startswith("wasted ")] == [
        "wasted at least $0.0020 on 1 request with a failed or cut response"
    ]
    assert [line.split(" POST")[0] for line in lines if " POST" in line] == ["turn 1", "turn 2"]
    turn = shell("show", "story", "--turn", "2", "--content").out
    [step] = [line for line in turn.splitlines() if "  request " in line]
    assert "the response was cut: the connection was closed  RemoteProtocolError  " in step
    assert turn.endswith("\nthe response is incomplete (cut):\n  RemoteProtocolError: closed\n")


def test_the_span_of_a_client_without_spans_is_not_shown() -> None:
    """An attempt takes the place of the span that the recorder adds, whose ID is the end of the attempt's ID."""
    span = {"kind": "span", "name": "llm_request", "label": "model", "depth": 0, "parent_id": None}
    attempted = {"kind": "attempt", "name": "/v1/messages", "label": "model", "depth": 0}
    attempt_id = "01a21f2944b17b21815f9a1ad4e0941f"
    rows = [
        {**span, "id": attempt_id[-16:]},
        {**attempted, "id": attempt_id, "parent_id": None},
        {**span, "id": "1" * 16},
    ]
    assert [(each["kind"], each["what"]) for each in shown_steps(rows)] == [
        ("attempt", "request model"),
        ("span", "request"),
    ]


def test_a_wait_for_the_user_is_one_step() -> None:
    """The decision with its approval wait is shown, and not the span of this wait; other waits are shown."""
    wait = {
        "kind": "span", "name": "blocked_on_user", "label": "send", "lane": "main", "id": "1" * 16, "outcome": "ok",
        "depth": 1, "started_ns": 5 * SECOND, "duration_ns": 2 * SECOND, "parent_id": None,
    }  # fmt: skip
    decision = {**wait, "kind": "permission", "name": "send", "label": "person", "outcome": "allow"}
    others = [
        {**wait, "lane": "main/call_1"},
        {**wait, "label": "look"},
        {**wait, "started_ns": 9 * SECOND},
        {**wait, "duration_ns": None},
    ]
    shown = shown_steps([wait, decision, *others])
    assert [each["what"] for each in shown] == ["permission send", *["wait for the user"] * 4]
    assert shown[1:] == [{**each, "what": "wait for the user"} for each in others]


def test_a_retry_backoff_lasts_from_attempt_to_attempt() -> None:
    """The time of a retry backoff is that between its attempts, as on the page; a span alone keeps its own time."""
    wait = {
        "kind": "span", "name": "retry_wait", "label": None, "lane": "main", "id": "1" * 16, "outcome": "ok",
        "depth": 2, "started_ns": 5 * SECOND, "duration_ns": SECOND, "parent_id": "2" * 16,
    }  # fmt: skip
    attempts = [
        {
            **wait,
            "kind": "attempt",
            "id": f"{at}",
            "name": "/v1/messages",
            "started_ns": at * SECOND,
        }
        for at in (3, 7)
    ]
    shown = shown_steps([attempts[0], wait, attempts[1]])
    assert (shown[1]["what"], shown[1]["started_ns"], shown[1]["duration_ns"]) == (
        "retry backoff", 4 * SECOND, 3 * SECOND,
    )  # fmt: skip
    [alone] = shown_steps([{**wait, "parent_id": None}])
    assert (alone["started_ns"], alone["duration_ns"]) == (5 * SECOND, SECOND)


def interaction(start_s: int, wall_s: int) -> Split:
    parts = (0,) * 7
    return Split("1", "main", start_s * SECOND, wall_s * SECOND, *parts, True, "wire", ())


def test_the_time_between_interactions_is_shown() -> None:
    """Interactions that overlap leave no time between them."""
    splits = [interaction(0, 5), interaction(3, 4), interaction(20, 1)]
    assert time_between(splits) == 13 * SECOND
    assert time_between([]) == 0
    pauses = named_pauses(splits, -2 * SECOND, 60 * SECOND)
    assert [(each.started_ns, each.duration_ns, each.words) for each in pauses] == [
        (7 * SECOND, 13 * SECOND, "between interactions 2 and 3"),
        (-2 * SECOND, 2 * SECOND, "before the first interaction"),
    ]


def a_session_of_two_agents(home: Path) -> None:
    """Record a session whose main agent calls a sub-agent and a tool that fails, after a rejected attempt."""
    system = [{"type": "text", "text": "Be brief.\n" + "Never guess. " * 100}]
    tools = [{"name": "agent", "input_schema": {}}, {"name": "weather", "input_schema": {}}]
    agent = {"type": "tool_use", "id": "toolu_1", "name": "agent", "input": {"task": "look it up"}}
    weather = {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Bern"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Is it wet?"}]},
        {"role": "assistant", "content": [agent, weather]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is."},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no station", "is_error": True},
        ]},
    ]  # fmt: skip

    def request(turn: int, at: int, count: int, **options: Any) -> Record:
        """Return a request whose last message has a cache breakpoint, which is not a change of the message."""
        sent = json.loads(json.dumps(messages[:count]))
        sent[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        made = attempt(1, turn, at=T0 + at * SECOND, **options)
        body = {**json.loads(made.question.body), "system": system, "tools": tools}
        question = replace(
            made.question, body=json.dumps({**body, "messages": sent}).encode(), headers={}
        )
        return replace(made, question=question)

    below = attempt(1, 1, at=T0 + 4 * SECOND)
    lane = "main/toolu_1"
    failed = ToolAnswer("no station", is_error=True, outcome="failed")
    record(a_home(home), [
        start(1, "pair"),
        request(1, 1, 1, status=529),
        request(1, 3, 1, content=[agent, weather]),
        replace(below, place=replace(below.place, lane=lane, query_source="sub_agent")),
        tool(1, "toolu_1", "agent", at=T0 + 5 * SECOND),
        replace(tool(1, "toolu_2", "weather", at=T0 + 6 * SECOND), answer=failed),
        request(2, 8, 3),
        end(1),
    ])  # fmt: skip


@pytest.mark.slow
def test_one_turn_is_shown_with_what_the_model_received(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--turn` prints the attempts, calls, errors, tokens and cost of one turn; with `--content`, the start of the
    system prompt, the new messages, the response and the results of its calls.
    """
    a_session_of_two_agents(tmp_path)
    shell = Shell(a_home(tmp_path).path, capsys)
    facts = shell("show", "pair", "--turn", "1").out
    lines = [" ".join(line.split()) for line in facts.splitlines()]
    assert "turn 1 of 2 of main" in lines
    assert "totals $0.0002, 2 requests (1 failed), 2 tool calls (1 failed)" in lines
    steps = lines[lines.index("") + 2 : -2]
    assert len(steps) == 4
    assert "HTTP 529: overloaded_error" in steps[0]
    assert " call agent: sub-agent agent 1 " in steps[2]
    assert " call weather " in steps[3]
    assert " failed " in steps[3]
    assert "no station" not in facts
    assert "Is it wet?" not in facts
    hint = "\ntexts are not shown; add --content\n"
    assert facts.endswith(hint)
    sent = shell("show", "pair", "--turn", "1", "--content").out
    assert hint not in sent
    sent = sent.removeprefix(facts.removesuffix(hint))
    first, second = sent.split("request 2 of 2")
    assert "system prompt: 1,310 characters\n  Be brief.\n  Never guess. " in first
    assert "  … 510 more characters\ntools: agent, weather\nmessages: 1\n" in first
    assert "\nuser:\n  Is it wet?\n" in first
    assert "Is it wet?" not in second
    assert "messages: 1, the same as in the previous attempt" in second
    assert "calls weather:" in second
    assert second.endswith("\nresult of agent:\n  It is.\n\nerror of weather:\n  no station\n")
    sent = shell("show", "pair", "--turn", "2", "--content").out
    assert "1,310 characters (as in the previous request)" in sent
    assert "tools: agent, weather (as in the previous request)\n" in sent
    new = "1 of them new since the previous request and its response"
    assert f"\nmessages: 3, {new}; --turn with an earlier turn shows the others\n" in sent
    assert "Is it wet?" not in sent
    assert "\nerror of weather:\n  no station\n" in sent
    assert sent.endswith("\nmodel:\n  done\n")


@pytest.mark.slow
def test_the_cost_of_each_agent_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session with sub-agents has a table with the cost of each agent; other sessions have none."""
    a_session_of_two_agents(tmp_path)
    record(a_home(tmp_path), [start(2, "alone"), attempt(2, 1), end(2)])
    shell = Shell(a_home(tmp_path).path, capsys)
    heading = ["lane", "calls", "input", "output", "cache", "read", "cache", "write", "cost"]
    lines = [line.split() for line in shell("show", "pair").out.splitlines()]
    at = lines.index(heading)
    assert [(line[0], line[-1]) for line in lines[at + 1 : at + 3]] == [
        ("main", "$0.0004"),
        ("agent", "$0.0002"),
    ]
    assert heading not in [line.split() for line in shell("show", "alone").out.splitlines()]


@pytest.mark.slow
def test_turns_of_sub_agents_are_chosen_by_their_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--lane` accepts the displayed name of an agent and its lane; a turn or an agent that does not exist is one
    error that names those that do.
    """
    a_session_of_two_agents(tmp_path)
    shell = Shell(a_home(tmp_path).path, capsys)
    shown = shell("show", "pair", "--turn", "1", "--lane", "agent 1").out
    assert "1 of 1 of agent 1\n" in shown
    assert shell("show", "pair", "--turn", "1", "--lane", "main/toolu_1").out == shown
    for options, message in (
        (("--turn", "7"), "--turn: main has no turn 7. Its turns are 1 to 2; --lane chooses another agent."),
        (("--turn", "2", "--lane", "agent 1"), "--turn: agent 1 has no turn 2. Its only turn is 1; "),
        (("--turn", "1", "--lane", "agent 2"), "no turn of an agent named 'agent 2'. Its agents are main and agent 1."),
        (("--lane", "agent 1"), "--lane needs --turn"),
        (("--turn", "1", "--all"), "--turn excludes --facts and --all"),
    ):  # fmt: skip
        assert message in shell("show", "pair", *options).err
