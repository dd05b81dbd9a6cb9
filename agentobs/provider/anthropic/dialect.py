"""The dialect of the Messages API: its paths, headers, requests and usage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote, unquote

from agentobs.provider.agent_events import AgentEvent, AgentStream, ManagedTraffic
from agentobs.provider.anthropic import composition
from agentobs.provider.anthropic.batches import (
    batch_limits,
    batch_messages,
    batch_requests,
    batch_tools,
)
from agentobs.provider.anthropic.cloud_frames import enframe, is_framed, split_frames
from agentobs.provider.anthropic.managed_agents import (
    MODEL_REQUEST,
    agent_stream,
    managed_traffic,
    managed_usage,
    received_messages,
    sent_messages,
)
from agentobs.provider.anthropic.messages import (
    SEALED_SHAPE,
    blocks,
    call_limits,
    parameters,
    request_error,
    response_details,
    role_of,
    turn,
    without_entry_breakpoints,
    without_ids,
)
from agentobs.provider.anthropic.rate_limits import FAST, limit_hit, rate_limits
from agentobs.provider.anthropic.server_tools import other_names
from agentobs.provider.anthropic.streams import (
    DELTA_PHRASES,
    DELTA_SHAPE,
    assemble,
    assemble_any,
    first_delta_ns,
    read_response,
)
from agentobs.provider.anthropic.terms import TERMS
from agentobs.provider.anthropic.usage import batch_results, on_platform, platform_of, usage_rows
from agentobs.provider.dialect import (
    BatchResult,
    Block,
    BodyPlace,
    CallLimits,
    DeltaShape,
    Dialect,
    Draft,
    Message,
    ResponseFacts,
    Turn,
    decimal,
    finite,
)
from agentobs.provider.server_events import is_stream, split_events
from agentobs.records.exchanges import Answer, Question
from agentobs.records.labels import Label
from agentobs.records.usage import Certainty, Usage, unreported_usage
from agentobs.records.whole_numbers import whole_number

_BATCH_RESULTS = re.compile(r"/v1/messages/batches/(?P<batch_id>[^/?]+)/results(?:\?|\Z)")
"""Matches the route of the results of a batch. The results are JSON lines, and clients may fetch them several times."""

_BATCHES = "/v1/messages/batches"
"""The route of the request that creates a batch."""

_ROUTE = re.compile(
    r"/model/.+/(?:invoke|converse)"
    r"|/projects/[^/]+/locations/[^/]+/publishers/"
    r"|/v1/(?!projects/)(?!.*/v1/)"
)
"""Matches the start of the part of a path that the provider defines; a gateway's prefix may precede it."""

_TURN = re.compile(
    r"/v1/messages\Z"
    r"|/model/(?P<bedrock>.+)/invoke(?:-with-response-stream)?\Z"
    r"|/projects/.*/models/(?!count-tokens:)(?P<vertex>[^/:]+):(?:streamR|r)awPredict\Z"
)
"""Matches the route of a request that is a turn of a conversation: routes of the provider and of the platforms."""

_PREDICTS = (":rawPredict", ":streamRawPredict")
"""The actions in the last part of a path on Vertex that run a model."""

HOSTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"api\.anthropic\.com",
        r"bedrock-(?:runtime|mantle)(?:-fips)?\.[a-z0-9-]+\.(?:amazonaws\.com(?:\.cn)?|api\.aws)",
        r"(?:[a-z0-9-]+-)?aiplatform\.(?:[a-z0-9-]+\.rep\.)?googleapis\.com",
        r"claude\.googleapis\.com",
        r"aws-external-anthropic\.[a-z0-9-]+\.api\.aws",
        r"[a-z0-9-]+\.services\.ai\.azure\.com",
    )
)
"""The hosts of the provider and of the platforms (anthropic 2.12, lib; boto3 1.43)."""

SESSION_HEADER, AGENT_HEADER = "x-claude-code-session-id", "x-claude-code-agent-id"
"""Request headers of Claude Code (2.1.330): its session, and the sub-agent that sends the request, if it is one."""

_RATE_LIMIT = "anthropic-ratelimit-"
"""The start of the names of response headers about rate limits."""

_NOT_SENT = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
        "LocalProtocolError",
    }
)
"""Transport errors that occur before a request is sent."""


_OPTIONS = frozenset(
    {
        "max_tokens", "messages", "metadata", "model", "stop_sequences", "stream", "system", "temperature",
        "thinking", "tool_choice", "tools", "top_k", "top_p",
    }
)  # fmt: skip


_FIELD_NAMES = frozenset(
    (
        "messages", "content", "text", "input", "system", "tools", "tool_choice", "name", "type", "model", "max_tokens",
        "thinking", "metadata", "stream", "temperature", "stop_sequences", "cache_control", "input_schema",
        "properties", "description", "role", "source", "is_error", "tool_use_id", "id", "required", "items", "betas",
        "top_k", "top_p", "budget_tokens", "service_tier", "output_config", "signature", "data", "citations",
    )
)  # fmt: skip
"""The field names of requests. Source: https://docs.claude.com/en/api/messages, 2026-11."""


class Anthropic(Dialect):
    """The Messages API of Anthropic, also on Bedrock and Vertex."""

    name = "anthropic"
    history_key = "messages"
    turn_path = "/v1/messages"
    prompt_keys: Mapping[Literal["system", "tools"], str] = {"system": "system", "tools": "tools"}
    call_types = frozenset(("tool_use", "server_tool_use", "mcp_tool_use", "tool_result"))
    delta_phrases = DELTA_PHRASES
    managed_endpoint = Label(MODEL_REQUEST)
    version_header = "anthropic-version"
    beta_header = "anthropic-beta"
    breakpoint_key = "cache_control"
    sealed_shape = SEALED_SHAPE
    call_id_prefixes = ("toolu", "srvtoolu", "mcptoolu")
    output_limit_key = "max_tokens"
    request_headers = (
        "content-type",
        "anthropic-version",
        "anthropic-beta",
        "x-stainless-retry-count",
        SESSION_HEADER,
        AGENT_HEADER,
    )
    meaningful_headers = ("anthropic-beta", "anthropic-version")
    response_headers = (
        "content-type",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        f"{_RATE_LIMIT}*",
        f"{FAST}*",
    )
    credential_headers = ("x-api-key", "api-key", "x-amz-security-token", "x-goog-api-key")
    hosts = HOSTS
    composition = composition
    """Requests and responses, including those of stored calls of the SDK."""

    def is_model_call(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request goes to the provider, or to a platform that offers its models."""
        return (
            "anthropic-version" in headers
            or "/publishers/anthropic/models/" in path
            or route(path).startswith("/model/")
        )

    def is_request(self, body: bytes) -> bool:
        """Return whether a body contains messages and the limit of the response, which every request must contain."""
        return b'"messages"' in body and b'"max_tokens"' in body

    def owns(self, path: str) -> bool:
        """Return whether a path belongs to the provider, which has many paths below `/v1`, or to a platform."""
        return _ROUTE.search(path.partition("?")[0]) is not None

    def route(self, path: str) -> str:
        """Return a path without the prefix of a gateway."""
        return route(path)

    def makes_turns(self, path: str) -> bool:
        """Return whether a request to this path is a turn of a conversation."""
        return _turn_route(path) is not None

    @property
    def terms(self) -> frozenset[str]:
        """The words of the Messages API, and the tools of the provider and of Claude Code."""
        return TERMS

    def endpoint(self, path: str) -> Label:
        """Return a path as a label, with variable parts replaced so that there are few different labels."""
        return endpoint(path)

    def request_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the provider's ID of a request from its response headers."""
        return headers.get("request-id")

    def retry_number(self, headers: Mapping[str, str]) -> int:
        """Return how many times the client sent this request before, as counted by the SDK."""
        count = whole_number(headers.get("x-stainless-retry-count", "0"))
        return 1 if count is None else count

    def retry_after_ms(self, headers: Mapping[str, str]) -> float | None:
        """Return the wait that the response headers request; the header in milliseconds takes precedence."""
        exact_ms = finite(headers.get("retry-after-ms"), 1)
        return finite(headers.get("retry-after"), 1000) if exact_ms is None else exact_ms

    def rate_limits(self, headers: Mapping[str, str]) -> dict[str, float]:
        """Return the limits in the `anthropic-ratelimit-*` and `anthropic-fast-*` headers."""
        return rate_limits(headers, _RATE_LIMIT)

    def limit_hit(self, answer: Answer) -> str | None:
        """Return the limit that a response with the status 429 names or has used up."""
        return limit_hit(answer, _RATE_LIMIT)

    def first_token_ns(self, answer: Answer) -> int | None:
        """Return when the first delta of a content block arrived; None for the frames of a platform."""
        return first_delta_ns(answer) if is_stream(answer.headers) else None

    def may_retry(self, headers: Mapping[str, str]) -> bool | None:
        """Return whether the provider allows a retry; the SDK obeys this header regardless of the status."""
        return {"true": True, "false": False}.get(headers.get("x-should-retry", ""))

    def retry_headers(self, wait_ms: float | None) -> dict[str, str]:
        """Return response headers that make the SDK retry after `wait_ms`, or not retry if `wait_ms` is None."""
        return (
            {"x-should-retry": "false"} if wait_ms is None else {"retry-after-ms": decimal(wait_ms)}
        )

    def turn(self, message: Any) -> Turn:
        """Return one entry of `messages`."""
        return turn(message)

    def forces_call(self, body: Mapping[str, Any]) -> bool:
        """Return whether `tool_choice` allows only a tool call as response."""
        choice = body.get("tool_choice")
        return isinstance(choice, dict) and choice.get("type") in ("tool", "any")

    def is_probe(self, body: Mapping[str, Any]) -> bool:
        """Return whether the response may have one token at most, as in the quota checks of some clients."""
        limit = body.get(self.output_limit_key)
        return isinstance(limit, int) and limit <= 1

    def agent_id(self, headers: Mapping[str, str]) -> tuple[str | None, bool]:
        """Return the ID in the headers of Claude Code (2.1.330), and whether the client sends such headers."""
        return headers.get(AGENT_HEADER), SESSION_HEADER in headers or AGENT_HEADER in headers

    def tool_names(self, body: Mapping[str, Any]) -> list[str]:
        """Return the names of the tools that a request declares."""
        tools = body.get("tools")
        listed = tools if isinstance(tools, list) else []
        return [str(tool.get("name")) for tool in listed if isinstance(tool, dict)]

    def declared_names(self, body: Mapping[str, Any]) -> list[str]:
        """Return the names of the tools, of MCP servers and of their tools that a request declares."""
        requests = [body, *batch_requests(body)]
        return [name for each in requests for name in (*self.tool_names(each), *other_names(each))]

    def call_limits(self, body: Mapping[str, Any]) -> Mapping[str, CallLimits]:
        """Return the limits that a request sets for tools that the provider runs, by the name of the tool."""
        return call_limits(body)

    def batch_results(self, question: Question, answer: Answer) -> Iterator[BatchResult]:
        """Yield the results of a batch that contain calls or results of tools that the provider ran."""
        found = _BATCH_RESULTS.match(route(question.path))
        return iter(()) if found is None else batch_tools(found["batch_id"], answer.body)

    def batch_limits(
        self, question: Question, body: Mapping[str, Any], answer: Answer
    ) -> Mapping[str, Mapping[str, CallLimits]]:
        """Return the limits for tools that the provider runs, for the requests of a batch, by the ID of the result."""
        called = route(question.path).partition("?")[0]
        if question.method != "POST" or called != _BATCHES:
            return {}
        return batch_limits(body, answer.body)

    def sent_messages(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the messages in a request that creates a batch, or sends events to a managed agent."""
        messages = (each.get("messages") for each in batch_requests(body))
        of_batch = (self.turn(each) for listed in messages for each in _list(listed))
        return [*of_batch, *sent_messages(body)]

    def received_messages(self, path: str, answer: Answer) -> list[Turn]:
        """Return the messages in the results of a batch, or in the events of a managed agent."""
        called = route(path)
        if _BATCH_RESULTS.match(called):
            return [self.turn(each) for each in batch_messages(answer.body)]
        return received_messages(called, answer)

    def place(self, keys: Sequence[object]) -> BodyPlace | None:
        """Return the part of a request body to which a path of keys leads; None if the path is empty."""
        match tuple(keys):
            case ("messages", int(turn), "content", int(block), *_):
                return BodyPlace("history", turn, block)
            case ("messages", int(turn), *_):
                return BodyPlace("history", turn)
            case ("messages", *_):
                return BodyPlace("history")
            case ("system" | "tools" as zone, *_):
                return BodyPlace(zone)
            case ():
                return None
            case _:
                return BodyPlace("option")

    def breakpoint_of(self, value: Mapping[str, Any]) -> str | None:
        """Return the lifetime in `cache_control`, "" if it contains none, or None if there is no `cache_control`."""
        found = value.get("cache_control")
        return str(found.get("ttl") or "") if isinstance(found, dict) else None

    def tool_definition(self, tool: Any) -> tuple[Any, Any, Any] | None:
        """Return the name, description and input schema of a tool; None if the provider defines the tool."""
        if not isinstance(tool, dict) or "input_schema" not in tool:
            return None
        return tool.get("name"), tool.get("description"), tool["input_schema"]

    @property
    def field_names(self) -> frozenset[str]:
        """The field names of requests in the Messages API."""
        return _FIELD_NAMES

    @property
    def delta_shape(self) -> DeltaShape:
        """The form of the deltas of texts, thinking and tool inputs."""
        return DELTA_SHAPE

    def runs_model(self, endpoint: str) -> bool:
        """Return whether requests to an endpoint are answered by a model: messages, completions and platform calls."""
        called = route(endpoint)
        return (
            called in (self.turn_path, "/v1/complete", MODEL_REQUEST)
            or called.rpartition("/")[2] in ("invoke", "invoke-with-response-stream")
            or called.endswith(_PREDICTS)
        )

    def platform(self, endpoint: str) -> Literal["bedrock", "vertex"] | None:
        """Return the cloud platform that has an endpoint: Bedrock, Vertex or None."""
        called = route(endpoint)
        if called.startswith("/model/"):
            return "bedrock"
        return "vertex" if called.startswith("/projects/") else None

    @property
    def options(self) -> frozenset[str]:
        """The parameters of the Messages API that callers set (docs.anthropic.com, 2026-11)."""
        return _OPTIONS

    def system(self, body: Mapping[str, Any]) -> Turn | None:
        """Return the system prompt: a string, or a list of text blocks."""
        found = body.get("system")
        return turn({"role": "system", "content": found}) if found else None

    def continues(self, body: Any) -> str | None:
        """Return the ID of the response that a message thread continues."""
        thread = body.get("thread") if isinstance(body, dict) else None
        before = thread.get("previous_message_id") if isinstance(thread, dict) else None
        return str(before) if before else None

    def parameters(self, body: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
        """Return the parameters of a request that contain no content, such as `max_tokens`."""
        return parameters(body)

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `max_tokens`; None if it is missing or not a positive number."""
        limit = body.get("max_tokens")
        return limit if isinstance(limit, int) and limit > 0 else None

    def response_details(self, history: Sequence[Turn], response: Message) -> dict[str, Any]:
        """Return stop details, applied edits, citations and other details of a response."""
        return response_details(history, response)

    def refusal(self, body: Mapping[str, Any]) -> str | None:
        """Return the error message with which the provider would reject a request; None if it would accept it."""
        return request_error(body)

    def without_breakpoints(self, value: Any) -> Any:
        """Return a message, a list of tools or a system prompt without `cache_control`.

        A client that adds a breakpoint to a string must turn the string into a list of blocks. To undo this difference,
        the content of a message always becomes a list, and any other list of one plain text block becomes its text.
        """
        if isinstance(value, dict):
            return {
                **_without_breakpoint(value),
                "content": [_without_breakpoint(block) for block in blocks(value)],
            }
        if isinstance(value, tuple):
            return tuple(_list_without_breakpoints(each) for each in value)
        return _list_without_breakpoints(value)

    def entry_without_breakpoints(self, entry: bytes) -> bytes:
        """Return a message without `cache_control`, both as compact JSON."""
        return without_entry_breakpoints(entry)

    def without_ids(self, value: Any) -> Any:
        """Return a request body without the IDs and signatures of its blocks."""
        return without_ids(value)

    def cache_zones(self, head: Mapping[str, Any], headers: Mapping[str, str]) -> Sequence[Any]:
        """Return the values of the zones; the system prompt is split after its first breakpoint.

        Source: provider documentation, 2026-11 (platform.claude.com/docs/en/build-with-claude/prompt-caching, section
        "What invalidates the cache").
        """
        static, dynamic = _split(head.get("system"))
        return (
            headers.get("anthropic-beta"),
            (head.get("model"), head.get("speed")),
            (head.get("tools"),),
            static,
            (head.get("tool_choice"), head.get("thinking")),
            dynamic,
        )

    def is_stream(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce server-sent events or the frames of a platform."""
        return is_stream(headers) or is_framed(headers)

    def stream_chunks(self, headers: Mapping[str, str], body: bytes) -> list[bytes]:
        """Split server-sent events or frames; any other body is one part."""
        if is_framed(headers):
            return split_frames(body)
        return split_events(body) if is_stream(headers) else [body]

    def is_binary(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce the frames of a platform."""
        return is_framed(headers)

    def redacted_stream(
        self, headers: Mapping[str, str], body: bytes, redact: Callable[[bytes], bytes]
    ) -> bytes | None:
        """Return frames with the redacted message; None if it contains no secret."""
        text = json.dumps(assemble(headers, body), ensure_ascii=False).encode("utf-8", "replace")
        clean = redact(text)
        return None if clean == text else enframe(composition.plain_events(json.loads(clean)))

    def message(self, headers: Mapping[str, str], body: bytes) -> Message:
        """Return a response, reassembled if it was streamed."""
        return self.response(assemble(headers, body) if headers else assemble_any(body))

    def response(self, value: Mapping[str, Any]) -> Message:
        """Return a message that is already parsed JSON."""
        message = dict(value)
        error, usage = message.get("error"), message.get("usage")
        return Message(
            role=role_of(message),
            blocks=turn(message).blocks,
            raw=message,
            id=_text(message.get("id")),
            model=_text(message.get("model")),
            stop_reason=_text(message.get("stop_reason")),
            error=str(error.get("type") if isinstance(error, dict) else error) if error else None,
            usage=usage if isinstance(usage, dict) else None,
        )

    def facts(self, answer: Answer) -> ResponseFacts:
        """Return the facts of a response, even if only a part of it arrived."""
        return read_response(answer)

    def managed_traffic(self, question: Question, answer: Answer) -> ManagedTraffic | None:
        """Return what an exchange reveals about sessions of managed agents; None if nothing."""
        return managed_traffic(route(question.path), answer)

    def agent_stream(self, question: Question, answer: Answer) -> AgentStream | None:
        """Return a reader for a stream of the events of a managed agent; None for other responses."""
        return agent_stream(route(question.path), answer)

    def managed_usage(self, session_id: str, event: AgentEvent, model: str) -> list[Usage]:
        """Return the usage rows of a request that the provider sent to a model for a managed agent."""
        return managed_usage(session_id, event, model)

    def error_body(self, status: int, message: str, kind: str | None = None) -> bytes:
        """Return the JSON body of an error response."""
        return composition.error_body(status, message, kind)

    def response_body(self, draft: Draft) -> bytes:
        """Return the JSON body of a response that is not streamed."""
        return composition.response_body(draft)

    def response_stream(self, draft: Draft, deltas: int = 1) -> tuple[str, list[bytes]]:
        """Return the content type and the server-sent events of a streamed response."""
        return composition.STREAM, composition.events(draft, deltas)

    def wants_stream(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request sets `stream`."""
        return bool(body.get("stream"))

    def request_message(self, role: Literal["user", "assistant"], blocks: Sequence[Block]) -> Any:
        """Return a message of a request."""
        return composition.message(role, blocks)

    def request_body(self, model: str, history: Sequence[bytes]) -> bytes:
        """Return a request body with messages that are already encoded as JSON."""
        return composition.request_body(model, history)

    def model_in(self, path: str) -> str | None:
        """Return the model in a path of Bedrock or Vertex."""
        return _model_in(route(path).partition("?")[0])

    def with_model(self, path: str, model: str) -> str:
        """Return a path of Bedrock or Vertex with another model; another path itself."""
        before, mark, query = path.partition("?")
        called = route(before)
        found = _TURN.match(called)
        if found is None or found.lastgroup is None:
            return path
        start, end = (len(before) - len(called) + at for at in found.span(found.lastgroup))
        return f"{before[:start]}{quote(model, safe=':@')}{before[end:]}{mark}{query}"

    def usage_rows(self, model: str, usage: Mapping[str, Any], certainty: Certainty) -> list[Usage]:
        """Return the row of the top-level counts, followed by the rows of the iterations."""
        return usage_rows(model, usage, certainty)

    def usage(
        self, question: Question, answer: Answer, facts: ResponseFacts, model: str | None
    ) -> list[Usage]:
        """Return the usage rows of an attempt: of a batch, of a message, or one row without counts."""
        called = route(question.path)
        requested = model or _model_in(called) or "unknown"
        if found := _BATCH_RESULTS.match(called):
            rows = list(_batched(answer, found["batch_id"]))
        elif facts.usage is not None and facts.is_message:
            rows = usage_rows(facts.model or requested, facts.usage, facts.certainty)
        elif _may_have_used_tokens(question, answer, facts):
            rows = [unreported_usage(requested)]
        else:
            return []
        platform = platform_of(called, model or "")
        return [on_platform(row, platform) for row in rows]


def _batched(answer: Answer, batch_id: str) -> Iterator[Usage]:
    # If the transfer broke off, the file may contain more results.
    certainty: Certainty = "exact" if answer.ending == "complete" else "lower_bound"
    for custom_id, message in batch_results(answer.body):
        result_id = f"{batch_id}/{custom_id}"
        yield from usage_rows(str(message.get("model")), message["usage"], certainty, result_id)


def route(path: str) -> str:
    """Return the part of a path that the provider defines, with the query, without the prefix of a gateway.

    The base URL of a gateway may have a path: `/anthropic/v1/messages` has the route `/v1/messages`.
    """
    before, mark, query = path.partition("?")
    found = _ROUTE.search(before)
    return path if found is None else before[found.start() :] + mark + query


def _turn_route(path: str) -> re.Match[str] | None:
    return _TURN.match(route(path).partition("?")[0])


def _model_in(path: str) -> str | None:
    """Return the model name in a platform's path; None if it contains none."""
    found = _turn_route(path)
    model = found and (found["bedrock"] or found["vertex"])
    return unquote(model) if model else None


def _is_billed(path: str) -> bool:
    return _turn_route(path) is not None or route(path).partition("?")[0] == "/v1/complete"


def _may_have_used_tokens(question: Question, answer: Answer, facts: ResponseFacts) -> bool:
    """Return whether a model may have processed a request for which no usage was reported.

    A rejected request costs nothing. It has an error status, or an error as the first event of its stream.
    """
    if question.method != "POST" or not _is_billed(question.path):
        return False
    if answer.status is None:
        return answer.failure is None or answer.failure.name not in _NOT_SENT
    has_error = bool(facts.error_type) and not answer.failure
    return 200 <= answer.status < 300 and (not has_error or facts.is_message)


def _split(system: Any) -> tuple[Any, Any]:
    """Return the part of a system prompt up to its first breakpoint, and the rest.

    If there is no breakpoint, the first part is the complete prompt, and the rest is None.
    """
    if isinstance(system, list):
        for at, block in enumerate(system[:-1], 1):
            if isinstance(block, dict) and block.get("cache_control"):
                return system[:at], system[at:]
    return system, None


def _list_without_breakpoints(value: Any) -> Any:
    if isinstance(value, list):
        plain = [_without_breakpoint(each) for each in value]
        only = plain[0] if len(plain) == 1 and isinstance(plain[0], dict) else {}
        return only["text"] if only.keys() == {"type", "text"} else plain
    return value


def _without_breakpoint(value: Any) -> Any:
    if not isinstance(value, dict) or "cache_control" not in value:
        return value
    return {key: inner for key, inner in value.items() if key != "cache_control"}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_PATHS = """
ack action_urls agents analytics anthropic api_keys approve apps archive artifacts batches bundles cancel
certificates chat claudeOrganization claude_code claude_tag complete compliance_settings configuration
connectors content cost cost_report count_tokens credentials deny deployment_runs deployments dreams effective
enrollment_url environments events external_keys federation_issuers federation_rules files heartbeat
installation_settings invites invoke invoke-with-response-stream locations managed_settings mcp_oauth_validate
me members memories memory_stores memory_versions messages model models oauth organizations pause permissions
plugin_marketplaces plugins poll projects publishers rate_limits rbac_group_default rbac_groups rbac_roles
redact regenerate_signing_secret resources results reveal_token rotate_token run service_accounts sessions
shares sign_out skills slack_channels slack_workspaces spend_limit_increase_requests spend_limits stats stop
stream summaries targets telemetry_destinations test threads token tunnels unpause uploads usage usage_report
user_cost_report user_profiles user_usage_report users v1 validate validate_archive validate_repository vaults
versions webhooks work workspace workspaces
"""
_PATH_WORDS = frozenset(_PATHS.split())
"""The constant words in the paths of the provider, Bedrock and Vertex (anthropic 2.12, resources and lib). All other
parts of a path vary: IDs, models, names of files.
"""


def endpoint(path: str) -> Label:
    """Return a path as a label, without the query, and with `:id` in place of words that are not in `_PATH_WORDS`."""
    parts = path.partition("?")[0].split("/")
    words = [part if part in _PATH_WORDS or not part else ":id" for part in parts]
    is_count = parts[-1].startswith("count-tokens:")
    action = "" if is_count else next((p for p in _PREDICTS if parts[-1].endswith(p)), "")
    return Label("/".join(words)[: 128 - len(action)] + action or "/")
