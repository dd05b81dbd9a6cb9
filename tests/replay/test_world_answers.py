"""Replays of the agent loop with recorded world answers: approvals, paths, messages during the run, and stops."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.agent.events import Event, Message, TextDelta, ToolDone
from agentobs.agent.execution.live_answers import Consent, Reply
from agentobs.agent.permissions import Permissions, Rule
from agentobs.agent.tools.tool import tool
from agentobs.records.canonical_json import digest
from agentobs.records.exchanges import Answer, ModelExchange, WorldExchange, WorldQuestion
from replay import DivergenceError, Fixture, Replayer, ReplayOptions, load
from replay.fixture.format import FORMAT
from replay.fixture.writer import write
from tests.provider_script import call, cut, streamed, text
from tests.replay.agents import frozen, report
from tests.replay.mailer import FAX, SAVE, SEND, Mailer, mails, recorded_fixture, recorded_run, send


def reject(agent: Mailer, consent: Consent) -> Reply:
    raise AssertionError("a person was asked in a replay")


def replayed(fixture: Fixture, **changes: Any) -> tuple[Replayer, Mailer]:
    """Replay an agent that must not request approval from a person."""
    agent = Mailer(**{"person": reject, **changes})
    with Replayer(fixture) as replay:
        replay.run(agent.answer, "Mail them.")
    return replay, agent


def divergence_of(fixture: Fixture, **changes: Any) -> str:
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, **changes)
    assert json.loads(raised.value.divergence.json())["kind"] == raised.value.divergence.kind
    return report(raised.value.divergence)


def ruled(behavior: Literal["allow", "deny"]) -> Permissions:
    """Return permissions with one rule about mails."""
    return Permissions(rules=(Rule(behavior, "send", None, "user"),))


def shape(events: list[Event]) -> list[str]:
    """Return the kinds of events, with the outcomes of tools."""
    return [
        f"{type(e).__name__} {e.answer.outcome}" if isinstance(e, ToolDone) else type(e).__name__
        for e in events
    ]


def lines(fixture: Fixture, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, fixture.path.read_text().splitlines())
    return [line for line in found if kind in line]


def test_approvals_are_replayed(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Calls that a person approved or denied are approved or denied again, and the person is not asked again."""

    def person(agent: Mailer, consent: Consent) -> Reply:
        to = consent.about["input"]["to"]
        return Reply(allow=to != "eve", reason="not her")

    fixture, live, result = recorded_fixture(tmp_path, mails("ann", "eve"), person=person)
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert "ToolDone denied" in shape(agent.events)
    assert result == "completed: Done."
    done = replay.progress
    assert (done.tools_matched, done.tools, done.answers_matched, done.answers) == (2, 2, 2, 2)
    assert replay.trajectory == snapshot
    assert fixture.header["agentobs_fixture"] == FORMAT
    end = json.loads(fixture.path.read_text().splitlines()[-1])
    assert end["end"] == {"requests": 2, "tools": 2, "world": 2}


def test_an_additional_approval_request_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """An additional approval request diverges, and the report names the call and the changed rules as the probable
    cause.
    """
    rules = ruled("allow")
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options={"permissions": rules})
    assert divergence_of(fixture) == snapshot


def test_a_missing_approval_request_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A replay diverges if an approval that was requested in the recording is no longer requested."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"))
    rules = ruled("allow")
    assert divergence_of(fixture, options={"permissions": rules}) == snapshot


def test_a_newly_denied_call_diverges_with_its_cause(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """If a rule newly denies a call, the next request diverges, and its different tool result is traced back to the
    rule.
    """
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"))
    rules = ruled("deny")
    assert divergence_of(fixture, options={"permissions": rules}) == snapshot


@pytest.mark.slow
def test_a_newly_allowed_call_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If a call that was denied in the recording is newly allowed, the replay diverges, because the recording contains
    no result.
    """
    denied = ruled("deny")
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options={"permissions": denied})
    allowed = ruled("allow")
    assert divergence_of(fixture, options={"permissions": allowed}) == snapshot


def test_a_changed_approval_request_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """An approval request with changed content diverges, even if its key is equal."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"))
    [line] = lines(fixture, "world")
    line["question"]["about"]["input"] = {"to": "bob"}
    other = with_world_answers(fixture, {line["world"]: line})
    assert divergence_of(other) == snapshot


def with_world_answers(fixture: Fixture, changed: dict[str, dict[str, Any]]) -> Fixture:
    """Return a fixture with changed world answers, by kind, and a correct digest."""
    lines_now = [json.loads(line) for line in fixture.path.read_text().splitlines()]
    lines_now = [changed.get(line.get("world", ""), line) for line in lines_now]
    data = b"".join(
        json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines_now[:-1]
    )
    end = json.dumps({**lines_now[-1], "digest": digest(data)}).encode() + b"\n"
    path = fixture.path.with_name("other.jsonl")
    path.write_bytes(data + end)
    return load(path)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["recorded", "live"])
def test_a_renamed_tool_replays(tmp_path: Path, policy: Any) -> None:
    """A renamed tool replays under its old name if the model sees the same tool declarations."""
    options = {"extra": {"tools": [SEND.declaration]}}
    fixture, live, _ = recorded_fixture(tmp_path, mails("ann"), tools=(SEND,), options=options)
    renamed = tool(name="send_mail", aliases=("send",))(send)
    agent = Mailer(tools=(renamed,), options=options, person=reject)
    with Replayer(fixture, ReplayOptions(tools=policy)) as replay:
        replay.run(agent.answer, "Mail them.")
    assert shape(agent.events) == shape(live.events)
    assert replay.progress.tools_matched == 1


def test_paths_checks_and_tool_sets_are_replayed(tmp_path: Path) -> None:
    """Resolved paths, results of checks, and available tools are those of the recording on any machine."""
    checks: list[str] = []

    def check(to: str) -> str | None:
        checks.append(to)
        return "nobody of that name" if to == "eve" else None

    tools = (tool(check=check)(send), SAVE, FAX)
    responses = [
        streamed(call(1, "send", to="eve"), call(2, "save", path="draft.txt"), number=1),
        streamed(text("Done."), number=2),
    ]
    fixture, live, _ = recorded_fixture(tmp_path, responses, tools=tools)
    assert checks == ["eve"]
    kinds = sorted({line["world"] for line in lines(fixture, "world")})
    assert kinds == ["check", "consent", "path", "tool_set"]
    unavailable = replace(FAX, available=lambda: False)
    replay, agent = replayed(fixture, tools=(tools[0], SAVE, unavailable))
    assert shape(agent.events) == shape(live.events)
    assert checks == ["eve"]
    assert replay.progress.answers_matched == replay.progress.answers == 5


def test_steering_and_follow_ups_are_replayed(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A steering message skips the remaining calls, and a follow-up continues the run, at their recorded places."""
    responses = [
        streamed(call(1, "send", to="ann"), call(2, "send", to="bob"), number=1),
        streamed(text("Stopped."), number=2),
        streamed(text("Also that."), number=3),
    ]

    def person(agent: Mailer, consent: Consent) -> Reply:
        agent.inbox.steer("Only Ann, please: my token is ghp_" + "Zz9" * 12)
        agent.inbox.follow_up("And now the report.")
        return Reply(allow=True)

    fixture, live, result = recorded_fixture(tmp_path, responses, person=person)
    assert result == "completed: Also that."
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert "ToolDone skipped" in shape(agent.events)
    assert "ghp_" not in fixture.path.read_text()
    assert replay.trajectory == snapshot


def stopping_at(kind: type[Event], nth: int = 1) -> Any:
    """Stop the run at the nth event of a kind when it is recorded; a replay ignores the agent's own abort."""

    def on(agent: Mailer, event: Event) -> None:
        if isinstance(event, kind) and len([e for e in agent.events if isinstance(e, kind)]) == nth:
            agent.abort.stop()

    return on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        (TextDelta, "1:streaming:1"),
        (Message, "1:dispatch"),
        (ToolDone, "1:tools"),
    ],
)
def test_a_stopped_run_stops_at_the_recorded_place(
    tmp_path: Path, kind: type[Event], point: str
) -> None:
    """A run that was stopped during a response, before its tools, or between them, stops at the same place in the
    replay.
    """
    fixture, live, result = recorded_fixture(tmp_path, mails("ann", "bob"), on=stopping_at(kind))
    [line] = [line for line in lines(fixture, "world") if line["world"] == "abort"]
    assert line["key"] == point
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert result.startswith("aborted_")
    assert f"abort {point}: " in replay.trajectory
    done = replay.progress
    assert (done.requests_matched, done.tools_matched, done.answers_matched) == (
        done.requests, done.tools, done.answers,
    )  # fmt: skip


def test_a_run_that_was_stopped_before_any_response_replays(tmp_path: Path) -> None:
    """A run that was stopped before it received any response replays without a wait or a retry."""
    recording, _, _ = recorded_run(tmp_path, mails("ann"), on=stopping_at(TextDelta))
    exchange, abort = recording.exchanges
    assert isinstance(exchange, ModelExchange)
    assert isinstance(abort, WorldExchange)
    silent = replace(exchange, answer=Answer(None, {}, (), "cancelled"))
    abort = replace(abort, answer={"count": 0})
    stopped = replace(recording, exchanges=(silent, abort))
    replay, agent = replayed(frozen(tmp_path, stopped, "silent"))
    assert shape(agent.events) == ["RequestStart", "Result"]
    assert replay.progress.requests_matched == 1


def test_a_missing_abort_is_reported(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If the run does not reach the place of the recorded abort, the replay diverges and reports the missing abort."""
    recording, _, _ = recorded_run(tmp_path, mails("ann"))
    question = WorldQuestion("abort", "3:tools")
    here = replace(recording.exchanges[-1].place, turn=3)
    last = recording.exchanges[-1].started_ns + 1
    abort = WorldExchange(here, last, 0, question, {"count": 1})
    exchanges = (*recording.exchanges, abort)
    fixture = frozen(tmp_path, replace(recording, exchanges=exchanges), "elsewhere")
    assert divergence_of(fixture) == snapshot


@pytest.mark.slow
def test_early_calls_of_a_cut_response_replay(tmp_path: Path) -> None:
    """If a tool started before its response was cut off, its call replays, and so does the call with the same ID after
    the retry.
    """
    broken = cut(streamed(call(1, "look"), text("And"), number=1), 6)
    responses = [broken, streamed(call(1, "look"), number=2), streamed(text("Done."), number=3)]
    fixture, live, result = recorded_fixture(tmp_path, responses)
    assert result == "completed: Done."
    assert len(fixture.tools) == 2
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert replay.progress.tools_matched == 2


def test_until_requests_no_approval(tmp_path: Path) -> None:
    """`until` uses recorded approvals, and denies a new request for approval."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"))
    with Replayer(fixture) as replay:
        same = replay.until(Mailer(person=reject).answer, "Mail them.", turn=1)
    assert not same.differs, same.describe()
    rules = ruled("allow")
    free, _, _ = recorded_fixture(tmp_path / "free", mails("ann"), options={"permissions": rules})
    with Replayer(free) as replay:
        step = replay.until(Mailer(person=reject).answer, "Mail them.", turn=1)
    assert step.tool("send").is_error
    assert "Nobody" in step.tool("send").text


def test_attempts_of_tools_are_recorded(tmp_path: Path) -> None:
    """The number of attempts of a tool call is recorded and replayed."""
    stubborn = tool(retries=2, read_only=True, name="look")(_fails)
    responses = [streamed(call(1, "look"), number=1), streamed(text("No."), number=2)]
    fixture, _, _ = recorded_fixture(tmp_path, responses, tools=(stubborn,))
    [line] = lines(fixture, "tool")
    assert line["attempts"] == 3
    _, agent = replayed(fixture, tools=(stubborn,))
    assert [e.answer.attempts for e in agent.events if isinstance(e, ToolDone)] == [3]


def _fails() -> str:
    raise ConnectionError("no such server")


def test_a_fixture_does_not_depend_on_the_order_of_approval_requests(tmp_path: Path) -> None:
    """In a fixture, the approval requests of concurrent calls are in the order of the calls, in whatever order they
    were made.
    """
    recording, _, _ = recorded_run(tmp_path, mails("ann", "bob", "cid"))
    questions = [e for e in recording.exchanges if isinstance(e, WorldExchange)]
    assert len(questions) == 3
    times = [e.started_ns for e in questions]
    turned = [replace(e, started_ns=ns) for e, ns in zip(questions, reversed(times), strict=True)]
    others = [e for e in recording.exchanges if not isinstance(e, WorldExchange)]
    reordered = sorted([*others, *turned], key=lambda e: e.started_ns)
    assert write(replace(recording, exchanges=tuple(reordered)), {}) == write(recording, {})


@pytest.mark.slow
def test_concurrent_tools_replay_in_any_order(tmp_path: Path) -> None:
    """Concurrent calls that end in any order each receive their own check, path and result."""
    ended: list[str] = []
    gates = {name: asyncio.Event() for name in "abc"}

    async def read(path: str) -> str:
        following = {"a": "b", "b": "c"}.get(path)
        if following and len(ended) < 3:
            await asyncio.wait_for(gates[following].wait(), 20)
        ended.append(path)
        gates[path].set()
        return f"{path} was read"

    def check(path: str) -> str | None:
        return None

    reader = tool(read_only=True, paths=("path",), check=check, name="read")(read)
    calls = [call(number, "read", path=path) for number, path in enumerate("abc", 1)]
    responses = [streamed(*calls, number=1), streamed(text("Done."), number=2)]
    fixture, live, _ = recorded_fixture(tmp_path, responses, tools=(reader,))
    assert ended == ["c", "b", "a"]
    for policy in ("recorded", "live"):
        agent = Mailer(tools=(reader,), person=reject)
        with Replayer(fixture, ReplayOptions(tools=policy)) as replay:
            replay.run(agent.answer, "Mail them.")
        assert shape(agent.events) == shape(live.events)
        assert replay.progress.tools_matched == 3
        assert replay.progress.answers_matched == 6
