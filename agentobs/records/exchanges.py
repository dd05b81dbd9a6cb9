"""Exchanges: one question to the world and its recorded answer.

An exchange holds content (bodies, tool input and output). It never goes into a table: the recorder
takes it apart into content-free facts and the content beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

from agentobs.records.canonical_json import digest
from agentobs.records.facts import SessionEnd, SessionStart
from agentobs.records.labels import is_label

Ending = Literal["complete", "cut", "cancelled", "error"]
"""How an answer ended: whole; the connection broke; the consumer stopped; no answer at all."""

REQUEST_HEADERS = ("content-type", "anthropic-version", "anthropic-beta", "x-stainless-retry-count")
"""Request headers that are kept. Everything else, keys and cookies first, cannot be written."""

RESPONSE_HEADERS = (
    "content-type",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
)
RESPONSE_PREFIXES = ("anthropic-ratelimit-",)
"""Response headers that are kept, by name and by prefix."""


def kept_request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request headers that may be written, names in lower case."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: lower[name] for name in REQUEST_HEADERS if name in lower}


def kept_response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the response headers that may be written, names in lower case, sorted."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {
        name: lower[name]
        for name in sorted(lower)
        if name in RESPONSE_HEADERS or name.startswith(RESPONSE_PREFIXES)
    }


class Origin(NamedTuple):
    """Who asked, as far as the code of the caller tells: what tells apart questions that are equal; content."""

    attempt_id: str
    """The attempt that was made."""
    told: tuple[tuple[Any, ...], ...]
    """Function, name and value of what the caller's own functions were given, those of the nearest first; and, if
    objects hold it, numbers of these."""
    before: str | None
    """The attempt that the same task made before, or the one that started it; None where there was none."""
    job: Any = None
    """The task, work item or thread that made it, see `recording.jobs`; None if it is not known."""

    def __repr__(self) -> str:
        """Show no content."""
        return f"Origin(attempt_id={self.attempt_id!r})"


@dataclass(frozen=True, slots=True)
class Question:
    """One HTTP request to the provider."""

    method: str
    """HTTP method, upper case."""
    path: str
    """Path with its query string, without host."""
    headers: dict[str, str]
    """The kept request headers."""
    body: bytes = field(repr=False)
    """The exact body; empty where there is none."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """The credentials that the request carried: looked for in every body, never written."""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """Who asked; None where nobody can tell, or it is our own loop, which says its lane."""


class Chunk(NamedTuple):
    """A piece of a response body as it arrived; a tuple, because one is made for each delta."""

    data: bytes
    """The bytes, in the content encoding of their answer."""
    after_ns: int
    """When it arrived, in nanoseconds after the request was sent."""

    def __repr__(self) -> str:
        """Show no content."""
        return f"Chunk(after_ns={self.after_ns})"


@dataclass(frozen=True, slots=True)
class Failure:
    """A transport error in place of an answer, or in the middle of one."""

    name: str
    """The class in httpx2, such as `ReadError`."""
    message: str = field(repr=False)
    """Its text."""


Point = Literal["head", "end", "stop"]
"""Where an answer may be held back: before anything of it comes; before its end; where the recorded client stopped."""


class Gate(Protocol):
    """Holds an answer back that is given in the provider's place."""

    def look(self, point: Point) -> float | None:
        """Return after how many seconds to look again, or None where the answer may go on; raises what ends it."""

    def over(self) -> None:
        """Hear that the answer went on, or that nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a question."""

    status: int | None
    """HTTP status; None where no response came."""
    headers: dict[str, str]
    """The kept response headers."""
    chunks: Sequence[Chunk] = field(repr=False)
    """The body in the pieces in which it arrived; a tuple once it has ended."""
    ending: Ending
    """How it ended."""
    failure: Failure | None = None
    """The transport error, where `ending` is `cut` or `error`."""
    encoding: str = ""
    """The content encoding of the chunks, as the wire named it; empty where it is undone, as in all that is kept."""
    retry_ms: float | None = None
    """How long a client is told to wait before it asks again, in place of what the headers say; only of answers that
    are given in the provider's place, and never kept."""
    gate: Gate | None = field(default=None, repr=False, compare=False)
    """What holds it back; likewise only of answers that are given in the provider's place."""

    @property
    def body(self) -> bytes:
        """The whole body that arrived."""
        return b"".join(chunk.data for chunk in self.chunks)


QuerySource = Literal["main", "sub_agent", "compaction", "hook", "classifier", "memory", "summary"]
"""Who asks: the agent itself, an agent that it started, or one of the calls made for its upkeep.

A `compaction` is what the loop makes by itself, a `summary` what somebody asks for by hand. With `memory` nothing of
the loop asks: what is remembered comes from a function of the caller's.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run something happened; every record carries it."""

    session_id: str
    """The session."""
    interaction_id: str | None = None
    """The interaction (a trace), or None where nobody said; the recorder then derives it."""
    lane: str = "main"
    """The lineage in which model requests recur in order."""
    turn: int | None = None
    """The turn within the lane, from 1, or None where nobody said."""
    span_id: str | None = None
    """The span that was open, 16 hex digits."""
    query_source: QuerySource = "main"
    """Who asks the model, or for whom a tool runs."""
    chain_id: str | None = None
    """The requests of one turn, those made for its upkeep included; None where nobody said."""
    depth: int | None = None
    """The place of a request in that chain, from 1; one that is made inside of another's answer is one deeper."""


def lane_under(parent: str, started_by: str) -> str:
    """Return the name of a lane under another one, from what started it, such as a tool_use id.

    It is a label, whatever the id: what does not fit stands as a digest. So does a name that gets too long,
    as a whole; that it is inside of an answer can still be told.
    """
    fits = _SEGMENT.fullmatch(started_by) is not None
    name = f"{parent}/{started_by if fits else _short(started_by)}"
    if is_label(name):
        return name
    kind = next((f"{kind}:" for kind in sorted(_kinds(name) & ANSWERED_INSIDE)), "")
    return f"{parent.partition('/')[0]}/{kind}{_short(name)}"


def lane_inside(parent: str, kind: AskKind, name: str) -> str:
    """Return the name of a lane in which the live world asks the model to answer a question of `kind`.

    A replay answers the question itself from the recording, so that nothing in such a lane recurs.
    """
    fits = _SEGMENT.fullmatch(f"{kind}:{name}") is not None
    return lane_under(parent, f"{kind}:{name if fits else _short(name)}")


def is_inside_answer(lane: str) -> bool:
    """Return whether a lane, or one that it lies under, is that of an answer of the live world."""
    return not _kinds(lane).isdisjoint(ANSWERED_INSIDE)


def is_beside(lane: str) -> bool:
    """Return whether a lane lies under another one: its order to that one, and to others, was chance."""
    return "/" in lane


def _kinds(lane: str) -> set[str]:
    return {segment.partition(":")[0] for segment in lane.split("/") if ":" in segment}


_SEGMENT = re.compile(r"[A-Za-z0-9._:@-]{1,64}")
"""What may stand between two slashes of a lane's name."""


def _short(text: str) -> str:
    """Return what stands in a lane's name for ids that do not fit.

    Not keyed: a lane has one name in a recording, in a fixture and in each replay, and those have no home in common.
    So nothing that was said may come in here, only ids, and what our loop names its questions by: the turn, the event,
    an id, and the name of a hook, each of which stands among the facts as it is where it is a label.
    """
    return f".{digest(text.encode('utf-8', 'surrogatepass')).rpartition(':')[2][:16]}"


class RecordedJob(NamedTuple):
    """The task, work item of a pool or thread that made a request, as it was recorded; see `recording.jobs`."""

    path: tuple[tuple[str, int, int], ...]
    """For it and the jobs above it, the outermost first: which of its parent's jobs it is, when it was started in
    nanoseconds since 1970 (0 if not known), and a number that no other job of the session has."""
    is_worker: bool
    """Whether it took its work from a queue."""
    ended_ns: int | None = None
    """When it was over, in nanoseconds since 1970; None if that was not recorded."""

    @property
    def serial(self) -> int:
        """The number of this job."""
        return self.path[-1][2]


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """One HTTP attempt of a question to the provider."""

    place: Place
    attempt_id: str
    """Our id of this attempt."""
    started_ns: int
    """When the request was sent, nanoseconds since 1970."""
    headers_ns: int | None
    """When the response's head came, nanoseconds after `started_ns`."""
    ended_ns: int
    """When the answer ended, nanoseconds after `started_ns`."""
    question: Question
    answer: Answer
    client: int = 0
    """A number that tells the clients of one process apart."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """The credentials that this request carried: looked for in every body, never written."""
    lost_bytes: int = 0
    """Bytes of the two bodies that were too many to be kept."""
    adopted_span: str | None = None
    """The OpenTelemetry span of the call that somebody else made, as a `traceparent`; None where there is none."""
    by: tuple[str, ...] = ()
    """The origin of the question as digests, in an exchange that was read back; see `recording.origins`."""
    before: str | None = None
    """The attempt that the same task made before, or the one that started it, in an exchange that was read back."""
    is_replayed: bool = False
    """Whether the answer was taken from a recording, so that no provider was asked and nothing was billed."""
    job: RecordedJob | None = None
    """The task, work item or thread that made it, in an exchange that was read back; None if it was not known."""


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """A tool call as the model asked for it."""

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
"""What became of a tool call: it ran; it raised; its input did not fit; no such tool; too slow; it was
not permitted; something else was said first; it was stopped or never begun; its id and input were used
before; a hook blocked it; it ran, and a hook gave the result that the model sees.

`failed` and `timeout` are what an executed call came to: whoever counts outcomes counts them as executed. A replay
compares them, so they are words of their own."""

MADE_BY_THE_LOOP: frozenset[ToolOutcome] = frozenset(
    ("invalid", "unknown", "denied", "skipped", "deduplicated", "blocked")
)
"""Outcomes of calls that the loop answers itself: the world was not asked to run them."""


def recorded_outcome(word: str) -> ToolOutcome:
    """Return an outcome as it was recorded; older recordings call a call that was deduplicated `duplicate`."""
    return "deduplicated" if word == "duplicate" else cast(ToolOutcome, word)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of one tool call, as the model will see it."""

    content: Any = field(repr=False)
    """A string, or a list of content blocks."""
    is_error: bool = False
    outcome: ToolOutcome = "executed"
    tries: int = 1
    """How often the tool was begun; above 1 only for tools that allow retries."""


@dataclass(frozen=True, slots=True)
class ToolExchange:
    """One tool call and its result."""

    place: Place
    started_ns: int
    """When it started, nanoseconds since 1970."""
    duration_ns: int
    question: ToolQuestion
    answer: ToolAnswer
    followed_by: tuple[str, ...] = ()
    """The hooks that look at the result before the model does, by name; those that run once left out."""
    tool: str | None = None
    """The tool that the call means, by its own name; None where there is none."""
    asked: Any = field(default=None, repr=False)
    """The input as the model asked, where hooks changed it; else None, and the question has it."""
    ran: Any = field(default=None, repr=False)
    """The input as the tool got it, where types were changed to fit; the question's where none were; None where
    nothing ran."""
    coerced: int = 0
    """How many arguments were changed to fit."""
    called_id: str | None = None
    """The id by which the model made the call, where that had been used before, so that the loop gave it another."""
    is_function: bool = False
    """Whether it is a call of a function that `agentobs.record_tool` recorded: its input and its result are then what
    the function got and returned, written as `recording.values` does."""


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
"""What the loop may ask the world beside model and tools:

- `consent`: may this call run? A person answers, or nobody;
- `check`: does the tool itself accept this input?
- `path`: where do these paths lead, links resolved?
- `tool_set`: which of the tools that may be missing are there in this turn?
- `spent_today`: how much was spent today, in USD as decimal text?
- `steering`, `follow_up`: what was said to the agent while it ran, or when it would have stopped?
- `abort`: where was the run stopped? Told by the loop, not asked.
- `hook`: what does this hook say to what is about to happen, or has happened?
- `refresh`: were the credentials made anew?
- `conversation`: what was said in that earlier session?
- `section`: what does this section of the system prompt say?
- `memory`: what is remembered of this session, so that no summary of it has to be made?
- `keep`: where does the whole of this text lie, which is too long for the model?
- `limit`, `background`, `elapsed`: which budget is used up, which background agents have ended, whether so
  much time has passed. The loop knows it itself and asks with what it sees as the question; the live world
  says the same again. It is asked because it depends on who came first or how late it is, which a replay
  has to take from the recording.
- `compacted`: what somebody has made of a conversation by hand. Asked in the same way, so that it is recorded: no
  request may follow that would hold it.
"""

ECHOED: frozenset[AskKind] = frozenset(("limit", "background", "elapsed", "compacted"))
"""Questions that hold their own live answer."""

SILENT: frozenset[AskKind] = ECHOED | {"steering", "follow_up", "memory"}
"""Questions that are asked all the time, and to which nothing is the usual answer: it is not recorded."""

ANSWERED_INSIDE: frozenset[AskKind] = frozenset(("hook", "consent"))
"""Questions that the live world may answer by asking the model itself, in lanes of their own."""


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """Something that the loop asks of the world, neither the model nor a tool."""

    kind: AskKind
    key: str
    """What tells it from others of its kind in its lane, such as a tool_use id: the same in each replay."""
    asked: Any = field(default=None, repr=False)
    """The question itself, a JSON value; content."""


@dataclass(frozen=True, slots=True)
class WorldExchange:
    """One question of that sort and the world's answer, a JSON value."""

    place: Place
    started_ns: int
    """When it was asked, nanoseconds since 1970."""
    duration_ns: int
    question: WorldQuestion
    answer: Any = field(repr=False)
    """A JSON value; content."""


Exchange = ModelExchange | ToolExchange | WorldExchange
"""One question to the world and its recorded answer."""


@dataclass(frozen=True, slots=True)
class SessionCall:
    """The call that started a session: what a replay calls again."""

    start: SessionStart
    """The fact; its name, entry and tags are made labels by the recorder."""
    arguments: dict[str, Any] | None = field(repr=False)
    """The arguments of the entry function by name, as `recording.values` writes them; None if it cannot be called."""
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What its ids and its chance are drawn from, and its clock: `seed`, `zone_s`, `patch`, and of a fork `clock_ns`,
    when its clock began; see `tracing.ambient`."""
    obstacle: Mapping[str, Any] | None = None
    """Why the entry cannot be called again; None if it can, or nothing is known. See `recording.entry`."""


@dataclass(frozen=True, slots=True)
class Returned:
    """What the function of a session returned; content."""

    value: Any = field(repr=False)
    """A JSON value, as `recording.returned` writes it; what could not be kept is a note of its type."""
    type: str = ""
    """The class of the value, `module:qualified.name`; empty in a fixture."""


@dataclass(frozen=True, slots=True)
class SessionReturn:
    """The end of a session with what the facts cannot hold: why it failed, in words, and what it returned."""

    end: SessionEnd
    """The fact; its reason and its signature are made labels by the recorder."""
    result: Returned | None = field(default=None, repr=False)
    """None if the session returned nothing that is recorded, such as one that is a `with` block."""
    raised: str | None = field(default=None, repr=False)
    """The class of the exception that left a session which had declared another reason; else None."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded session, whole: what a fixture is made from and what can be served."""

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
    """Records of the session that are not in the journal; above 0 it cannot be frozen."""
    exchanges: tuple[Exchange, ...] = field(repr=False)
    """In the order in which they started."""
    results: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """How the interactions that our own loop told of ended, by lane, in the order in which they started;
    None for one without an end."""
    source: str = "recorded"
    """`recorded`, as it ran; or the program whose log it was rebuilt from, which does not hold requests whole."""
    given: Mapping[str, Any] | None = field(default=None, repr=False)
    """What it drew ids and chance from, and its clock, with `started_ns`; None where it asked for none of them."""
    until: int | None = None
    """The turn of the main lane up to which it was cut off to be frozen; the request after it has no answer."""
    result: Returned | None = field(default=None, repr=False)
    """What its function returned; None if that was not recorded."""
    raised: str | None = None
    """The class of the exception that left it although it had declared another reason; else None."""
    obstacle: Mapping[str, Any] | None = None
    """Why its entry cannot be called again; None if it can, or nothing is known. See `recording.entry`."""


def weight(record: object) -> int:
    """Return about how many bytes a record takes while it waits in a queue."""
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
    """Return how many characters the texts in a JSON value have; a value of many parts is not counted out."""
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
