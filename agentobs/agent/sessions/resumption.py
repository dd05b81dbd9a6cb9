"""Resume or fork a recorded session as a conversation that can continue.

The loop requests the earlier conversation from the world, so that a resumed session replays without
the earlier recording. The world's answer is one JSON object, which
`agentobs.agent.sessions.reconstruction` builds:

  {"session_id": ..., "messages": [...], "turns": 3, "tool_turns": 2, "model": ..., "thought_ns": null,
   "usage": [...], "lost": 0, "hooks_done": [...], "denials": [0, 2],
   "children": {"toolu_1": {"messages": [...], ...}, "toolu_0": {"same": "toolu_1"}}}

Each call of the provider and each turn with tools is counted once, at the agent that made it. The
spending of a conversation is the sum over itself and its children. Grants of a person are not
included: they were given for the earlier run, so approval is requested again.
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
    """Return the conversation of an earlier session, to continue it; the current session becomes
    part of it.

    Tool calls that were running when it ended have their recorded results, or otherwise a note that
    they were interrupted. Spending is carried over, sub-agents included; grants of a person are
    not.

    Args:
        world: answers the question: a `live_world` with `load`, or a replay from its fixture.
        session_id: the earlier session's ID; with `agentobs.wiring.load_conversation`, also its name or a
            suffix of its ID.

    Raises:
        UsageError: there is no such session, it is still running, or this world cannot read any.
        RecordingError: its recording lacks something, such as content that was pruned.
        HomeError, DamagedError, ForeignError: the recordings cannot be read.
    """
    return await _load(world, "resume", session_id, None)


async def forked(world: World, session_id: str, *, turn: int | None = None) -> Conversation:
    """Return a copy of an earlier session's conversation, to start a new session from there.

    Args:
        world: as for `resumed`.
        session_id: as for `resumed`; it may still be running.
        turn: the last turn to include, with its tool results, from 1; by default all. The spending
            is also counted up to there.

    Raises:
        UsageError: as for `resumed`, or there is no such turn.
        RecordingError, HomeError, DamagedError, ForeignError: as for `resumed`.
    """
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 1):
        raise UsageError(f"{turn!r} is not a turn", where="turn", todo="Turns count from 1")
    return await _load(world, "fork", session_id, turn)


async def _load(
    world: World, relation: Relation, session_id: str, turn: int | None
) -> Conversation:
    here = tracing.place()
    key = f"{relation}:{session_id}" + (f":{turn}" if turn else "")
    question = {"session_id": str(session_id), "turn": turn, "relation": relation}
    answer = await telemetry.ask(world, here, "conversation", key, question)
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
    """Return the conversation in the world's answer.

    Raises:
        AgentobsError: the answer is an error.
    """
    if not isinstance(answer, dict):
        raise RecordingError("that session has no conversation", todo="Try again")
    error_facts = answer.get("error")
    if isinstance(error_facts, dict):
        kind = getattr(errors, str(error_facts.get("kind")), RecordingError)
        texts = [str(error_facts.get(name, "")) for name in ("found", "where", "todo")]
        raise kind(texts[0], where=texts[1], todo=texts[2])
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
        # The recorded model's thinking is signed by it; another model continues without it.
        fell_back_to=answer.get("model"),
        thought_ns=answer.get("thought_ns"),
        # Hooks that are not `once` run anyway, see `conditions.matching`.
        hooks_done=frozenset(answer.get("hooks_done") or ()),
        denials=Denials(*(answer.get("denials") or ())),
    )
    for node in nodes(answer):
        talk.meter.add_rows([(_usage(row), row["at_ns"]) for row in node["usage"]])
        if node["lost"]:
            talk.meter.lose(node["lost"])
    return talk


def _usage(row: Mapping[str, Any]) -> Usage:
    """Parse a usage row written by `_row`, without fields added by a newer version."""
    zero = {name: 0 for name in FIELDS if name.endswith(("_tokens", "_requests"))}
    empty = {"iteration": 0, "kind": "message", "billed": False, "model": "", "service_tier": None}
    unknown = {"inference_geo": None, "speed": None, "certainty": "estimated"}
    known = {name: value for name, value in row.items() if name in FIELDS}
    maps = {name: known.get(name) or {} for name in ("server_requests", "other_counts")}
    return Usage(**{**zero, **empty, **unknown, **known, **maps})
