"""The protocol of a provider dialect, and the neutral values that the rest of agentobs works with.

A dialect knows the shape of one provider's requests, responses and streams. All other modules see only the
values of this module. `agentobs.provider.registry` chooses the dialect of a request.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from agentobs.records.exchanges import Answer, Question
from agentobs.records.facts import AttemptOutcome
from agentobs.records.labels import Label
from agentobs.records.usage import Certainty, Usage

BlockKind = Literal[
    "text", "reasoning", "call", "provider_call", "result", "provider_result", "other"
]
"""What a content block is: text; the model's reasoning; a tool call for the client; a tool call that the provider
runs itself; the result of either; anything else."""

CacheZone = Literal["betas", "model", "tools", "system", "parameters", "system_dynamic"]
CACHE_ZONES: tuple[CacheZone, ...] = (
    "betas",
    "model",
    "tools",
    "system",
    "parameters",
    "system_dynamic",
)
"""The zones of a prompt before its messages, in the order in which a provider caches them."""


@dataclass(frozen=True, slots=True)
class Block:
    """One content block of a message."""

    kind: BlockKind
    type: str
    """The provider's own name of the kind."""
    id: str | None = None
    """The block's ID; of a result, the ID of the call that it answers."""
    text: str = field(default="", repr=False)
    """The text of a text or reasoning block; of a result, its text parts joined by newlines."""
    name: str = ""
    """The tool of a call."""
    value: Any = field(default=None, repr=False)
    """The input of a call, or the content of a result, as parsed JSON."""
    is_error: bool = False
    """Whether a result reports an error."""
    is_cut: bool = False
    """Whether the input of a call is incomplete JSON; `value` is then its text."""
    keys: tuple[str | int, ...] = ()
    """The place in the message of what the block shows, as keys and indexes."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The block as the provider or the client sent it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: Literal["user", "assistant", "other"]
    blocks: tuple[Block, ...] = field(repr=False)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The message as it was sent."""

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return "\n".join(block.text for block in self.blocks if block.kind == "text")

    @property
    def calls(self) -> list[Block]:
        """The tool calls that the client has to run."""
        return [block for block in self.blocks if block.kind == "call"]

    @property
    def results(self) -> list[Block]:
        """The tool results."""
        return [block for block in self.blocks if block.kind == "result"]


@dataclass(frozen=True, slots=True)
class Message(Turn):
    """A response, with its stream added up; without an ID, role or model if it is something else."""

    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    """The provider's own word for why the response ended."""
    error: str | None = None
    """The type of the error that the response reports, or None."""
    usage: Mapping[str, Any] | None = field(default=None, repr=False)
    """The provider's usage object, which only its dialect can read."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a response makes."""

    id: str
    name: str
    input: Any = field(repr=False)
    """The parsed JSON input; its text if the JSON is incomplete."""
    input_bytes: int
    """The size of the input as the provider sent it."""


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """How a streamed response contains the pieces of a text, to find secrets that are split between them."""

    marker: bytes
    """Bytes that each line with a piece contains."""
    text: re.Pattern[bytes]
    """Matches a piece as the provider writes it; group 1 is the inside of its JSON string."""
    field: re.Pattern[bytes]
    """Finds the JSON string in a line with a piece, however it is spelled; group 1 is its inside."""
    index: re.Pattern[bytes] | None = None
    """Finds the number of the block in such a line; None if there is one block."""
    others: tuple[bytes, ...] = ()
    """Bytes that contain the marker, but are not a piece of a text."""


@dataclass(frozen=True, slots=True)
class SealedShape:
    """How the values look that a provider signs or encrypts, and that a client sends back unchanged."""

    marks: tuple[bytes, ...]
    """Each text with a sealed value contains one of these."""
    value: re.Pattern[bytes]
    """Matches a value: group 1 is the name of its field, group 2, at the end of the match, its base64."""
    marks_near: Mapping[bytes, bytes] = field(default_factory=dict)
    """Bytes that stand near a value, by the name of its field, if other values also have that name."""


class BodyPlace(NamedTuple):
    """What a path of keys into a request body points at."""

    zone: Literal["history", "system", "tools", "option"]
    turn: int | None = None
    """The index of the entry of the history."""
    block: int | None = None
    """The index of the content block in that entry."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The usage of a response that agentobs writes itself."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    has_cache: bool = False
    """Whether the counts of the cache are reported."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A response that agentobs writes itself, before a dialect gives it its provider's shape."""

    id: str
    model: str
    blocks: Sequence[Block] = field(repr=False)
    """Texts and calls; a block with `raw` is written as that."""
    tokens: Tokens = Tokens()
    stop_reason: str | None = None
    """None derives it from the blocks."""
    usage: Mapping[str, Any] | None = None
    """The provider's own usage object, if a transcript has it."""
    is_logged: bool = False
    """Whether it comes from a transcript: then nothing is derived or added."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """What a response says, without its text."""

    is_message: bool
    """Whether it is an answer of the model, not a batch, a file or an error."""
    id: str | None
    model: str | None
    stop_reason: str | None
    usage: Mapping[str, Any] | None
    """The provider's usage object, which only its dialect can read."""
    calls: Sequence[ToolCall]
    block_ids: Sequence[str]
    """The IDs of its blocks, including the calls that the provider ran itself."""
    outcome: AttemptOutcome
    error_type: str | None
    certainty: Certainty
    cache_miss: tuple[str | None, int | None] = (None, None)
    """The provider's reason for a cache miss, and the tokens that missed."""


class Dialect(Protocol):
    """The shape of one provider's API. All methods are pure functions.

    Methods with a result here describe what not every provider has; a dialect may leave them out.
    """

    @property
    def name(self) -> str:
        """The provider, as OpenTelemetry names it."""

    @property
    def history_key(self) -> str:
        """The top-level key of a request body whose list repeats the conversation."""

    @property
    def turn_path(self) -> str:
        """The path of the requests that are turns of a conversation."""

    @property
    def request_headers(self) -> Sequence[str]:
        """The request headers that may be recorded, in lower case."""

    @property
    def meaningful_headers(self) -> Sequence[str]:
        """The request headers that change what the provider does."""

    @property
    def response_headers(self) -> Sequence[str]:
        """The response headers that may be recorded, in lower case; a trailing `*` stands for any suffix."""

    @property
    def credential_headers(self) -> Sequence[str]:
        """The request headers that hold a credential, in addition to `authorization`."""

    def is_model_call(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether an HTTP request goes to this provider, so that it is recorded."""

    def owns(self, path: str) -> bool:
        """Return whether a recorded path belongs to this provider."""

    def makes_turns(self, path: str) -> bool:
        """Return whether a request to this path is a turn of a conversation."""

    def endpoint(self, path: str) -> Label:
        """Return a path as a label of bounded variety."""

    def request_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the provider's ID of a request from its response headers."""

    def retry_number(self, headers: Mapping[str, str]) -> int:
        """Return how often the client sent this request before, 0 if it does not say."""
        return 0

    def retry_after_ms(self, headers: Mapping[str, str]) -> float | None:
        """Return how long the response headers ask the client to wait before a retry, or None."""
        return finite(headers.get("retry-after"), 1000)

    def may_retry(self, headers: Mapping[str, str]) -> bool | None:
        """Return whether the response headers allow a retry; None if they do not say."""
        return None

    def retry_headers(self, wait_ms: float | None) -> dict[str, str]:
        """Return response headers that ask for a retry after `wait_ms`, or for none if that is None."""
        return {} if wait_ms is None else {"retry-after": decimal(wait_ms / 1000)}

    def turn(self, message: Any) -> Turn:
        """Return one entry of the history."""

    def tool_names(self, body: Mapping[str, Any]) -> list[str]:
        """Return the names of the tools that a request declares."""
        return []

    def place(self, keys: Sequence[object]) -> BodyPlace | None:
        """Return what a path of keys into a request body points at; None if it is empty."""

    @property
    def head_keys(self) -> Mapping[Literal["system", "tools"], str]:
        """The top-level keys of a request body that hold the system prompt and the tools, if it has such keys."""
        return {}

    def breakpoint_of(self, value: Mapping[str, Any]) -> str | None:
        """Return the lifetime of the cache breakpoint that a JSON object carries, "" if it names none, or None."""
        return None

    def tool_definition(self, tool: Any) -> tuple[Any, Any, Any] | None:
        """Return name, description and JSON schema of a declared tool; None if the provider defines it."""
        return None

    @property
    def delta_shape(self) -> DeltaShape | None:
        """How a stream contains the pieces of a text; None if a stream never splits a text."""
        return None

    @property
    def sealed_shape(self) -> SealedShape | None:
        """How sealed values look; None if the provider has none."""
        return None

    @property
    def call_id_prefixes(self) -> tuple[str, ...]:
        """What the IDs of tool calls start with, up to an underscore."""
        return ()

    @property
    def call_types(self) -> frozenset[str]:
        """The `type` of the objects that hold the ID of a tool call, as the client library has them."""
        return frozenset()

    @property
    def field_names(self) -> frozenset[str]:
        """The names that the API gives to the parts of a request, which are not content."""
        return self.options

    def samples(self, endpoint: str) -> bool:
        """Return whether a model answers the requests to an endpoint, see `endpoint`."""
        return self.makes_turns(endpoint)

    @property
    def options(self) -> frozenset[str]:
        """The top-level keys of a request body that a caller sets, whatever the version of the client library."""

    def system(self, body: Mapping[str, Any]) -> Turn | None:
        """Return the system prompt of a request, or None."""
        return None

    def continues(self, body: Any) -> str | None:
        """Return the ID of the response whose conversation the provider continues, or None."""
        return None

    def refusal(self, body: Mapping[str, Any]) -> str | None:
        """Return why the provider would refuse a request, in its own words, or None."""
        return None

    def without_breakpoints(self, value: Any) -> Any:
        """Return a message, a list of tools or a system prompt without cache breakpoints, in one spelling."""
        return value

    def entry_without_breakpoints(self, entry: bytes) -> bytes:
        """Return an entry of the history without cache breakpoints, all as compact JSON."""
        return entry

    def without_ids(self, value: Any) -> Any:
        """Return a request body without the IDs and signatures of its blocks, which differ in each run."""
        return value

    def cache_zones(self, head: Mapping[str, Any], headers: Mapping[str, str]) -> Sequence[Any]:
        """Return the values of `CACHE_ZONES`; of a missing zone, None."""
        return (None,) * len(CACHE_ZONES)

    def is_stream(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce a streamed response."""

    def stream_pieces(self, headers: Mapping[str, str], body: bytes) -> list[bytes]:
        """Split a response where it can be delivered in parts; the parts join to the same bytes."""

    def message(self, headers: Mapping[str, str], body: bytes) -> Message:
        """Return a response, its stream added up; without headers its framing is recognized by its first bytes."""

    def response(self, value: Mapping[str, Any]) -> Message:
        """Return a response that is already JSON, such as one of a transcript."""

    def facts(self, answer: Answer) -> ResponseFacts:
        """Return the facts of a response, as far as it arrived; called once for each recorded attempt."""

    def error_body(self, status: int, message: str, kind: str | None = None) -> bytes:
        """Return the JSON body of an error response; its type follows from the status unless `kind` names it."""

    def response_body(self, draft: Draft) -> bytes:
        """Return the JSON body of a response that is not streamed."""

    def response_stream(self, draft: Draft, deltas: int = 1) -> tuple[str, list[bytes]]:
        """Return the content type and the events of a streamed response, each text in so many deltas."""

    def asks_for_stream(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request wants its response streamed."""

    def request_message(self, role: Literal["user", "assistant"], blocks: Sequence[Block]) -> Any:
        """Return an entry of the history, as a client would send it."""

    def request_body(self, model: str, history: Sequence[bytes]) -> bytes:
        """Return a request body around a history whose entries are already JSON."""

    def usage_rows(self, model: str, usage: Mapping[str, Any], certainty: Certainty) -> list[Usage]:
        """Return the rows of one usage object of the provider."""

    def usage(
        self, question: Question, answer: Answer, facts: ResponseFacts, model: str | None
    ) -> list[Usage]:
        """Return what an attempt used. `model` is the requested model if the body names one.

        No rows mean that nothing was billed.
        """


def finite(text: str | None, factor: float) -> float | None:
    """Return a number of a header, times a factor; None if it is missing, not a number or infinite."""
    try:
        value = float(text or "") * factor
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def decimal(value: float) -> str:
    """Return a number as text without an exponent, to six places."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def json_bytes(value: object) -> int:
    """Return the bytes of some content: its text, or its JSON."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if value is None:
        return 0
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))


def text_of(content: Any) -> str:
    """Return the text of a tool result: a string, or the texts of its parts joined by newlines."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or [] if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))
