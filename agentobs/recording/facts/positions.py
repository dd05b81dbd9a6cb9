"""Positions: the lane, the turn and the interaction of each request of a session.

The agent loop of agentobs names its position. For every other client, it follows from the conversations of the session:
a sub-agent is a lane of the interaction that started it, and a prompt at the top level opens an interaction. A side
request, such as the generation of a title or a quota check, is not a turn and does not end an interaction: its response
is limited to one token, or it declares no tools, has no history, and is sent while a conversation with tools is active.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from agentobs.determinism import jobs
from agentobs.provider.dialect import Dialect, ResponseFacts, Turn
from agentobs.recording.facts.conversations import (
    Conversation,
    Conversations,
    Interaction,
    Sent,
    StartedCall,
    calls_key,
    continues_calls,
    response_key,
)
from agentobs.recording.facts.prompt_prefixes import Prefixes
from agentobs.recording.facts.sent_turns import SentTurns
from agentobs.recording.facts.sub_agent_starts import are_concurrent, start_of, texts_of
from agentobs.recording.vault.body_deltas import Body
from agentobs.records.exchanges import (
    ModelExchange,
    Place,
    QuerySource,
    child_lane,
    has_parent_lane,
)
from agentobs.records.facts import Fact, InteractionEnd, InteractionStart
from agentobs.records.labels import Label, unchecked


class Position(NamedTuple):
    """The position of a request."""

    place: Place
    """The place with its lane, its turn and its interaction."""
    makes_turn: bool
    """Whether the request is a turn of a conversation."""
    reported_lane: str | None = None
    """The lane that the client reported; None if it is the lane of the place."""
    conversation: Conversation | None = None
    """The conversation that the request continues; None if it starts one, or is not a turn of another client."""
    parent: Conversation | None = None
    """The conversation that started the conversation of the request."""
    interaction: Interaction | None = None
    """The interaction of a turn of another client; None if the turn opens one."""
    sent: Sent | None = None


@dataclass(slots=True)
class Positions:
    """The positions of the requests of one session."""

    session_id: str
    new_id: Callable[[], str]
    prefixes: Prefixes
    _turns: dict[str, int] = field(default_factory=dict)
    """The last turn of each lane."""
    _conversations: Conversations = field(default_factory=Conversations)
    _open: dict[int, Conversation] = field(default_factory=dict)
    """The conversations whose interaction was open when their last request was sent."""
    _latest: dict[str, Interaction] = field(default_factory=dict)
    """The interaction of the last request of each lane that a client reported."""

    def of(
        self,
        exchange: ModelExchange,
        body: Body,
        sent_turns: SentTurns,
        dialect: Dialect,
        continued: str | None,
    ) -> Position:
        """Return the position of a request; this changes nothing.

        Args:
            exchange: the attempt.
            body: its body.
            sent_turns: the turns that the request adds.
            dialect: the dialect of its path.
            continued: the attempt whose response it continues, according to IDs.
        """
        place, question = exchange.place, exchange.question
        place = replace(place, session_id=self.session_id)
        makes_turn = dialect.makes_turns(question.path)
        if place.interaction_id is not None:
            turn = place.turn or (self._next_turn(place.lane) if makes_turn else None)
            return Position(replace(place, turn=turn), makes_turn)
        sent = self._sent(exchange, body, sent_turns, dialect, continued)
        if not makes_turn or dialect.is_probe(body.settings):
            return self._not_a_turn(place, makes_turn, sent)
        position = self._of_turn(place, sent)
        is_new = position.conversation is None and position.parent is None
        if is_new and self._is_side_request(sent, exchange, dialect):
            return self._not_a_turn(place, makes_turn, sent)
        return position

    def enter(self, position: Position, exchange: ModelExchange) -> tuple[Position, list[Fact]]:
        """Enter the position of an attempt; return it with its conversation and its interaction, and the ends and the
        start of interactions that precede the attempt.
        """
        sent, place = position.sent, position.place
        if sent is None or not position.makes_turn:
            return position, []
        facts: list[Fact] = []
        conversation, at_ns = position.conversation, exchange.started_ns
        if conversation is None:
            if position.parent is None:
                facts += self._abandoned(sent)
            conversation = self._conversations.start(sent, place.lane, position.parent)
        interaction = position.interaction
        if interaction is None:
            if (known := conversation.interaction) is not None and known.is_open:
                facts.append(self._end(known, at_ns, "interrupted", True))
            interaction = Interaction(self.new_id(), place.lane, at_ns, at_ns)
            lane = unchecked(place.lane)
            facts.append(InteractionStart(self.session_id, interaction.interaction_id, lane, at_ns))
        conversation.interaction = self._latest[sent.lane] = interaction
        interaction.last_ns = max(interaction.last_ns, at_ns + exchange.ended_ns)
        self._open.pop(conversation.number, None)
        self._open[conversation.number] = conversation
        place = replace(place, interaction_id=interaction.interaction_id)
        return position._replace(place=place, conversation=conversation), facts

    def leave(
        self,
        position: Position,
        exchange: ModelExchange,
        response: ResponseFacts,
        dialect: Dialect,
    ) -> Iterator[Fact]:
        """Note the response of an attempt, and yield the end of its interaction if the response has no tool calls.

        A response that broke off ends no interaction, because the client may send the request again.
        """
        place, sent = position.place, position.sent
        if position.makes_turn and response.is_message:
            self._turns[place.lane] = max(self._turns.get(place.lane, 0), place.turn or 0)
        if sent is None or not position.makes_turn:
            return
        conversation = position.conversation
        assert conversation is not None  # set by `enter`
        ended_ns = exchange.started_ns + exchange.ended_ns
        calls = [
            StartedCall(call.id, texts_of(call.input), ended_ns, sent.is_forced)
            for call in response.calls
        ]
        key = _key_of(exchange, response, dialect) if response.is_message else None
        is_complete = response.is_message and response.outcome in ("ok", "cancelled")
        self._conversations.note(sent, conversation, key, calls, is_complete=is_complete)
        is_final = is_complete and not calls and conversation.parent is None
        interaction = conversation.interaction
        if is_final and interaction is not None and _is_open_in(interaction, conversation.lane):
            yield self._end(interaction, ended_ns, "success", False)
        for each in self._conversations.forget_oldest():
            if each.parent is None and each.interaction is not None and each.interaction.is_open:
                yield self._end(each.interaction, each.interaction.last_ns, "interrupted", True)

    def end_session(self, at_ns: int) -> Iterator[Fact]:
        """Yield the ends of the interactions that are open when the session ends."""
        for each, interaction in self._open_interactions():
            if each.parent is None:
                yield self._end(interaction, at_ns, "interrupted", True)

    def _open_interactions(self) -> list[tuple[Conversation, Interaction]]:
        """Return the conversations whose interaction is open, latest activity last."""
        found = [
            (each, each.interaction)
            for each in self._open.values()
            if each.interaction is not None and each.interaction.is_open
        ]
        self._open = {each.number: each for each, _ in found}
        return found

    def take_turn(self, lane: str) -> int:
        """Return the number of the next turn of a lane, for a turn that is not derived from requests."""
        self._turns[lane] = self._next_turn(lane)
        return self._turns[lane]

    def _next_turn(self, lane: str) -> int:
        return self._turns.get(lane, 0) + 1

    def _is_side_request(self, sent: Sent, exchange: ModelExchange, dialect: Dialect) -> bool:
        """Return whether a request that starts a conversation is only an addition to an agent's conversation.

        Such a request declares no tools and has no history, while a request with tools is in flight or an interaction
        with tools is open. If the callers are known, independent conversations can be recognized, so none is taken for
        a side request.
        """
        has_history = len(sent.histories) > 2 or "assistant" in sent.roles.values()
        if sent.tools or has_history or sent.steps or sent.agent_id is not None:
            return False
        if any(each.tools for each, _ in self._open_interactions()):
            return True
        return any(_declares_tools(each, dialect) for each in exchange.in_flight)

    def _not_a_turn(self, place: Place, makes_turn: bool, sent: Sent) -> Position:
        """Return the position of a request that is not a turn: in the lane and the interaction of its conversation."""
        conversation = self._conversations.continued_by(sent) if sent.agent_id else None
        latest = conversation.interaction if conversation else self._latest.get(place.lane)
        interaction_id = latest.interaction_id if latest and latest.is_open else None
        lane = conversation.lane if conversation else place.lane
        source: QuerySource = "side" if makes_turn else place.query_source
        at = replace(
            place, interaction_id=interaction_id, lane=lane, turn=None, query_source=source
        )
        return Position(at, False, place.lane if lane != place.lane else None)

    def _of_turn(self, place: Place, sent: Sent) -> Position:
        """Return the position of a turn."""
        conversation = self._conversations.continued_by(sent)
        if sent.is_prompt and conversation is not None and continues_calls(sent, conversation):
            sent = replace(sent, is_prompt=False)
        parent, call = self._starter(sent, conversation)
        if conversation is not None:
            lane = conversation.lane
        elif has_parent_lane(place.lane) and sent.agent_id is None and call is None:
            lane = place.lane  # the lane of a recorded function
        elif parent is not None or sent.agent_id is not None:
            lane = self._new_lane(parent.lane if parent else place.lane, call, sent.agent_id)
        else:
            lane = place.lane
        interaction = self._interaction(conversation, parent, sent)
        source: QuerySource = place.query_source
        if lane != place.lane and source == "main":
            source = "sub_agent"
        at = replace(
            place,
            interaction_id=interaction.interaction_id if interaction else None,
            lane=lane,
            turn=place.turn or self._next_turn(lane),
            query_source=source,
        )
        reported = place.lane if lane != place.lane else None
        return Position(at, True, reported, conversation, parent, interaction, sent)

    def _starter(
        self, sent: Sent, conversation: Conversation | None
    ) -> tuple[Conversation | None, str | None]:
        """Return the conversation that started the one of a request, and the call, if known; None if there is none."""
        if conversation is not None and (conversation.parent is None or not sent.is_prompt):
            return conversation.parent, None
        job_end = partial(jobs.end_of, self.session_id)
        if (start := start_of(sent, self._conversations.with_calls(), job_end)) is not None:
            return start.parent, start.tool_use_id
        if conversation is not None:
            return conversation.parent, None
        above, _, call = sent.lane.rpartition("/")
        for each in reversed(self._conversations.with_calls()):
            waiting = (one.tool_use_id for one in each.calls if one.is_open_at(sent.started_ns))
            if each.reported_lane == above and call in waiting:
                return each, None
        return None, None

    def _interaction(
        self, conversation: Conversation | None, parent: Conversation | None, sent: Sent
    ) -> Interaction | None:
        """Return the interaction of a turn; None if the turn opens one."""
        known = conversation.interaction if conversation else None
        if parent is not None:
            return known if conversation and not sent.is_prompt else parent.interaction
        if sent.agent_id is not None:
            latest = self._latest.get(sent.lane)
            return known or (latest if latest is not None and latest.is_open else None)
        if conversation is None or known is None or not known.is_open:
            return None
        return None if sent.is_prompt and conversation.is_answered else known

    def _new_lane(self, parent: str, tool_use_id: str | None, agent_id: str | None) -> str:
        """Return the name of the lane of a new sub-agent: after its call, its own ID, or else a number."""
        taken = self._conversations.lanes()
        if tool_use_id is None and agent_id is None:
            return _free(lambda number: child_lane(parent, f"agent-{number}"), taken)
        name = tool_use_id or f"agent-{agent_id}"
        return _free(lambda n: child_lane(parent, name if n == 1 else f"{name}.{n}"), taken)

    def _abandoned(self, sent: Sent) -> Iterator[Fact]:
        """Yield the ends of the interactions that a prompt at the top level interrupts.

        These are the interactions of conversations whose job has ended, or sends the prompt. A conversation that may
        continue in another job is not interrupted.
        """
        job_end = partial(jobs.end_of, self.session_id)
        for each, interaction in self._open_interactions():
            if each.parent is not None or not interaction.is_open:
                continue
            if each.reported_lane == sent.lane and not are_concurrent(sent, each, job_end):
                yield self._end(interaction, sent.started_ns, "interrupted", True)

    def _end(
        self, interaction: Interaction, at_ns: int, result: str, is_error: bool
    ) -> InteractionEnd:
        interaction.is_open = False
        # Of two concurrent requests, the one that ends later may have started earlier.
        return InteractionEnd(
            self.session_id,
            interaction.interaction_id,
            max(at_ns, interaction.started_ns),
            Label(result),
            is_error,
            lane=unchecked(interaction.lane),
        )

    def _sent(
        self,
        exchange: ModelExchange,
        body: Body,
        sent_turns: SentTurns,
        dialect: Dialect,
        continued: str | None,
    ) -> Sent:
        question, origin = exchange.question, exchange.question.origin
        values = origin.values if origin else ()
        job = origin.job if origin else None
        agent_id, names_agents = dialect.agent_id(question.headers)
        first = (body.message_count or 0) - len(sent_turns.later)
        later = dict(enumerate(sent_turns.later, first))
        return Sent(
            attempt_id=exchange.attempt_id,
            lane=exchange.place.lane,
            started_ns=exchange.started_ns,
            histories=self.prefixes.histories(body, dialect) or (),
            roles={at: turn.role for at, turn in later.items()},
            responses={
                at: response_key(turn) for at, turn in later.items() if turn.role == "assistant"
            },
            continued=continued,
            result_ids=[str(each.id) for turn in sent_turns.last for each in turn.results],
            is_prompt=sent_turns.is_prompt,
            prompt="\n".join(_texts(sent_turns.last)),
            tools=frozenset(dialect.tool_names(body.settings)),
            is_forced=dialect.forces_call(body.settings),
            agent_id=agent_id,
            names_agents=names_agents,
            # A client that names its agents runs in another process.
            steps=job.steps if job is not None and not names_agents else (),
            is_worker=job is not None and job.is_worker,
            stack=tuple(where for where, name, *_ in values if not name),
            call_ids=tuple(value for _, _, value, *_ in values if isinstance(value, str)),
        )


def _is_open_in(interaction: Interaction, lane: str) -> bool:
    return interaction.is_open and interaction.lane == lane


def _declares_tools(body: bytes, dialect: Dialect) -> bool:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(dialect.tool_names(value))


def _texts(turns: Sequence[Turn]) -> Iterator[str]:
    for turn in reversed(turns):
        if turn.role == "user" and turn.text:
            yield turn.text


def _key_of(exchange: ModelExchange, response: ResponseFacts, dialect: Dialect) -> str:
    """Return the key of a response; only responses without calls are parsed for it."""
    if response.calls:
        return calls_key((each.id, each.name, each.input) for each in response.calls)
    return response_key(dialect.message(exchange.answer.headers, exchange.answer.body))


def _free(name: Callable[[int], str], taken: set[str]) -> str:
    """Return the first name that is not taken; names are numbered from 1."""
    number = 1
    while name(number) in taken:
        number += 1
    return name(number)
