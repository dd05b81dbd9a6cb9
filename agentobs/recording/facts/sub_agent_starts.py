"""Sub-agent starts: which open tool call started a conversation, for clients that do not report it.

A conversation that starts while a call of another conversation waits for its result may be the work of that call. The
evidence, strongest first: the ID of the call among the variables of the caller; the text of the prompt in the input of
the call; the job that sends the request, which was started inside the job of the other conversation. If nothing is
known about the jobs, as in another process, only the time is left. Then the conversation must declare other tools than
the one whose call is open, because a server answers many users with one agent.

A conversation is independent if its job was started before the call, or runs in parallel with the job that waits for
the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.determinism.callers import OWN_FRAMES_MAX
from agentobs.recording.facts.conversations import Conversation, Sent, StartedCall, Steps

QUOTED_MIN = 12
"""The minimum number of characters of an input part that shows that a prompt was made from it. Shorter texts, such as
place names, also occur in other prompts. A complete prompt may be shorter. Our choice.
"""
TEXTS_MAX = 32
"""The maximum number of texts of the input of a call that are compared with a prompt. Our choice."""
TEXT_MAX = 20_000
"""The maximum number of characters of each text that are compared. Our choice."""
NOTED_NS = 10_000_000
"""The maximum delay after which the end of a job is noted. The code that waits for its result may run first. Our
choice.
"""

_Relation = Literal["inside", "deeper", "same", "parallel", "apart", "unknown"]
"""How the job of a request relates to the job of a conversation with an open call.

`inside`: the conversation's job started it after the call; `deeper`: the same job, in other functions; `same`: the same
job and the same functions; `parallel`: another job started it after the call; `apart`: it was started before the call.
"""

EndOfJob = Callable[[int], int | None]
"""Returns when the job with a serial number ended, in nanoseconds since 1970; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a sub-agent."""

    parent: Conversation
    tool_use_id: str | None
    """The call that started it; None if several open calls may have."""


def start_of(
    sent: Sent, conversations: Iterable[Conversation], end_of_job: EndOfJob
) -> Start | None:
    """Return the conversation and the call that started the conversation of a request; None if it is independent."""
    best: tuple[tuple[int, int, int], Start] | None = None
    for each in conversations:
        if each.reported_lane != sent.lane or (sent.agent_id and sent.agent_id == each.agent_id):
            continue
        calls = [call for call in each.calls if call.is_open_at(sent.started_ns)]
        if not calls:
            continue
        relation = _relation(sent, each, calls[-1].requested_ns, end_of_job)
        named, quoted = _named(sent, calls), _quoted(sent, calls)
        strength = _strength(sent, each, calls, relation, named, quoted)
        if not strength:
            continue
        call = named or (quoted[0] if len(quoted) == 1 else None) or _only_call(sent, calls)
        start = Start(each, call.tool_use_id if call else None)
        shared = _shared(sent.steps, each.steps)
        key = (strength, shared, calls[-1].requested_ns)
        if best is None or key > best[0]:
            best = (key, start)
    return best[1] if best else None


def texts_of(value: Any) -> tuple[str, ...]:
    """Return the texts in the input of a call."""
    found: list[str] = []
    pending = [value]
    while pending and len(found) < TEXTS_MAX:
        each = pending.pop()
        if isinstance(each, str) and each.strip():
            found.append(each.strip()[:TEXT_MAX])
        elif isinstance(each, dict):
            pending += reversed(each.values())
        elif isinstance(each, list):
            pending += reversed(each)
    return tuple(found)


def _strength(
    sent: Sent,
    parent: Conversation,
    calls: list[StartedCall],
    relation: _Relation,
    named: StartedCall | None,
    quoted: list[StartedCall],
) -> int:
    """Return how strong the evidence for a start is; 0 if there is not enough."""
    if relation == "apart":
        return 0
    if sent.agent_id is not None:
        return 4 if quoted else 1
    if named is not None:
        return 3
    if quoted:
        return 2
    if sent.names_agents or relation in ("same", "parallel"):
        return 0
    if all(call.is_forced for call in calls) and not _is_step(sent, parent, calls, relation):
        return 0
    is_deeper = relation == "deeper" and bool(sent.stack)
    return int(is_deeper or sent.tools != parent.tools)


def _is_step(
    sent: Sent, parent: Conversation, calls: list[StartedCall], relation: _Relation
) -> bool:
    """Return whether forced calls are a step of an agent, not its final answer.

    The agent must have several tools. A final answer is a single call, so the tools of several calls may run in jobs
    inside the agent's own. In the same job, the functions of the agent must still be running. smolagents 1.26 sends
    `tool_choice` `any` in each request; it runs the tool of a single call in the same job, and other tools in threads.
    """
    if len(parent.tools) < 2:
        return False
    if relation == "inside":
        return len(calls) > 1
    return relation == "deeper" and _encloses(parent.stack, sent.stack)


def _encloses(outer: tuple[str, ...], stack: tuple[str, ...]) -> bool:
    """Return whether the functions of one request run those of another; False if they are unknown or incomplete."""
    return 0 < len(outer) < len(stack) and stack[-len(outer) :] == outer


def _relation(
    sent: Sent, parent: Conversation, requested_ns: int, end_of_job: EndOfJob
) -> _Relation:
    if not sent.steps or not parent.steps:
        return "unknown"
    shared = _shared(sent.steps, parent.steps)
    if not shared:
        return "unknown"  # the jobs were started by unknown jobs, or too many levels apart
    if sent.is_worker:
        return "parallel"  # the work may be from any job
    branch = sent.steps[shared:]
    if branch and 0 < branch[0][2] < requested_ns:
        return "apart"
    is_same_stack = _is_same_stack(sent.stack, parent.stack)
    if shared == len(parent.steps):
        if branch:
            return "inside"
        return "same" if is_same_stack else "deeper"
    # A framework may run each step of one agent in separate jobs. Only the ends of jobs that send requests are known.
    if not any(has_ended(each, sent.started_ns, end_of_job) for each in parent.steps[shared:]):
        return "parallel"
    return "same" if is_same_stack else "inside"


def are_concurrent(sent: Sent, other: Conversation, end_of_job: EndOfJob) -> bool:
    """Return whether a conversation may continue after a request: its job has not ended, or is unknown."""
    shared = _shared(sent.steps, other.steps)
    if not shared:
        return True
    if shared < len(other.steps):
        return not has_ended(other.steps[shared], sent.started_ns, end_of_job)
    return shared < len(sent.steps)


def has_ended(step: tuple[str, int, int, int], at_ns: int, end_of_job: EndOfJob) -> bool:
    """Return whether a job had ended at a time, in nanoseconds since 1970; False if that is unknown."""
    ended_ns = end_of_job(step[3])
    return ended_ns is not None and ended_ns <= at_ns + NOTED_NS


def _shared(one: Steps, other: Steps) -> int:
    """Return how many jobs two paths have in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a[3] != b[3]:
            break
        count += 1
    return count


def _is_same_stack(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether two requests were sent from the same functions; False if they are unknown or incomplete."""
    return one == other and 0 < len(one) < OWN_FRAMES_MAX


def _named(sent: Sent, calls: list[StartedCall]) -> StartedCall | None:
    """Return the call whose ID is among the variables of the caller, the innermost function first."""
    by_id = {call.tool_use_id: call for call in calls}
    return next((by_id[each] for each in sent.call_ids if each in by_id), None)


def _quoted(sent: Sent, calls: list[StartedCall]) -> list[StartedCall]:
    """Return the calls whose input contains the prompt, or a large part of it."""
    prompt = sent.prompt.strip()[:TEXT_MAX]
    return [call for call in calls if any(_is_quoted(text, prompt) for text in call.texts)]


def _is_quoted(text: str, prompt: str) -> bool:
    if not prompt:
        return False
    if text == prompt:
        return True
    short, long = sorted((text, prompt), key=len)
    return len(short) >= QUOTED_MIN and short in long


def _only_call(sent: Sent, calls: list[StartedCall]) -> StartedCall | None:
    """Return the call that a prompt mentions, if there is only one; the open call, if there is only one."""
    if len(calls) == 1:
        return calls[0]
    mentioned = {
        call.tool_use_id: sum(len(text) for text in call.texts if text in sent.prompt)
        for call in calls
    }
    most = max(mentioned.values())
    best = [call for call in calls if most and mentioned[call.tool_use_id] == most]
    return best[0] if len(best) == 1 else None
