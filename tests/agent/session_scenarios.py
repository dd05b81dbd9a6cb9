"""Scenarios of the loop: sessions that are resumed and forked.

The earlier session is written into the scenario's own recording home, with a fixed ID and fixed times, so that
recording the scenario again changes nothing. In a replay, the earlier session does not exist.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentobs import wiring
from agentobs.agent import Tool, forked, resumed, tool
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.records.exchanges import ModelExchange, Place
from agentobs.sink import Record
from tests.agent.provider import call, message, streamed, text
from tests.agent.scenario import ExternalInput, Scenario
from tests.store.recordings import SECOND, T0, a_home, attempt, end, record, session_id, start
from tests.store.recordings import tool as ran

EARLIER = session_id(1)
DONE = streamed(message(text("Done.")))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def _earlier_session(*records: Record) -> Callable[[Path], ExternalInput]:
    """Return a function that records an earlier session in the scenario's folder and returns the external input."""

    def external_input(folder: Path) -> ExternalInput:
        home = a_home(folder)
        record(home, [start(1), *records])
        return ExternalInput(
            live={"load": functools.partial(wiring.load_conversation, home=home.path)}
        )

    return external_input


def _turn(lane: str, turn: int, *words: str, at: int, content: Sequence[Any] = ()) -> ModelExchange:
    """Return a turn of an agent in a lane as an LLM exchange: the prompt and the response."""
    asked = attempt(1, turn, at=T0 + at * SECOND, content=list(content) or None)
    place = Place(EARLIER, "1" * 32, lane, turn)
    body = asked.question.body.replace(b"line 0 of session 1", " ".join(words).encode())
    question = dataclasses.replace(asked.question, body=body)
    return dataclasses.replace(asked, place=place, question=question)


TOOLS: list[Tool] = [
    look,
    sub_agents([AgentDefinition("scout", "Finds things.", "You look for things.")]),
]

SCENARIOS: dict[str, Scenario] = {
    "resumed": Scenario(
        "A session that was killed between tools is resumed: with the existing result, a result "
        "that reports the interruption, and the cost of the session.",
        [streamed(message(call("c", "look", where="bag"))), DONE],
        [look],
        prompts=("Go on",),
        external_input=_earlier_session(
            attempt(1, 1, content=[call("a", "look", where="box"), call("b", "look", where="hat")]),
            ran(1, "a", "look", at=T0 + SECOND + 1),
        ),
        start_conversation=lambda world: resumed(world, EARLIER),
    ),
    "forked": Scenario(
        "A session is forked at an earlier turn, with the conversation up to that turn.",
        [DONE],
        [look],
        prompts=("Rather this",),
        external_input=_earlier_session(attempt(1, 1), attempt(1, 2), attempt(1, 3), end(1)),
        start_conversation=lambda world: forked(world, EARLIER, turn=2),
    ),
    "resumed-agents": Scenario(
        "A sub-agent is resumed with the agent that started it, and is continued by its ID.",
        [
            streamed(message(call("y", "agent", agent="scout", prompt="Go on", resume="x"))),
            streamed(message(text("It is in the hat."))),
            DONE,
        ],
        TOOLS,
        prompts=("Go on",),
        external_input=_earlier_session(
            _turn(
                "main",
                1,
                "Find it",
                at=1,
                content=[call("x", "agent", agent="scout", prompt="Look")],
            ),
            _turn("main/x", 1, "Look", at=2, content=[call("a", "look", where="box")]),
            dataclasses.replace(
                ran(1, "a", "look", at=T0 + 3 * SECOND), place=Place(EARLIER, None, "main/x")
            ),
        ),
        start_conversation=lambda world: resumed(world, EARLIER),
    ),
}
