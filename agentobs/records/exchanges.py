"""Exchanges: one question to the outside world and its recorded answer.

An exchange contains content (bodies, tool input and output). It never goes into a table: the recorder splits it into
content-free facts and separate content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from agentobs.records.canonical_json import digest
from agentobs.records.facts import SessionEnd, SessionStart
from agentobs.records.labels import is_label

Ending = Literal["complete", "cut", "cancelled", "error"]
"""How a response ended: complete; the connection broke; the consumer stopped; no response at all."""


class Origin(NamedTuple):
    """The caller of a request as far as code shows it, to distinguish identical requests; content."""

    attempt_id: str
    """The attempt that was made."""
    told: tuple[tuple[Any, ...], ...]
    """Function, name and value of the arguments of the caller's own functions, innermost first; and
    the numbers of the objects that hold them, if any.
    """
    task_previous: str | None
    """The previous attempt of the same task, or the attempt that started the task; None if there was none."""
    job: Any = None
    """The task, work item or thread that made it, see `recording.jobs`; None if unknown."""

    def __repr__(self) -> str:
        """Hide the content."""
        return f"Origin(attempt_id={self.attempt_id!r})"


@dataclass(frozen=True, slots=True)
class Question:
    """One HTTP request to the provider."""

    method: str
    """HTTP method, upper case."""
    path: str
    """Path with its query string, without host."""
    headers: dict[str, str]
    """The recorded request headers."""
    body: bytes = field(repr=False)
    """The exact body; empty if there is none."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """The credentials of the request: searched for in every body, never written."""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """The caller; None if it is unknown, or if the request is from our own loop, which sets its lane."""


class Chunk(NamedTuple):
    """A chunk of a response body as it arrived; a tuple for speed, because there is one per delta."""

    data: bytes
    """The bytes, in the content encoding of their response."""
    after_ns: int
    """When it arrived, in nanoseconds after the request was sent."""

    def __repr__(self) -> str:
        """Hide the content."""
        return f"Chunk(after_ns={self.after_ns})"


@dataclass(frozen=True, slots=True)
class Failure:
    """A transport error instead of a response, or in the middle of one."""

    name: str
    """The class in httpx2, such as `ReadError`."""
    message: str = field(repr=False)
    """Its text."""


Point = Literal["head", "end", "stop"]
"""Where a replayed response may be held back: before its headers; before its end; where the recorded client stopped.
"""


class Gate(Protocol):
    """Holds back a response that is served in place of the provider."""

    def look(self, point: Point) -> float | None:
        """Return after how many seconds to check again, or None to continue; may raise to end the response."""

    def over(self) -> None:
        """Called when the response continued, or is no longer needed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int | None
    """HTTP status; None if no response arrived."""
    headers: dict[str, str]
    """The recorded response headers."""
    chunks: Sequence[Chunk] = field(repr=False)
    """The body in chunks as they arrived; a tuple once it has ended."""
    ending: Ending
    """How it ended."""
    failure: Failure | None = None
    """The transport error, if `ending` is `cut` or `error`."""
    encoding: str = ""
    """The content encoding of the chunks, as on the wire; empty if decoded, as in all recordings."""
    retry_ms: float | None = None
    """The retry wait for the client, overriding the headers; only for responses served in place of
    the provider, and never recorded.
    """
    gate: Gate | None = field(default=None, repr=False, compare=False)
    """Holds it back; likewise only for responses served in place of the provider."""

    @property
    def body(self) -> bytes:
        """The whole body received."""
        return b"".join(chunk.data for chunk in self.chunks)


QuerySource = Literal["main", "sub_agent", "compaction", "hook", "classifier", "memory", "summary"]
"""The source of an LLM request: the main agent, a sub-agent, or a maintenance request.

A `compaction` is made by the loop automatically, a `summary` on request. `memory` is never used by
the loop: the session's memory comes from a function of the caller's.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run something happened; every record has one."""

    session_id: str
    """The session."""
    interaction_id: str | None = None
    """The interaction (a trace), or None if unknown; the recorder then derives it."""
    lane: str = "main"
    """The lineage in which LLM requests recur in order."""
    turn: int | None = None
    """The turn within the lane, from 1, or None if unknown."""
    span_id: str | None = None
    """The span that was open, 16 hex digits."""
    query_source: QuerySource = "main"
    """The source of the LLM request or tool call."""
    chain_id: str | None = None
    """The requests of one turn, maintenance requests included; None if unknown."""
    depth: int | None = None
    """The position of a request in that chain, from 1; a request made inside another's answer is one deeper."""


def lane_under(parent: str, started_by: str) -> str:
    """Return the name of a child lane, from the ID of what started it, such as a tool_use ID.

    It is always a label: an ID that does not fit is replaced by a digest. A name that gets too long
    is replaced as a whole, but still shows whether it is inside an answer.
    """
    fits = _SEGMENT.fullmatch(started_by) is not None
    name = f"{parent}/{started_by if fits else _short(started_by)}"
    if is_label(name):
        return name
    kind = next((f"{kind}:" for kind in sorted(_kinds(name) & ANSWERED_INSIDE)), "")
    return f"{parent.partition('/')[0]}/{kind}{_short(name)}"


def lane_inside(parent: str, kind: AskKind, name: str) -> str:
    """Return the lane for LLM requests that the live world makes to answer a question of `kind`.

    A replay answers the question itself from the recording, so nothing in such a lane recurs.
    """
    fits = _SEGMENT.fullmatch(f"{kind}:{name}") is not None
    return lane_under(parent, f"{kind}:{name if fits else _short(name)}")


def is_inside_answer(lane: str) -> bool:
    """Return whether a lane, or one of its parents, belongs to an answer of the live world."""
    return not _kinds(lane).isdisjoint(ANSWERED_INSIDE)


def is_beside(lane: str) -> bool:
    """Return whether a lane has a parent lane, so that its order relative to other lanes is not fixed."""
    return "/" in lane


def _kinds(lane: str) -> set[str]:
    return {segment.partition(":")[0] for segment in lane.split("/") if ":" in segment}


_SEGMENT = re.compile(r"[A-Za-z0-9._:@-]{1,64}")
"""Valid text between two slashes of a lane's name."""


def _short(text: str) -> str:
    """Return the replacement in a lane's name for IDs that do not fit.

    The digest is not keyed, because a lane has the same name in a recording, in a fixture and in each replay, which
    have no common home. Content must therefore never be passed here, only IDs and the loop's own keys: the turn, the
    event, an ID, and the name of a hook, which are all recorded as facts unchanged if they are labels.
    """
    return f".{digest(text.encode('utf-8', 'surrogatepass')).rpartition(':')[2][:16]}"


class RecordedJob(NamedTuple):
    """The task, pool work item or thread that made a request, as recorded; see `recording.jobs`."""

    path: tuple[tuple[str, int, int], ...]
    """For it and its parent jobs, outermost first: its index among its parent's jobs, its start in
    nanoseconds since 1970 (0 if unknown), and a number that is unique in the session.
    """
    is_worker: bool
    """Whether it took its work from a queue."""
    ended_ns: int | None = None
    """When it ended, in nanoseconds since 1970; None if that was not recorded."""

    @property
    def serial(self) -> int:
        """The number of this job."""
        return self.path[-1][2]


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """One HTTP attempt of a request to the provider."""

    place: Place
    attempt_id: str
    """Our ID of this attempt."""
    started_ns: int
    """When the request was sent, nanoseconds since 1970."""
    headers_ns: int | None
    """When the response's headers arrived, nanoseconds after `started_ns`."""
    ended_ns: int
    """When the response ended, nanoseconds after `started_ns`."""
    question: Question
    answer: Answer
    client: int = 0
    """A number that distinguishes the clients of one process."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """The credentials of this request: searched for in every body, never written."""
    lost_bytes: int = 0
    """Bytes of the two bodies beyond the recorded maximum."""
    adopted_span: str | None = None
    """The OpenTelemetry span of the call made by another instrumentation, as a `traceparent`; None if there is none.
    """
    caller: tuple[str, ...] = ()
    """The caller of the request as digests, in an exchange read from a recording; see `recording.origins`."""
    task_previous: str | None = None
    """The previous attempt of the same task, or the attempt that started it, in an exchange read from a recording."""
    is_replayed: bool = False
    """Whether the response is from a recording, so that no provider was called and nothing was billed."""
    job: RecordedJob | None = None
    """The task, work item or thread that made it, in an exchange read from a recording; None if unknown."""


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
    "substituted",
]
"""The outcome of a tool call: it ran; it raised; its input was invalid; no such tool; too slow; it was not permitted; a
message to the agent came first; it was stopped or never started; its ID and input were used before; a hook blocked it;
it ran, and a hook provided the result that the model sees.

`failed` and `timeout` also count as executed calls when outcomes are counted. They are separate
values because a replay compares them.
"""

MADE_BY_THE_LOOP: frozenset[ToolOutcome] = frozenset(
    ("invalid", "unknown", "denied", "skipped", "deduplicated", "blocked")
)
"""Outcomes of calls that the loop answers itself, without the world."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of one tool call, as the model will see it."""

    content: Any = field(repr=False)
    """A string, or a list of content blocks."""
    is_error: bool = False
    outcome: ToolOutcome = "executed"
    attempts: int = 1
    """How often the tool was started; above 1 only for tools that allow retries."""


@dataclass(frozen=True, slots=True)
class ToolExchange:
    """One tool call and its result."""

    place: Place
    started_ns: int
    """When it started, nanoseconds since 1970."""
    duration_ns: int
    question: ToolQuestion
    answer: ToolAnswer
    inspected_by: tuple[str, ...] = ()
    """The hooks that inspect the result before the model does, by name, without `once` hooks."""
    tool: str | None = None
    """The tool that the call refers to, by its current name; None if there is none."""
    requested_input: Any = field(default=None, repr=False)
    """The input as the model requested it, if hooks changed it; else None, and the question has it."""
    executed_input: Any = field(default=None, repr=False)
    """The input as the tool received it, after type conversion; the question's input if nothing was
    converted; None if nothing ran.
    """
    coerced: int = 0
    """Number of converted arguments."""
    called_id: str | None = None
    """The model's ID for the call, if it had been used before and the loop assigned another one."""
    is_function: bool = False
    """Whether it is a call of a function recorded by `agentobs.record_tool`. Its input and result are then the
    function's arguments and return value, written as in `recording.values`.
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
    "compacted",
]
"""The questions that the loop may send to the world besides model and tool calls:
- `consent`: may this call run? A person answers, or nobody;
- `check`: does the tool itself accept this input?
- `path`: where do these paths lead, with links resolved?
- `tool_set`: which optional tools are available in this turn?
- `spent_today`: how much was spent today, in USD as decimal text?
- `steering`, `follow_up`: which messages arrived while the agent ran, or when it was about to stop?
- `abort`: where was the run stopped? Recorded by the loop, not a question.
- `hook`: what does this hook answer to an event?
- `refresh`: were the credentials renewed?
- `conversation`: what is the conversation of that earlier session?
- `section`: what is the text of this section of the system prompt?
- `memory`: what is the memory of this session, which makes a summary unnecessary?
- `keep`: where is the full version of this text stored, which is too long for the model?
- `limit`, `background`, `elapsed`: which budget is used up, which background agents have ended, how
  much time is left? The loop already knows and passes its own answer as the question; the live
  world returns it unchanged. The answer is recorded because it depends on timing, so a replay must
  take it from the recording.
- `compacted`: the result of a manual compaction. Passed in the same way, because no later request
  may contain it.
"""

ECHOED: frozenset[AskKind] = frozenset(("limit", "background", "elapsed", "compacted"))
"""Questions that contain their own live answer."""

SILENT: frozenset[AskKind] = ECHOED | {"steering", "follow_up", "memory"}
"""Frequent questions to which nothing is the usual answer, which is not recorded."""

ANSWERED_INSIDE: frozenset[AskKind] = frozenset(("hook", "consent"))
"""Questions that the live world may answer by calling the model itself, in lanes of their own."""


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """A question of the loop to the world, for neither the model nor a tool."""

    kind: AskKind
    key: str
    """Distinguishes it from others of its kind in its lane, such as a tool_use ID; identical in each replay."""
    asked: Any = field(default=None, repr=False)
    """The question itself, a JSON value; content."""


@dataclass(frozen=True, slots=True)
class WorldExchange:
    """One such question and the world's answer, a JSON value."""

    place: Place
    started_ns: int
    """When the question was sent, nanoseconds since 1970."""
    duration_ns: int
    question: WorldQuestion
    answer: Any = field(repr=False)
    """A JSON value; content."""


Exchange = ModelExchange | ToolExchange | WorldExchange
"""One question to the outside world and its recorded answer."""


@dataclass(frozen=True, slots=True)
class SessionCall:
    """The call that started a session, which a replay repeats."""

    start: SessionStart
    """The fact; the recorder converts its name, entry and tags to labels."""
    arguments: dict[str, Any] | None = field(repr=False)
    """The arguments of the entry function by name, as `recording.values` writes them; None if it cannot be called."""
    ambient: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The sources of its IDs, random values and clock: `seed`, `utc_offset_s`, `patch`, and for a fork
    `clock_ns`, the start of its clock; see `tracing.ambient`.
    """
    entry_obstacle: Mapping[str, Any] | None = None
    """Why the entry cannot be called again; None if it can, or if that is unknown. See `recording.entry`."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The return value of a session's function; content."""

    value: Any = field(repr=False)
    """A JSON value, as `recording.returned` writes it; unsupported values are notes of their type."""
    type: str = ""
    """The class of the value, `module:qualified.name`; empty in a fixture."""


@dataclass(frozen=True, slots=True)
class SessionReturn:
    """The end of a session with data that facts cannot hold: the reason of a failure as text, and the return value."""

    end: SessionEnd
    """The fact; the recorder converts its reason and signature to labels."""
    result: Returned | None = field(default=None, repr=False)
    """None if no return value is recorded, for example for a `with` block."""
    exception: str | None = field(default=None, repr=False)
    """The class of the exception that ended a session which had declared another reason; else None."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One complete recorded session: the source of a fixture, and what can be served."""

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
    """Records of the session that are not in the journal; if above 0, it cannot be frozen."""
    exchanges: tuple[Exchange, ...] = field(repr=False)
    """In the order in which they started."""
    interaction_results: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """How the interactions of our own loop ended, by lane, in the order in which they started; None
    if one did not end.
    """
    source: str = "recorded"
    """`recorded` live, or the program whose log it was rebuilt from, which does not contain full requests."""
    ambient: Mapping[str, Any] | None = field(default=None, repr=False)
    """The sources of IDs, random values and clock, with `started_ns`; None if the session used none of them."""
    until_turn: int | None = None
    """The turn of the main lane after which it was cut for freezing; the request after it has no response."""
    result: Returned | None = field(default=None, repr=False)
    """The return value of its function; None if that was not recorded."""
    exception: str | None = None
    """The class of the exception that ended it although it had declared another reason; else None."""
    entry_obstacle: Mapping[str, Any] | None = None
    """Why its entry cannot be called again; None if it can, or if that is unknown. See `recording.entry`."""


def weight(record: object) -> int:
    """Return the approximate bytes that a record takes in a queue."""
    if isinstance(record, ModelExchange):
        return 1024 + len(record.question.body) + sum([len(c.data) for c in record.answer.chunks])
    if isinstance(record, ToolExchange) and isinstance(record.answer.content, str):
        return 1024 + len(record.answer.content)
    if isinstance(record, ToolExchange) and record.is_function:
        return 1024 + _characters(record.question.input) + _characters(record.answer.content)
    if isinstance(record, WorldExchange):
        return 1024 + _characters(record.question.asked) + _characters(record.answer)
    if isinstance(record, SessionReturn) and record.result is not None:
        return 1024 + _characters(record.result.value)
    return 1024


def _characters(value: Any) -> int:
    """Return the number of characters in the texts of a JSON value; a lower bound if the value has many parts."""
    total, waiting = 0, [value]
    while waiting and len(waiting) < 10_000:
        match waiting.pop():
            case str() as text:
                total += len(text)
            case dict() as inner:
                waiting += inner.values()
            case list() as inner:
                waiting += inner
    return total
