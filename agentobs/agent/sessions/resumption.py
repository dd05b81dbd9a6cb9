"""Resuming: from a recorded session to a conversation that goes on, or that another one begins like.

The loop asks the world for the earlier conversation, as for anything from outside, so that a session which was
resumed replays without the recording of the earlier one. What the world answers is one JSON object, which
`agentobs.agent.sessions.reconstruction` makes of a recording:

    {"session_id": ..., "messages": [...], "turns": 3, "tool_turns": 2, "model": ..., "thought_ns": null,
     "usage": [...], "lost": 0, "hooks_done": [...], "denials": [0, 2],
     "children": {"toolu_1": {"messages": [...], ...}, "toolu_0": {"same": "toolu_1"}}}

Each call of the provider and each turn with tools stands once, with the agent that made it: what a conversation has
spent is the sum over itself and its children. What a person permitted is not in it: permission was given to what
went on then, so the person is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentobs import errors, tracing
from agentobs.agent import telemetry
from agentobs.agent.permissions import Denials
from agentobs.agent.sessions.reconstruction import FIELDS, nodes, same
from agentobs.agent.state import Conversation
from agentobs.errors import RecordingError, UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.facts import Relation
from agentobs.records.usage import Usage
from agentobs.world import World


async def resumed(world: World, session_id: str) -> Conversation:
    """Return the conversation of an earlier session, to go on with it; the session here is part of it then.

    Tool calls that were under way when it ended have their results where those were recorded, and a result that
    says so where not. What it spent, its sub-agents included, comes along; what a person permitted does not.

    Args:
        world: whom to ask, a `live_world` with `load`; a replay answers from its fixture.
        session_id: the earlier session's id; where the loader is `agentobs.wiring.load_conversation`, also its name or
            an end of its id.

    Raises:
        UsageError: there is no such session, it is still running, or this world cannot read any.
        RecordingError: its recording lacks something, such as content that was pruned.
        HomeError, DamagedError, ForeignError: the recordings cannot be read.
    """
    return await _asked(world, "resume", session_id, None)


async def forked(world: World, session_id: str, *, turn: int | None = None) -> Conversation:
    """Return a copy of an earlier session's conversation, to go another way from there.

    Args:
        world: as for `resumed`.
        session_id: as for `resumed`; it may still be running.
        turn: the last turn that it shall have, with the results of its tools, from 1; default all. What it has
            spent is what was spent until then.

    Raises:
        UsageError: as for `resumed`, or there is no such turn.
        RecordingError, HomeError, DamagedError, ForeignError: as for `resumed`.
    """
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 1):
        raise UsageError(f"{turn!r} is no turn", where="turn", todo="Turns count from 1")
    return await _asked(world, "fork", session_id, turn)


async def _asked(
    world: World, relation: Relation, session_id: str, turn: int | None
) -> Conversation:
    here = tracing.place()
    key = f"{relation}:{session_id}" + (f":{turn}" if turn else "")
    asked = {"session_id": str(session_id), "turn": turn, "relation": relation}
    answer = await telemetry.ask(world, here, "conversation", key, asked)
    if answer is None:
        raise RecordingError(
            "the earlier session was not read: the run was stopped, or it took too long",
            where=str(session_id)[:80],
            todo="Try again",
        )
    talk = conversation_from(answer)
    kind = "resumed" if relation == "resume" else "forked"
    numbers = {"turns": talk.turns, "messages": len(talk.messages), "children": len(talk.children)}
    telemetry.event(world, here, kind, answer.get("session_id"), numbers)
    return talk


def conversation_from(answer: Json) -> Conversation:
    """Return the conversation that the world has answered with.

    Raises:
        AgentobsError: it has answered with an error.
    """
    if not isinstance(answer, dict):
        raise RecordingError("no conversation came of that session", todo="Try again")
    said = answer.get("error")
    if isinstance(said, dict):
        kind = getattr(errors, str(said.get("kind")), RecordingError)
        given = [str(said.get(name, "")) for name in ("found", "where", "todo")]
        raise kind(given[0], where=given[1], todo=given[2])
    listed = answer["children"]
    children = {
        name: conversation_from(each) for name, each in listed.items() if "same" not in each
    }
    children |= {name: children[same(listed, name)] for name in listed if name not in children}
    talk = Conversation(
        messages=tuple(answer["messages"]),
        turns=answer["turns"],
        tool_turns=sum(node["tool_turns"] for node in nodes(answer)),
        children=children,
        # What the recorded model thought is signed by it: another one goes on without.
        fell_back_to=answer.get("model"),
        thought_ns=answer.get("thought_ns"),
        # A hook that is not to run once runs all the same, see `hooks.matching`.
        hooks_done=frozenset(answer.get("hooks_done") or ()),
        denials=Denials(*(answer.get("denials") or ())),
    )
    for node in nodes(answer):
        talk.meter.add_rows([(_usage(row), row["at_ns"]) for row in node["usage"]])
        if node["lost"]:
            talk.meter.lose(node["lost"])
    return talk


def _usage(row: Mapping[str, Any]) -> Usage:
    """Return a row of usage that `_row` has written; what a newer version wrote beside it is left out."""
    zero = {name: 0 for name in FIELDS if name.endswith(("_tokens", "_requests"))}
    empty = {"iteration": 0, "kind": "message", "billed": False, "model": "", "service_tier": None}
    unknown = {"inference_geo": None, "speed": None, "certainty": "estimated"}
    given = {name: value for name, value in row.items() if name in FIELDS}
    maps = {name: given.get(name) or {} for name in ("server_requests", "other_counts")}
    return Usage(**{**zero, **empty, **unknown, **given, **maps})
