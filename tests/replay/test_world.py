"""Replayer of a loop that asks the world: consent, paths, what is said meanwhile, and where it was stopped."""

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
from tests.replay.mailer import FAX, SAVE, SEND, Mailer, made, mails, once, send


def nobody(agent: Mailer, consent: Consent) -> Reply:
    raise AssertionError("a person was asked in a replay")


def replayed(fixture: Fixture, **changes: Any) -> tuple[Replayer, Mailer]:
    """Replayer with an agent that has nobody to ask, and must not have to."""
    agent = Mailer(**{"person": nobody, **changes})
    with Replayer(fixture) as replay:
        replay.run(agent.answer, "Mail them.")
    return replay, agent


def diverges(fixture: Fixture, **changes: Any) -> str:
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, **changes)
    assert json.loads(raised.value.divergence.json())["kind"] == raised.value.divergence.kind
    return report(raised.value.divergence)


def ruled(behavior: Literal["allow", "deny"]) -> Permissions:
    """One rule about mails."""
    return Permissions(rules=(Rule(behavior, "send", None, "user"),))


def shape(events: list[Event]) -> list[str]:
    """The kinds of events, with the outcomes of tools."""
    return [
        f"{type(e).__name__} {e.answer.outcome}" if isinstance(e, ToolDone) else type(e).__name__
        for e in events
    ]


def lines(fixture: Fixture, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, fixture.path.read_text().splitlines())
    return [line for line in found if kind in line]


def test_consent_is_given_again(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """What a person allowed or denied is allowed or denied again, and nobody is asked."""

    def person(agent: Mailer, consent: Consent) -> Reply:
        to = consent.about["input"]["to"]
        return Reply(allow=to != "eve", reason="not her")

    fixture, live, told = made(tmp_path, mails("ann", "eve"), person=person)
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert "ToolDone denied" in shape(agent.events)
    assert told == "completed: Done."
    done = replay.progress
    assert (done.tools_matched, done.tools, done.answers_matched, done.answers) == (2, 2, 2, 2)
    assert replay.trajectory == snapshot
    assert fixture.header["agentobs_fixture"] == FORMAT
    end = json.loads(fixture.path.read_text().splitlines()[-1])
    assert end["end"] == {"requests": 2, "tools": 2, "world": 2}


def test_consent_that_was_not_asked_for_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """The rules have changed: the report names the call, what was asked there, and the probable cause."""
    rules = ruled("allow")
    fixture, _, _ = made(tmp_path, mails("ann"), options={"permissions": rules})
    assert diverges(fixture) == snapshot


def test_consent_that_is_not_asked_for_any_more_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Nothing else differs, and yet the path is another: nobody was asked."""
    fixture, _, _ = made(tmp_path, mails("ann"))
    rules = ruled("allow")
    assert diverges(fixture, options={"permissions": rules}) == snapshot


def test_a_call_that_is_denied_now_diverges_with_its_cause(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """The next request holds another result, which is followed back to the decision."""
    fixture, _, _ = made(tmp_path, mails("ann"))
    rules = ruled("deny")
    assert diverges(fixture, options={"permissions": rules}) == snapshot


def test_a_call_that_was_denied_and_runs_now_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A tool is never asked of the recording where the loop had answered itself."""
    denied = ruled("deny")
    fixture, _, _ = made(tmp_path, mails("ann"), options={"permissions": denied})
    allowed = ruled("allow")
    assert diverges(fixture, options={"permissions": allowed}) == snapshot


def test_consent_about_something_else_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """The question to the person is compared, not only its key."""
    fixture, _, _ = made(tmp_path, mails("ann"))
    [line] = lines(fixture, "world")
    line["question"]["about"]["input"] = {"to": "bob"}
    other = resigned(fixture, {line["world"]: line})
    assert diverges(other) == snapshot


def resigned(fixture: Fixture, changed: dict[str, dict[str, Any]]) -> Fixture:
    """Return a fixture in which lines of the world are others, by kind, with a digest that holds."""
    told = [json.loads(line) for line in fixture.path.read_text().splitlines()]
    told = [changed.get(line.get("world", ""), line) for line in told]
    data = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in told[:-1])
    end = json.dumps({**told[-1], "digest": digest(data)}).encode() + b"\n"
    path = fixture.path.with_name("other.jsonl")
    path.write_bytes(data + end)
    return load(path)


@pytest.mark.parametrize("policy", ["recorded", "live"])
def test_a_renamed_tool_replays(tmp_path: Path, policy: Any) -> None:
    """Where the model is told the same, a call by a former name is consented to, and found, by that name."""
    told = {"extra": {"tools": [SEND.declaration]}}
    fixture, live, _ = made(tmp_path, mails("ann"), tools=(SEND,), options=told)
    renamed = tool(name="send_mail", aliases=("send",))(send)
    agent = Mailer(tools=(renamed,), options=told, person=nobody)
    with Replayer(fixture, ReplayOptions(tools=policy)) as replay:
        replay.run(agent.answer, "Mail them.")
    assert shape(agent.events) == shape(live.events)
    assert replay.progress.tools_matched == 1


def test_paths_checks_and_tool_sets_come_from_the_recording(tmp_path: Path) -> None:
    """Where a path leads, what a check says and which tools are there is what it was, on any machine."""
    checks: list[str] = []

    def check(to: str) -> str | None:
        checks.append(to)
        return "nobody of that name" if to == "eve" else None

    tools = (tool(check=check)(send), SAVE, FAX)
    given = [
        streamed(call(1, "send", to="eve"), call(2, "save", path="draft.txt"), number=1),
        streamed(text("Done."), number=2),
    ]
    fixture, live, _ = made(tmp_path, given, tools=tools)
    assert checks == ["eve"]
    kinds = sorted({line["world"] for line in lines(fixture, "world")})
    assert kinds == ["check", "consent", "path", "tool_set"]
    gone = replace(FAX, available=lambda: False)
    replay, agent = replayed(fixture, tools=(tools[0], SAVE, gone))
    assert shape(agent.events) == shape(live.events)
    assert checks == ["eve"]
    assert replay.progress.answers_matched == replay.progress.answers == 5


def test_what_is_said_meanwhile_is_said_again(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Steering skips the calls that had not begun, and a follow-up goes on, at the recorded places."""
    given = [
        streamed(call(1, "send", to="ann"), call(2, "send", to="bob"), number=1),
        streamed(text("Stopped."), number=2),
        streamed(text("Also that."), number=3),
    ]

    def person(agent: Mailer, consent: Consent) -> Reply:
        agent.inbox.steer("Only Ann, please: my token is ghp_" + "Zz9" * 12)
        agent.inbox.follow_up("And now the report.")
        return Reply(allow=True)

    fixture, live, told = made(tmp_path, given, person=person)
    assert told == "completed: Also that."
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert "ToolDone skipped" in shape(agent.events)
    assert "ghp_" not in fixture.path.read_text()
    assert replay.trajectory == snapshot


def stopping_at(kind: type[Event], nth: int = 1) -> Any:
    """Stop the run at the nth event of a kind: live, for a replay does not listen to the agent's own abort."""

    def on(agent: Mailer, event: Event) -> None:
        if isinstance(event, kind) and len([e for e in agent.events if isinstance(e, kind)]) == nth:
            agent.abort.stop()

    return on


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        (TextDelta, "1:streaming:1"),
        (Message, "1:dispatch"),
        (ToolDone, "1:tools"),
    ],
)
def test_a_stopped_run_stops_at_the_same_place(
    tmp_path: Path, kind: type[Event], point: str
) -> None:
    """In an answer, before its tools, between them: same events, nothing asked that was not."""
    fixture, live, told = made(tmp_path, mails("ann", "bob"), on=stopping_at(kind))
    [line] = [line for line in lines(fixture, "world") if line["world"] == "abort"]
    assert line["key"] == point
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert told.startswith("aborted_")
    assert f"abort {point}: " in replay.trajectory
    done = replay.progress
    assert (done.requests_matched, done.tools_matched, done.answers_matched) == (
        done.requests, done.tools, done.answers,
    )  # fmt: skip


def test_a_run_that_was_stopped_before_any_answer(tmp_path: Path) -> None:
    """Nothing had come, not even a head: the replay neither waits nor asks again."""
    recording, _, _ = once(tmp_path, mails("ann"), on=stopping_at(TextDelta))
    asked, abort = recording.exchanges
    assert isinstance(asked, ModelExchange)
    assert isinstance(abort, WorldExchange)
    silent = replace(asked, answer=Answer(None, {}, (), "cancelled"))
    abort = replace(abort, answer={"count": 0})
    made_so = replace(recording, exchanges=(silent, abort))
    replay, agent = replayed(frozen(tmp_path, made_so, "silent"))
    assert shape(agent.events) == ["RequestStart", "Result"]
    assert replay.progress.requests_matched == 1


def test_what_was_stopped_elsewhere_is_told(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """An abort that was recorded, where the run does not get any more, is missed at the end."""
    recording, _, _ = once(tmp_path, mails("ann"))
    question = WorldQuestion("abort", "3:tools")
    here = replace(recording.exchanges[-1].place, turn=3)
    last = recording.exchanges[-1].started_ns + 1
    abort = WorldExchange(here, last, 0, question, {"count": 1})
    exchanges = (*recording.exchanges, abort)
    fixture = frozen(tmp_path, replace(recording, exchanges=exchanges), "elsewhere")
    assert diverges(fixture) == snapshot


def test_tools_of_an_answer_that_broke_off_replay(tmp_path: Path) -> None:
    """A tool that began while its answer came, and then the answer broke: both calls of one id come again."""
    broken = cut(streamed(call(1, "look"), text("And"), number=1), 6)
    given = [broken, streamed(call(1, "look"), number=2), streamed(text("Done."), number=3)]
    fixture, live, told = made(tmp_path, given)
    assert told == "completed: Done."
    assert len(fixture.tools) == 2
    replay, agent = replayed(fixture)
    assert shape(agent.events) == shape(live.events)
    assert replay.progress.tools_matched == 2


def test_until_a_turn_nobody_is_asked(tmp_path: Path) -> None:
    """Up to the turn and in it consent is the recorded one; what was not asked then gets nobody's answer."""
    fixture, _, _ = made(tmp_path, mails("ann"))
    with Replayer(fixture) as replay:
        same = replay.until(Mailer(person=nobody).answer, "Mail them.", turn=1)
    assert not same.differs, same.describe()
    rules = ruled("allow")
    free, _, _ = made(tmp_path / "free", mails("ann"), options={"permissions": rules})
    with Replayer(free) as replay:
        step = replay.until(Mailer(person=nobody).answer, "Mail them.", turn=1)
    assert step.tool("send").is_error
    assert "Nobody" in step.tool("send").text


def test_tries_are_kept(tmp_path: Path) -> None:
    """How often a tool was begun is in the fixture, and comes again."""
    stubborn = tool(retries=2, read_only=True, name="look")(_fails)
    given = [streamed(call(1, "look"), number=1), streamed(text("No."), number=2)]
    fixture, _, _ = made(tmp_path, given, tools=(stubborn,))
    [line] = lines(fixture, "tool")
    assert line["attempts"] == 3
    _, agent = replayed(fixture, tools=(stubborn,))
    assert [e.answer.attempts for e in agent.events if isinstance(e, ToolDone)] == [3]


def _fails() -> str:
    raise ConnectionError("no such server")


def test_a_fixture_does_not_tell_what_was_asked_first(tmp_path: Path) -> None:
    """Questions of calls that ran beside each other stand in the order of the calls, whichever came first."""
    recording, _, _ = once(tmp_path, mails("ann", "bob", "cid"))
    asked = [e for e in recording.exchanges if isinstance(e, WorldExchange)]
    assert len(asked) == 3
    times = [e.started_ns for e in asked]
    turned = [replace(e, started_ns=ns) for e, ns in zip(asked, reversed(times), strict=True)]
    others = [e for e in recording.exchanges if not isinstance(e, WorldExchange)]
    again = sorted([*others, *turned], key=lambda e: e.started_ns)
    assert write(replace(recording, exchanges=tuple(again)), {}) == write(recording, {})


def test_tools_beside_each_other_replay_in_any_order(tmp_path: Path) -> None:
    """Calls that ran at once, each after its own check and path, get each its own answer."""
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
    given = [streamed(*calls, number=1), streamed(text("Done."), number=2)]
    fixture, live, _ = made(tmp_path, given, tools=(reader,))
    assert ended == ["c", "b", "a"]
    for policy in ("recorded", "live"):
        agent = Mailer(tools=(reader,), person=nobody)
        with Replayer(fixture, ReplayOptions(tools=policy)) as replay:
            replay.run(agent.answer, "Mail them.")
        assert shape(agent.events) == shape(live.events)
        assert replay.progress.tools_matched == 3
        assert replay.progress.answers_matched == 6
