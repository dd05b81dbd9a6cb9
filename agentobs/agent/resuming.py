"""Resuming: from a recorded session to a conversation that goes on, or that another one begins like.

The loop asks the world for the earlier conversation, as for anything from outside, so that a session which was
resumed replays without the recording of the earlier one. What the world answers is one JSON object, made here,
too, by pure functions: `conversation_of` takes it from a recording, `conversation_from` makes a `Conversation` of it.

    {"session_id": ..., "messages": [...], "turns": 3, "tool_turns": 2, "model": ..., "usage": [...], "lost": 0,
     "children": {"toolu_1": {"messages": [...], ...}}}

Each call of the provider stands once, with the agent that made it: what a conversation has spent is the sum over
itself and its children. What a person permitted is not in it: permission was given to what went on then, so the
person is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from agentobs import errors, tracing
from agentobs.agent import telling
from agentobs.agent.state import (
    Conversation,
    State,
    answered,
    broken_off,
    calls,
    go_on,
    owed_results,
    told_apart,
    used_ids,
)
from agentobs.errors import RecordingError, UsageError
from agentobs.records.canonical import Json
from agentobs.records.exchanges import (
    ModelExchange,
    Recording,
    ToolAnswer,
    ToolExchange,
    WorldExchange,
    lane_under,
)
from agentobs.records.facts import Relation, UsageRow
from agentobs.records.messages import assemble, fault, tool_results, tool_uses
from agentobs.records.usage import Usage
from agentobs.world import World

MESSAGES = "/v1/messages"
"""The path of the requests that hold a conversation."""

_OTHER_TURN = "Fork it at an earlier turn"


async def resumed(world: World, session_id: str) -> Conversation:
    """Return the conversation of an earlier session, to go on with it; the session here is part of it then.

    Tool calls that were under way when it ended have their results where those were recorded, and a result that
    says so where not. What it spent, its sub-agents included, comes along; what a person permitted does not.

    Args:
        world: whom to ask, a `live_world` with `load`; a replay answers from its fixture.
        session_id: the earlier session's id; where the loader is `agentobs.load_conversation`, also its name or
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
    answer = await telling.ask(world, here, "conversation", key, asked)
    if answer is None:
        raise RecordingError(
            "the earlier session was not read: the run was stopped, or it took too long",
            where=str(session_id)[:80],
            todo="Try again",
        )
    talk = conversation_from(answer)
    kind = "resumed" if relation == "resume" else "forked"
    numbers = {"turns": talk.turns, "messages": len(talk.messages), "children": len(talk.children)}
    telling.event(world, here, kind, str(answer.get("session_id")), numbers)
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
    children = {name: conversation_from(each) for name, each in answer["children"].items()}
    talk = Conversation(
        messages=tuple(answer["messages"]),
        turns=answer["turns"],
        tool_turns=answer["tool_turns"],
        children=children,
    )
    for node in _nodes(answer):
        talk.meter.add_rows([(_usage(row), row["at_ns"]) for row in node["usage"]])
        if node["lost"]:
            talk.meter.lose(node["lost"])
    return talk


class Asked(NamedTuple):
    """One attempt at a request for a message, without its content."""

    attempt_id: str
    lane: str
    turn: int | None
    started_ns: int
    is_kept: bool
    """Whether its answer is in the conversation: it came whole, or was broken off on purpose."""


def end_of_turn(asked: Sequence[Asked], turn: int) -> int | None:
    """Return when the turn after one began; None where there is none after it.

    Args:
        asked: the attempts of a session, in the order in which they started.
        turn: a turn of the main lane, from 1. Where the session holds several conversations, that of the last.

    Raises:
        UsageError: there is no such turn.
    """
    main = [each for each in asked if each.lane == "main"]
    found = [at for at, each in enumerate(main) if each.turn == turn and each.is_kept]
    if not found:
        turns = sorted({each.turn for each in main if each.is_kept and each.turn})
        raise UsageError(
            f"the session has no turn {turn}",
            where="turn",
            todo=f"It has turns {turns[0]} to {turns[-1]}" if turns else "It has no turns at all",
        )
    after = main[found[-1] + 1 :]
    return after[0].started_ns if after else None


def needed(asked: Sequence[Asked], until_ns: int | None) -> frozenset[str]:
    """Return the attempts whose requests a conversation is made from: the last of each lane before an instant.

    And that of the main lane after it, which tells the results that an agent sent whose tools nobody recorded.
    """
    last = {each.lane: each.attempt_id for each in asked if _is_before(each.started_ns, until_ns)}
    after = [
        each.attempt_id
        for each in asked
        if each.lane == "main" and not _is_before(each.started_ns, until_ns)
    ]
    return frozenset((*last.values(), *after[:1]))


def conversation_of(
    recording: Recording,
    usage: Iterable[UsageRow] = (),
    *,
    until_ns: int | None = None,
    lost: int = 0,
) -> Json:
    """Return the conversation of a recorded session, as the world answers with it.

    Args:
        recording: the session; of its requests those that are `needed` have their bodies.
        usage: its own billed rows of usage.
        until_ns: only what started before, nanoseconds since 1970, see `end_of_turn`; None for all.
        lost: records that the recorder could not write: what was spent is a lower bound then.

    Raises:
        RecordingError: it holds no conversation, or none that the provider would take.
    """
    heard = _Heard(recording, until_ns)
    node = heard.agent("main", heard.earlier("main"))
    if not node["messages"]:
        raise _nothing(recording, "no request of its main agent was recorded")
    _share_out(node, heard, [row for row in usage if _is_before(row.at_ns, until_ns)])
    node["lost"] += lost
    return {"session_id": recording.session_id, **node}


@dataclass(slots=True)
class _Heard:
    """What was recorded of a session before an instant."""

    recording: Recording
    until_ns: int | None
    told: dict[str, Json] = field(init=False)
    """The answers that the loop keeps, by attempt."""

    def __post_init__(self) -> None:
        """Put the answers together."""
        asked = [each for each in self.recording.exchanges if isinstance(each, ModelExchange)]
        found = {each.attempt_id: _told(each) for each in asked if _is_for_message(each)}
        self.told = {attempt_id: message for attempt_id, message in found.items() if message}

    def asks(self, lane: str, *, later: bool = False) -> list[ModelExchange]:
        """Return the requests for messages of a lane, or those that came later."""
        return [
            each
            for each in self.recording.exchanges
            if isinstance(each, ModelExchange)
            and each.place.lane == lane
            and _is_for_message(each)
            and _is_before(each.started_ns, self.until_ns) is not later
        ]

    def earlier(self, lane: str) -> Json | None:
        """Return the conversation that this session itself went on from, or None."""
        found = [
            each.answer
            for each in self.recording.exchanges
            if isinstance(each, WorldExchange)
            and (each.question.kind, each.place.lane) == ("conversation", lane)
            and isinstance(each.answer, dict)
            and "error" not in each.answer
            and _is_before(each.started_ns, self.until_ns)
        ]
        return found[-1] if found else None

    def agent(self, lane: str, base: Json | None) -> Json:
        """Return the conversation of the agent in a lane and, with it, those of the agents that it started.

        `base` is what the agent went on from when this was recorded, or None.
        """
        asks = self._latest(self.asks(lane))
        base = base if base is not None and _goes_on(base, asks) else None
        node: Json = {
            "messages": list(base["messages"]) if base else [],
            "turns": base["turns"] if base else 0,
            "tool_turns": base["tool_turns"] if base else 0,
            "model": base["model"] if base else None,
            "usage": list(base["usage"]) if base else [],
            "lost": base["lost"] if base else 0,
            "children": {},
            "lane": lane,
        }
        told = [self.told.get(each.attempt_id, {}) for each in self.asks(lane)]
        started = [block["id"] for message in told for block in _calls(message)]
        before = base["children"] if base else {}
        for agent_id in dict.fromkeys([*before, *started]):
            inside = lane_under(lane, agent_id)
            if agent_id in before or self.asks(inside):
                node["children"][agent_id] = self.agent(inside, before.get(agent_id))
        if asks:
            self._continue(node, asks)
        return node

    def _latest(self, asks: list[ModelExchange]) -> list[ModelExchange]:
        """Return the requests of the last conversation of a lane: its turns count from 1 again.

        A turn is asked again within its interaction, and by the next interaction where it had no answer.
        """
        begins, kept, before = 0, 0, None
        for at, each in enumerate(asks):
            turn = each.place.turn or 0
            if 0 < turn <= kept and each.place.interaction_id != before:
                begins, kept = at, 0
            if each.attempt_id in self.told:
                kept = turn
            before = each.place.interaction_id
        return asks[begins:]

    def _continue(self, node: Json, asks: list[ModelExchange]) -> None:
        """Put into a conversation what its lane says; the last request holds all that came before it."""
        last = asks[-1]
        kept = [each for each in asks if each.attempt_id in self.told]
        turn = last.place.turn or len(kept)
        body = _body(self.recording, last)
        messages = tuple(unmarked(message) for message in body["messages"])
        state = State("awaiting_model", messages, turn, 0, 0, "start")
        if last in kept:
            state = self._answered(state, last, frozenset(node["children"]))
        why = fault(state.messages)
        if why is not None:
            raise RecordingError(
                f"the provider would refuse this conversation: {why}",
                where=self.recording.session_id,
                todo=_OTHER_TURN,
            )
        used = {
            each.place.turn or at
            for at, each in enumerate(kept)
            if _calls(self.told[each.attempt_id])
        }
        node["messages"] = list(state.messages)
        node["turns"] = turn if last in kept else max(turn - 1, node["turns"])
        node["tool_turns"] += len(used)
        node["model"] = body.get("model")

    def _answered(self, state: State, last: ModelExchange, agents: frozenset[str]) -> State:
        """Return the state after the last answer, with a result for each of its calls, and what was said then."""
        whole = last.answer.ending == "complete"
        message, _ = told_apart(self.told[last.attempt_id], used_ids(state.messages))
        try:
            if whole:
                state, asked = answered(state, message), calls(message)
            else:
                state, asked = broken_off(state, message)
        except ValueError as error:
            raise RecordingError(
                f"the last answer cannot be read: {error}",
                where=self.recording.session_id,
                todo=_OTHER_TURN,
            ) from error
        said = self._said(last)
        if not asked:
            return go_on(state, said, "follow_up") if said else state
        known = {name: interrupted(name) for name in agents} | self._answers(last)
        sent = self._sent(last)
        content = [sent.get(r["tool_use_id"], r) for r in owed_results(state.messages, known)]
        content += [{"type": "text", "text": text} for text in said]
        messages = (*state.messages, {"role": "user", "content": content})
        return State("awaiting_model", messages, state.turn + 1, 0, 0, "next_turn")

    def _answers(self, last: ModelExchange) -> dict[str, ToolAnswer]:
        """Return what the tools answered that the last answer called, as far as they had."""
        return {
            each.question.tool_use_id: each.answer
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange)
            and each.place.lane == last.place.lane
            and each.started_ns >= last.started_ns
            and _is_before(each.started_ns, self.until_ns)
        }

    def _sent(self, last: ModelExchange) -> dict[str, Json]:
        """Return the results that the request after the last one sent, where that is recorded."""
        following = self.asks(last.place.lane, later=True)[:1]
        bodies = [_body(self.recording, each) for each in following if each.question.body]
        messages = [message for body in bodies for message in body["messages"]]
        return {
            block["tool_use_id"]: block
            for message in messages
            for block in tool_results(unmarked(message))
            if isinstance(block.get("tool_use_id"), str)
        }

    def _said(self, last: ModelExchange) -> list[str]:
        """Return what somebody said to the agent after the last answer, which no request has told the model."""
        return [
            text
            for each in self.recording.exchanges
            if isinstance(each, WorldExchange)
            and each.place.lane == last.place.lane
            and each.question.kind in ("steering", "follow_up")
            and each.started_ns >= last.started_ns
            and _is_before(each.started_ns, self.until_ns)
            and isinstance(each.answer, list)
            for text in each.answer
            if isinstance(text, str)
        ]


def interrupted(agent_id: str) -> ToolAnswer:
    """Return the result of a call whose agent was at work when the run was interrupted."""
    return ToolAnswer(
        f"The run was interrupted before the agent {agent_id} had ended. What it has done is kept under that id.",
        is_error=True,
        outcome="aborted",
    )


def unmarked(value: Any) -> Any:
    """Return a message or a block without the marks of the cache, which a request sets for itself."""
    if not isinstance(value, dict):
        return value
    kept = {name: inner for name, inner in value.items() if name != "cache_control"}
    if isinstance(kept.get("content"), list):
        kept["content"] = [unmarked(block) for block in kept["content"]]
    return kept


def _is_before(at_ns: int, until_ns: int | None) -> bool:
    return until_ns is None or at_ns < until_ns


def _goes_on(base: Json, asks: list[ModelExchange]) -> bool:
    """Return whether requests go on from an earlier conversation, and are not those of another one."""
    return not asks or asks[0].place.turn == base["turns"] + 1


def _body(recording: Recording, ask: ModelExchange) -> Json:
    """Return a request's body.

    Raises:
        RecordingError: it holds no conversation.
    """
    try:
        body = json.loads(ask.question.body)
        messages = body["messages"]
        readable = isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _nothing(recording, "its last request holds no messages") from None
    thread = body.get("thread")
    if isinstance(thread, dict) and "previous_message_id" in thread:
        raise RecordingError(
            "its requests name the answer that they go on from, and do not hold the conversation",
            where=recording.session_id,
            todo="Only the client that keeps the conversation can go on with it",
        )
    if not readable:
        raise _nothing(recording, "its last request holds no messages")
    found: Json = body
    return found


def _nothing(recording: Recording, why: str) -> RecordingError:
    return RecordingError(
        f"there is no conversation to go on with: {why}",
        where=recording.session_id,
        todo="agentobs show --content tells what was said",
    )


def _is_for_message(ask: ModelExchange) -> bool:
    return ask.question.path.partition("?")[0] == MESSAGES


def _told(ask: ModelExchange) -> Json:
    """Return what a request was answered, where the loop keeps it: whole, or stopped on purpose; else nothing."""
    if ask.answer.status != 200 or ask.answer.ending not in ("complete", "cancelled"):
        return {}
    message = assemble(ask.answer.headers, ask.answer.body)
    return message if isinstance(message.get("content"), list) and "error" not in message else {}


def _calls(message: Json) -> list[Json]:
    return [block for block in tool_uses(message) if isinstance(block.get("id"), str)]


def _share_out(node: Json, heard: _Heard, rows: Sequence[UsageRow]) -> None:
    """Give each row of usage to the agent in whose lane it was spent, or that the lane was for.

    The lanes, which only say where to, are taken out of the conversation again.
    """
    lane_of = {
        each.attempt_id: each.place.lane
        for each in heard.recording.exchanges
        if isinstance(each, ModelExchange)
    }
    nodes = {each.pop("lane"): each for each in list(_nodes(node))}
    for row in rows:
        lane = lane_of.get(row.attempt_id, "main")
        while lane not in nodes:
            lane = lane.rpartition("/")[0] or "main"
        nodes[lane]["usage"].append(_row(row))


def _nodes(node: Json) -> Iterable[Json]:
    """Yield a conversation and those of all agents below it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each["children"].values()


_FIELDS = {each.name: each.default for each in fields(Usage)}


def _row(row: UsageRow) -> Json:
    """Return a row of usage as JSON, without what says nothing."""
    given = {name: getattr(row, name) for name in _FIELDS}
    return {"at_ns": row.at_ns, **{name: value for name, value in given.items() if value}}


def _usage(row: Mapping[str, Any]) -> Usage:
    """Return a row of usage that `_row` has written; what a newer version wrote beside it is left out."""
    zero = {name: 0 for name in _FIELDS if name.endswith(("_tokens", "_requests"))}
    empty = {"iteration": 0, "kind": "message", "billed": False, "model": "", "service_tier": None}
    unknown = {"inference_geo": None, "speed": None, "certainty": "estimated"}
    given = {name: value for name, value in row.items() if name in _FIELDS}
    maps = {name: given.get(name) or {} for name in ("server_requests", "other_counts")}
    return Usage(**{**zero, **empty, **unknown, **given, **maps})
