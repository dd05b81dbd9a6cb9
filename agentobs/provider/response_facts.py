"""Facts of a response of the Messages API: its tool calls, usage and outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentobs.provider.cloud_frames import is_framed, unframed
from agentobs.provider.messages import assemble, blocks, is_stream
from agentobs.records.exchanges import Answer
from agentobs.records.facts import (
    AttemptOutcome,
)
from agentobs.records.usage import (
    Certainty,
)


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """What an answer says, without its text."""

    message: dict[str, Any]
    calls: list[dict[str, Any]]
    block_ids: list[str]
    """The ids of its blocks: of the calls, those that the provider ran itself among them."""
    outcome: AttemptOutcome
    error_type: str | None
    certainty: Certainty


def calls_of(answer: Answer) -> list[tuple[str, str, Any]]:
    """Return the tool calls that an answer makes, whole or as far as it came: id, name and input of each."""
    return [
        (str(c.get("id")), str(c.get("name")), input_of(c)) for c in read_response(answer).calls
    ]


def read_response(answer: Answer) -> ResponseFacts:
    """Return the facts of a response, as far as it arrived."""
    if is_framed(answer.headers):
        message, starts, error, whole, is_counted = _skim(unframed(answer.body))
    elif is_stream(answer.headers):
        message, starts, error, whole, is_counted = _skim(answer.body)
    else:
        message = assemble(answer.headers, answer.body) if answer.chunks else {}
        starts = [
            {**block, "input_bytes": json_bytes(block.get("input"))} for block in blocks(message)
        ]
        error, whole = message.get("error"), answer.ending == "complete"
        is_counted = whole
    calls = [
        {**block, "input_bytes": block["input_bytes"] or json_bytes(block.get("input"))}
        for block in starts
        if block.get("type") == "tool_use"
    ]
    block_ids = [block["id"] for block in starts if isinstance(block.get("id"), str)]
    error_type = (
        error.get("type") if isinstance(error, dict) else _STATUS_ERRORS.get(answer.status or 0)
    )
    outcome = _outcome(answer, bool(error), whole)
    if answer.failure:
        error_type = answer.failure.name
    certainty: Certainty = "exact" if whole and is_counted and not error else "lower_bound"
    return ResponseFacts(message, calls, block_ids, outcome, error_type, certainty)


_STATUS_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
"""What a status means where the client did not read the body, as before a retry (docs.anthropic.com, errors)."""


def _outcome(answer: Answer, has_error: bool, whole: bool) -> AttemptOutcome:
    if answer.status is None:
        return "cancelled" if answer.ending == "cancelled" else "no_answer"
    if answer.status >= 400:
        return "http_error"
    if has_error:
        return "stream_error"
    if answer.ending == "cancelled" and not whole:
        return "cancelled"
    streamed = is_stream(answer.headers) or is_framed(answer.headers)
    if answer.ending in ("cut", "error") or (streamed and not whole):
        return "cut"
    return "ok"


def _skim(body: bytes) -> tuple[dict[str, Any], list[dict[str, Any]], Any, bool, bool]:
    """Read a stream for its facts alone.

    Returns the head of the message with its counts, the starts of its blocks, the error, whether it ended,
    and whether its last counts came before it did.
    """
    message: dict[str, Any] = {}
    starts: dict[str, dict[str, Any]] = {}
    error: Any = None
    whole = is_counted = False
    for data in _told(body):
        if typed := _TYPED.fullmatch(data):
            if opened := starts.get(typed["index"].decode()):
                opened["input_bytes"] += len(_ESCAPE.sub(b"_", typed["partial"]))
                opened["input_parts"].append(typed["partial"])
            continue
        event = _event(data)
        match event.get("type"):
            case "message_start":
                message.update({k: v for k, v in _dict(event, "message").items() if k != "content"})
            case "content_block_start":
                starts[str(event.get("index"))] = {
                    **_dict(event, "content_block"),
                    "input_bytes": 0,
                    "input_parts": [],
                }
            case "content_block_delta" if str(event.get("index")) in starts:
                partial = _dict(event, "delta").get("partial_json")
                opened = starts[str(event["index"])]
                opened["input_bytes"] += json_bytes(partial)
                opened["input_parts"].append(json.dumps(partial or "")[1:-1].encode())
            case "message_delta":
                message.update(_dict(event, "delta"))
                counts = {k: v for k, v in _dict(event, "usage").items() if v is not None}
                message["usage"] = {**_dict(message, "usage"), **counts}
                is_counted = is_counted or "output_tokens" in counts
            case "message_stop":
                whole = True
            case "completion":
                whole = event.get("stop_reason") is not None
            case "error":
                error = event.get("error") or {"type": "error"}
            case _:
                pass
    return message, list(starts.values()), error, whole, is_counted


_TYPED = re.compile(
    rb' ?\{"type":"content_block_delta","index":(?P<index>\d+),"delta":\{"type":"input_json_delta",'
    rb'"partial_json":"(?P<partial>[^"\\]*(?:\\["\\/bfnrt][^"\\]*)*)"\}\s*\}\s*'
)
"""A delta of a call's input as the provider writes it: most events are deltas, and parsing each as JSON costs
more than all else that the recorder does. Any other spelling is parsed."""


_ESCAPE = re.compile(rb"\\.")


def _told(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event but the deltas of text, which say nothing that is a fact."""
    for piece in (b"\n" + body).split(b"\ndata:")[1:]:
        if piece.find(b'"text_delta"', 0, 160) < 0:
            yield piece.partition(b"\n")[0]


def _event(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _dict(value: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key, or an empty one where something else stands there."""
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def json_bytes(value: object) -> int:
    """Return the bytes of some content: its text, or its JSON."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if value is None:
        return 0
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))


def input_of(call: Mapping[str, Any]) -> Any:
    """Return the input of a call as it was response: whole, or in the pieces of a stream.

    Those are as JSON has them inside a string.
    """
    parts = call.get("input_parts")
    if not parts:
        return call.get("input")
    try:
        text = json.loads(b'"' + b"".join(parts) + b'"')
    except ValueError:
        return ""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
