"""Departures: the first place where an agent leaves the recorded path, for tests that expect the agent to leave it.

A test of a fix does not fail when the agent does something that differs from the recording; it examines this action.
From the first response on, a different reaction of the agent is a departure. The first request is sent before any
response: if it differs, the prompt, the tools or the options have changed. Such a difference is called drift, and is
only reported: the recorded responses still lead the agent's code to the failure, although only the provider could show
how a model reacts to the new prompt. Different tool results before the failing turn are drift as well, because the
model's reaction to them is unknown; and so are, from any turn on, other texts of errors of tools that fail again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Turn
from agentobs.provider.registry import dialect_of_body, history
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences
from replay.fixture.body_parts import value_of
from replay.fixture.format import RecordedRequest

PROMPT_DRIFT = (
    "the first request differs from the recording ({}), but gets the recorded responses: if this change is the fix, "
    "run the agent with the provider and freeze the new session"
)
RESULT_DRIFT = (
    "tool results before turn {} differ from the recording, but the agent gets the recorded responses: if this change "
    "is the fix, choose its turn with agentobs freeze --turn, or freeze a new session"
)
ERROR_DRIFT = (
    "a tool failed as in the recording, but with another error text, and the agent gets the recorded responses: if "
    "this change is the fix, run the agent with the provider and freeze the new session"
)
EARLY = (
    "the agent leaves the recorded path after turn {}, before the tested turn {}: choose the earlier turn with "
    "agentobs freeze --turn, or freeze a new session"
)


@dataclass(slots=True)
class Departure:
    """Whether a replay has left the recorded path, and where."""

    failing_turn: int
    """The turn from which any difference is a departure; before it, different tool results are drift."""
    has_happened: bool = False
    turn: int = 0
    """The number of turns of the main lane that were answered before the departure."""
    expected: RecordedRequest | None = None
    """The recorded request that was due; None if no request was due, or if the departure is not a request."""
    is_stopped: bool = False
    """Whether the agent was stopped at a tool call that cannot run."""
    keys: tuple[str, ...] = ()
    """The keys by which the first request differed from the recorded one, such as `system`."""
    results: frozenset[str] = frozenset()
    """The IDs of the tool calls before the failing turn whose results differed."""
    errors: frozenset[str] = frozenset()
    """The IDs of the tool calls that failed as in the recording, but with another error text."""

    def remarks(self) -> list[str]:
        """Return caveats for judging the agent by this replay, one sentence each, without the final period."""
        found = []
        if self.keys:
            found.append(PROMPT_DRIFT.format(", ".join(self.keys)))
        if self.results:
            found.append(RESULT_DRIFT.format(self.failing_turn))
        if self.errors and not self.has_happened:
            found.append(ERROR_DRIFT)
        if self.is_early():
            found.append(EARLY.format(self.turn, self.failing_turn))
        return found

    def is_early(self) -> bool:
        """Return whether the agent left the path before the failing turn was answered."""
        # If no turn was answered, the first request itself failed, and so did its retries.
        return self.has_happened and 0 < self.turn < self.failing_turn


def is_refused(ask: RecordedRequest) -> bool:
    """Return whether the provider rejected a recorded request because of its content, so that a fix must change it.

    Timeouts, conflicts and rate limits do not count: the same request may succeed later (statuses 408, 409 and 429).
    """
    status = ask.answer.status or 0
    return 400 <= status < 500 and status not in (408, 409, 429)


def is_reaction(expected: RecordedRequest, recorded: Any, live: Any) -> bool:
    """Return whether two request bodies differ only in their new messages, with which the agent reacts to a response.

    Args:
        expected: the recorded request.
        recorded: its body, parsed.
        live: the body of the live request, parsed.
    """
    if not (isinstance(recorded, dict) and isinstance(live, dict)):
        return False
    if not (_has_history(recorded) and _has_history(live)):
        return False
    key, messages = dialect_of_body(recorded).history_key, history(recorded)
    known = len(messages) - len(expected.shape.get("add", messages))
    parts = ({**body, key: history(body)[:known]} for body in (recorded, live))
    return not differences(*parts)


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences of two request bodies that represent the same action of the agent."""

    keys: tuple[str, ...]
    """The top-level keys whose values differ. For the key of the conversation, only the messages before the first
    response are compared.
    """
    results: frozenset[str]
    """The IDs of the tool calls whose results differ. Two errors count as equal, because the tool fails both times."""
    errors: frozenset[str]
    """The IDs of the tool calls that fail both times, with different results."""


def drift_of(recorded: Any, live: Any) -> Drift | None:
    """Return how two request bodies differ in their prompts, options and tool results.

    Returns:
        None if they differ in anything else, or are not JSON objects with messages.
    """
    if not (_has_history(recorded) and _has_history(live)):
        return None
    (old_prompt, old), (new_prompt, new) = map(_split, (recorded, live))
    if canonical(_without_results(old)) != canonical(_without_results(new)):
        return None
    key = dialect_of_body(recorded).history_key
    parts = ({**recorded, key: old_prompt}, {**live, key: new_prompt})
    keys = (
        key
        for key in {*recorded, *live}
        if canonical(parts[0].get(key)) != canonical(parts[1].get(key))
    )
    pairs = zip(_results(old), _results(new), strict=True)
    differing = [pair for pair in pairs if canonical(pair[0].raw) != canonical(pair[1].raw)]
    errors = {str(one.id) for one, other in differing if one.is_error and other.is_error}
    results = {str(one.id) for one, _ in differing} - errors
    return Drift(tuple(sorted(keys)), frozenset(results), frozenset(errors))


def repeats(body: bytes) -> bool:
    """Return whether the last message of a request equals the agent's previous message, ignoring IDs."""
    value = value_of(body)
    if not _has_history(value):
        return False
    dialect, entries = dialect_of_body(value), history(value)
    sent = [entry for entry in entries if dialect.turn(entry).role == "user"]
    if len(sent) < 3 or entries[-1] is not sent[-1]:
        return False  # the first message is the prompt
    last, before = (_without_ids(dialect.turn(each), dialect) for each in sent[-1:-3:-1])
    return canonical(last) == canonical(before)


def _without_ids(turn: Turn, dialect: Dialect) -> list[Any]:
    return [
        ["result", block.value, block.is_error]
        if block.kind == "result"
        else dialect.without_breakpoints([block.raw])
        for block in turn.blocks
    ]


def _has_history(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get(dialect_of_body(body).history_key), list)


def _split(body: Any) -> tuple[list[Any], list[Turn]]:
    """Return the messages before the first response as they were sent, and the turns from that response on."""
    dialect, entries = dialect_of_body(body), history(body)
    turns = [dialect.turn(entry) for entry in entries]
    roles = [turn.role for turn in turns]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return entries[:first], turns[first:]


def _results(turns: list[Turn]) -> list[Block]:
    """Return the tool results of turns, in order."""
    return [result for turn in turns for result in turn.results]


def _without_results(turns: list[Turn]) -> list[Any]:
    """Return turns without the contents of tool results."""
    return [
        [turn.role, [b.id if b.kind == "result" else b.raw for b in turn.blocks]]
        if turn.results
        else turn.raw
        for turn in turns
    ]
