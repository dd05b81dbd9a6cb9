"""Summaries that are paid for and cannot be used: they are recorded, and not requested without end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent.context import Context
from agentobs.agent.events import Compaction, Degraded
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool
from agentobs.recording.session import stop_recorder
from agentobs.records.facts import Event as EventFact
from tests import queries
from tests.agent.agent_runs import of_kind, options, recorded, result_of
from tests.agent.context.long_conversations import response_of, run_agent
from tests.agent.provider import Provider, Reply, call, text
from tests.cli.test_commands import Shell

PRICED = "claude-sonnet-5-5"
WINDOW = Context(window_tokens=6000, summary_tokens=500, reserve_tokens=500, kept_results=0)
"""A context whose window allows a conversation of 5,000 tokens."""


@tool(read_only=True)
def dig(where: str) -> str:
    """Dig up a long text."""
    return f"{where}: " + "y" * 9000


DONE = response_of(300, text("Done."), model=PRICED)
EMPTY = response_of(4500, model=PRICED)
"""A response to a summary request without any text."""
REFUSED = response_of(4500, text("No."), stop_reason="refusal", model=PRICED)
CUT = response_of(4500, text("They"), stop_reason="max_tokens", model=PRICED)
GOOD = response_of(4500, text("They dug."), model=PRICED)


def digs(turn: int) -> Reply:
    """Return a response with three calls, whose results are so long that the conversation must be compacted."""
    calls = [call(f"toolu_{turn}_{n}", "dig", where=f"{turn}-{n}") for n in range(3)]
    return response_of(1200, text("z" * 3600), *calls, model=PRICED)


def replies(*summaries: tuple[Reply, ...], turns: int = 6) -> list[Reply]:
    """Return the responses of a run. Before the third turn and each later turn, a summary is requested, until there are
    no more summaries; each is a tuple of the responses to its requests.
    """
    made = [digs(1)]
    for turn in range(2, turns + 1):
        made += [digs(turn), *(summaries[turn - 2] if turn - 2 < len(summaries) else ())]
    return [*made, DONE]


def summary_requests(requests: list[dict[str, Any]]) -> int:
    """Return how many requests cannot call tools, which is so only in requests for summaries."""
    return sum(each.get("tool_choice") == {"type": "none"} for each in requests)


def test_a_failing_summary_is_not_requested_without_end() -> None:
    """If summaries are answered without text, the run trims results instead, and requests no summary after the third.
    Each failure is an event with its reason.
    """
    with recorded() as records:
        events, requests = run_agent(
            replies((EMPTY,), (EMPTY,), (EMPTY,)), tools=[dig], context=WINDOW
        )
    assert result_of(events).text == "Done."
    assert summary_requests(requests) == 3
    assert {done.methods for done in of_kind(events, Compaction)} == {("trim",)}
    assert len(of_kind(events, Compaction)) == 6
    assert of_kind(events, Degraded) == [Degraded("summary", "failures")]
    failed = [each for each in of_kind(records, EventFact) if each.kind == "summary_failed"]
    assert [
        (each.label, each.numbers["requests"], each.numbers["failures"]) for each in failed
    ] == [
        ("no_text", 1, 1),
        ("no_text", 1, 2),
        ("no_text", 1, 3),
    ]


def test_each_reason_is_recorded() -> None:
    """A refusal, and a summary that is cut twice, also count as failures; a summary that is used resets the count."""
    conversation = Conversation()
    with recorded() as records:
        events, requests = run_agent(
            replies((REFUSED,), (CUT, CUT), (GOOD,), (), turns=4),
            tools=[dig],
            context=WINDOW,
            conversation=conversation,
        )
    failed = [each for each in of_kind(records, EventFact) if each.kind == "summary_failed"]
    assert [
        (each.label, each.numbers["requests"], each.numbers["failures"]) for each in failed
    ] == [
        ("refusal", 1, 1),
        ("cut", 2, 2),
    ]
    assert summary_requests(requests) == 4
    assert conversation.context.failed_summaries == 0
    assert of_kind(events, Degraded) == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a session that paid for three summaries without text."""

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            chosen = options(context=WINDOW, model=PRICED)
            agent = agentobs.Agent(agentobs.record(client), options=chosen, tools=[dig])
            with agentobs.session("digger"):
                result = await agent.run("Dig")
                assert (result.num_turns, result.num_tool_calls) == (7, 18)

    assert agentobs.start(str(tmp_path / "home"))
    with Provider(replies((EMPTY,), (EMPTY,), (EMPTY,))) as provider:
        asyncio.run(go(provider))
    stop_recorder()
    return tmp_path / "home"


@pytest.mark.slow
def test_the_waste_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store has each unused summary with its reason and cost; `diagnose` and `cost` show the waste."""
    rows = queries.query(
        "SELECT lane, requests, reason, billed_tokens, cost_usd > 0 FROM unused_summaries ORDER BY at_ns",
        home=home,
    )
    assert rows == [("main", 1, "no_text", 4503, True)] * 3
    [[wasted]] = queries.query("SELECT sum(cost_usd) FROM unused_summaries", home=home)
    [[total, turns, calls]] = queries.query(
        "SELECT cost_usd, turns, tool_calls FROM sessions", home=home
    )
    assert (turns, calls) == (7, 18)
    shell = Shell(home, capsys)
    findings = [json.loads(line) for line in shell("diagnose", "digger", "--json").out.splitlines()]
    [found] = [each for each in findings if each["signature"] == "failed_summaries"]
    assert found["is_found"]
    [evidence] = found["evidence"]
    assert (evidence["about"], evidence["value"]) == ("no_text", 3.0)
    assert evidence["detail"] == f"3 requests cost ${wasted:.4f} of ${total:.4f}"
    shown = shell("cost", "--session", "digger")
    assert f"3 requests for summaries that were not used (no_text) cost ${wasted:.4f}" in shown.err
