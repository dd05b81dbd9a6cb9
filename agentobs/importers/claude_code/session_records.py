"""Rebuilding: the records that a recorder would have received if it had been attached to a logged session.

A request and its response become an exchange, a tool call and its result become one, and the surrounding entries open
and close spans. Times are those at which the client wrote its lines: a request starts when the last message before it
was written. IDs are derived from the client's, so the same log yields the same records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentobs.importers.claude_code.agent_threads import (
    Requests,
    Response,
    Thread,
    answer_of,
    thread,
)
from agentobs.importers.claude_code.transcript_entries import Entry, as_dict
from agentobs.importers.line_files import FAR_NS
from agentobs.provider.dialect import Block
from agentobs.provider.registry import ANTHROPIC
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Place,
    QuerySource,
    Question,
    SessionCall,
    ToolAnswer,
    ToolExchange,
    ToolOutcome,
    ToolQuestion,
    lane_under,
)
from agentobs.records.facts import (
    Event,
    InteractionEnd,
    InteractionStart,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
)
from agentobs.records.labels import Label, unchecked
from agentobs.sink import Record

SOURCE = Label("claude-code")
"""The value of `session_starts.source` for imported sessions."""

_REJECTED = "The user doesn't want to proceed with this tool use."
"""How the client tells the model that a person denied a call (seen in versions 2.0.64 to 2.1.41)."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A session, rebuilt."""

    session_id: str
    """Its ID in agentobs: the client's without hyphens."""
    records: Iterable[Record]
    """In time order; the last one is its end. Each is created on access: a request repeats its whole history, so all
    requests of a long session together would fill the memory.
    """
    message_ids: tuple[str, ...]
    """The responses of the model, by the provider's IDs."""
    tool_calls: int
    agents: int
    """Agents that others started."""
    uncounted: frozenset[str]
    """The attempts without a recorded stop reason: their final usage may be missing."""
    lacks: str
    """What is missing in the logged requests, for people; without it, no request can be replayed."""


@dataclass(slots=True)
class _Builder:
    session_id: str
    starters: Mapping[str, str]
    """The call that started each agent, by the agent's ID."""
    background: frozenset[str]
    """The agents that ran in the background."""
    timed: list[tuple[int, int, Record | Callable[[], Record]]] = field(default_factory=list)
    """The time of each record, its number, and the record or a function that creates it."""
    tools: dict[str, tuple[Place, int]] = field(default_factory=dict)
    """The place inside each tool call, and its start."""
    uncounted: set[str] = field(default_factory=set)
    message_ids: list[str] = field(default_factory=list)

    def add(self, at_ns: int, record: Record | Callable[[], Record]) -> None:
        self.timed.append((at_ns, len(self.timed), record))


def rebuild(
    client_id: str, entries: Sequence[Entry], is_elsewhere: Callable[[str], bool] = lambda _: False
) -> Rebuilt | None:
    """Return a session rebuilt from all of its entries, in the order of the logs; None if the model never responded.

    Args:
        client_id: the client's ID of the session.
        entries: those of its main agent first.
        is_elsewhere: returns whether a response belongs to another session, by its message ID: it is then part of the
            history, and counts there.
    """
    by_agent: dict[str | None, list[Entry]] = {}
    for entry in _timed(entries):
        by_agent.setdefault(entry.agent_id, []).append(entry)
    threads = {agent_id: thread(agent_id, told) for agent_id, told in by_agent.items()}
    asked = [each for each in threads.values() if each.responses]
    for each in asked:
        each.own = [r for r in each.responses if not is_elsewhere(r.message_id)]
    asked = [each for each in asked if each.own]
    if not asked:
        return None
    session_id = our_id(client_id)
    builder = _Builder(session_id, _starters(entries), _background(threads.values()))
    for each in _parents_first(asked, builder.starters):
        _tell(builder, each)
    times = [at for at, _, _ in builder.timed]
    first, last = min(times), max(times)
    started, ended = _start(session_id, entries, first), _end(session_id, last)
    return Rebuilt(
        session_id=session_id,
        records=_Records(started, sorted(builder.timed, key=lambda each: each[:2]), ended),
        message_ids=tuple(builder.message_ids),
        tool_calls=len(builder.tools),
        agents=sum(each.agent_id is not None for each in asked),
        uncounted=frozenset(builder.uncounted),
        lacks=_lacks(entries),
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """Records that are created one by one, on each access."""

    started: SessionCall
    timed: Sequence[tuple[int, int, Record | Callable[[], Record]]]
    ended: SessionEnd

    def __iter__(self) -> Iterator[Record]:
        yield self.started
        for _, _, record in self.timed:
            yield record() if callable(record) else record
        yield self.ended


def _lacks(entries: Sequence[Entry]) -> str:
    """Return what is missing in the logged requests of a session.

    No known version logs the system prompt, the tools and the settings of a request, and a replay compares
    complete requests. If the client removed results from the conversation, even those are unknown.
    """
    lacking = ["the system prompt, the tools and the settings of its requests"]
    made_shorter = {"microcompact_boundary": "which results were removed from the conversation"}
    found = {str(entry.value.get("subtype")) for entry in entries}
    lacking += [what for subtype, what in made_shorter.items() if subtype in found]
    return f"the log does not contain {', nor '.join(lacking)}"


def our_id(client_id: str) -> str:
    """Return the session ID in agentobs: 32 hex digits, the client's own if it is a UUID."""
    bare = client_id.replace("-", "").lower()
    is_ours = len(bare) == 32 and all(c in "0123456789abcdef" for c in bare)
    return bare if is_ours else _id(client_id)


def _id(*parts: object) -> str:
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _timed(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield entries with a time each; an entry without one gets the time of the entry before it."""
    known = next((entry.at_ns for entry in entries if entry.at_ns is not None), 0)
    for entry in entries:
        known = entry.at_ns if entry.at_ns is not None else known
        yield entry if entry.at_ns is not None else replace(entry, at_ns=known)


def _at(entry: Entry) -> int:
    return entry.at_ns or 0


def _starters(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the tool_use ID that started each agent, by the agent's ID."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.agent_id is not None and entry.started_by is not None:
            found.setdefault(entry.agent_id, entry.started_by)
        agent_id = as_dict(entry.value.get("toolUseResult")).get("agentId")
        for block in entry.blocks if isinstance(agent_id, str) else ():
            if block.kind == "result" and block.id is not None:
                found.setdefault(str(agent_id), block.id)
    return found


def _background(threads: Any) -> frozenset[str]:
    results = [
        as_dict(entry.value.get("toolUseResult")) for each in threads for entry in each.entries
    ]
    return frozenset(str(each.get("agentId")) for each in results if each.get("isAsync"))


def _parents_first(threads: Sequence[Thread], starters: Mapping[str, str]) -> list[Thread]:
    """Return the threads ordered so that an agent follows the one that started it, if that is known."""
    made = {str(block.id): each for each in threads for r in each.responses for _, block in r.calls}

    def depth(each: Thread) -> int:
        found, seen = 0, {each.agent_id}
        parent = made.get(starters.get(str(each.agent_id), ""))
        while parent is not None and parent.agent_id not in seen:
            seen.add(parent.agent_id)
            found += 1
            parent = made.get(starters.get(str(parent.agent_id), ""))
        return found

    return sorted(threads, key=depth)


def _tell(builder: _Builder, told: Thread) -> None:
    """Emit the records of one agent."""
    requests, turn = Requests(), 0
    for response in told.responses:
        requests.add(response)
    for here, responses, ends_ns in _interactions(builder, told):
        for response in responses:
            turn += 1
            _tell_response(builder, told, replace(here, turn=turn), response, requests)
        for entry in _within(told, responses, ends_ns):
            _tell_event(builder, replace(here, turn=turn), entry)


def _interactions(builder: _Builder, told: Thread) -> Iterator[tuple[Place, list[Response], int]]:
    """Yield the place of each interaction, its responses, and its end.

    The activity of an agent that a call started and waited for belongs to the interaction of that call.
    """
    inside = builder.tools.get(builder.starters.get(told.agent_id or "", ""))
    if inside is not None and told.agent_id not in builder.background:
        yield _tell_agent(builder, told, inside[0])
        return
    groups: list[list[Response]] = []
    for response in told.own:
        if response.prompts or not groups:
            groups.append([])
        groups[-1].append(response)
    for number, group in enumerate(groups, 1):
        starts = min(_at(e) for e in (*group[0].prompts, group[0].entries[0]))
        ends = max(_ended(told, response) for response in group)
        here = _own_place(builder, told, number, inside)
        name = Label("interaction")
        is_open = any(str(block.id) not in told.results for _, block in group[-1].calls)
        result = Label("interrupted" if is_open else "success")
        lane = unchecked(here.lane)
        interaction_id = here.interaction_id or ""
        builder.add(starts, InteractionStart(builder.session_id, interaction_id, lane, starts))
        linked = inside[0].span_id if inside else None
        here = _open(builder, here, name, None, starts, linked)
        yield here, group, ends
        _close(builder, here, ends, is_error=False)
        builder.add(
            ends, InteractionEnd(builder.session_id, interaction_id, ends, result, is_error=is_open)
        )


def _own_place(
    builder: _Builder, told: Thread, number: int, inside: tuple[Place, int] | None
) -> Place:
    interaction_id = _id(builder.session_id, told.agent_id, "interaction", number)
    if told.agent_id is None:
        return Place(builder.session_id, interaction_id)
    started_by = builder.starters.get(told.agent_id)
    lane = lane_under(inside[0].lane if inside else "main", started_by or f"agent-{told.agent_id}")
    return Place(builder.session_id, interaction_id, lane, query_source=_source(told))


def _source(told: Thread) -> QuerySource:
    """Return the query source: the client creates its summaries with agents that have IDs of a special kind."""
    if told.agent_id is None:
        return "main"
    return "compaction" if told.agent_id.startswith("acompact") else "sub_agent"


def _tell_agent(builder: _Builder, told: Thread, tool: Place) -> tuple[Place, list[Response], int]:
    """Emit the records of an agent that a call started and waited for; return its place, its responses and its end."""
    lane = lane_under(tool.lane, builder.starters[told.agent_id or ""])
    here = replace(tool, lane=lane, turn=None, query_source=_source(told))
    starts = min(_at(entry) for entry in told.entries)
    ends = max(_ended(told, response) for response in told.own)
    here = _open(builder, here, Label("sub_agent"), None, starts)
    _close(builder, here, ends, is_error=False)
    return here, told.own, ends


def _tell_response(
    builder: _Builder, told: Thread, here: Place, response: Response, requests: Requests
) -> None:
    """Emit the records of one request, its response, and its calls."""
    written = [_at(entry) for entry in response.entries]
    starts = min(max((_at(entry) for entry in response.said), default=written[0]), written[0])
    took = max(max(written) - starts, 0)
    attempt_id = _id(builder.session_id, told.agent_id, response.message_id)
    builder.message_ids.append(response.message_id)
    if response.stop_reason is None:
        builder.uncounted.add(attempt_id)
    headers = {"content-type": "application/json"}
    if response.request_id is not None:
        headers["request-id"] = response.request_id
    inside = _open(builder, here, Label("llm_request"), response.model, starts)

    def exchange() -> ModelExchange:
        body, kind = requests.body(response), {"content-type": "application/json"}
        return ModelExchange(
            place=inside,
            attempt_id=attempt_id,
            started_ns=starts,
            headers_ns=None,
            ended_ns=took,
            question=Question("POST", ANTHROPIC.turn_path, kind, body),
            answer=Answer(200, headers, (Chunk(answer_of(response), took),), "complete"),
        )

    builder.add(starts + took, exchange)
    _close(builder, inside, starts + took, is_error=False)
    for entry, block in response.calls:
        _tell_call(builder, told, here, entry, block)


def _tell_call(builder: _Builder, told: Thread, here: Place, entry: Entry, block: Block) -> None:
    """Emit the record of a tool call; a call without a result was never answered."""
    starts, tool_use_id, name = _at(entry), str(block.id), block.name
    inside = _open(builder, here, Label("tool"), name, starts)
    builder.tools[tool_use_id] = inside, starts
    if tool_use_id not in told.results:
        return
    answering, result = told.results[tool_use_id]
    took = max(_at(answering) - starts, 0)
    answer = ToolAnswer(result.value, result.is_error, _outcome(result))
    question = ToolQuestion(tool_use_id, name, block.value)
    builder.add(starts + took, ToolExchange(inside, starts, took, question, answer))
    _close(builder, inside, starts + took, is_error=result.is_error)


def _outcome(result: Block) -> ToolOutcome:
    content = result.value
    if result.is_error and isinstance(content, str) and content.startswith(_REJECTED):
        return "denied"
    return "failed" if result.is_error else "executed"


def _ended(told: Thread, response: Response) -> int:
    """Return when a response and its calls had ended."""
    results = [told.results[str(b.id)][0] for _, b in response.calls if str(b.id) in told.results]
    return max(_at(entry) for entry in (*response.entries, *results))


def _within(told: Thread, responses: Sequence[Response], ends_ns: int) -> list[Entry]:
    """Return the other entries of an interaction, including those after its last response."""
    starts = min(
        _at(entry) for response in responses for entry in (*response.said, *response.entries)
    )
    later = [_at(p) for r in told.responses for p in r.prompts if _at(p) > ends_ns]
    until = min(later, default=max(_at(entry) for entry in told.entries) + 1)
    return [e for e in told.entries if e.kind == "system" and starts <= _at(e) < until]


def _tell_event(builder: _Builder, here: Place, entry: Entry) -> None:
    """Emit the actions of the client: compactions, retries, hooks."""
    told = entry.value
    label: str | None = None
    numbers: dict[str, Any] = {}
    match told.get("subtype"):
        case "compact_boundary" | "microcompact_boundary" as kind:
            facts = as_dict(told.get("compactMetadata") or told.get("microcompactMetadata"))
            before, saved = _number(facts.get("preTokens")), _number(facts.get("tokensSaved"))
            named: Literal["compaction", "retry", "hook"] = "compaction"
            label = "manual" if facts.get("trigger") == "manual" else "auto"
            numbers = {"tokens_before": before, "trim": kind == "microcompact_boundary"}
            if before is not None and saved is not None:
                numbers["tokens_after"] = before - saved
        case "api_error":
            named = "retry"
            wait_ms = _number(told.get("retryInMs"))
            wait_ns = wait_ms * 1e6 if wait_ms is not None else None
            numbers = {"attempt": told.get("retryAttempt"), "wait_ns": wait_ns}
        case "stop_hook_summary":
            named = "hook"
            label = "blocking" if told.get("preventedContinuation") else "success"
            numbers = {"blocking": bool(told.get("preventedContinuation"))}
        case _:
            return
    known = {name: _number(told_of) for name, told_of in numbers.items()}
    kept = {name: float(number) for name, number in known.items() if number is not None}
    at_ns = _at(entry)
    builder.add(
        at_ns,
        Event(
            session_id=builder.session_id,
            interaction_id=here.interaction_id,
            lane=unchecked(here.lane),
            turn=here.turn,
            at_ns=at_ns,
            kind=Label(named),
            label=Label(label) if label else None,
            numbers=kept,
            query_source=Label(here.query_source),
        ),
    )


def _number(value: object) -> int | float | None:
    """Return a number that fits in 64 bits; None for other values, including NaN."""
    return value if isinstance(value, int | float) and -FAR_NS < value < FAR_NS else None


def _open(
    builder: _Builder,
    here: Place,
    name: Label,
    label: str | None,
    at_ns: int,
    linked_span_id: str | None = None,
) -> Place:
    """Open a span and return the place inside it."""
    span_id = _id(builder.session_id, here.lane, name, len(builder.timed))[16:]
    builder.add(
        at_ns,
        SpanStart(
            session_id=builder.session_id,
            trace_id=here.interaction_id or builder.session_id,
            span_id=span_id,
            parent_span_id=here.span_id,
            lane=unchecked(here.lane),
            name=name,
            label=unchecked(label) if label else None,
            started_ns=at_ns,
            linked_span_id=linked_span_id,
            interaction_id=here.interaction_id,
            turn=here.turn,
            query_source=Label(here.query_source),
        ),
    )
    return replace(here, span_id=span_id)


def _close(builder: _Builder, inside: Place, at_ns: int, *, is_error: bool) -> None:
    status: Literal["ok", "error"] = "error" if is_error else "ok"
    builder.add(
        at_ns, SpanEnd(builder.session_id, inside.span_id or "", at_ns, status, error_type=None)
    )


def _start(session_id: str, entries: Sequence[Entry], at_ns: int) -> SessionCall:
    versions = [e.value["version"] for e in entries if isinstance(e.value.get("version"), str)]
    unknown = Label("unknown")
    return SessionCall(
        SessionStart(
            session_id=session_id,
            name=SOURCE,
            started_ns=at_ns,
            entry=None,
            agentobs_version=unknown,
            sdk_version=None,
            python_version=unknown,
            platform=unknown,
            tags={"client": f"claude-code/{versions[-1]}"} if versions else {},
            arguments_content=None,
            source=SOURCE,
        ),
        None,
    )


def _end(session_id: str, at_ns: int) -> SessionEnd:
    return SessionEnd(session_id, at_ns, "completed", None, None, 0)
