"""Scenarios of the loop: sessions that are resumed and forked.

The earlier session is written into the scenario's own home, with a fixed ID and at fixed instants,
so that recording the scenario again changes nothing. In a replay it does not exist.
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
from agentobs.agent.tools.agent_definitions import Agent
from agentobs.records.exchanges import ModelExchange, Place
from agentobs.sink import Record
from tests.agent.provider import call, message, streamed, text
from tests.agent.scenario import Outside, Scenario
from tests.store.making import SECOND, T0, a_home, attempt, end, record, session_id, start
from tests.store.making import tool as ran

EARLIER = session_id(1)
DONE = streamed(message(text("Done.")))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def _after(*records: Record) -> Callable[[Path], Outside]:
    """An earlier session, in a home in the scenario's folder."""

    def outside(folder: Path) -> Outside:
        home = a_home(folder)
        record(home, [start(1), *records])
        return Outside(live={"load": functools.partial(wiring.load_conversation, home=home.path)})

    return outside


def _told(lane: str, turn: int, *said: str, at: int, content: Sequence[Any] = ()) -> ModelExchange:
    """A turn of an agent in a lane: its prompt, and its response."""
    asked = attempt(1, turn, at=T0 + at * SECOND, content=list(content) or None)
    place = Place(EARLIER, "1" * 32, lane, turn)
    body = asked.question.body.replace(b"line 0 of session 1", " ".join(said).encode())
    question = dataclasses.replace(asked.question, body=body)
    return dataclasses.replace(asked, place=place, question=question)


TOOLS: list[Tool] = [look, sub_agents([Agent("scout", "Finds things.", "You look for things.")])]

SCENARIOS: dict[str, Scenario] = {
    "resumed": Scenario(
        "A session that was killed among its tools goes on: the result that was there, one that says so, and its "
        "own money.",
        [streamed(message(call("c", "look", where="bag"))), DONE],
        [look],
        prompts=("Go on",),
        outside=_after(
            attempt(1, 1, content=[call("a", "look", where="box"), call("b", "look", where="hat")]),
            ran(1, "a", "look", at=T0 + SECOND + 1),
        ),
        begin=lambda world: resumed(world, EARLIER),
    ),
    "forked": Scenario(
        "A session goes another way from an earlier turn, with what was said until there.",
        [DONE],
        [look],
        prompts=("Rather this",),
        outside=_after(attempt(1, 1), attempt(1, 2), attempt(1, 3), end(1)),
        begin=lambda world: forked(world, EARLIER, turn=2),
    ),
    "resumed-agents": Scenario(
        "An agent that another one had started is resumed with it, and is gone on with by its id.",
        [
            streamed(message(call("y", "agent", agent="scout", prompt="Go on", resume="x"))),
            streamed(message(text("It is in the hat."))),
            DONE,
        ],
        TOOLS,
        prompts=("Go on",),
        outside=_after(
            _told(
                "main",
                1,
                "Find it",
                at=1,
                content=[call("x", "agent", agent="scout", prompt="Look")],
            ),
            _told("main/x", 1, "Look", at=2, content=[call("a", "look", where="box")]),
            dataclasses.replace(
                ran(1, "a", "look", at=T0 + 3 * SECOND), place=Place(EARLIER, None, "main/x")
            ),
        ),
        begin=lambda world: resumed(world, EARLIER),
    ),
}
