"""Resume or fork a recorded session as a conversation that can continue.

The earlier conversation is requested from the world, so that a resumed session can be replayed without the earlier
recording. The answer of the world is one JSON object, which `agentobs.agent.sessions.reconstruction` builds:

  {"session_id": ..., "messages": [...], "turns": 3, "tool_turns": 2, "model": ..., "thought_ns": null,
   "usage": [...], "lost": 0, "hooks_done": [...], "denials": [0, 2], "tool_runs": [["search", true, 3, 17...], ...],
   "children": {"toolu_1": {"messages": [...], ...}, "toolu_0": {"same": "toolu_1"}}}

The usage of each LLM request and each turn with tools is counted once, for the agent that made it. The spending of a
conversation is the sum over itself and its children. Grants of a person are not included: they were given for the
earlier run, so approvals are requested again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentobs import errors, tracing
from agentobs.agent import telemetry
from agentobs.agent.permissions import Denials
from agentobs.agent.sessions.reconstruction import USAGE_FIELDS, conversation_nodes, last_id
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool_runs import ToolRuns
from agentobs.errors import RecordingError, UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.facts import Relation
from agentobs.records.usage import Usage
from agentobs.world import World


async def resumed(world: World, session_id: str) -> Conversation:
    """Return the conversation of an earlier session, to continue it in the current session.

    Tool calls that were running when the earlier session ended have their recorded results, or else
    a note that they were interrupted. The spending is carried over, including the spending of
    sub-agents. Grants of a person are not carried over.

    Args:
        world: the world that reads the session: a `live_world` with `load`, or a replay.
        session_id: the ID of the earlier session; with `agentobs.wiring.load_conversation`, also its
            name or a suffix of its ID.

    Raises:
        UsageError: there is no such session, it is still running, or this world cannot read
            sessions.
        RecordingError: the recording is incomplete, for example because its content was pruned.
        HomeError, DamagedError, ForeignError: the recordings cannot be read.
    """
    return await _load(world, "resume", session_id, None)


async def forked(world: World, session_id: str, *, turn: int | None = None) -> Conversation:
    """Return a copy of an earlier session's conversation, with which a new session can start.

    Args:
        world: as for `resumed`.
        session_id: as for `resumed`; the session may still be running.
        turn: the last turn to include, with its tool results, from 1; by default all turns. The
            spending is also counted up to this turn.

    Raises:
        UsageError: as for `resumed`, or there is no such turn.
        RecordingError, HomeError, DamagedError, ForeignError: as for `resumed`.
    """
    return await _load(world, "fork", session_id, turn)


def check_earlier(session_id: Any, turn: Any, *, where: str) -> None:
    """Check the arguments that name an earlier session.

    Raises:
        UsageError: the ID is not a text or is empty, or the turn is not a number from 1.
    """
    if not isinstance(session_id, str) or not session_id.strip():
        raise UsageError(
            f"{session_id!r} is not the ID or name of a session",
            where=f"{where}, session_id",
            todo="Pass the ID of a session, a suffix of it, or the name of a session; agentobs sessions lists them",
        )
    if turn is not None and (type(turn) is not int or turn < 1):
        raise UsageError(
            f"{turn!r} is not a turn number",
            where=f"{where}, turn",
            todo="Pass a number from 1, or None for all turns",
        )


async def _load(
    world: World, relation: Relation, session_id: str, turn: int | None
) -> Conversation:
    check_earlier(session_id, turn, where="resumed" if relation == "resume" else "forked")
    here = tracing.place()
    key = f"{relation}:{session_id}" + (f":{turn}" if turn else "")
    question = {"session_id": str(session_id), "turn": turn, "relation": relation}
    answer = await telemetry.ask(world, here, "conversation", key, question)
    if answer is None:
        raise RecordingError(
            "the earlier session could not be read: the run was stopped, or reading took too long",
            where=str(session_id)[:80],
            todo="Try again",
        )
    conversation = conversation_from(answer)
    kind = "resumed" if relation == "resume" else "forked"
    numbers = {
        "turns": conversation.turns,
        "messages": len(conversation.messages),
        "children": len(conversation.children),
    }
    telemetry.event(world, here, kind, answer.get("session_id"), numbers)
    return conversation


def conversation_from(answer: Json) -> Conversation:
    """Return the conversation in an answer of the world.

    Raises:
        AgentobsError: the answer is an error, which is raised.
    """
    if not isinstance(answer, dict):
        raise RecordingError("the session contains no conversation", todo="Try again")
    error_facts = answer.get("error")
    if isinstance(error_facts, dict):
        kind = getattr(errors, str(error_facts.get("kind")), RecordingError)
        texts = [str(error_facts.get(name, "")) for name in ("found", "where", "todo")]
        raise kind(texts[0], where=texts[1], todo=texts[2])
    nodes = answer["children"]
    children = {name: conversation_from(node) for name, node in nodes.items() if "same" not in node}
    children |= {name: children[last_id(nodes, name)] for name in nodes if name not in children}
    conversation = Conversation(
        messages=tuple(answer["messages"]),
        turns=answer["turns"],
        tool_turns=sum(node["tool_turns"] for node in conversation_nodes(answer)),
        children=children,
        # Thinking is signed by the recorded model; another model has to continue without it.
        fell_back_to=answer.get("model"),
        thought_ns=answer.get("thought_ns"),
        # Only `once` hooks among them are skipped, see `conditions.matching`.
        hooks_done=frozenset(answer.get("hooks_done") or ()),
        denials=Denials(*(answer.get("denials") or ())),
        tool_runs=ToolRuns.from_json(answer.get("tool_runs") or ()),
    )
    for node in conversation_nodes(answer):
        conversation.meter.add_rows([(_usage(row), row["at_ns"]) for row in node["usage"]])
        if node["lost"]:
            conversation.meter.add_lost_records(node["lost"])
    return conversation


def _usage(row: Mapping[str, Any]) -> Usage:
    """Parse a usage row that `reconstruction._row` has written; ignore fields that a newer version has added."""
    zero = {name: 0 for name in USAGE_FIELDS if name.endswith(("_tokens", "_requests"))}
    empty = {"iteration": 0, "kind": "message", "billed": False, "model": "", "service_tier": None}
    unknown = {"inference_geo": None, "speed": None, "certainty": "estimated"}
    known = {name: value for name, value in row.items() if name in USAGE_FIELDS}
    maps = {name: known.get(name) or {} for name in ("server_requests", "other_counts")}
    return Usage(**{**zero, **empty, **unknown, **known, **maps})
