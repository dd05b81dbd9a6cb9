"""Exchanges: one question to the outside world and its recorded answer.

An exchange contains content (bodies, tool input and output), so it is never written to a table. The recorder splits it
into content-free facts and separate content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentobs.records.canonical_json import digest
from agentobs.records.effect_facts import Command, McpCall
from agentobs.records.facts import ErrorOrigin, SessionEnd, SessionStart
from agentobs.records.labels import Label, is_label

Ending = Literal["complete", "cut", "cancelled", "error"]
"""How a response ended.

`complete`: with its last byte; `cut`: the connection broke; `cancelled`: the client stopped reading; `error`: no
response arrived.
"""


class Origin(NamedTuple):
    """The identified part of the caller of a request; it distinguishes identical requests. This is content."""

    attempt_id: str
    """The attempt that sent the request."""
    values: tuple[tuple[Any, ...], ...]
    """For each argument of the caller's own functions, innermost function first: the function, the argument's name and
    its value; then the numbers of the objects that hold it, if any.
    """
    task_previous: str | None
    """The previous attempt of the same task, or the attempt that started the task; None if there was none."""
    job: Any = None
    """The task, work item or thread that sent the request, see `determinism.jobs`; None if unknown."""

    def __repr__(self) -> str:
        """Hide the content."""
        return f"Origin(attempt_id={self.attempt_id!r})"


@dataclass(frozen=True, slots=True)
class Question:
    """One HTTP request to the provider."""

    method: str
    """HTTP method, upper case."""
    path: str
    """Path with query string, without host."""
    headers: dict[str, str]
    """The recorded request headers."""
    body: bytes = field(repr=False)
    """The exact body; empty if there is none."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """The credentials of the request: searched for in every body, never written."""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """The caller; None if it is unknown, or if the request is from the agent loop of agentobs, which sets its lane."""


class Chunk(NamedTuple):
    """A chunk of a response body as it arrived. A tuple for speed, because a stream has one chunk per delta."""

    data: bytes
    """The bytes, in the content encoding of the response."""
    after_ns: int
    """When the chunk arrived, in nanoseconds after the request was sent."""

    def __repr__(self) -> str:
        """Hide the content."""
        return f"Chunk(after_ns={self.after_ns})"


UNRECORDED_HEADERS = "agentobs-unrecorded-headers"
"""A header that no client sends. In an imported request, it contains the names of the headers that affect the response
and that the other tool did not record, separated by commas. A replay does not compare them.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A transport error that occurred instead of a response, or in the middle of a response."""

    name: str
    """The class of the error in httpx2, such as `ReadError`."""
    message: str = field(repr=False)
    """The text of the error."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int | None
    """HTTP status; None if no response arrived."""
    headers: dict[str, str]
    """The recorded response headers."""
    chunks: Sequence[Chunk] = field(repr=False)
    """The body, in chunks as they arrived; a tuple once the response has ended."""
    ending: Ending
    """How the response ended."""
    failure: Failure | None = None
    """The transport error, if `ending` is `cut` or `error`."""
    encoding: str = ""
    """The content encoding of the chunks, as on the wire; empty if they are decoded, as in all recordings."""

    @property
    def body(self) -> bytes:
        """The received part of the body."""
        return b"".join(chunk.data for chunk in self.chunks)


QuerySource = Literal[
    "main", "sub_agent", "compaction", "hook", "classifier", "memory", "summary", "side"
]
"""The source of an LLM request: the main agent, a sub-agent, or a maintenance request.

A `side` request of another client is not part of a conversation, see `recording.facts.positions`.

The agent loop sends `compaction` requests automatically, and `summary` requests when a caller compacts a conversation.
The loop never sends `memory` requests, because the session's memory comes from a function of the caller.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a session something happened; every record has a place."""

    session_id: str
    interaction_id: str | None = None
    """The interaction (a trace); if it is None, the recorder derives it."""
    lane: str = "main"
    """The lineage in which LLM requests recur in order."""
    turn: int | None = None
    """The turn within the lane, from 1; None if unknown."""
    span_id: str | None = None
    """The current span, 16 hex digits."""
    query_source: QuerySource = "main"
    """The source of the LLM request or tool call."""
    chain_id: str | None = None
    """Identifies the requests of one turn, including maintenance requests; None if unknown."""
    depth: int | None = None
    """The nesting depth in that chain, from 1: a request that is made to answer another question is one level deeper.
    """


def child_lane(parent: str, started_by: str) -> str:
    """Return the name of a child lane, from the ID of the operation that started it, such as a tool_use ID.

    The name is always a label. An ID with other characters is replaced by a digest. A name that would be too long is
    replaced completely, but still shows whether the lane belongs to an answer of the world.
    """
    fits = _SEGMENT.fullmatch(started_by) is not None
    name = f"{parent}/{started_by if fits else short_digest(started_by)}"
    if is_label(name):
        return name
    kind = next((f"{kind}:" for kind in sorted(_kinds(name) & ANSWERED_INSIDE)), "")
    return f"{parent.partition('/')[0]}/{kind}{short_digest(name)}"


def answer_lane(parent: str, kind: AskKind, name: str) -> str:
    """Return the name of the lane for LLM requests that the live world sends to answer a question of `kind`.

    A replay answers the question from the recording, so the requests of such a lane do not recur.
    """
    fits = _SEGMENT.fullmatch(f"{kind}:{name}") is not None
    return child_lane(parent, f"{kind}:{name if fits else short_digest(name)}")


def is_inside_answer(lane: str) -> bool:
    """Return whether a lane, or one of its parent lanes, belongs to an answer of the live world."""
    return not _kinds(lane).isdisjoint(ANSWERED_INSIDE)


def has_parent_lane(lane: str) -> bool:
    """Return whether a lane has a parent lane, so that its order relative to other lanes is not fixed."""
    return "/" in lane


def _kinds(lane: str) -> set[str]:
    return {segment.partition(":")[0] for segment in lane.split("/") if ":" in segment}


_SEGMENT = re.compile(r"[A-Za-z0-9._:@-]{1,64}")
"""Valid text between two slashes of a lane's name."""


def short_digest(text: str) -> str:
    """Return the replacement for an ID that cannot be part of a lane's name, or that has an unknown form.

    The digest is not keyed, because a lane has the same name in a recording, in a fixture and in each replay, which
    have no common home. Therefore never pass content here, only IDs and the keys of the agent loop: a turn, an event
    or the name of a hook. All of them are recorded as facts unchanged if they are labels.
    """
    return f".{digest(text.encode('utf-8', 'surrogatepass')).rpartition(':')[2][:16]}"


class RecordedJob(NamedTuple):
    """The task, pool work item or thread that sent a request, as recorded; see `determinism.jobs`."""

    path: tuple[tuple[str, int, int], ...]
    """For each parent job, outermost first, and for the job itself: its index among the jobs of its parent, its start
    in nanoseconds since 1970 (0 if unknown), and a number that is unique in the session.
    """
    is_worker: bool
    """Whether the job takes its work from a queue."""
    ended_ns: int | None = None
    """When the job ended, in nanoseconds since 1970; None if that was not recorded."""

    @property
    def serial(self) -> int:
        """The number of this job."""
        return self.path[-1][2]


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """One HTTP attempt of a request to the provider."""

    place: Place
    attempt_id: str
    """The ID that agentobs gave this attempt."""
    started_ns: int
    """When the request was sent, in nanoseconds since 1970."""
    headers_ns: int | None
    """When the headers of the response arrived, in nanoseconds after `started_ns`; None if they did not."""
    ended_ns: int
    """When the response ended, in nanoseconds after `started_ns`."""
    question: Question
    answer: Answer
    client: int = 0
    """A number that distinguishes the clients of one process."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """The credentials of this request: searched for in every body, never written."""
    lost_bytes: int = 0
    """The number of bytes of the two bodies that were not recorded because they exceeded the maximum."""
    adopted_span: str | None = None
    """The OpenTelemetry span that another instrumentation created for this call, as a `traceparent`; None if there is
    none.
    """
    caller: tuple[str, ...] = ()
    """In an exchange that was read from a recording: the caller as digests; see `determinism.callers`."""
    task_previous: str | None = None
    """In an exchange that was read from a recording: the previous attempt of the same task, or the attempt that started
    the task.
    """
    is_replayed: bool = False
    """Whether the response is from a recording, so that the provider was not called and nothing was billed."""
    in_flight: tuple[bytes, ...] = field(default=(), repr=False)
    """If the request declares no tools: the bodies of other requests of its session that had no complete response when
    this one ended.
    """
    job: RecordedJob | None = None
    """In an exchange that was read from a recording: the task, work item or thread that sent the request; None if
    unknown.
    """


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """A tool call as the model requested it."""

    tool_use_id: str
    name: str
    input: Any = field(repr=False)
    """The parsed JSON input."""


ToolOutcome = Literal[
    "executed",
    "failed",
    "invalid",
    "unknown",
    "timeout",
    "denied",
    "skipped",
    "aborted",
    "deduplicated",
    "blocked",
    "answered",
    "unavailable",
    "substituted",
]
"""The outcome of a tool call:
- `executed`: the tool returned a result;
- `failed`: the tool raised an exception;
- `invalid`: the input was invalid;
- `unknown`: there is no tool with that name;
- `timeout`: the tool exceeded its timeout;
- `denied`: the call was not permitted;
- `skipped`: a message to the agent arrived first;
- `aborted`: the call was stopped, or was never started;
- `deduplicated`: an earlier call had the same ID and input;
- `blocked`: a hook blocked the call;
- `answered`: a hook answered the call in place of the tool, which did not run;
- `unavailable`: the tool was withdrawn, or the circuit breaker of its service is open;
- `substituted`: the tool ran, and a hook provided the result that the model gets.

Where outcomes are counted, `failed` and `timeout` also count as executed. They are separate values because a replay
compares them.
"""

MADE_BY_THE_LOOP: frozenset[ToolOutcome] = frozenset(
    (
        "invalid",
        "unknown",
        "denied",
        "skipped",
        "deduplicated",
        "blocked",
        "answered",
        "unavailable",
    )
)
"""The outcomes of calls that the agent loop answers itself, without the world."""


@dataclass(frozen=True, slots=True)
class ErrorCause:
    """Why a tool call or a session failed, without the error message, which is content."""

    origin: ErrorOrigin
    name: Label | None = None
    """The class of the exception; None if it is unknown."""
    file: Label | None = None
    """The file of the program's own code that raised the exception, relative to the project; None if unknown."""
    line: int | None = None
    """The line in that file, from 1."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of one tool call, as the model gets it."""

    content: Any = field(repr=False)
    """A string, or a list of content blocks."""
    is_error: bool = False
    outcome: ToolOutcome = "executed"
    attempts: int = 1
    """The number of times that the tool was started; more than once only if the tool allows retries."""
    error: ErrorCause | None = field(default=None, compare=False)
    """Why the call failed; None if it did not fail, or if the outcome is everything that is known. A replay does not
    compare it, because a line moves when the code changes.
    """

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ToolAnswer:
        """Return an answer from its fields as JSON, as `dataclasses.asdict` writes them."""
        error = value.get("error")
        return cls(**{**value, "error": ErrorCause(**error) if error else None})


@dataclass(frozen=True, slots=True)
class ToolExchange:
    """One tool call and its result."""

    place: Place
    started_ns: int
    """When the call started, in nanoseconds since 1970."""
    duration_ns: int
    question: ToolQuestion
    answer: ToolAnswer
    inspected_by: tuple[str, ...] = ()
    """The names of the hooks that inspect the result before the model gets it, except `once` hooks."""
    tool: str | None = None
    """The current name of the tool that the call refers to; None if there is no such tool."""
    requested_input: Any = field(default=None, repr=False)
    """The input that the model requested, if hooks or a person changed it; otherwise None, because the question
    contains it.
    """
    executed_input: Any = field(default=None, repr=False)
    """The input that the tool received, after type conversion; the same object as the question's input if no argument
    was converted; None if the tool did not run.
    """
    coerced: int = 0
    """The number of converted arguments."""
    called_id: str | None = None
    """The model's ID for the call, if that ID had been used before and the loop assigned another one; otherwise None.
    """
    lines: tuple[int | None, int | None] | None = None
    """The lines that the call added and removed, if a log reports them; otherwise None."""
    is_function: bool = False
    """Whether this is a call of a function recorded by `agentobs.record_tool`. Its input and result are then the
    function's arguments and return value, written as in `determinism.values`.
    """


AskKind = Literal[
    "consent",
    "check",
    "path",
    "tool_set",
    "spent_today",
    "steering",
    "follow_up",
    "abort",
    "hook",
    "refresh",
    "conversation",
    "section",
    "memory",
    "keep",
    "limit",
    "background",
    "elapsed",
    "threshold",
    "compacted",
    "stored_messages",
]
"""The questions that the agent loop may send to the world in addition to model and tool calls:
- `consent`: may this call run? A person answers, if one is available.
- `check`: does the tool itself accept this input?
- `path`: where do these paths lead if links are resolved?
- `tool_set`: which optional tools are available in this turn?
- `spent_today`: how much was spent today, in USD as decimal text?
- `steering`, `follow_up`: which messages arrived while the agent ran, or when it was about to stop?
- `abort`: where was the run stopped? This is not a question: the loop records it.
- `hook`: what does this hook answer to an event?
- `refresh`: were the credentials renewed?
- `conversation`: what is the conversation of an earlier session?
- `section`: what is the text of this section of the system prompt?
- `memory`: what is the memory of this session, which makes a summary unnecessary?
- `keep`: where is the full version of this text, which is too long for the model, stored?
- `limit`, `background`, `elapsed`, `threshold`: which budget is used up, which background agents have ended, how much
  time is left, which share of the context window or of a budget is used up?
  The loop knows the answer and passes it as the question; the live world returns it unchanged. The answer depends on
  timing, so it is recorded, and a replay takes it from the recording.
- `compacted`: the result of a manual compaction. It is passed in the same way, because no later request may contain it.
- `stored_messages`: the part of the conversation that hooks have replaced in the next request. It is passed in the same
  way, because no request contains it.
"""

ECHOED: frozenset[AskKind] = frozenset(
    ("limit", "background", "elapsed", "threshold", "compacted", "stored_messages")
)
"""Questions that contain their own answer, which the live world returns unchanged."""

SILENT: frozenset[AskKind] = ECHOED | {"steering", "follow_up", "memory", "refresh"}
"""Questions whose usual answer is empty. An empty answer is not recorded, and a replay takes a missing answer as empty.
"""

ANSWERED_INSIDE: frozenset[AskKind] = frozenset(("hook", "consent"))
"""Questions that the live world may answer by sending its own LLM requests, in separate lanes."""


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """A question of the agent loop to the world that goes to neither the model nor a tool."""

    kind: AskKind
    key: str
    """Distinguishes the question from others of its kind in its lane, such as a tool_use ID; identical in each replay.
    """
    payload: Any = field(default=None, repr=False)
    """The question itself, a JSON value; content."""


@dataclass(frozen=True, slots=True)
class WorldExchange:
    """A question of the agent loop to the world, and its answer."""

    place: Place
    started_ns: int
    """When the question was sent, in nanoseconds since 1970."""
    duration_ns: int
    question: WorldQuestion
    answer: Any = field(repr=False)
    """A JSON value; content."""


Exchange = ModelExchange | ToolExchange | WorldExchange
"""One question to the outside world and its recorded answer."""


@dataclass(frozen=True, slots=True)
class ObservedEffect:
    """A command or an MCP call that was observed outside the requests of the agent, with its content."""

    fact: Command | McpCall
    """The fact, without a content ID."""
    texts: tuple[str, ...] = field(default=(), repr=False)
    """The arguments of a command; the IDs that the metadata of an MCP call contain. They link it to a tool call."""
    arguments: Any = field(default=None, repr=False)
    """The arguments of the tool of an MCP call."""
    spans: tuple[str, ...] = ()
    """The open spans around the effect, innermost first, if the program of the session caused it."""
    content: Mapping[str, Any] | None = field(default=None, repr=False)
    """The content for the vault, as JSON; None if nothing is kept."""


@dataclass(frozen=True, slots=True)
class SessionCall:
    """The call that started a session, which a replay repeats."""

    start: SessionStart
    """The fact; the recorder converts its name, entry and tags to labels."""
    arguments: dict[str, Any] | None = field(repr=False)
    """The arguments of the entry function by name, as `determinism.values` writes them; None if it cannot be called."""
    ambient: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The sources of the session's IDs, random values and clock: `seed`, `utc_offset_s`, `patch`, and for a fork
    `clock_ns`, the start of its clock; see `tracing.ambient`.
    """
    entry_obstacle: Mapping[str, Any] | None = None
    """Why the entry cannot be called again; None if it can, or if that is unknown. See `determinism.entry`."""


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """The return value of a session's function; content."""

    value: Any = field(repr=False)
    """A JSON value, as `determinism.return_values` writes it; a note of the type replaces an unsupported value."""
    type: str = ""
    """The class of the value as `module:qualified.name`; empty in a fixture."""


@dataclass(frozen=True, slots=True)
class SessionReturn:
    """The end of a session, with data that facts cannot hold: the text of the failure reason, and the return value."""

    end: SessionEnd
    """The fact; the recorder converts its reason and signature to labels."""
    result: ReturnValue | None = field(default=None, repr=False)
    """The return value; None if it is not recorded, for example because the session is a `with` block."""
    exception: str | None = field(default=None, repr=False)
    """The class of the exception that ended the session, if the session had declared another reason; otherwise None."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One complete recorded session. Fixtures are made from it, and it can be served in place of the provider."""

    session_id: str
    name: str
    entry: str | None
    """The function that started the session, `module:qualified.name`."""
    arguments: dict[str, Any] | None = field(repr=False)
    outcome: str
    """`completed`, `failed`, `running` or `crashed`."""
    reason: str | None
    signature: str | None
    dropped: int
    """The number of records of the session that are not in the journal; if above 0, the session cannot be frozen."""
    exchanges: tuple[Exchange, ...] = field(repr=False)
    """The exchanges, in the order in which they started."""
    interaction_results: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """How the interactions of the agent loop of agentobs ended, by lane, in the order in which they started; None for
    an interaction that did not end.
    """
    source: str = "recorded"
    """`recorded` if the session was recorded live; otherwise the program from whose log it was rebuilt. Such a log does
    not contain full requests.
    """
    ambient: Mapping[str, Any] | None = field(default=None, repr=False)
    """The sources of IDs, random values and clock, with `started_ns`; None if the session used none of them."""
    until_turn: int | None = None
    """The turn of the main lane after which the session was cut for freezing; the next request has no response. None if
    it was not cut.
    """
    result: ReturnValue | None = field(default=None, repr=False)
    """The return value of the session's function; None if that was not recorded."""
    exception: str | None = None
    """The class of the exception that ended the session, if the session had declared another reason; otherwise None."""
    entry_obstacle: Mapping[str, Any] | None = None
    """Why the entry cannot be called again; None if it can, or if that is unknown. See `determinism.entry`."""


def queue_bytes(record: object) -> int:
    """Return the approximate size of a record in a queue, in bytes."""
    if isinstance(record, ModelExchange):
        response_bytes = sum([len(each.data) for each in record.answer.chunks])
        return 1024 + len(record.question.body) + response_bytes + sum(map(len, record.in_flight))
    if isinstance(record, ToolExchange) and isinstance(record.answer.content, str):
        return 1024 + len(record.answer.content)
    if isinstance(record, ToolExchange) and record.is_function:
        return 1024 + _characters(record.question.input) + _characters(record.answer.content)
    if isinstance(record, WorldExchange):
        return 1024 + _characters(record.question.payload) + _characters(record.answer)
    if isinstance(record, ObservedEffect):
        return 1024 + sum(map(len, record.texts)) + _characters(record.content)
    if isinstance(record, SessionReturn) and record.result is not None:
        return 1024 + _characters(record.result.value)
    return 1024


def _characters(value: Any) -> int:
    """Return the number of characters in the texts of a JSON value; a lower bound if the value has many parts."""
    total, pending = 0, [value]
    while pending and len(pending) < 10_000:
        match pending.pop():
            case str() as text:
                total += len(text)
            case dict() as inner:
                pending += inner.values()
            case list() as inner:
                pending += inner
    return total
