"""Rebuild the conversation of a recorded session as one JSON object; pure functions.

The agent's last request contains everything before it. Later records are added: the response as far as the loop keeps
it, a result for each call (real, or a note that there is none), and messages to the agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from agentobs.agent.context.message_groups import outline
from agentobs.agent.model import error_classes
from agentobs.agent.model.thinking import has_thinking
from agentobs.agent.permissions import Denials
from agentobs.agent.sessions import hook_history
from agentobs.agent.state import (
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
from agentobs.provider.anthropic.messages import fault, tool_results, tool_uses
from agentobs.provider.anthropic.streams import assemble
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import (
    ModelExchange,
    Recording,
    ToolAnswer,
    ToolExchange,
    WorldExchange,
    lane_under,
)
from agentobs.records.facts import UsageRow
from agentobs.records.usage import Usage

MESSAGES = "/v1/messages"
"""The path of requests that contain a conversation."""

_OTHER_TURN = "Fork it at an earlier turn"


class AttemptSummary(NamedTuple):
    """One attempt of a message request, without its content."""

    attempt_id: str
    lane: str
    turn: int | None
    started_ns: int
    is_kept: bool
    """Whether its response is in the conversation, because it was complete or stopped on purpose."""


def end_of_turn(attempts: Sequence[AttemptSummary], turn: int) -> int | None:
    """Return when the turn after `turn` started; None if there is none.

    Args:
        attempts: the attempts of a session, in the order in which they started.
        turn: a turn of the main lane, from 1. If the session has several conversations, a turn of
            the last one.

    Raises:
        UsageError: there is no such turn.
    """
    main = [each for each in attempts if each.lane == "main"]
    found = [at for at, each in enumerate(main) if each.turn == turn and each.is_kept]
    if not found:
        turns = sorted({each.turn for each in main if each.is_kept and each.turn})
        raise UsageError(
            f"the session has no turn {turn}",
            where="turn",
            todo=f"Its turns are {_span(turns)}" if turns else "It has no turns at all",
        )
    after = main[found[-1] + 1 :]
    return after[0].started_ns if after else None


def _span(turns: Sequence[int]) -> str:
    """Return the range of some turns: `3`, or `3 to 7`."""
    first, last = turns[0], turns[-1]
    return str(first) if first == last else f"{first} to {last}"


def needed(attempts: Sequence[AttemptSummary], until_ns: int | None) -> frozenset[str]:
    """Return the attempts whose requests rebuild a conversation: the last of each lane before an
    instant.

    Also the next one of the main lane, which contains the results sent by an agent whose tools were
    not recorded.
    """
    last = {
        each.lane: each.attempt_id for each in attempts if _is_before(each.started_ns, until_ns)
    }
    after = [
        each.attempt_id
        for each in attempts
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
    """Return the conversation of a recorded session, in the form of the world's answer.

    Args:
        recording: the session; the requests that are `needed` have their bodies.
        usage: its own billed usage rows.
        until_ns: only what started before, nanoseconds since 1970, see `end_of_turn`; None for all.
        lost: records that the recorder could not write, which make the spending a lower bound.

    Raises:
        RecordingError: it contains no conversation, or none that the provider would accept.
    """
    records = _Records(recording, until_ns)
    node = records.agent("main", records.earlier("main"))
    if not node["messages"]:
        raise _nothing(recording, "no request of its main agent was recorded")
    _share_out(node, records, [row for row in usage if _is_before(row.at_ns, until_ns)])
    node["lost"] += lost
    return {"session_id": recording.session_id, **node}


@dataclass(slots=True)
class _Records:
    """The records of a session before an instant."""

    recording: Recording
    until_ns: int | None
    told: dict[str, Json] = field(init=False)
    """The responses that the loop keeps, by attempt."""
    lanes: dict[str, list[ModelExchange]] = field(init=False)
    """The message requests, by lane."""

    def __post_init__(self) -> None:
        """Assemble the responses once."""
        self.told, self.lanes = {}, {}
        for each in self.recording.exchanges:
            if not isinstance(each, ModelExchange) or not _is_for_message(each):
                continue
            self.lanes.setdefault(each.place.lane, []).append(each)
            if message := _kept_message(each):
                self.told[each.attempt_id] = message
        for lane, requests in self.lanes.items():
            # Background agents keep sending requests; those after the bodies were chosen have none.
            while lane != "main" and requests and not requests[-1].question.body:
                requests.pop()

    def asks(self, lane: str, *, later: bool = False) -> list[ModelExchange]:
        """Return the message requests of a lane before the instant, or after it if `later`."""
        requests = self.lanes.get(lane, [])
        return [
            each for each in requests if _is_before(each.started_ns, self.until_ns) is not later
        ]

    def earlier(self, lane: str) -> Json | None:
        """Return the conversation that this session continued, or None."""
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
        """Return the conversation of the agent in a lane, including those of its sub-agents.

        `base` is the conversation that the agent continued when this was recorded, or None.
        """
        asks = self._latest(self.asks(lane))
        base = base if base is not None and _goes_on(base, asks) else None
        node: Json = {
            "messages": list(base["messages"]) if base else [],
            "turns": base["turns"] if base else 0,
            "tool_turns": base["tool_turns"] if base else 0,
            "model": base["model"] if base else None,
            "thought_ns": base.get("thought_ns") if base else None,
            "usage": list(base["usage"]) if base else [],
            "lost": base["lost"] if base else 0,
            "hooks_done": [],
            "children": {},
            "lanes": [lane],
        }
        self._judged(node, lane, base, asks)
        node["children"] = self._children(lane, base["children"] if base else {})
        if asks:
            self._continue(node, asks)
        self._shorten(node, lane, asks)
        return node

    def _shorten(self, node: Json, lane: str, asks: list[ModelExchange]) -> None:
        """Apply a manual compaction after the conversation's last request."""
        since_ns = asks[-1].started_ns if asks else 0
        for each in self.recording.exchanges:
            if (
                isinstance(each, WorldExchange)
                and (each.question.kind, each.place.lane) == ("compacted", lane)
                and each.started_ns >= since_ns
                and _is_before(each.started_ns, self.until_ns)
                and isinstance(each.answer, dict)
                and each.answer.get("before") == outline(node["messages"])
            ):
                node["messages"] = each.answer["messages"]

    def _judged(
        self, node: Json, lane: str, base: Json | None, asks: Sequence[ModelExchange]
    ) -> None:
        """Add the hooks that have run in a conversation, and the classifier's denials.

        Denials are counted over all agents, and an agent starts with those of its starter.
        """
        before = [each for each in self.asks(lane) if asks and each.started_ns < asks[0].started_ns]
        since_ns = before[-1].started_ns + before[-1].ended_ns if before else 0
        found = self._questions(lane, since_ns)
        done, denied = (base.get("hooks_done"), base.get("denials")) if base else (None, None)
        node["hooks_done"] = sorted({*(done or ()), *hook_history.names(found)})
        if lane == "main":
            everywhere = self._questions(None, since_ns)
            denials = hook_history.denials(everywhere, Denials(*(denied or ())))
            node["denials"] = [denials.in_a_row, denials.in_all]

    def _questions(self, lane: str | None, since_ns: int = 0) -> list[WorldExchange]:
        """Return the questions to the world in a lane, or in all lanes, from an instant on."""
        return [
            each
            for each in self.recording.exchanges
            if isinstance(each, WorldExchange)
            and lane in (None, each.place.lane)
            and each.started_ns >= since_ns
            and _is_before(each.started_ns, self.until_ns)
        ]

    def _inputs(self, lane: str) -> dict[str, Any]:
        """Return the inputs with which calls of a lane ran, as far as known, because hooks may have changed them."""
        ran = {
            each.question.tool_use_id: each.question.input
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange) and each.place.lane == lane
        }
        return hook_history.inputs(hook_history.fired(self._questions(lane))) | ran

    def _children(self, lane: str, before: Json) -> Json:
        """Return the agents started in a lane, earlier ones included, by their IDs.

        An agent that was continued has one ID per call; the earlier ones only refer to the last.
        """
        children: Json = {}
        for agent_id, earlier in before.items():
            is_same = "same" in earlier
            children[agent_id] = (
                earlier if is_same else self.agent(lane_under(lane, agent_id), earlier)
            )
        inputs = self._inputs(lane)
        for ask in self.asks(lane):
            for block in _calls(self.told.get(ask.attempt_id, {})):
                inside = lane_under(lane, block["id"])
                if not self.asks(inside):
                    continue
                call_input = inputs.get(block["id"], block.get("input"))
                resumed_id = call_input.get("resume") if isinstance(call_input, dict) else None
                former = same(children, resumed_id)
                try:
                    child = self.agent(inside, children.get(former))
                except RecordingError:
                    continue  # the others can continue without it
                if former:
                    child["lanes"] = [*children[former]["lanes"], *child["lanes"]]
                    children[former] = {"same": block["id"]}
                children[block["id"]] = child
        return children

    def _latest(self, asks: list[ModelExchange]) -> list[ModelExchange]:
        """Return the requests of a lane's last conversation, whose turns count from 1 again.

        A turn may be repeated within its interaction, and by the next interaction if it had no
        response.
        """
        begins, last_turn, before = 0, 0, None
        for at, each in enumerate(asks):
            turn = each.place.turn or 0
            if 0 < turn <= last_turn and each.place.interaction_id != before:
                begins, last_turn = at, 0
            if each.attempt_id in self.told:
                last_turn = turn
            before = each.place.interaction_id
        return asks[begins:]

    def _continue(self, node: Json, asks: list[ModelExchange]) -> None:
        """Add the content of a lane to a conversation; the last request contains everything before it."""
        last = asks[-1]
        answered_requests = [each for each in asks if each.attempt_id in self.told]
        turn = last.place.turn or len(answered_requests)
        body = _body(self.recording, last)
        messages = tuple(unmarked(message) for message in body["messages"])
        state = State("awaiting_model", messages, turn, 0, 0, "start")
        if last in answered_requests:
            state = self._answered(state, last, frozenset(node["children"]))
        extra_texts = [*self._unsent_messages(last), *self._kept_on(last, turn)]
        extra_texts += self._unreported(last, frozenset(node["children"]))
        if extra_texts:
            state = go_on(state, extra_texts, "follow_up")
        why = fault(state.messages)
        if why is not None:
            raise RecordingError(
                f"the provider would refuse this conversation: {why}",
                where=self.recording.session_id,
                todo=_OTHER_TURN,
            )
        used = {
            each.place.turn or at
            for at, each in enumerate(answered_requests)
            if _calls(self.told[each.attempt_id])
        }
        node["messages"] = list(state.messages)
        node["turns"] = turn if last in answered_requests else max(turn - 1, node["turns"])
        node["tool_turns"] += len(used)
        node["model"] = body.get("model")
        if answered_requests and any(has_thinking(message) for message in state.messages):
            node["thought_ns"] = answered_requests[-1].started_ns + answered_requests[-1].ended_ns

    def _answered(self, state: State, last: ModelExchange, agents: frozenset[str]) -> State:
        """Return the state after the last response, with a result for each of its calls."""
        whole = last.answer.ending == "complete"
        message, _ = told_apart(self.told[last.attempt_id], used_ids(state.messages))
        try:
            if whole:
                state, requested = answered(state, message), calls(message)
            else:
                state, requested = broken_off(state, message)
        except ValueError as error:
            raise RecordingError(
                f"the last answer cannot be read: {error}",
                where=self.recording.session_id,
                todo=_OTHER_TURN,
            ) from error
        if not requested:
            return state
        known = {name: interrupted(name) for name in agents} | self._answers(last)
        sent = self._sent(last)
        content = [sent.get(r["tool_use_id"], r) for r in owed_results(state.messages, known)]
        fired = hook_history.fired(self._questions(last.place.lane, last.started_ns))
        texts = hook_history.context(fired, [question.tool_use_id for question in requested])
        content += [{"type": "text", "text": text} for text in texts]
        messages = (*state.messages, {"role": "user", "content": content})
        return State("awaiting_model", messages, state.turn + 1, 0, 0, "next_turn")

    def _unreported(self, last: ModelExchange, agents: frozenset[str]) -> list[str]:
        """Return notes about background agents whose reports no request contains."""
        lane = last.place.lane
        calls_made = [
            block for ask in self.asks(lane) for block in _calls(self.told.get(ask.attempt_id, {}))
        ]
        inputs = self._inputs(lane)
        call_inputs = {
            block["id"]: inputs.get(block["id"], block.get("input")) for block in calls_made
        }
        started = [
            name
            for name, value in call_inputs.items()
            if isinstance(value, dict) and value.get("run_in_background")
        ]
        reported = {
            agent_id
            for each in self.recording.exchanges
            if isinstance(each, WorldExchange)
            and (each.question.kind, each.place.lane) == ("background", lane)
            and each.started_ns < last.started_ns
            for agent_id in each.answer or ()
        }
        known = self._answers_of(lane)
        return [
            unheard(name) for name in started if name in agents & known and name not in reported
        ]

    def _answers_of(self, lane: str) -> set[str]:
        """Return the calls of a lane that have a result."""
        return {
            each.question.tool_use_id
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange)
            and each.place.lane == lane
            and _is_before(each.started_ns, self.until_ns)
        }

    def _answers(self, last: ModelExchange) -> dict[str, ToolAnswer]:
        """Return the results of the last response's calls as the model sees them, as far as they exist."""
        lane = last.place.lane
        ran = [
            each
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange)
            and each.place.lane == lane
            and each.started_ns >= last.started_ns
            and _is_before(each.started_ns, self.until_ns)
        ]
        return hook_history.seen(ran, self._questions(lane, last.started_ns))

    def _sent(self, last: ModelExchange) -> dict[str, Json]:
        """Return the tool results sent in the request after `last`, if it was recorded."""
        following = self.asks(last.place.lane, later=True)[:1]
        bodies = [_body(self.recording, each) for each in following if each.question.body]
        messages = [message for body in bodies for message in body["messages"]]
        return {
            block["tool_use_id"]: block
            for message in messages
            for block in tool_results(unmarked(message))
            if isinstance(block.get("tool_use_id"), str)
        }

    def _unsent_messages(self, last: ModelExchange) -> list[str]:
        """Return messages to the agent after the last response that no request contains.

        Empty if there is a cutoff instant, because the messages belong to what followed.
        """
        if self.until_ns is not None:
            return []
        return [
            text
            for each in self.recording.exchanges
            if isinstance(each, WorldExchange)
            and each.place.lane == last.place.lane
            and each.question.kind in ("steering", "follow_up")
            and each.started_ns >= last.started_ns
            and isinstance(each.answer, list)
            for text in each.answer
            if isinstance(text, str)
        ]

    def _kept_on(self, last: ModelExchange, turn: int) -> list[str]:
        """Return the reasons of hooks that kept the agent from ending after the last response and
        that no request contains.
        """
        if self.until_ns is not None or last.attempt_id not in self.told:
            return []
        return hook_history.kept_on(
            hook_history.fired(self._questions(last.place.lane, last.started_ns)), turn
        )


def unheard(agent_id: str) -> str:
    """Return the note about an agent that was running in the background when the run ended."""
    return (
        f"The agent {agent_id}, which worked in the background, had not reported when the run ended. "
        "What it has done is kept under that id."
    )


def interrupted(agent_id: str) -> ToolAnswer:
    """Return the result of a call whose agent was running when the run was interrupted."""
    return ToolAnswer(
        f"The run was interrupted before the agent {agent_id} had ended. What it has done is kept under that id.",
        is_error=True,
        outcome="aborted",
    )


def unmarked(value: Any) -> Any:
    """Return a message or a block without cache breakpoints, which each request sets for itself.

    A user message with a single text block becomes that text, because setting breakpoints had
    converted it to a list.
    """
    if not isinstance(value, dict):
        return value
    remaining = {name: inner for name, inner in value.items() if name != "cache_control"}
    match remaining.get("content"):
        case [{"type": "text", "text": str(text), **more}] if remaining.get(
            "role"
        ) == "user" and more.keys() <= {"cache_control"}:
            remaining["content"] = text
        case list(blocks):
            remaining["content"] = [unmarked(block) for block in blocks]
    return remaining


def _is_before(at_ns: int, until_ns: int | None) -> bool:
    return until_ns is None or at_ns < until_ns


def _goes_on(base: Json, asks: list[ModelExchange]) -> bool:
    """Return whether requests continue an earlier conversation instead of starting a new one."""
    return not asks or asks[0].place.turn != 1 or base["turns"] == 0


def _body(recording: Recording, ask: ModelExchange) -> Json:
    """Return a request's body.

    Raises:
        RecordingError: it contains no conversation.
    """
    try:
        body = json.loads(ask.question.body)
        messages = body["messages"]
        readable = isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _nothing(recording, "its last request contains no messages") from None
    thread = body.get("thread")
    if isinstance(thread, dict) and "previous_message_id" in thread:
        raise RecordingError(
            "its requests reference the previous response, and do not contain the conversation",
            where=recording.session_id,
            todo="Only the client that keeps the conversation can continue it",
        )
    if not readable:
        raise _nothing(recording, "its last request contains no messages")
    found: Json = body
    return found


def _nothing(recording: Recording, why: str) -> RecordingError:
    return RecordingError(
        f"there is no conversation to continue: {why}",
        where=recording.session_id,
        todo="agentobs show --content shows the conversation",
    )


def _is_for_message(ask: ModelExchange) -> bool:
    return ask.question.path.partition("?")[0] == MESSAGES


def _kept_message(ask: ModelExchange) -> Json:
    """Return a request's response if the loop keeps it: complete, or stopped on purpose; otherwise empty."""
    if ask.answer.status != 200 or ask.answer.ending not in ("complete", "cancelled"):
        return {}
    message = assemble(ask.answer.headers, ask.answer.body)
    if not isinstance(message.get("content"), list) or "error" in message:
        return {}
    # Such a response is void, see `turn_request.ask`, because the conversation has to be shorter.
    is_void = error_classes.is_too_long(message) and not tool_uses(message)
    return {} if is_void else message


def _calls(message: Json) -> list[Json]:
    return [block for block in tool_uses(message) if isinstance(block.get("id"), str)]


def _share_out(node: Json, records: _Records, rows: Sequence[UsageRow]) -> None:
    """Assign each usage row to the agent of its lane, or of the lane's parent.

    The lanes, which are only needed for this, are removed from the conversation again.
    """
    lane_of = {
        each.attempt_id: each.place.lane
        for each in records.recording.exchanges
        if isinstance(each, ModelExchange)
    }
    by_lane = {lane: each for each in nodes(node) for lane in each["lanes"]}
    for row in rows:
        lane = lane_of.get(row.attempt_id, "main")
        while lane not in by_lane:
            lane = lane.rpartition("/")[0] or "main"
        by_lane[lane]["usage"].append(_row(row))
    for each in nodes(node):
        del each["lanes"]


def nodes(node: Json) -> Iterable[Json]:
    """Yield a conversation and those of all agents below it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += [child for child in each["children"].values() if "same" not in child]


def same(children: Json, agent_id: Any) -> str:
    """Return the last ID of an agent that may have several; empty if there is no such agent."""
    while isinstance(agent_id, str) and "same" in children.get(agent_id, {}):
        agent_id = children[agent_id]["same"]
    return agent_id if agent_id in children else ""


FIELDS = {each.name: each.default for each in fields(Usage)}


def _row(row: UsageRow) -> Json:
    """Return a usage row as JSON, without empty values."""
    values = {name: getattr(row, name) for name in FIELDS}
    return {"at_ns": row.at_ns, **{name: value for name, value in values.items() if value}}
