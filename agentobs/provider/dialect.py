"""The protocol of a provider dialect, and the neutral values that the rest of agentobs works with.

A dialect knows the shape of one provider's requests, responses and streams. All other modules only use the values of
this module. `agentobs.provider.registry` chooses the dialect of a request.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from agentobs.provider.agent_events import AgentEvent, AgentStream, ManagedTraffic
from agentobs.records.exchanges import Answer, Question
from agentobs.records.facts import AttemptOutcome
from agentobs.records.labels import Label
from agentobs.records.usage import Certainty, Usage

BlockKind = Literal[
    "text", "reasoning", "call", "provider_call", "result", "provider_result", "other"
]
"""The kind of a content block: `text`; `reasoning` of the model; `call`, a tool call that the client runs;
`provider_call`, a tool call that the provider runs; `result` and `provider_result`, their results; `other`.
"""

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
    """The provider's name of the kind."""
    id: str | None = None
    """The ID of the block; for a result, the ID of its call."""
    text: str = field(default="", repr=False)
    """The text of a text or reasoning block; for a result, its text parts joined by newlines."""
    name: str = ""
    """The name of the tool, for a call."""
    value: Any = field(default=None, repr=False)
    """The input of a call, or the content of a result, as parsed JSON."""
    is_error: bool = False
    """Whether a result reports an error."""
    is_cut: bool = False
    """Whether the input of a call is incomplete JSON; `value` is then its text."""
    keys: tuple[str | int, ...] = ()
    """The path in the message to the content of the block, as keys and indexes."""
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
        """The tool calls that the client must run."""
        return [block for block in self.blocks if block.kind == "call"]

    @property
    def results(self) -> list[Block]:
        """The tool results."""
        return [block for block in self.blocks if block.kind == "result"]


@dataclass(frozen=True, slots=True)
class Message(Turn):
    """A response, reassembled if it was streamed. A response that is not a message has no ID and no model."""

    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    """The reason why the response ended, in the provider's terms."""
    error: str | None = None
    """The type of the error that the response reports, or None."""
    usage: Mapping[str, Any] | None = field(default=None, repr=False)
    """The provider's usage object, which only the dialect can read."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a response."""

    id: str
    name: str
    input: Any = field(repr=False)
    """The parsed JSON input; the text if the JSON is incomplete."""
    input_bytes: int
    """The size of the input as the provider sent it."""


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """A call of a tool that the provider runs while it generates a response."""

    id: str
    name: str
    server: str | None
    """The MCP server that has the tool; None for a tool of the provider."""
    input_bytes: int
    """The size of the input as the provider sent it."""
    caller_id: str | None
    """The ID of the call that made this call, such as a code execution; None if the model made it."""
    after_ns: int | None
    """When the call appeared in a stream, in nanoseconds after the request; None if the response was not streamed."""


@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The result of a tool that the provider ran. Its call may be in an earlier response."""

    id: str
    """The ID of the call."""
    type: str
    """The provider's name of the kind of result."""
    is_error: bool
    error_code: str | None
    """The provider's reason for the error, such as `max_uses_exceeded`."""
    result_bytes: int
    """The size of the result as JSON, or of its text."""
    items: int | None
    """The number of its parts, such as search results; None if it is not a list."""
    return_code: int | None
    """The exit status of the program that a code execution ran."""
    stop_reason: str | None
    """Why the model that the tool consulted stopped."""
    iteration: int | None
    """The usage row of the response that has the tokens of the tool; None if the tool used none, or it is unknown."""
    after_ns: int | None
    """When the result appeared in a stream, in nanoseconds after the request; None if the response was not streamed."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits that a request sets for a tool that the provider runs; None means no limit."""

    max_uses: int | None
    """The maximum number of calls in the response."""
    max_result_tokens: int | None
    """The maximum number of tokens of one result."""


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The form of the text deltas in a streamed response, used to find secrets that are split between two deltas."""

    marker: bytes
    """Bytes that each line with a delta contains."""
    text: re.Pattern[bytes]
    """Matches a delta in the provider's usual formatting; group 1 is the JSON string without its quotes."""
    field: re.Pattern[bytes]
    """Finds the JSON string in a line with a delta, in any formatting; group 1 is the string without its quotes."""
    index: re.Pattern[bytes] | None = None
    """Finds the number of the block in a line with a delta; None if there is only one block."""
    other_markers: tuple[bytes, ...] = ()
    """Bytes that contain the marker and do not belong to a text delta."""


@dataclass(frozen=True, slots=True)
class SealedShape:
    """The form of sealed values, which a provider signs or encrypts and a client sends back unchanged."""

    markers: tuple[bytes, ...]
    """Each text with a sealed value contains one of these markers."""
    value: re.Pattern[bytes]
    """Matches a value: group 1 is the name of its field, and group 2, at the end of the match, is its base64."""
    nearby_markers: Mapping[bytes, bytes] = field(default_factory=dict)
    """For each field name that is also used for other values: bytes that occur near a sealed value.
    """


class BodyPlace(NamedTuple):
    """The part of a request body to which a path of keys leads."""

    zone: Literal["history", "system", "tools", "option"]
    turn: int | None = None
    """The index of the entry in the history; None for the history itself and for other zones."""
    block: int | None = None
    """The index of the content block in that entry; None for the entry itself."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The usage of a response that agentobs writes itself."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    has_cache: bool = False
    """Whether the counts of the cache are written into the response."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A response that agentobs writes itself, before a dialect gives it its provider's shape."""

    id: str
    model: str
    blocks: Sequence[Block] = field(repr=False)
    """Texts and tool calls; if a block has `raw`, `raw` is written."""
    tokens: Tokens = Tokens()
    stop_reason: str | None = None
    """The stop reason; None to derive it from the blocks."""
    usage: Mapping[str, Any] | None = None
    """The provider's usage object, if a transcript contains it."""
    is_logged: bool = False
    """Whether the response is from a transcript. If so, nothing is derived or added."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """The facts of a response, without its text."""

    is_message: bool
    """Whether a model generated the response; False for a batch, a file or an error."""
    id: str | None
    model: str | None
    stop_reason: str | None
    usage: Mapping[str, Any] | None
    """The provider's usage object, which only the dialect can read."""
    calls: Sequence[ToolCall]
    """The tool calls that the client must run."""
    block_ids: Sequence[str]
    """The IDs of the response's blocks, including tool calls that the provider ran."""
    outcome: AttemptOutcome
    error_type: str | None
    certainty: Certainty
    cache_miss: tuple[str | None, int | None] = (None, None)
    """The provider's reason for a cache miss, and the number of missed tokens."""
    provider_calls: Sequence[ProviderCall] = ()
    """The tool calls that the provider runs."""
    provider_results: Sequence[ProviderResult] = ()
    """The results of such calls, of this response or of earlier ones."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one request of a batch, with calls of tools that the provider ran."""

    id: str
    """The ID of the result, as in `Usage.batch_result_id`."""
    calls: Sequence[ProviderCall]
    results: Sequence[ProviderResult]


class Dialect(Protocol):
    """The shape of one provider's API. All methods are pure functions.

    A dialect may leave out the methods that have an implementation here, because not every provider needs them.
    """

    @property
    def name(self) -> str:
        """The name of the provider in OpenTelemetry."""

    @property
    def terms(self) -> frozenset[str]:
        """The words with a defined meaning in the API, and the tools that the provider defines."""
        return frozenset()

    @property
    def history_key(self) -> str:
        """The top-level key of a request body that contains the conversation as a list."""

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
        """The response headers that may be recorded, in lower case; a trailing `*` matches any suffix."""

    @property
    def credential_headers(self) -> Sequence[str]:
        """The request headers that contain a credential, in addition to `authorization`."""

    def is_model_call(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether an HTTP request goes to this provider, so that it is recorded."""

    @property
    def hosts(self) -> Sequence[re.Pattern[str]]:
        """Patterns of the names of the provider's hosts, in lower case."""
        return ()

    def is_request(self, body: bytes) -> bool:
        """Return whether a body has the shape of a request to a model; called for paths of turns only."""
        return False

    def owns(self, path: str) -> bool:
        """Return whether a recorded path belongs to this provider."""

    def route(self, path: str) -> str:
        """Return a path without the part that depends on the base URL, such as the prefix of a gateway."""
        return path

    def makes_turns(self, path: str) -> bool:
        """Return whether a request to this path is a turn of a conversation."""

    def model_in(self, path: str) -> str | None:
        """Return the model that a path names; None if the request body names it."""
        return None

    def with_model(self, path: str, model: str) -> str:
        """Return a path with another model, if it names one; otherwise the path itself."""
        del model
        return path

    def reads_history(self, history: Sequence[Any]) -> bool:
        """Return whether a history has this dialect's shape; called if another dialect has the same `history_key`."""
        return False

    def endpoint(self, path: str) -> Label:
        """Return a path as a label, with variable parts replaced so that there are few different labels."""

    def request_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the provider's ID of a request from its response headers."""

    def retry_number(self, headers: Mapping[str, str]) -> int:
        """Return how many times the client sent this request before; 0 if the headers do not contain the number."""
        return 0

    def retry_after_ms(self, headers: Mapping[str, str]) -> float | None:
        """Return the wait before a retry that the response headers request, in milliseconds; None if there is none."""
        return finite(headers.get("retry-after"), 1000)

    def rate_limits(self, headers: Mapping[str, str]) -> Mapping[str, float]:
        """Return the rate limits in response headers, as `<limit>.<field>`; empty if they contain none.

        The fields are `limit`, `remaining`, `reset_s` [s since 1970], `utilization` (the used share; 1 is the limit),
        `surpassed_threshold` (a share that is exceeded) and `in_use` (1 if usage beyond the limit is charged, else 0).
        The names must be constants of the dialect, because facts contain them.
        """
        return {}

    def limit_hit(self, answer: Answer) -> str | None:
        """Return the name of the rate limit that caused the rejection of a request, a constant of the dialect; None if
        no limit caused it, or if the limit is unknown.
        """
        return None

    def first_token_ns(self, answer: Answer) -> int | None:
        """Return when the first chunk with a token of a streamed response arrived, in nanoseconds after the request;
        None if there is none, or if the dialect cannot find it.
        """
        return None

    def may_retry(self, headers: Mapping[str, str]) -> bool | None:
        """Return whether the response headers allow a retry; None if they contain no information about it."""
        return None

    def retry_headers(self, wait_ms: float | None) -> dict[str, str]:
        """Return response headers that request a retry after `wait_ms`, or no retry if `wait_ms` is None."""
        return {} if wait_ms is None else {"retry-after": decimal(wait_ms / 1000)}

    def turn(self, message: Any) -> Turn:
        """Return one entry of the history."""

    def tool_names(self, body: Mapping[str, Any]) -> list[str]:
        """Return the names of the tools that a request declares."""
        return []

    def declared_names(self, body: Mapping[str, Any]) -> list[str]:
        """Return the names that the program declares in a request, which facts may contain: at least its tools."""
        return self.tool_names(body)

    def call_limits(self, body: Mapping[str, Any]) -> Mapping[str, CallLimits]:
        """Return the limits that a request sets for tools that the provider runs, by the name of the tool."""
        return {}

    def batch_results(self, question: Question, answer: Answer) -> Iterator[BatchResult]:
        """Yield the results of a batch that contain calls or results of tools that the provider ran."""
        return iter(())

    def batch_limits(
        self, question: Question, body: Mapping[str, Any], answer: Answer
    ) -> Mapping[str, Mapping[str, CallLimits]]:
        """Return the limits for tools that the provider runs, for the requests of a batch that a request creates.

        Args:
            question: the request.
            body: its parsed body.
            answer: the response.

        Returns:
            The limits as in `call_limits`, by the ID of the result.
        """
        return {}

    def sent_messages(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the messages in a request that has no history, such as those of the requests of a batch."""
        return []

    def received_messages(self, path: str, answer: Answer) -> list[Turn]:
        """Return the messages in a response that is not itself a message, such as the results of a batch."""
        return []

    def forces_call(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request allows only a tool call as response."""
        return False

    def is_probe(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request limits its response so much that it can only be a probe, not a turn."""
        return False

    def agent_id(self, headers: Mapping[str, str]) -> tuple[str | None, bool]:
        """Return the client's ID of the sub-agent that sends a request, or None, and whether the client names its
        sub-agents at all.
        """
        return None, False

    def place(self, keys: Sequence[object]) -> BodyPlace | None:
        """Return the part of a request body at a path of keys; None if the path is empty."""

    @property
    def prompt_keys(self) -> Mapping[Literal["system", "tools"], str]:
        """The top-level keys of the system prompt and of the tools in a request body, if there are such keys."""
        return {}

    def breakpoint_of(self, value: Mapping[str, Any]) -> str | None:
        """Return the lifetime of the cache breakpoint in a JSON object, "" if the breakpoint has no lifetime, or None
        if there is no breakpoint.
        """
        return None

    def tool_definition(self, tool: Any) -> tuple[Any, Any, Any] | None:
        """Return the name, description and JSON schema of a declared tool; None if the provider defines the tool."""
        return None

    @property
    def delta_shape(self) -> DeltaShape | None:
        """The form of text deltas in a stream; None if a stream never splits a text."""
        return None

    @property
    def sealed_shape(self) -> SealedShape | None:
        """The form of sealed values; None if the provider has none."""
        return None

    @property
    def call_id_prefixes(self) -> tuple[str, ...]:
        """The prefixes of tool call IDs, without the underscore that follows."""
        return ()

    @property
    def call_types(self) -> frozenset[str]:
        """The values of `type` in the client library's objects that contain the ID of a tool call."""
        return frozenset()

    @property
    def field_names(self) -> frozenset[str]:
        """The field names of requests in the API, which are not content."""
        return self.options

    def runs_model(self, endpoint: str) -> bool:
        """Return whether requests to an endpoint (see `endpoint`) are answered by a model."""
        return self.makes_turns(endpoint)

    def platform(self, endpoint: str) -> Literal["bedrock", "vertex"] | None:
        """Return the cloud platform that answers requests to an endpoint; None for the provider itself."""
        return None

    @property
    def options(self) -> frozenset[str]:
        """The top-level keys of a request body that a caller sets, independent of the client library's version."""

    def system(self, body: Mapping[str, Any]) -> Turn | None:
        """Return the system prompt of a request, or None."""
        return None

    def continues(self, body: Any) -> str | None:
        """Return the ID of the response from which the provider continues a conversation that it stores, or None."""
        return None

    def parameters(self, body: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
        """Return the parameters of a request that contain no content, by their path in the body (`thinking.type`)."""
        return {}

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the maximum number of output tokens that a request allows; None if it states none."""
        return None

    def response_details(self, history: Sequence[Turn], response: Message) -> dict[str, Any]:
        """Return the parts of a response for which conventions have no names, by name. They may contain content."""
        return {}

    def refusal(self, body: Mapping[str, Any]) -> str | None:
        """Return the error message with which the provider would reject a request; None if it would accept it."""
        return None

    def without_breakpoints(self, value: Any) -> Any:
        """Return a message, a list of tools or a system prompt without cache breakpoints, in one canonical form."""
        return value

    def entry_without_breakpoints(self, entry: bytes) -> bytes:
        """Return an entry of the history without cache breakpoints, both as compact JSON."""
        return entry

    def without_ids(self, value: Any) -> Any:
        """Return a request body without the IDs and signatures of its blocks, which differ in each run."""
        return value

    def cache_zones(self, head: Mapping[str, Any], headers: Mapping[str, str]) -> Sequence[Any]:
        """Return the values of the zones in `CACHE_ZONES`; None for a missing zone."""
        return (None,) * len(CACHE_ZONES)

    def is_stream(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce a streamed response."""

    def stream_chunks(self, headers: Mapping[str, str], body: bytes) -> list[bytes]:
        """Split a response into parts that can be delivered separately; the joined parts are the same bytes."""

    def is_binary(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce a stream whose bytes cannot be redacted, because it has checksums."""
        return False

    def redacted_stream(
        self, headers: Mapping[str, str], body: bytes, redact: Callable[[bytes], bytes]
    ) -> bytes | None:
        """Return a binary stream (see `is_binary`) with the redacted message; None if it contains no secret.

        Args:
            headers: the response headers.
            body: the received part of the stream.
            redact: replaces the secrets in JSON.
        """
        return None

    def message(self, headers: Mapping[str, str], body: bytes) -> Message:
        """Return a response, reassembled if it was streamed.

        If there are no headers, the first bytes of the body determine its format.
        """

    def response(self, value: Mapping[str, Any]) -> Message:
        """Return a response that is already parsed JSON, such as a response in a transcript."""

    def facts(self, answer: Answer) -> ResponseFacts:
        """Return the facts of a response, even if only a part of it arrived; called once for each recorded attempt."""

    @property
    def managed_endpoint(self) -> Label | None:
        """The endpoint of requests that the provider sends to a model for an agent that it runs."""
        return None

    def managed_traffic(self, question: Question, answer: Answer) -> ManagedTraffic | None:
        """Return what an exchange reveals about sessions of agents that the provider runs; None if nothing."""
        return None

    def agent_stream(self, question: Question, answer: Answer) -> AgentStream | None:
        """Return a reader for a response in progress that streams events of such a session; None for other responses.

        Args:
            question: the request.
            answer: the start of the response.
        """
        return None

    def managed_usage(self, session_id: str, event: AgentEvent, model: str) -> list[Usage]:
        """Return the usage rows of a request that the provider sent to a model for such an agent."""
        return []

    def error_body(self, status: int, message: str, kind: str | None = None) -> bytes:
        """Return the JSON body of an error response. `kind` is its error type; None derives it from the status."""

    def response_body(self, draft: Draft) -> bytes:
        """Return the JSON body of a response that is not streamed."""

    def response_stream(self, draft: Draft, deltas: int = 1) -> tuple[str, list[bytes]]:
        """Return the content type and the events of a streamed response, with each text split into `deltas` parts."""

    def wants_stream(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request asks for a streamed response."""

    def request_message(self, role: Literal["user", "assistant"], blocks: Sequence[Block]) -> Any:
        """Return an entry of the history in the form that a client sends."""

    def request_body(self, model: str, history: Sequence[bytes]) -> bytes:
        """Return a request body with a history whose entries are already encoded as JSON."""

    def usage_rows(self, model: str, usage: Mapping[str, Any], certainty: Certainty) -> list[Usage]:
        """Return the usage rows of one usage object of the provider."""

    def usage(
        self, question: Question, answer: Answer, facts: ResponseFacts, model: str | None
    ) -> list[Usage]:
        """Return the usage rows of an attempt; empty if nothing was billed.

        `model` is the model that the request body names, or None.
        """


def finite(text: str | None, factor: float) -> float | None:
    """Return the number in a header multiplied by a factor; None if it is missing, not a number or infinite."""
    try:
        value = float(text or "") * factor
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def decimal(value: float) -> str:
    """Return a number as text without an exponent, with at most six decimal places."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def json_bytes(value: object) -> int:
    """Return the size of content in bytes: of a text, or of the JSON of another value."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if value is None:
        return 0
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))


def text_of(content: Any) -> str:
    """Return the text of a tool result: a string, or the texts of its parts joined by newlines; "" for other values."""
    if isinstance(content, str):
        return content
    listed = content if isinstance(content, list | tuple) else ()
    parts = [part.get("text") for part in listed if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))
