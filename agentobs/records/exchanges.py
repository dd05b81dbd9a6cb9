"""Exchanges: one question to the world and its recorded answer.

An exchange holds content (bodies, tool input and output). It never goes into a table: the recorder
takes it apart into content-free facts and the content beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentobs.records.facts import SessionStart

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a question."""

    status: int | None
    """HTTP status; None where no response came."""
    headers: dict[str, str]
    """The kept response headers."""
    chunks: tuple[Chunk, ...] = field(repr=False)
    """The body in the pieces in which it arrived."""
    ending: Ending
    """How it ended."""
    failure: Failure | None = None
    """The transport error, where `ending` is `cut` or `error`."""
    encoding: str = ""
    """The content encoding of the chunks, as the wire named it; empty where it is undone, as in all that is kept."""

    @property
    def body(self) -> bytes:
        """The whole body that arrived."""
        return b"".join(chunk.data for chunk in self.chunks)


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


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """A tool call as the model asked for it."""

    tool_use_id: str
    name: str
    input: Any = field(repr=False)
    """The parsed JSON input."""


ToolOutcome = Literal["executed", "failed", "invalid", "unknown", "timeout"]
"""What became of a tool call: it ran; it raised; its input did not fit; no such tool; too slow."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of one tool call, as the model will see it."""

    content: Any = field(repr=False)
    """A string, or a list of content blocks."""
    is_error: bool = False
    outcome: ToolOutcome = "executed"


@dataclass(frozen=True, slots=True)
class ToolExchange:
    """One tool call and its result."""

    place: Place
    started_ns: int
    """When it started, nanoseconds since 1970."""
    duration_ns: int
    question: ToolQuestion
    answer: ToolAnswer


@dataclass(frozen=True, slots=True)
class SessionCall:
    """The call that started a session: what a replay calls again."""

    start: SessionStart
    """The fact; its name, entry and tags are made labels by the recorder."""
    arguments: dict[str, Any] | None = field(repr=False)
    """The arguments of the entry function by name, as JSON values; None where they are not JSON."""


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
    exchanges: tuple[ModelExchange | ToolExchange, ...] = field(repr=False)
    """In the order in which they started."""


def weight(record: object) -> int:
    """Return about how many bytes a record takes while it waits in a queue."""
    if isinstance(record, ModelExchange):
        return 1024 + len(record.question.body) + sum([len(c.data) for c in record.answer.chunks])
    if isinstance(record, ToolExchange) and isinstance(record.answer.content, str):
        return 1024 + len(record.answer.content)
    return 1024
