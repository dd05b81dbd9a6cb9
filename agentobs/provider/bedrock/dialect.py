"""The dialect of the Converse API of Bedrock: its paths, headers, requests and usage.

The requests of `invoke` have the shape of the model's vendor instead; those of Claude are read by the dialect of the
Messages API. The model of a request is in its path, and may be a model of any vendor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote, unquote

from agentobs.provider.anthropic.cloud_frames import FRAMES, is_framed, split_frames
from agentobs.provider.anthropic.usage import on_platform, usage_rows
from agentobs.provider.bedrock import responses
from agentobs.provider.bedrock.messages import is_message, turn, without_cache_points, without_ids
from agentobs.provider.dialect import Block, BodyPlace, Dialect, Draft, Message, ResponseFacts, Turn
from agentobs.records.exchanges import Answer, Question
from agentobs.records.labels import Label
from agentobs.records.usage import Certainty, Usage, unreported_usage

_TURN = re.compile(r"/model/(?P<model>[^?]+)/converse(?P<stream>-stream)?(?=\?|\Z)")
"""Matches the route of a request; the prefix of a gateway may precede it."""

_COUNTS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheWriteInputTokens": "cache_creation_input_tokens",
}
"""The counts of the usage object, each with its name in the Messages API, which counts the same tokens."""
_TERMS = frozenset(
    (
        "AccessDeniedException", "ConflictException", "InternalServerException", "ModelErrorException",
        "ModelNotReadyException", "ModelStreamErrorException", "ModelTimeoutException", "ResourceNotFoundException",
        "ServiceQuotaExceededException", "ServiceUnavailableException", "ThrottlingException", "ValidationException",
        "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException",
        "UnknownOperationException", "SerializationException", "internalServerException", "modelStreamErrorException",
        "throttlingException", "validationException", "serviceUnavailableException", "totalTokens", "cacheDetails",
    )
)  # fmt: skip
"""The types of errors, and counts without a name in the Messages API (boto3 1.43, `bedrock-runtime`)."""
_TIERS = {"default": "standard"}
"""Service tiers whose names differ in the Messages API."""
_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol")
"""Transport errors that occur before a request is sent."""

_OPTIONS = frozenset(
    {
        "additionalModelRequestFields", "additionalModelResponseFieldPaths", "guardrailConfig", "inferenceConfig",
        "messages", "outputConfig", "performanceConfig", "projectIdentifier", "promptVariables", "requestMetadata",
        "serviceTier", "system", "toolConfig",
    }
)  # fmt: skip
"""The parameters of a request, without the model (service model of bedrock-runtime, boto3 1.44)."""


class Converse(Dialect):
    """The Converse API of Bedrock."""

    name = "aws.bedrock"
    history_key = "messages"
    turn_path = "/model/unknown/converse"
    prompt_keys: Mapping[Literal["system", "tools"], str] = {"system": "system"}
    request_headers = ("content-type", "amz-sdk-request")
    meaningful_headers = ()
    response_headers = ("content-type", "retry-after", "x-amzn-requestid", "x-amzn-errortype")
    credential_headers = ("x-amz-security-token",)
    call_id_prefixes = ("tooluse",)
    options = _OPTIONS

    def is_model_call(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether a path is a route of the API."""
        return _TURN.search(path) is not None

    @property
    def terms(self) -> frozenset[str]:
        """The types of errors and the counts of Bedrock; its other terms are those of the Messages API."""
        return _TERMS

    def owns(self, path: str) -> bool:
        """Return whether a path is a route of the API."""
        return _TURN.search(path) is not None

    def route(self, path: str) -> str:
        """Return a path without the prefix of a gateway."""
        found = _TURN.search(path)
        return path if found is None else path[found.start() :]

    def makes_turns(self, path: str) -> bool:
        """Return whether a path is a route of the API; all of them run a model."""
        return _TURN.search(path) is not None

    def endpoint(self, path: str) -> Label:
        """Return the route with a placeholder for the model."""
        found = _TURN.search(path)
        return Label(f"/model/:id/converse{(found and found['stream']) or ''}")

    def runs_model(self, endpoint: str) -> bool:
        """Return whether requests to an endpoint are answered by a model."""
        return _TURN.search(endpoint) is not None

    def model_in(self, path: str) -> str | None:
        """Return the model in a path."""
        found = _TURN.search(path)
        return unquote(found["model"]) if found else None

    def with_model(self, path: str, model: str) -> str:
        """Return a path with another model."""
        found = _TURN.search(path)
        if found is None:
            return path
        start, end = found.span("model")
        return f"{path[:start]}{quote(model, safe=':@')}{path[end:]}"

    def request_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the provider's ID of a request from its response headers."""
        return headers.get("x-amzn-requestid")

    def retry_number(self, headers: Mapping[str, str]) -> int:
        """Return how many times the client sent this request before, as counted by the AWS SDKs."""
        found = re.match(r"attempt=(\d{1,4})", headers.get("amz-sdk-request", ""))
        return max(int(found[1]) - 1, 0) if found else 0

    def reads_history(self, history: Sequence[Any]) -> bool:
        """Return whether a history has blocks of this API."""
        return any(is_message(each) for each in history)

    def turn(self, message: Any) -> Turn:
        """Return one entry of `messages`."""
        return turn(message)

    def system(self, body: Mapping[str, Any]) -> Turn | None:
        """Return the system prompt, a list of blocks."""
        found = body.get("system")
        return turn({"role": "system", "content": found}) if found else None

    def tool_names(self, body: Mapping[str, Any]) -> list[str]:
        """Return the names of the tools that a request declares."""
        config = body.get("toolConfig")
        tools = config.get("tools") if isinstance(config, dict) else None
        found = [self.tool_definition(tool) for tool in tools] if isinstance(tools, list) else []
        return [str(each[0]) for each in found if each is not None]

    def tool_definition(self, tool: Any) -> tuple[Any, Any, Any] | None:
        """Return the name, description and input schema of a tool; None if the provider defines the tool."""
        spec = tool.get("toolSpec") if isinstance(tool, dict) else None
        if not isinstance(spec, dict):
            return None
        schema = spec.get("inputSchema")
        inner = schema.get("json") if isinstance(schema, dict) else None
        return spec.get("name"), spec.get("description"), inner

    def place(self, keys: Sequence[object]) -> BodyPlace | None:
        """Return the part of a request body to which a path of keys leads; None if the path is empty."""
        match tuple(keys):
            case ("messages", int(at), "content", int(block), *_):
                return BodyPlace("history", at, block)
            case ("messages", int(at), *_):
                return BodyPlace("history", at)
            case ("messages", *_):
                return BodyPlace("history")
            case ("system", *_):
                return BodyPlace("system")
            case ("toolConfig", *_):
                return BodyPlace("tools")
            case ():
                return None
            case _:
                return BodyPlace("option")

    def breakpoint_of(self, value: Mapping[str, Any]) -> str | None:
        """Return the lifetime of a cache point, "" if it has none, or None if the object is not a cache point."""
        found = value.get("cachePoint")
        return str(found.get("ttl") or "") if isinstance(found, dict) else None

    def without_breakpoints(self, value: Any) -> Any:
        """Return a message, a list of tools or a system prompt without cache points."""
        return without_cache_points(value)

    def entry_without_breakpoints(self, entry: bytes) -> bytes:
        """Return a message without cache points, both as compact JSON."""
        if b'"cachePoint"' not in entry:
            return entry
        value = without_cache_points(json.loads(entry))
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")

    def without_ids(self, value: Any) -> Any:
        """Return a request body without the IDs and signatures of its blocks."""
        return without_ids(value)

    def cache_zones(self, head: Mapping[str, Any], headers: Mapping[str, str]) -> Sequence[Any]:
        """Return the values of the zones; the model is in the path, and is the same for all requests of a prompt."""
        config = head.get("toolConfig")
        config = config if isinstance(config, dict) else {}
        parameters = (config.get("toolChoice"), head.get("additionalModelRequestFields"))
        return (None, None, (config.get("tools"),), head.get("system"), parameters, None)

    def is_stream(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce a stream of events."""
        return is_framed(headers)

    def stream_chunks(self, headers: Mapping[str, str], body: bytes) -> list[bytes]:
        """Split a stream into its frames; any other body is one part."""
        return split_frames(body) if is_framed(headers) else [body]

    def is_binary(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers announce a stream of events."""
        return is_framed(headers)

    def redacted_stream(
        self, headers: Mapping[str, str], body: bytes, redact: Callable[[bytes], bytes]
    ) -> bytes | None:
        """Return frames with the redacted message; None if it contains no secret."""
        value = responses.assemble(headers, body)
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        clean = redact(text)
        return None if clean == text else b"".join(responses.events_of(json.loads(clean), 1))

    def message(self, headers: Mapping[str, str], body: bytes) -> Message:
        """Return a response, reassembled if it was streamed."""
        return responses.message(responses.assemble(headers, body))

    def response(self, value: Mapping[str, Any]) -> Message:
        """Return a response that is already parsed JSON."""
        return responses.message(value)

    def facts(self, answer: Answer) -> ResponseFacts:
        """Return the facts of a response, even if only a part of it arrived."""
        return responses.facts(answer)

    def error_body(self, status: int, message: str, kind: str | None = None) -> bytes:
        """Return the JSON body of an error response."""
        return json.dumps({"message": message, **({"__type": kind} if kind else {})}).encode()

    def response_body(self, draft: Draft) -> bytes:
        """Return the JSON body of a response that is not streamed."""
        return json.dumps(responses.written(draft), ensure_ascii=False).encode()

    def response_stream(self, draft: Draft, deltas: int = 1) -> tuple[str, list[bytes]]:
        """Return the content type and the frames of a streamed response."""
        return FRAMES, list(responses.events(draft, deltas))

    def wants_stream(self, body: Mapping[str, Any]) -> bool:
        """Return False: the path of a request, not its body, asks for a stream."""
        return False

    def request_message(self, role: Literal["user", "assistant"], blocks: Sequence[Block]) -> Any:
        """Return a message of a request."""
        return {"role": role, "content": [responses.written_block(block) for block in blocks]}

    def request_body(self, model: str, history: Sequence[bytes]) -> bytes:
        """Return a request body with messages that are already encoded as JSON; the model is in the path."""
        return b'{"messages":[%s]}' % b",".join(history)

    def usage_rows(self, model: str, usage: Mapping[str, Any], certainty: Certainty) -> list[Usage]:
        """Return the usage row of a response, as an estimate, because prices of Bedrock may differ."""
        rows = usage_rows(model, _in_messages_api(usage), certainty)
        return [on_platform(row, "bedrock") for row in rows]

    def usage(
        self, question: Question, answer: Answer, facts: ResponseFacts, model: str | None
    ) -> list[Usage]:
        """Return the usage rows of an attempt; one row without counts if a model may have run unreported."""
        requested = self.model_in(question.path) or model or "unknown"
        if facts.usage is not None and facts.is_message:
            return self.usage_rows(requested, facts.usage, facts.certainty)
        if answer.status is None:
            may_be_billed = answer.failure is None or answer.failure.name not in _NOT_SENT
        else:
            may_be_billed = answer.status < 300 and (not facts.error_type or facts.is_message)
        return [on_platform(unreported_usage(requested), "bedrock")] if may_be_billed else []


def _in_messages_api(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage object with the names of the Messages API; unknown counts keep their names."""
    known = {*_COUNTS, "totalTokens", "cacheDetails", "serviceTier"}
    found = {new: usage[old] for old, new in _COUNTS.items() if old in usage}
    found |= {name: value for name, value in usage.items() if name not in known}
    details = usage.get("cacheDetails")
    if isinstance(details, list) and details:
        found["cache_creation"] = {
            f"ephemeral_{each.get('ttl')}_input_tokens": each.get("inputTokens")
            for each in details
            if isinstance(each, dict)
        }
    if tier := usage.get("serviceTier"):
        found["service_tier"] = _TIERS.get(tier, tier)
    return found
