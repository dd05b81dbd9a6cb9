"""Tools that keep failing are withdrawn, and the tools of a service share a circuit breaker.

Each conversation is run through `agentobs.Agent`, frozen and replayed.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs import runtime
from agentobs.agent import (
    AgentDefinition,
    Event,
    Service,
    ServiceBreaker,
    ToolDispatch,
    ToolWithdrawn,
    tool,
)
from agentobs.agent.tools.tool_runs import FAILURES_MAX, Streak, ToolRun, ToolRuns
from agentobs.errors import UsageError
from agentobs.world import World
from tests.cli.test_commands import Shell

from .agent_runs import ALLOW_ALL, of_kind
from .provider import call, cut_after, message, streamed, text
from .recorded_agents import DONE, Conversation, calling, options, outcomes, record

RAN: list[tuple[str, Any]] = []
BROKEN: set[str] = set()
"""The inputs for which tools fail."""
TURNS = Service("jira", failures=2, cool_down_turns=1)
SECONDS = Service("jira", failures=2, cool_down_s=60)


@pytest.fixture(autouse=True)
def _forget() -> None:
    RAN.clear()
    BROKEN.clear()
    BROKEN.add("x")


def lookup_tool(name: str = "lookup", **settings: Any) -> Any:
    @tool(name=name, read_only=True, **settings)
    def lookup(what: str) -> str:
        """Look something up."""
        RAN.append((name, what))
        if what in BROKEN:
            raise OSError("the service is down")
        return f"{name} found {what}"

    return lookup


def start_with(*tools: Any, **changes: Any) -> Callable[[Any], agentobs.Agent]:
    return lambda client: agentobs.Agent(
        client, options=options(permissions=ALLOW_ALL), tools=tools, **changes
    )


def turns(*names: str, what: str = "x") -> list[Any]:
    """Return one response for each name, which calls this tool, and a final response."""
    calls = [calling(call(f"t{n}", name, what=what)) for n, name in enumerate(names)]
    return [*calls, DONE]


def ends(conversation: Conversation) -> list[tuple[str, str]]:
    """Return the tool and the outcome of each call."""
    return [(name, outcome) for name, _, outcome, _ in outcomes(conversation.events)]


def changes(events: Sequence[Event]) -> list[Any]:
    return of_kind(events, ToolWithdrawn, ServiceBreaker)


def check_replay(conversation: Conversation, tmp_path: Path) -> None:
    ran = list(RAN)
    again = conversation.replayed(tmp_path / f"fixture-{conversation.session_id}")
    assert outcomes(again) == outcomes(conversation.events)
    assert changes(again) == changes(conversation.events)
    assert ran == RAN


@pytest.mark.slow
def test_a_failing_tool_is_withdrawn(tmp_path: Path) -> None:
    """After the limit of consecutive failures, calls do not run, and the model gets an explanation."""
    lookup = lookup_tool(withdraw_after=2)
    done = record(tmp_path, turns("lookup", "lookup", "lookup"), start_with(lookup))
    assert ends(done) == [*[("lookup", "failed")] * 2, ("lookup", "unavailable")]
    assert len(RAN) == 2
    assert done.results[0]["is_error"] is True
    assert done.results[0]["content"] == (
        "lookup was withdrawn for the rest of this conversation, because it failed 2 times in a row. "
        "Continue without it, or report what you could not do."
    )
    assert changes(done.events) == [ToolWithdrawn(2, "lookup", 2, None)]
    # The declarations stay identical, so that the cached prompt remains valid.
    declared = [request["tools"] for request in done.requests]
    assert declared == [declared[0]] * 4
    sql = "SELECT label, numbers['failures'], turn FROM events WHERE kind = 'tool_withdrawn'"
    assert done.rows(sql) == [("lookup", 2.0, 2)]
    assert done.rows("SELECT count(*) FROM tool_results WHERE outcome = 'unavailable'") == [(1,)]
    check_replay(done, tmp_path)


def test_a_success_resets_the_count(tmp_path: Path) -> None:
    """Only consecutive failures count; invalid and unknown calls do not."""
    lookup = lookup_tool(withdraw_after=2)
    inputs: list[dict[str, Any]] = [
        {"what": "x"},
        {"what": "y"},
        {"what": "x"},
        {"where": "x"},
        {"what": "y"},
    ]
    replies = [calling(call(f"t{n}", "lookup", **each)) for n, each in enumerate(inputs)]
    done = record(tmp_path, [*replies, DONE], start_with(lookup))
    assert [each for _, each in ends(done)] == [
        "failed",
        "executed",
        "failed",
        "invalid",
        "executed",
    ]
    assert changes(done.events) == []


@pytest.mark.slow
def test_a_fallback_takes_the_calls(tmp_path: Path) -> None:
    """The fallback runs instead, with its own settings; the call keeps its ID and the response its text."""
    spare = lookup_tool("spare")
    lookup = lookup_tool(withdraw_after=1, fallback=spare)
    done = record(tmp_path, turns("lookup", "lookup"), start_with(lookup, spare))
    assert ends(done) == [("lookup", "failed"), ("spare", "failed")]
    assert RAN == [("lookup", "x"), ("spare", "x")]
    assert [each["name"] for each in done.requests[2]["messages"][3]["content"]] == ["lookup"]
    assert changes(done.events) == [ToolWithdrawn(1, "lookup", 1, "spare")]
    assert [each.requested_input for each in done.tools] == [None, None]
    assert done.rows("SELECT requested_name, tool FROM tool_handling ORDER BY turn") == [
        ("lookup", "lookup"),
        ("lookup", "spare"),
    ]
    check_replay(done, tmp_path)


def test_a_fallback_whose_input_does_not_fit(tmp_path: Path) -> None:
    """If the input does not fit the fallback, the model gets the reason; a chain of fallbacks may end nowhere."""

    @tool
    def find(who: str) -> str:
        """Find someone."""
        return who

    first = lookup_tool("first", withdraw_after=1, fallback="second")
    second = lookup_tool("second", withdraw_after=1, fallback="first")
    third = lookup_tool("third", withdraw_after=1, fallback=find)
    names = ("first", "first", "first", "third", "third")
    done = record(tmp_path, turns(*names), start_with(first, second, third, find))
    assert ends(done) == [
        ("first", "failed"),
        ("second", "failed"),
        ("first", "unavailable"),
        ("third", "failed"),
        ("third", "unavailable"),
    ]
    contents = [content for *_, content in outcomes(done.events)]
    assert contents[2].startswith("first was withdrawn for the rest of this conversation")
    assert "second was withdrawn for the rest of this conversation" in contents[2]
    assert "find would be used instead, but not for this input:\nwho: required" in contents[4]
    check_replay(done, tmp_path)


def test_parallel_calls_count_in_order(tmp_path: Path) -> None:
    """The results of parallel calls count in the order of the calls, after the last of them has ended."""
    lookup = lookup_tool(withdraw_after=2)
    calls = [call(each, "lookup", what="x" if each != "c" else "y") for each in "abcde"]
    replies = [calling(*calls), *turns("lookup")]
    done = record(tmp_path, replies, start_with(lookup))
    assert [each for _, each in ends(done)] == [
        "failed",
        "failed",
        "executed",
        "failed",
        "failed",
        "unavailable",
    ]
    assert changes(done.events) == [ToolWithdrawn(1, "lookup", 2, None)]
    check_replay(done, tmp_path)


@pytest.mark.slow
def test_a_breaker_is_shared_by_the_tools_of_a_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The breaker opens for all tools of the service, lets one call through after the cool-down, and closes."""
    read, write = (lookup_tool(name, service=TURNS) for name in ("read", "write"))
    other = lookup_tool("other")
    names = ("read", "write", "read", "other", "write", "read")

    def on(agent: agentobs.Agent, event: Event) -> None:
        if len(RAN) == 3:
            BROKEN.clear()

    done = record(tmp_path, turns(*names), start_with(read, write, other), on=on)
    assert ends(done) == [
        ("read", "failed"),
        ("write", "failed"),
        ("read", "unavailable"),
        ("other", "failed"),
        ("write", "executed"),
        ("read", "executed"),
    ]
    content = outcomes(done.events)[2][3]
    assert content.startswith("read is not available at the moment, because the service jira fail")
    assert changes(done.events) == [
        ServiceBreaker(2, "jira", "opened", 2),
        ServiceBreaker(5, "jira", "half_open", 2),
        ServiceBreaker(5, "jira", "closed", 0),
    ]
    columns = "label, labels['service'], numbers['failures']"
    where = "kind = 'service_breaker' ORDER BY session_sequence"
    assert done.rows(f"SELECT {columns} FROM events WHERE {where}") == [
        ("opened", "jira", 2.0),
        ("half_open", "jira", 2.0),
        ("closed", "jira", 0.0),
    ]
    shown = Shell(tmp_path / "home", capsys)("show", done.session_id).out
    assert re.findall(r"service_breaker +jira (\w+) .* (\d failures)", shown) == [
        ("opened", "2 failures"),
        ("half_open", "2 failures"),
        ("closed", "0 failures"),
    ]
    check_replay(done, tmp_path)


def test_a_failed_probe_opens_the_breaker_again(tmp_path: Path) -> None:
    """Of several parallel calls after the cool-down, one is let through; its failure starts a new cool-down."""
    read = lookup_tool("read", service=TURNS)
    other = lookup_tool("other")
    first, last = turns("read", "read", "other")[:3], turns("read")
    both = calling(call("p1", "read", what="x"), call("p2", "read", what="x"))
    done = record(tmp_path, [*first, both, *last], start_with(read, other))
    assert [each for _, each in ends(done)] == [
        *["failed"] * 3,
        "failed",
        "unavailable",
        "unavailable",
    ]
    assert changes(done.events) == [
        ServiceBreaker(2, "jira", "opened", 2),
        ServiceBreaker(4, "jira", "half_open", 2),
        ServiceBreaker(4, "jira", "opened", 3),
    ]
    check_replay(done, tmp_path)


@pytest.mark.slow
def test_a_cool_down_in_seconds(tmp_path: Path) -> None:
    """The cool-down follows the world's clock; a replay uses the recorded answer, whatever its clock shows."""
    read = lookup_tool("read", service=SECONDS)
    now = itertools.count(1, 1_000)
    late_ns = [0]

    def with_clock(live: World) -> World:
        return dataclasses.replace(live, now=lambda: next(now) + late_ns[0])

    def on(agent: agentobs.Agent, event: Event) -> None:
        if isinstance(event, ToolDispatch) and len(RAN) == 1:
            late_ns[0] = 0
        if len(outcomes([event])) and len(RAN) == 2 and late_ns[0] == 0:
            late_ns[0] = 1
        elif len(outcomes([event])) and late_ns[0] == 1:
            late_ns[0] = 61_000_000_000
            BROKEN.clear()

    with runtime.replaced(transform=with_clock):
        done = record(tmp_path, turns(*["read"] * 4), start_with(read), on=on)
    assert [each for _, each in ends(done)] == ["failed", "failed", "unavailable", "executed"]
    assert [each.state for each in changes(done.events)] == ["opened", "half_open", "closed"]
    check_replay(done, tmp_path)


@pytest.mark.slow
def test_a_resumed_session_continues_the_state(tmp_path: Path) -> None:
    """In a resumed session, a withdrawn tool stays withdrawn and an open breaker stays open, even in its replay."""
    gone, read = lookup_tool("gone", withdraw_after=1), lookup_tool("read", service=TURNS)
    first = record(tmp_path, turns("gone", "read", "read"), start_with(gone, read))
    assert [each for _, each in ends(first)] == ["failed"] * 3

    def resuming(client: Any) -> agentobs.Agent:
        return start_with(gone, read)(client).resume(first.session_id)

    replies = turns("gone", "read", "read")
    second = record(tmp_path, replies, resuming)
    assert [each for _, each in ends(second)] == ["unavailable", "failed", "unavailable"]
    assert changes(second.events) == [
        ServiceBreaker(6, "jira", "half_open", 2),
        ServiceBreaker(6, "jira", "opened", 3),
    ]
    check_replay(second, tmp_path)


@pytest.mark.slow
def test_calls_of_a_response_that_broke_off_count(tmp_path: Path) -> None:
    """A call that failed before its response broke off counts. If it was stopped instead, another call runs."""
    hold = threading.Event()

    @tool(read_only=True, withdraw_after=2)
    async def read(what: str) -> str:
        """Read."""
        hold.set()
        raise OSError("the server is down")

    reads = message(call("t1", "read", what="x"), stop_reason="tool_use")
    count = len(streamed(reads).chunks) - 1
    broken = dataclasses.replace(cut_after(reads, count), hold=hold)
    replies = [broken, *turns("read", "read", "read")]
    done = record(tmp_path, replies, start_with(read))
    assert [each.answer.outcome for each in done.tools].count("failed") == 2
    assert ends(done)[-1] == ("read", "unavailable")
    check_replay(done, tmp_path)


def test_failures_of_sub_agents_count(tmp_path: Path) -> None:
    """A sub-agent starts with the state of its starter, and its failures count for the starter afterwards."""
    gone = lookup_tool("gone", withdraw_after=1)
    lookup = lookup_tool(withdraw_after=1)
    helper = AgentDefinition("helper", "Helps.")
    replies = [
        *turns("gone")[:1],
        calling(call("s1", "agent", agent="helper", prompt="Help")),
        calling(call("h1", "gone", what="x"), call("h2", "lookup", what="x")),
        streamed(message(text("Helped."))),
        *turns("lookup"),
    ]
    done = record(tmp_path, replies, start_with(gone, lookup, sub_agents=[helper]))
    found = {e.question.tool_use_id: e.answer.outcome for e in done.tools}
    assert found == {
        "t0": "failed",
        "s1": "executed",
        "h1": "unavailable",
        "h2": "failed",
        "t0_2": "unavailable",
    }
    check_replay(done, tmp_path)


def test_recent_runs_are_bounded() -> None:
    """For each tool, only the failures since its last success are kept, and at most 100 of them."""
    runs = ToolRuns().after(ToolRun("a", True, n, n) for n in range(150))
    assert len(runs.runs) == FAILURES_MAX
    assert runs.failures_of({"a"}) == Streak(FAILURES_MAX, ToolRun("a", True, 149, 149))
    runs = runs.after([ToolRun("b", True, 150, 150), ToolRun("a", False, 151, 151)])
    assert [(run.tool, run.has_failed) for run in runs.runs] == [("b", True), ("a", False)]
    assert runs.failures_of({"a", "b"}) == Streak()
    assert runs.failures_of({"b"}).count == 1
    assert ToolRuns.from_json(runs.as_json()) == runs
    assert ToolRuns((ToolRun("a", False, 1, 1),)).as_json() == []


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: lookup_tool(withdraw_after=0), "0 is not a number from 1 to 100"),
        (lambda: lookup_tool(fallback="other"), "the tool is never unavailable"),
        (lambda: lookup_tool(service=3), "3 is not a Service or its name"),
        (lambda: lookup_tool(withdraw_after=1, fallback=3), "3 is not a tool or its name"),
        (lambda: Service("a b"), "'a b' is not a label"),
        (lambda: Service("a", failures=True), "failures is True"),
        (lambda: Service("a", cool_down_s=1, cool_down_turns=1), "it has two cool-downs"),
        (lambda: Service("a", cool_down_s=0), "cool_down_s is 0"),
        (lambda: Service("a", cool_down_turns=0), "cool_down_turns is 0"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any], expected: str) -> None:
    """Invalid settings are refused when the tool or the service is defined."""
    with pytest.raises(UsageError, match=expected):
        make()


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([lookup_tool(withdraw_after=1, fallback="spare")], "there is no tool 'spare'"),
        ([lookup_tool(withdraw_after=1, fallback="lookup")], "the tool itself"),
        (
            [lookup_tool("a", service=TURNS), lookup_tool("b", service="jira")],
            "has other settings for the service jira",
        ),
    ],
)
def test_tools_that_do_not_fit_together_are_refused(tools: list[Any], expected: str) -> None:
    """A missing fallback and contradictory settings of a service are refused when the agent is created."""
    import anthropic

    with pytest.raises(UsageError, match=expected):
        start_with(*tools)(anthropic.AsyncAnthropic(api_key="made-up"))
