"""Conversations: which lane and which interaction a request belongs to, for clients that do not report their structure.

A request continues the conversation whose messages it repeats and whose response follows them. A request that continues
none starts a conversation: in the lane of a sub-agent if a tool call started it (see `sub_agent_starts`), otherwise at
the top level. Concurrent conversations are never mixed: each has its own turns, its own open calls and, at the top
level, its own interactions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.dialect import Turn
from agentobs.records.canonical_json import canonical

CONVERSATIONS_MAX = 1_000
"""The maximum number of conversations of a session that are kept; beyond this number, the oldest are forgotten. Our
choice.
"""
HISTORIES_MAX = 10_000
"""The maximum number of answered requests of a session that can be continued; beyond this number, the oldest are
forgotten. Our choice.
"""
NEW_MESSAGES_MAX = 256
"""The maximum number of messages that a request may add to the conversation that it continues. Our choice."""
CALLS_MAX = 64
"""The maximum number of calls of a conversation that may have started a sub-agent. Our choice."""

Steps = tuple[tuple[str, int, int, int], ...]
"""The jobs from the outermost one to the one that sent a request, see `determinism.jobs`."""


@dataclass(slots=True)
class Interaction:
    """An interaction that is derived from requests."""

    interaction_id: str
    lane: str
    started_ns: int
    last_ns: int
    """When the last of its attempts ended, in nanoseconds since 1970."""
    is_open: bool = True


@dataclass(slots=True)
class StartedCall:
    """A tool call of a response, which may start sub-agents until the next request of its conversation."""

    tool_use_id: str
    texts: tuple[str, ...] = field(repr=False)
    """The texts in its input; content, which stays in memory."""
    requested_ns: int
    """When the response ended, in nanoseconds since 1970."""
    is_forced: bool
    """Whether the request allowed only a tool call as response, so that the call may be the final answer."""
    closed_ns: int | None = None
    """When the next request of the conversation was sent, in nanoseconds since 1970; None if there is none."""

    def is_open_at(self, at_ns: int) -> bool:
        """Return whether the call was waiting for its result at a time, in nanoseconds since 1970."""
        return self.requested_ns <= at_ns and (self.closed_ns is None or at_ns <= self.closed_ns)


@dataclass(frozen=True, slots=True)
class Sent:
    """The facts of a request that determine its position."""

    attempt_id: str
    lane: str
    """The lane that the client reports; `main` for nearly all clients."""
    started_ns: int
    histories: Sequence[bytes]
    """For each message a digest of all messages up to it; empty if unknown."""
    roles: Mapping[int, str]
    """The roles of the last messages, by their index."""
    responses: Mapping[int, str]
    """The keys (see `response_key`) of the last messages that are responses, by their index."""
    continued: str | None
    """The attempt whose response the request continues, according to IDs in its messages."""
    result_ids: Sequence[str]
    """The calls whose results are the last messages."""
    is_prompt: bool
    """Whether the last messages are a prompt, not tool results."""
    prompt: str = field(repr=False)
    """The text of the last messages."""
    tools: frozenset[str]
    """The names of the declared tools."""
    is_forced: bool
    """Whether the response must be a tool call."""
    agent_id: str | None = None
    """The client's ID of the sub-agent that sends the request."""
    names_agents: bool = False
    """Whether the client names its sub-agents. If so, a request without a name is not from a sub-agent."""
    steps: Steps = ()
    """The jobs of the caller; empty if unknown."""
    is_worker: bool = False
    """Whether the job takes its work from a queue."""
    stack: tuple[str, ...] = ()
    """The functions of the caller's own code, innermost first."""
    call_ids: tuple[str, ...] = ()
    """The IDs of tool calls among the variables of these functions, innermost first."""


@dataclass(slots=True, eq=False)
class Conversation:
    """A sequence of requests in which each repeats and continues the one before."""

    lane: str
    reported_lane: str
    number: int
    parent: Conversation | None = None
    """The conversation whose call started this one; None at the top level."""
    interaction: Interaction | None = None
    agent_id: str | None = None
    calls: list[StartedCall] = field(default_factory=list)
    tools: frozenset[str] = frozenset()
    steps: Steps = ()
    stack: tuple[str, ...] = ()
    history: bytes | None = None
    """The digest of the messages of its last request."""
    is_answered: bool = False
    """Whether its last request has a response that did not break off."""


@dataclass(slots=True)
class _Answered:
    """An answered request that can be continued."""

    conversation: Conversation
    attempt_id: str
    response: str
    times_continued: int = 0


class Conversations:
    """The conversations of one session, except those of the agent loop of agentobs."""

    def __init__(self) -> None:
        """Start without conversations."""
        self._all: OrderedDict[int, Conversation] = OrderedDict()
        self._with_calls: OrderedDict[int, Conversation] = OrderedDict()
        self._unanswered: dict[int, Conversation] = {}
        self._count = 0
        self._by_history: OrderedDict[bytes, list[_Answered]] = OrderedDict()
        self._by_attempt: OrderedDict[str, Conversation] = OrderedDict()

    def with_calls(self) -> list[Conversation]:
        """Return the conversations with tool calls, latest activity last."""
        return list(self._with_calls.values())

    def continued_by(self, sent: Sent) -> Conversation | None:
        """Return the conversation that a request continues or repeats; None if it starts one."""
        if sent.agent_id is not None:
            return self._of_agent(sent.agent_id)
        found = self._repeated_history(sent)
        if found is not None:
            return found.conversation
        if (repeated := self._retried(sent)) is not None:
            return repeated
        known = self._by_attempt.get(sent.continued or "")
        if known is not None and known.reported_lane == sent.lane:
            return known
        return self._waiting_for(sent)

    def start(self, sent: Sent, lane: str, parent: Conversation | None) -> Conversation:
        """Add a conversation that a request starts."""
        self._count += 1
        agent_id = sent.agent_id
        conversation = Conversation(lane, sent.lane, self._count, parent, agent_id=agent_id)
        self._all[self._count] = conversation
        return conversation

    def note(
        self,
        sent: Sent,
        conversation: Conversation,
        response: str | None,
        calls: Sequence[StartedCall],
        *,
        is_complete: bool,
    ) -> None:
        """Note a request of a conversation.

        Args:
            sent: the request.
            conversation: its conversation.
            response: the key of its response; None if there is no response.
            calls: the calls in the response.
            is_complete: whether the response is complete, or the client canceled it. If it broke off, the client may
                send the request again.
        """
        waiting = [call for call in conversation.calls if call.closed_ns is None]
        for call in waiting:
            call.closed_ns = max(sent.started_ns, call.requested_ns)
        if (before := self._repeated_history(sent)) is not None:
            before.times_continued += response is not None
        # The calls of the response before the last one are kept for requests that end later than this one.
        conversation.calls = [*(waiting or conversation.calls), *calls][-CALLS_MAX:]
        conversation.tools, conversation.steps, conversation.stack = (
            sent.tools,
            sent.steps,
            sent.stack,
        )
        conversation.history = sent.histories[-1] if sent.histories else None
        conversation.is_answered = is_complete
        self._unanswered.pop(conversation.number, None)
        if not conversation.is_answered:
            self._unanswered[conversation.number] = conversation
        self._all[conversation.number] = conversation  # it may have been forgotten
        self._all.move_to_end(conversation.number)
        if conversation.calls:
            self._with_calls[conversation.number] = conversation
            self._with_calls.move_to_end(conversation.number)
        if response is None:
            return
        _remember(self._by_attempt, sent.attempt_id, conversation)
        if conversation.history is not None:
            known = self._by_history.get(conversation.history, [])
            known.append(_Answered(conversation, sent.attempt_id, response))
            _remember(self._by_history, conversation.history, known[-CALLS_MAX:])

    def forget_oldest(self) -> list[Conversation]:
        """Forget the conversations without recent activity if there are too many; return them."""
        found = []
        while len(self._all) > CONVERSATIONS_MAX:
            number, oldest = self._all.popitem(last=False)
            self._with_calls.pop(number, None)
            self._unanswered.pop(number, None)
            found.append(oldest)
        return found

    def lanes(self) -> set[str]:
        """Return the names of all lanes."""
        return {each.lane for each in self._all.values()}

    def _of_agent(self, agent_id: str) -> Conversation | None:
        named = (each for each in reversed(self._all.values()) if each.agent_id == agent_id)
        return next(named, None)

    def _repeated_history(self, sent: Sent) -> _Answered | None:
        """Return the answered request with the longest history that a request repeats, followed by a response."""
        last = len(sent.histories) - 1
        for at in range(last, max(last - NEW_MESSAGES_MAX, 0), -1):
            if sent.roles.get(at, "assistant") != "assistant":
                continue
            known = [
                each
                for each in self._by_history.get(sent.histories[at - 1], ())
                if each.conversation.reported_lane == sent.lane
                and (sent.agent_id is None or each.conversation.agent_id == sent.agent_id)
            ]
            if known:
                return _chosen(known, sent, sent.responses.get(at))
        return None

    def _retried(self, sent: Sent) -> Conversation | None:
        """Return the conversation whose last request got no complete response and has the same messages."""
        if not sent.histories:
            return None
        failed = [
            each
            for each in self._unanswered.values()
            if each.history == sent.histories[-1] and each.reported_lane == sent.lane
        ]
        of_job = [each for each in failed if each.steps == sent.steps]
        if of_job or not sent.steps:
            return next(iter(of_job or failed), None)
        return next((each for each in failed if not each.steps), None)

    def _waiting_for(self, sent: Sent) -> Conversation | None:
        """Return the conversation with an open call whose result a request contains, regardless of its earlier
        messages.
        """
        wanted = set(sent.result_ids)
        if not wanted:
            return None
        waiting = [
            each
            for each in reversed(self.with_calls())
            if each.reported_lane == sent.lane
            and any(c.tool_use_id in wanted and c.closed_ns is None for c in each.calls)
        ]
        of_job = [each for each in waiting if each.steps and each.steps == sent.steps]
        return next(iter(of_job or waiting), None)


def continues_calls(sent: Sent, conversation: Conversation) -> bool:
    """Return whether a request follows the last response of its conversation, and this response called tools.

    The request needs no tool results: smolagents 1.26 sends calls and results as text, and only the error if a tool
    failed. It must repeat all messages of the request before it, because a chat may continue with only the prompts and
    final texts of earlier turns. If an agent has only one tool and must call it, the call may be the final answer, so
    what follows may be a prompt.
    """
    if conversation.history not in sent.histories[:-1]:
        return False
    follows = sent.histories.index(conversation.history) + 1
    waiting = [call for call in conversation.calls if call.closed_ns is None]
    is_step = len(conversation.tools) > 1 or not all(call.is_forced for call in waiting)
    return bool(waiting) and is_step and sent.roles.get(follows) == "assistant"


def response_key(turn: Turn) -> str:
    """Return a key of a response, or of a message that repeats it: its calls, or its text if there are none."""
    if calls := turn.calls:
        return calls_key((str(each.id), each.name, each.value) for each in calls)
    return turn.text


def calls_key(calls: Iterable[tuple[str, str, Any]]) -> str:
    """Return the key of a response with calls; each call is an ID, a name and an input."""
    try:
        return canonical([list(each) for each in calls])
    except (TypeError, ValueError, RecursionError):
        return ""


def _chosen(known: list[_Answered], sent: Sent, response: str | None) -> _Answered:
    """Return which of several requests with equal messages is continued.

    First the response decides, then the job that sent the request. Indistinguishable requests are continued once each,
    in the order of the responses.
    """
    same = [each for each in known if each.response == response] or known
    same = [e for e in same if sent.steps and e.conversation.steps == sent.steps] or same
    return min(same, key=lambda each: each.times_continued)


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > HISTORIES_MAX:
        known.popitem(last=False)
