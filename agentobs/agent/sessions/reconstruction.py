"""Rebuild the conversation of a recorded session as one JSON object. All functions are pure.

The last request of an agent contains everything before it. The records after that request are added: the part of the
response that the loop keeps, a result for each of its calls (or a note that there is none), and messages to the agent.
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
    after_partial_response,
    after_response,
    calls,
    missing_results,
    prompted_again,
    tool_call_ids,
    with_unique_ids,
)
from agentobs.agent.tools.tool_runs import ToolRun, ToolRuns, has_failed
from agentobs.errors import RecordingError, UsageError
from agentobs.provider.anthropic.messages import conversation_error, tool_results, tool_uses
from agentobs.provider.anthropic.streams import assemble
from agentobs.provider.registry import dialect_of
from agentobs.records.canonical_json import Json
from agentobs.records.clear_text import lane_of_call
from agentobs.records.exchanges import (
    ModelExchange,
    Recording,
    ToolAnswer,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.facts import UsageRow
from agentobs.records.usage import Usage

_FORK_EARLIER = "Fork the session at an earlier turn"


class AttemptSummary(NamedTuple):
    """One attempt of an LLM request, without its content."""

    attempt_id: str
    lane: str
    turn: int | None
    started_ns: int
    is_kept: bool
    """Whether its response is in the conversation, because it is complete or was stopped on purpose."""


def end_of_turn(attempts: Sequence[AttemptSummary], turn: int) -> int | None:
    """Return when the turn after `turn` started; None if there is no later turn.

    Args:
        attempts: the attempts of a session, in the order in which they started.
        turn: the number of a turn of the main lane, from 1. If several conversations of the session
            have this turn, the last one is used.

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
            todo=f"It has turns {_turn_range(turns)}" if turns else "It has no turns",
        )
    later = main[found[-1] + 1 :]
    return later[0].started_ns if later else None


def _turn_range(turns: Sequence[int]) -> str:
    """Return the range of some turns: `3`, or `3 to 7`."""
    first, last = turns[0], turns[-1]
    return str(first) if first == last else f"{first} to {last}"


def needed_attempts(attempts: Sequence[AttemptSummary], until_ns: int | None) -> frozenset[str]:
    """Return the IDs of the attempts whose requests are needed to rebuild a conversation.

    These are the last attempt of each lane before an instant, and the next attempt of the main lane.
    The latter contains the tool results of an agent whose tools were not recorded.
    """
    last = {
        each.lane: each.attempt_id for each in attempts if _is_before(each.started_ns, until_ns)
    }
    later = [
        each.attempt_id
        for each in attempts
        if each.lane == "main" and not _is_before(each.started_ns, until_ns)
    ]
    return frozenset((*last.values(), *later[:1]))


def conversation_of(
    recording: Recording,
    usage: Iterable[UsageRow] = (),
    *,
    until_ns: int | None = None,
    lost: int = 0,
) -> Json:
    """Return the conversation of a recorded session, in the form of the world's answer (see `resumption`).

    Args:
        recording: the session; the requests of the `needed_attempts` include their bodies.
        usage: the billed usage rows of the session, without the rows of earlier sessions.
        until_ns: use only records that started before this time, in nanoseconds since 1970 (see
            `end_of_turn`); None uses all records.
        lost: the number of records that the recorder could not write, which make the spending a
            lower bound.

    Raises:
        RecordingError: the recording contains no conversation, or the provider would refuse it.
    """
    records = _Records(recording, until_ns)
    node = records.conversation("main", records.continued_conversation("main"))
    if not node["messages"]:
        raise _no_conversation(recording, "no request of the main agent was recorded")
    _assign_usage(node, records, [row for row in usage if _is_before(row.at_ns, until_ns)])
    node["lost"] += lost
    return {"session_id": recording.session_id, **node}


@dataclass(slots=True)
class _Records:
    """The records of a session before an instant."""

    recording: Recording
    until_ns: int | None
    kept_responses: dict[str, Json] = field(init=False)
    """The responses that the loop has kept, by attempt ID."""
    lanes: dict[str, list[ModelExchange]] = field(init=False)
    """The LLM requests, by lane."""

    def __post_init__(self) -> None:
        """Assemble the responses once."""
        self.kept_responses, self.lanes = {}, {}
        for each in self.recording.exchanges:
            if not isinstance(each, ModelExchange) or not _is_message_request(each):
                continue
            self.lanes.setdefault(each.place.lane, []).append(each)
            if message := _kept_message(each):
                self.kept_responses[each.attempt_id] = message
        for lane, requests in self.lanes.items():
            # Background agents keep sending requests. A request that was sent after the needed attempts
            # had been chosen has no body.
            while lane != "main" and requests and not requests[-1].question.body:
                requests.pop()

    def requests(self, lane: str, *, later: bool = False) -> list[ModelExchange]:
        """Return the LLM requests of a lane before the instant, or the requests after it if `later` is true."""
        requests = self.lanes.get(lane, [])
        return [
            each for each in requests if _is_before(each.started_ns, self.until_ns) is not later
        ]

    def continued_conversation(self, lane: str) -> Json | None:
        """Return the conversation that this session has resumed or forked in a lane, or None."""
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

    def conversation(self, lane: str, base: Json | None) -> Json:
        """Return the conversation of the agent in a lane, including the conversations of its sub-agents.

        `base` is the conversation that the agent continued when the session was recorded, or None.
        """
        requests = self._latest(self.requests(lane))
        base = base if base is not None and _continues(base, requests) else None
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
        self._add_hook_state(node, lane, base, requests)
        node["children"] = self._children(lane, base["children"] if base else {})
        if requests:
            self._continue(node, requests)
        self._apply_manual_compaction(node, lane, requests)
        return node

    def _apply_manual_compaction(
        self, node: Json, lane: str, requests: list[ModelExchange]
    ) -> None:
        """Apply a manual compaction that was made after the last request of the conversation."""
        since_ns = requests[-1].started_ns if requests else 0
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

    def _add_hook_state(
        self, node: Json, lane: str, base: Json | None, requests: Sequence[ModelExchange]
    ) -> None:
        """Add the names of the hooks that have run in a conversation, and the denials of the classifier.

        The denials of all agents are counted together, because an agent starts with the denials of
        its starter.
        """
        earlier = [
            each
            for each in self.requests(lane)
            if requests and each.started_ns < requests[0].started_ns
        ]
        since_ns = earlier[-1].started_ns + earlier[-1].ended_ns if earlier else 0
        found = self._questions(lane, since_ns)
        earlier_hooks = base.get("hooks_done") if base else None
        earlier_denials = base.get("denials") if base else None
        node["hooks_done"] = sorted({*(earlier_hooks or ()), *hook_history.hook_names(found)})
        if lane == "main":
            questions = self._questions(None, since_ns)
            denials = hook_history.denials_after(questions, Denials(*(earlier_denials or ())))
            node["denials"] = [denials.in_a_row, denials.in_all]
            earlier_runs = ToolRuns.from_json(base.get("tool_runs") or () if base else ())
            runs = earlier_runs.after(self._tool_runs(since_ns)).as_json()
            if runs:
                node["tool_runs"] = runs

    def _tool_runs(self, since_ns: int) -> Iterable[ToolRun]:
        """Yield the runs of tools from `since_ns` on in all lanes; sub-agents have the turn of the main agent."""
        turn = 0
        for each in self.recording.exchanges:
            if not isinstance(each, ToolExchange) or each.is_function or each.started_ns < since_ns:
                continue
            if not _is_before(each.started_ns, self.until_ns):
                continue
            if each.place.lane == "main":
                turn = each.place.turn or turn
            failed = has_failed(each.answer.outcome)
            if failed is not None:
                at_ns = each.started_ns + each.duration_ns
                yield ToolRun(each.question.name, failed, turn, at_ns)

    def _questions(self, lane: str | None, since_ns: int = 0) -> list[WorldExchange]:
        """Return the questions to the world from `since_ns` on, in one lane or, if `lane` is None, in all lanes."""
        return [
            each
            for each in self.recording.exchanges
            if isinstance(each, WorldExchange)
            and lane in (None, each.place.lane)
            and each.started_ns >= since_ns
            and _is_before(each.started_ns, self.until_ns)
        ]

    def _inputs(self, lane: str) -> dict[str, Any]:
        """Return the known inputs with which the calls of a lane ran, by tool call ID.

        They may differ from the requested inputs, because hooks can change them.
        """
        executed = {
            each.question.tool_use_id: each.question.input
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange) and each.place.lane == lane
        }
        return (
            hook_history.changed_inputs(hook_history.hook_outcomes(self._questions(lane)))
            | executed
        )

    def _children(self, lane: str, earlier_agents: Json) -> Json:
        """Return the conversations of the agents that a lane has started, by agent ID.

        `earlier_agents` are the agents of the conversation that the lane continued. An agent that was
        resumed has one ID per call; the earlier IDs only refer to the last ID.
        """
        children: Json = {}
        for agent_id, earlier in earlier_agents.items():
            is_same = "same" in earlier
            children[agent_id] = (
                earlier if is_same else self.conversation(lane_of_call(lane, agent_id), earlier)
            )
        inputs = self._inputs(lane)
        for request in self.requests(lane):
            for block in _calls(self.kept_responses.get(request.attempt_id, {})):
                agent_lane = lane_of_call(lane, block["id"])
                if not self.requests(agent_lane):
                    continue
                call_input = inputs.get(block["id"], block.get("input"))
                resumed_id = call_input.get("resume") if isinstance(call_input, dict) else None
                earlier_id = last_id(children, resumed_id)
                try:
                    child = self.conversation(agent_lane, children.get(earlier_id))
                except RecordingError:
                    continue  # The other agents do not depend on this agent.
                if earlier_id:
                    child["lanes"] = [*children[earlier_id]["lanes"], *child["lanes"]]
                    children[earlier_id] = {"same": block["id"]}
                children[block["id"]] = child
        return children

    def _latest(self, requests: list[ModelExchange]) -> list[ModelExchange]:
        """Return the requests of the last conversation of a lane.

        The turn numbers of each conversation start from 1. However, a number that occurs again does
        not always start a new conversation: a turn may be repeated within its interaction, or by the
        next interaction if the turn had no response.
        """
        start, last_turn, last_interaction = 0, 0, None
        for at, each in enumerate(requests):
            turn = each.place.turn or 0
            if 0 < turn <= last_turn and each.place.interaction_id != last_interaction:
                start, last_turn = at, 0
            if each.attempt_id in self.kept_responses:
                last_turn = turn
            last_interaction = each.place.interaction_id
        return requests[start:]

    def _continue(self, node: Json, requests: list[ModelExchange]) -> None:
        """Add the last request of a lane, which contains everything before it, and the records after it."""
        last = requests[-1]
        with_response = [each for each in requests if each.attempt_id in self.kept_responses]
        turn = last.place.turn or len(with_response)
        body = _body(self.recording, last)
        messages = tuple(without_breakpoints(message) for message in body["messages"])
        messages = self._stored(messages, last)
        state = State("awaiting_model", messages, turn, 0, 0, "start")
        if last in with_response:
            state = self._answered(state, last, frozenset(node["children"]))
        extra_texts = [*self._unsent_messages(last), *self._stop_objections(last, turn)]
        extra_texts += self._unreported(last, frozenset(node["children"]))
        if extra_texts:
            state = prompted_again(state, extra_texts, "follow_up")
        why = conversation_error(state.messages)
        if why is not None:
            raise RecordingError(
                f"the provider would refuse this conversation: {why}",
                where=self.recording.session_id,
                todo=_FORK_EARLIER,
            )
        tool_turns = {
            each.place.turn or at
            for at, each in enumerate(with_response)
            if _calls(self.kept_responses[each.attempt_id])
        }
        node["messages"] = list(state.messages)
        node["turns"] = turn if last in with_response else max(turn - 1, node["turns"])
        node["tool_turns"] += len(tool_turns)
        node["model"] = body.get("model")
        if with_response and any(has_thinking(message) for message in state.messages):
            node["thought_ns"] = with_response[-1].started_ns + with_response[-1].ended_ns

    def _stored(self, sent: tuple[Json, ...], request: ModelExchange) -> tuple[Json, ...]:
        """Return the stored messages of a conversation, from the messages of a request that hooks may have changed."""
        found = [
            each.answer
            for each in self._questions(request.place.lane)
            if each.question.kind == "stored_messages"
            and each.started_ns <= request.started_ns
            and (each.place.turn, each.place.interaction_id)
            == (request.place.turn, request.place.interaction_id)
        ]
        if not found or "messages" not in found[-1]:
            return sent
        last = found[-1]
        return (*sent[: last["start"]], *last["messages"], *sent[len(sent) - last["end"] :])

    def _answered(self, state: State, last: ModelExchange, agents: frozenset[str]) -> State:
        """Return the state after the last response, with a result for each of its calls."""
        is_complete = last.answer.ending == "complete"
        message, _ = with_unique_ids(
            self.kept_responses[last.attempt_id], tool_call_ids(state.messages)
        )
        try:
            if is_complete:
                state, requested = after_response(state, message), calls(message)
            else:
                state, requested = after_partial_response(state, message)
        except ValueError as error:
            raise RecordingError(
                f"the last response cannot be read: {error}",
                where=self.recording.session_id,
                todo=_FORK_EARLIER,
            ) from error
        if not requested:
            return state
        known = {name: interrupted_agent(name) for name in agents} | self._results(last)
        sent = self._sent_results(last)
        content = [sent.get(r["tool_use_id"], r) for r in missing_results(state.messages, known)]
        outcomes = hook_history.hook_outcomes(self._questions(last.place.lane, last.started_ns))
        texts = hook_history.added_context(
            outcomes, [question.tool_use_id for question in requested]
        )
        content += [{"type": "text", "text": text} for text in texts]
        messages = (*state.messages, {"role": "user", "content": content})
        return State("awaiting_model", messages, state.turn + 1, 0, 0, "next_turn")

    def _unreported(self, last: ModelExchange, agents: frozenset[str]) -> list[str]:
        """Return notes about background agents whose reports are in no request."""
        lane = last.place.lane
        calls_made = [
            block
            for request in self.requests(lane)
            for block in _calls(self.kept_responses.get(request.attempt_id, {}))
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
        called = self._calls_with_result(lane)
        return [
            unreported_agent(name)
            for name in started
            if name in agents & called and name not in reported
        ]

    def _calls_with_result(self, lane: str) -> set[str]:
        """Return the IDs of the tool calls of a lane that have a result."""
        return {
            each.question.tool_use_id
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange)
            and each.place.lane == lane
            and _is_before(each.started_ns, self.until_ns)
        }

    def _results(self, last: ModelExchange) -> dict[str, ToolAnswer]:
        """Return the results of the calls of the last response, as the model sees them, by tool call ID."""
        lane = last.place.lane
        executed = [
            each
            for each in self.recording.exchanges
            if isinstance(each, ToolExchange)
            and each.place.lane == lane
            and each.started_ns >= last.started_ns
            and _is_before(each.started_ns, self.until_ns)
        ]
        return hook_history.results_after_hooks(executed, self._questions(lane, last.started_ns))

    def _sent_results(self, last: ModelExchange) -> dict[str, Json]:
        """Return the stored tool results of the request after `last`, by tool call ID; empty if there is none.

        Hooks may have changed the results in the request itself.
        """
        messages: list[Json] = []
        for each in self.requests(last.place.lane, later=True)[:1]:
            if each.question.body:
                sent = _body(self.recording, each)["messages"]
                messages += self._stored(tuple(map(without_breakpoints, sent)), each)
        return {
            block["tool_use_id"]: block
            for message in messages
            for block in tool_results(message)
            if isinstance(block.get("tool_use_id"), str)
        }

    def _unsent_messages(self, last: ModelExchange) -> list[str]:
        """Return messages that the agent received after the last response and that are in no request.

        Empty if the conversation ends at an earlier turn, because the messages belong to later turns.
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

    def _stop_objections(self, last: ModelExchange, turn: int) -> list[str]:
        """Return the reasons of hooks that kept the agent from ending after the last response.

        Empty if the conversation ends at an earlier turn, because the reasons belong to later turns.
        """
        if self.until_ns is not None or last.attempt_id not in self.kept_responses:
            return []
        return hook_history.stop_objections(
            hook_history.hook_outcomes(self._questions(last.place.lane, last.started_ns)), turn
        )


def unreported_agent(agent_id: str) -> str:
    """Return the note about an agent that was still running in the background when the run ended."""
    return (
        f"The background agent {agent_id} had not reported when the run ended. "
        "Its work is kept under this ID."
    )


def interrupted_agent(agent_id: str) -> ToolAnswer:
    """Return the result of a call whose agent was still running when the run was interrupted."""
    return ToolAnswer(
        f"The run was interrupted before the agent {agent_id} ended. Its work is kept under this ID.",
        is_error=True,
        outcome="aborted",
    )


def without_breakpoints(value: Any) -> Any:
    """Return a message or a block without cache breakpoints, because each request sets its own breakpoints.

    The content of a user message with a single text block becomes a string again, because it was
    converted to a list for the breakpoints.
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
            remaining["content"] = [without_breakpoints(block) for block in blocks]
    return remaining


def _is_before(at_ns: int, until_ns: int | None) -> bool:
    return until_ns is None or at_ns < until_ns


def _continues(base: Json, requests: list[ModelExchange]) -> bool:
    """Return whether the requests continue an earlier conversation instead of starting a new one."""
    return not requests or requests[0].place.turn != 1 or base["turns"] == 0


def _body(recording: Recording, request: ModelExchange) -> Json:
    """Return the body of a request.

    Raises:
        RecordingError: the body does not contain the conversation.
    """
    try:
        body = json.loads(request.question.body)
        messages = body["messages"]
        readable = isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_conversation(recording, "the last request contains no messages") from None
    thread = body.get("thread")
    if isinstance(thread, dict) and "previous_message_id" in thread:
        raise RecordingError(
            "the requests refer to the previous response and do not contain the conversation",
            where=recording.session_id,
            todo="Continue it with the client that recorded it",
        )
    if not readable:
        raise _no_conversation(recording, "the last request contains no messages")
    found: Json = body
    return found


def _no_conversation(recording: Recording, why: str) -> RecordingError:
    return RecordingError(
        f"there is no conversation to continue: {why}",
        where=recording.session_id,
        todo="See what was recorded: agentobs show --content",
    )


def _is_message_request(request: ModelExchange) -> bool:
    return dialect_of(request.question.path).makes_turns(request.question.path)


def _kept_message(request: ModelExchange) -> Json:
    """Return the response to a request if it is complete or was stopped on purpose: the loop keeps such responses.

    Otherwise, return an empty object.
    """
    if request.answer.status != 200 or request.answer.ending not in ("complete", "cancelled"):
        return {}
    message = assemble(request.answer.headers, request.answer.body)
    if not isinstance(message.get("content"), list) or "error" in message:
        return {}
    # Such a response is void, see `send_turn_request`: the conversation has to be compacted.
    is_void = error_classes.is_too_long(message) and not tool_uses(message)
    return {} if is_void else message


def _calls(message: Json) -> list[Json]:
    return [block for block in tool_uses(message) if isinstance(block.get("id"), str)]


def _assign_usage(node: Json, records: _Records, rows: Sequence[UsageRow]) -> None:
    """Assign each usage row to the agent of its lane or, if there is none, to the agent of a lane above it.

    The lanes of the agents are only needed for this, and are then removed from the conversation.
    """
    lane_of = {
        each.attempt_id: each.place.lane
        for each in records.recording.exchanges
        if isinstance(each, ModelExchange)
    }
    by_lane = {lane: each for each in conversation_nodes(node) for lane in each["lanes"]}
    for row in rows:
        lane = lane_of.get(row.attempt_id, "main")
        while lane not in by_lane:
            lane = lane.rpartition("/")[0] or "main"
        by_lane[lane]["usage"].append(_row(row))
    for each in conversation_nodes(node):
        del each["lanes"]


def conversation_nodes(node: Json) -> Iterable[Json]:
    """Yield a conversation and the conversations of all agents below it."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        pending += [child for child in each["children"].values() if "same" not in child]


def last_id(children: Json, agent_id: Any) -> str:
    """Return the last ID of an agent, which has several IDs if it was resumed; empty if there is no such agent."""
    while isinstance(agent_id, str) and "same" in children.get(agent_id, {}):
        agent_id = children[agent_id]["same"]
    return agent_id if agent_id in children else ""


USAGE_FIELDS = {each.name: each.default for each in fields(Usage)}
"""The fields of a usage row, with their defaults."""


def _row(row: UsageRow) -> Json:
    """Return a usage row as a JSON object without empty values."""
    values = {name: getattr(row, name) for name in USAGE_FIELDS}
    return {"at_ns": row.at_ns, **{name: value for name, value in values.items() if value}}
