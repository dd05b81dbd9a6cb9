"""Session records: rebuild the records that a recorder would have received from a logged session.

A request and its response become an exchange, a tool call and its result become an exchange, and the surrounding
entries open and close spans. The only known times are those at which the client wrote its lines, so a request starts
when the last message before it was written. IDs are derived from the client's IDs, so the same log always yields the
same records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentobs.importers.claude_code.agent_threads import (
    Requests,
    Response,
    Thread,
    build_thread,
    content_of,
    encoded,
    is_compaction,
    response_body,
)
from agentobs.importers.claude_code.logged_requests import LoggedRequests
from agentobs.importers.claude_code.transcript_entries import Entry, OtherLine, as_dict
from agentobs.importers.claude_code.transcript_totals import unlogged_tokens
from agentobs.importers.line_files import FAR_NS
from agentobs.provider.dialect import Block
from agentobs.provider.registry import ANTHROPIC
from agentobs.proxy.client_sessions import CLIENT_TAG
from agentobs.recording.facts.line_changes import change_of_patch, lines_in
from agentobs.recording.facts.tool_failures import cause_of_result
from agentobs.records.clear_text import id_label
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
    child_lane,
)
from agentobs.records.facts import (
    Event,
    GitState,
    InteractionEnd,
    InteractionStart,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
)
from agentobs.records.labels import Label, is_label, unchecked
from agentobs.sink import Record

SOURCE = Label("claude-code")
"""The value of `session_starts.source` for imported sessions."""

_REJECTED = "The user doesn't want to proceed with this tool use."
"""The start of the tool result for a call that a person denied (in versions 2.0.64 to 2.1.41 of the client)."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt session."""

    session_id: str
    """Its ID in agentobs, from `our_id`."""
    records: Iterable[Record]
    """The records in time order; the last record is the end of the session. Each record is created during the
    iteration: a request repeats its complete history, so all requests of a long session together would not fit into
    memory.
    """
    message_ids: tuple[str, ...]
    """The provider's IDs of the model's responses."""
    tool_calls: int
    agents: int
    """Number of sub-agents."""
    uncounted: frozenset[str]
    """The IDs of attempts without a logged stop reason; their final usage may be missing."""
    missing: str
    """A readable description of the data that is missing in the logged requests, so that they cannot be replayed."""
    unlogged: Mapping[str, int]
    """The number of tokens that the client counted in addition to those of the logged responses, by kind; empty if none
    or unknown. The responses of compactions, for example, are not logged.
    """


@dataclass(slots=True)
class _Builder:
    session_id: str
    starters: Mapping[str, str]
    """The call that started each agent, by the agent's ID."""
    background: frozenset[str]
    """The agents that ran in the background."""
    timed: list[tuple[int, int, Record | Callable[[], Record]]] = field(default_factory=list)
    """The time and the number of each record, and the record or a function that creates it."""
    tools: dict[str, tuple[Place, int]] = field(default_factory=dict)
    """The place inside each tool call, and the start of the call, by tool_use ID."""
    agent_types: dict[str, str] = field(default_factory=dict)
    """The type of the agent that a call asked for, by tool_use ID."""
    uncounted: set[str] = field(default_factory=set)
    message_ids: list[str] = field(default_factory=list)
    logged: LoggedRequests = field(default_factory=LoggedRequests)

    def add(self, at_ns: int, record: Record | Callable[[], Record]) -> None:
        self.timed.append((at_ns, len(self.timed), record))


def rebuild(
    client_id: str,
    entries: Sequence[Entry],
    is_in_other_session: Callable[[str], bool] = lambda _: False,
    others: Sequence[OtherLine] = (),
) -> Rebuilt | None:
    """Rebuild a session from its entries; return None if the model never responded.

    Args:
        client_id: the client's ID of the session.
        entries: all entries of the session in the order of the logs, starting with the entries of the main agent.
        is_in_other_session: returns whether a response, given its message ID, belongs to another session. Such a
            response is part of the history, but it does not count in this session.
        others: the other lines of the session, which contain its requests and costs.
    """
    by_agent: dict[str | None, list[Entry]] = {}
    for entry in _timed(entries):
        by_agent.setdefault(entry.agent_id, []).append(entry)
    threads = {agent_id: build_thread(agent_id, own) for agent_id, own in by_agent.items()}
    active = [each for each in threads.values() if each.responses]
    for each in active:
        each.own_responses = [r for r in each.responses if not is_in_other_session(r.message_id)]
    active = [each for each in active if each.own_responses]
    if not active:
        return None
    session_id = our_id(client_id)
    logged = _logged_requests(threads.values(), others)
    builder = _Builder(session_id, _starters(entries), _background(threads.values()), logged=logged)
    for each in _parents_first(active, builder.starters):
        _emit_thread(builder, each)
    times = [at for at, _, _ in builder.timed]
    first, last = min(times), max(times)
    for state in _git_states(session_id, entries):
        at_ns = min(max(state.at_ns, first), last)
        builder.add(at_ns, replace(state, at_ns=at_ns))
    unlogged = unlogged_tokens(entries, threads.values(), others)
    started, ended = _start(client_id, entries, first, unlogged), _end(session_id, last)
    return Rebuilt(
        session_id=session_id,
        records=_Records(started, sorted(builder.timed, key=lambda each: each[:2]), ended),
        message_ids=tuple(builder.message_ids),
        tool_calls=len(builder.tools),
        agents=sum(each.agent_id is not None for each in active),
        uncounted=frozenset(builder.uncounted),
        missing=_missing(entries, active, logged),
        unlogged=unlogged,
    )


def _git_states(session_id: str, entries: Sequence[Entry]) -> Iterator[GitState]:
    """Yield branch and working directory of a session whenever one of them changes. The log contains nothing else."""
    agents = {entry.agent_id for entry in entries}
    last: tuple[str | None, str | None] = None, None
    for entry in _timed(entries):
        if entry.agent_id is not None and None in agents:
            continue
        branch, directory = entry.value.get("gitBranch"), entry.value.get("cwd")
        # The client writes `HEAD` if no branch is checked out.
        branch = branch if isinstance(branch, str) and branch not in ("", "HEAD") else None
        directory = directory if isinstance(directory, str) and directory else None
        if (branch, directory) in (last, (None, None)):
            continue
        last = branch, directory
        yield GitState(
            session_id,
            _at(entry),
            None,
            unchecked(branch) if branch is not None else None,
            None,
            None,
            "log",
            directory=unchecked(directory) if directory is not None else None,
        )


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of a session, which are created one by one during each iteration."""

    started: SessionCall
    timed: Sequence[tuple[int, int, Record | Callable[[], Record]]]
    ended: SessionEnd

    def __iter__(self) -> Iterator[Record]:
        yield self.started
        for _, _, record in self.timed:
            yield record() if callable(record) else record
        yield self.ended


def _logged_requests(threads: Iterable[Thread], others: Iterable[OtherLine]) -> LoggedRequests:
    """Return the requests that the log contains, with the messages that consist of logged entries."""
    logged = LoggedRequests()
    for line in others:
        logged.add(line)
    for thread in threads:
        for response in thread.responses:
            logged.add_messages("assistant", [[block.raw for block in response.blocks]])
            alone = [content_of(entry) for entry in response.new_messages]
            logged.add_messages("user", [*alone, [block for each in alone for block in each]])
    return logged


def _missing(entries: Sequence[Entry], threads: Iterable[Thread], logged: LoggedRequests) -> str:
    """Describe the data that is missing in the logged requests of a session.

    No known version of the client logs complete requests, but a replay compares complete requests. If the client
    removed results from the conversation, older logs do not show which ones.
    """
    references = [each.request_reference for thread in threads for each in thread.own_responses]
    if all(logged.request(each) is not None for each in references):
        return "the log does not contain the metadata of its requests, nor the streams of its responses"
    missing = ["the system prompt, the tools and the settings of its requests"]
    removals = {"microcompact_boundary": "which results were removed from the conversation"}
    found = {str(entry.value.get("subtype")) for entry in entries}
    missing += [description for subtype, description in removals.items() if subtype in found]
    return f"the log does not contain {', nor '.join(missing)}"


def our_id(client_id: str) -> str:
    """Return the session ID in agentobs (32 hex digits): the client's ID if it is a UUID, else a digest of it."""
    bare = client_id.replace("-", "").lower()
    is_uuid = len(bare) == 32 and all(c in "0123456789abcdef" for c in bare)
    return bare if is_uuid else _id(client_id)


def _id(*parts: object) -> str:
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _timed(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries with their times; an entry without a time gets the time of the previous entry."""
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
    """Return the threads ordered so that each agent follows the agent that started it, if that is known."""
    callers = {
        str(block.id): each for each in threads for r in each.responses for _, block in r.calls
    }

    def depth(each: Thread) -> int:
        found, seen = 0, {each.agent_id}
        parent = callers.get(starters.get(str(each.agent_id), ""))
        while parent is not None and parent.agent_id not in seen:
            seen.add(parent.agent_id)
            found += 1
            parent = callers.get(starters.get(str(parent.agent_id), ""))
        return found

    return sorted(threads, key=depth)


def _emit_thread(builder: _Builder, thread: Thread) -> None:
    """Emit the records of one agent."""
    requests, turn = Requests(), 0
    for response in thread.responses:
        requests.add(response)
    for place, responses, ends_ns in _interactions(builder, thread):
        first = turn + 1
        for response in responses:
            turn += 1
            _emit_response(builder, thread, replace(place, turn=turn), response, requests)
        for entry in _other_entries(thread, responses, ends_ns):
            at = replace(place, turn=first + _turn_of(entry, responses))
            _emit_event(builder, at, entry)


def _interactions(builder: _Builder, thread: Thread) -> Iterator[tuple[Place, list[Response], int]]:
    """Yield the place of each interaction, its responses, and its end.

    If a tool call started a sub-agent and waited for it, the sub-agent's records belong to the call's interaction.
    """
    inside = builder.tools.get(builder.starters.get(thread.agent_id or "", ""))
    if inside is not None and thread.agent_id not in builder.background:
        yield _emit_sub_agent(builder, thread, inside[0])
        return
    groups: list[list[Response]] = []
    for response in thread.own_responses:
        if response.prompts or not groups:
            groups.append([])
        groups[-1].append(response)
    for number, group in enumerate(groups, 1):
        starts = min(_at(e) for e in (*group[0].prompts, group[0].entries[0]))
        ends = max(_ended(thread, response) for response in group)
        place = _interaction_place(builder, thread, number, inside)
        name = Label("interaction")
        is_open = any(str(block.id) not in thread.results for _, block in group[-1].calls)
        result = Label("interrupted" if is_open else "success")
        lane = unchecked(place.lane)
        interaction_id = place.interaction_id or ""
        builder.add(starts, InteractionStart(builder.session_id, interaction_id, lane, starts))
        linked = inside[0].span_id if inside else None
        agent_type = builder.agent_types.get(builder.starters.get(thread.agent_id or "", ""))
        place = _open(builder, place, name, agent_type, starts, linked)
        yield place, group, ends
        _close(builder, place, ends, is_error=False)
        builder.add(
            ends, InteractionEnd(builder.session_id, interaction_id, ends, result, is_error=is_open)
        )


def _interaction_place(
    builder: _Builder, thread: Thread, number: int, inside: tuple[Place, int] | None
) -> Place:
    interaction_id = _id(builder.session_id, thread.agent_id, "interaction", number)
    if thread.agent_id is None:
        return Place(builder.session_id, interaction_id)
    started_by = builder.starters.get(thread.agent_id)
    lane = child_lane(
        inside[0].lane if inside else "main", started_by or f"agent-{thread.agent_id}"
    )
    return Place(builder.session_id, interaction_id, lane, query_source=_source(thread))


def _source(thread: Thread) -> QuerySource:
    """Return the query source of an agent. The client writes summaries with agents whose IDs have a special prefix."""
    if thread.agent_id is None:
        return "main"
    return "compaction" if thread.agent_id.startswith("acompact") else "sub_agent"


def _emit_sub_agent(
    builder: _Builder, thread: Thread, tool: Place
) -> tuple[Place, list[Response], int]:
    """Emit the span of an agent for which a tool call waited; return its place, its responses and its end."""
    started_by = builder.starters[thread.agent_id or ""]
    lane = child_lane(tool.lane, started_by)
    place = replace(tool, lane=lane, turn=None, query_source=_source(thread))
    starts = min(_at(entry) for entry in thread.entries)
    ends = max(_ended(thread, response) for response in thread.own_responses)
    agent_type = builder.agent_types.get(started_by)
    place = _open(builder, place, Label("sub_agent"), agent_type, starts)
    _close(builder, place, ends, is_error=False)
    return place, thread.own_responses, ends


def _emit_response(
    builder: _Builder, thread: Thread, place: Place, response: Response, requests: Requests
) -> None:
    """Emit the records of one request, its response, and its tool calls."""
    starts = response.sent_ns
    duration = max(max(_at(entry) for entry in response.entries) - starts, 0)
    attempt_id = _id(builder.session_id, thread.agent_id, response.message_id)
    builder.message_ids.append(response.message_id)
    if response.stop_reason is None:
        builder.uncounted.add(attempt_id)
    headers = {"content-type": "application/json"}
    if response.request_id is not None:
        headers["request-id"] = response.request_id
    inside = _open(builder, place, Label("llm_request"), response.model, starts)

    def exchange() -> ModelExchange:
        kind = {"content-type": "application/json"}
        logged = builder.logged.request(response.request_reference)
        if logged is None:
            body = requests.body(response)
        else:
            body = encoded(logged[0])
            if logged[1]:
                kind[ANTHROPIC.beta_header] = ",".join(logged[1])
        return ModelExchange(
            place=inside,
            attempt_id=attempt_id,
            started_ns=starts,
            headers_ns=None,
            ended_ns=duration,
            question=Question("POST", ANTHROPIC.turn_path, kind, body),
            answer=Answer(200, headers, (Chunk(response_body(response), duration),), "complete"),
        )

    builder.add(starts + duration, exchange)
    _close(builder, inside, starts + duration, is_error=False)
    for entry, block in response.calls:
        _emit_call(builder, thread, place, entry, block)


def _emit_call(builder: _Builder, thread: Thread, place: Place, entry: Entry, block: Block) -> None:
    """Emit the span of a tool call and, if it has a result, its exchange."""
    starts, tool_use_id, name = _at(entry), str(block.id), block.name
    inside = _open(builder, place, Label("tool"), name, starts)
    builder.tools[tool_use_id] = inside, starts
    if isinstance(agent_type := as_dict(block.value).get("subagent_type"), str) and agent_type:
        builder.agent_types[tool_use_id] = agent_type
    if tool_use_id not in thread.results:
        return
    result_entry, result = thread.results[tool_use_id]
    duration = max(_at(result_entry) - starts, 0)
    answer = ToolAnswer(
        result.value,
        result.is_error,
        _outcome(result_entry, result),
        error=cause_of_result(result),
    )
    question = ToolQuestion(tool_use_id, name, block.value)
    lines = None if result.is_error else _lines(result_entry)
    builder.add(
        starts + duration, ToolExchange(inside, starts, duration, question, answer, lines=lines)
    )
    _close(builder, inside, starts + duration, is_error=result.is_error)


def _lines(entry: Entry) -> tuple[int | None, int | None] | None:
    """Return the lines that an edit added and removed, as the client logs them; None for other calls.

    A new file has no patch, and all of its lines were added.
    """
    logged = as_dict(entry.value.get("toolUseResult"))
    if (change := change_of_patch(logged.get("structuredPatch"))) is not None:
        return change
    content = logged.get("content")
    is_new = logged.get("type") == "create" and isinstance(content, str)
    return (lines_in(str(content)), 0) if is_new else None


def _outcome(entry: Entry, result: Block) -> ToolOutcome:
    content = result.value
    if as_dict(entry.value.get("permissionDecision")).get("decision") == "reject":
        return "denied"
    if result.is_error and isinstance(content, str) and content.startswith(_REJECTED):
        return "denied"
    return "failed" if result.is_error else "executed"


def _ended(thread: Thread, response: Response) -> int:
    """Return the time at which a response and all of its tool calls had ended."""
    results = [
        thread.results[str(b.id)][0] for _, b in response.calls if str(b.id) in thread.results
    ]
    return max(_at(entry) for entry in (*response.entries, *results))


def _other_entries(thread: Thread, responses: Sequence[Response], ends_ns: int) -> list[Entry]:
    """Return the `system` entries of an interaction, including those after its last response.

    A compaction belongs to the interaction of the next request, even if it precedes the prompt.
    """
    starts = _starts_ns(responses)
    first = _starts_ns(thread.own_responses)
    later = [_at(p) for r in thread.responses for p in r.prompts if _at(p) > ends_ns]
    until = min(later, default=max(_at(entry) for entry in thread.entries) + 1)
    found = []
    for entry in thread.entries:
        following = _following(thread, entry) if is_compaction(entry) else None
        if following is not None:
            is_inside = first <= _at(entry) and any(each is following for each in responses)
        else:
            is_inside = starts <= _at(entry) < until
        if entry.kind == "system" and is_inside:
            found.append(entry)
    return found


def _starts_ns(responses: Sequence[Response]) -> int:
    """Return when the first message or line of any of the responses was written."""
    return min(_at(entry) for each in responses for entry in (*each.new_messages, *each.entries))


def _following(thread: Thread, entry: Entry) -> Response | None:
    """Return the response to the first request that was sent after an entry; None if there is none."""
    return next((each for each in thread.responses if each.sent_ns >= _at(entry)), None)


def _turn_of(entry: Entry, responses: Sequence[Response]) -> int:
    """Return the position of the response to which a `system` entry of an interaction belongs.

    A compaction or a retry belongs to the request that follows, and another entry to the response before it.
    """
    before = sum(_at(each.entries[-1]) < _at(entry) for each in responses)
    precedes = is_compaction(entry) or entry.value.get("subtype") == "api_error"
    return min(max(before if precedes else before - 1, 0), len(responses) - 1)


def _emit_event(builder: _Builder, place: Place, entry: Entry) -> None:
    """Emit the event for an entry about a compaction, a retry or a hook; ignore other entries."""
    value = entry.value
    label: str | None = None
    numbers: dict[str, Any] = {}
    match value.get("subtype"):
        case "compact_boundary" | "microcompact_boundary" as kind:
            facts = as_dict(value.get("compactMetadata") or value.get("microcompactMetadata"))
            before, saved = _number(facts.get("preTokens")), _number(facts.get("tokensSaved"))
            named: Literal["compaction", "retry", "hook"] = "compaction"
            label = "manual" if facts.get("trigger") == "manual" else "auto"
            numbers = {"tokens_before": before, "trim": kind == "microcompact_boundary"}
            if (after := _number(facts.get("postTokens"))) is not None:
                numbers["tokens_after"] = after
            if before is not None and saved is not None:
                numbers["tokens_after"] = before - saved
        case "api_error":
            named = "retry"
            wait_ms = _number(value.get("retryInMs"))
            wait_ns = wait_ms * 1e6 if wait_ms is not None else None
            numbers = {"attempt": value.get("retryAttempt"), "wait_ns": wait_ns}
        case "stop_hook_summary":
            named = "hook"
            label = "blocking" if value.get("preventedContinuation") else "success"
            numbers = {"blocking": bool(value.get("preventedContinuation"))}
        case _:
            return
    known = {name: _number(raw) for name, raw in numbers.items()}
    kept = {name: float(number) for name, number in known.items() if number is not None}
    at_ns = _at(entry)
    builder.add(
        at_ns,
        Event(
            session_id=builder.session_id,
            interaction_id=place.interaction_id,
            lane=unchecked(place.lane),
            turn=place.turn,
            at_ns=at_ns,
            kind=Label(named),
            label=Label(label) if label else None,
            numbers=kept,
            query_source=Label(place.query_source),
        ),
    )


def _number(value: object) -> int | float | None:
    """Return a number that fits in 64 bits; None for other values, including NaN."""
    return value if isinstance(value, int | float) and -FAR_NS < value < FAR_NS else None


def _open(
    builder: _Builder,
    place: Place,
    name: Label,
    label: str | None,
    at_ns: int,
    linked_span_id: str | None = None,
) -> Place:
    """Open a span and return the place inside it."""
    span_id = _id(builder.session_id, place.lane, name, len(builder.timed))[16:]
    builder.add(
        at_ns,
        SpanStart(
            session_id=builder.session_id,
            trace_id=place.interaction_id or builder.session_id,
            span_id=span_id,
            parent_span_id=place.span_id,
            lane=unchecked(place.lane),
            name=name,
            label=unchecked(label) if label else None,
            started_ns=at_ns,
            linked_span_id=linked_span_id,
            interaction_id=place.interaction_id,
            turn=place.turn,
            query_source=Label(place.query_source),
        ),
    )
    return replace(place, span_id=span_id)


def _close(builder: _Builder, inside: Place, at_ns: int, *, is_error: bool) -> None:
    status: Literal["ok", "error"] = "error" if is_error else "ok"
    builder.add(
        at_ns, SpanEnd(builder.session_id, inside.span_id or "", at_ns, status, error_type=None)
    )


def _start(
    client_id: str, entries: Sequence[Entry], at_ns: int, unlogged: Mapping[str, int]
) -> SessionCall:
    versions = [e.value["version"] for e in entries if isinstance(e.value.get("version"), str)]
    unknown = Label("unknown")
    tags: dict[str, str] = {Label("client"): _client(versions[-1])} if versions else {}
    if is_label(client_id):
        tags[Label(CLIENT_TAG)] = id_label(client_id)
    tags |= {
        Label(f"unlogged_{kind}_tokens"): Label(str(count)) for kind, count in unlogged.items()
    }
    return SessionCall(
        SessionStart(
            session_id=our_id(client_id),
            name=SOURCE,
            started_ns=at_ns,
            entry=None,
            agentobs_version=unknown,
            sdk_version=None,
            python_version=unknown,
            platform=unknown,
            tags=tags,
            arguments_content=None,
            source=SOURCE,
        ),
        None,
    )


def _client(version: str) -> str:
    """Return the tag of a version of the client; an invalid version is not a label."""
    text = f"claude-code/{version}"
    return (
        Label(text) if re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", version) and is_label(text) else text
    )


def _end(session_id: str, at_ns: int) -> SessionEnd:
    return SessionEnd(session_id, at_ns, "completed", None, None, 0)
