"""Read responses of the Messages API, streamed or not: the reassembled message, and its facts.

`fold` reassembles a message from the events of a stream. The recorder only needs the facts of a stream, so
`read_response` skips events that contain only text, and joins the deltas of a tool input before it parses them.
Format: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from agentobs.provider.anthropic.cloud_frames import is_framed, split_frames, unframe
from agentobs.provider.anthropic.managed_agents import is_agent_event
from agentobs.provider.anthropic.messages import blocks, is_provider_call, is_provider_result
from agentobs.provider.anthropic.server_tools import provider_calls, provider_results
from agentobs.provider.dialect import DeltaShape, ResponseFacts, ToolCall, json_bytes
from agentobs.provider.server_events import is_stream, server_events
from agentobs.records.exchanges import Answer
from agentobs.records.facts import AttemptOutcome
from agentobs.records.usage import Certainty


def fold(message: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """Apply one stream event to `message`, which is changed in place and returned.

    Start with `{}`. Counts of `message_delta` replace those of `message_start`. A tool input is kept as text under
    `partial_json` until its block ends; if the text is not JSON, it remains there.
    """
    match event.get("type"):
        case "message_start":
            message.update(event["message"])
            message["content"] = list(message.get("content") or [])
        case "content_block_start":
            _put(message, event["index"], dict(event["content_block"]))
        case "content_block_delta":
            _grow(_at(message, event["index"]), event["delta"])
        case "content_block_stop":
            _close(_at(message, event["index"]))
        case "message_delta":
            message.update(event.get("delta") or {})
            if event.get("context_management") is not None:
                message["context_management"] = event["context_management"]
            counts = {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
            message["usage"] = {**(message.get("usage") or {}), **counts}
        case _:
            pass
    return message


def assemble(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the message (or other JSON object) of a response body, streamed or not.

    An error event adds `{"error": ...}`. If nothing can be read, the result is an empty dict.
    """
    if is_framed(headers):
        body = unframe(body)
    elif not is_stream(headers):
        parsed = _json_or_none(body.decode("utf-8", "replace"))
        return parsed if isinstance(parsed, dict) else {}
    message: dict[str, Any] = {}
    start = 0
    for run in _TEXT_RUN.finditer(body):
        _add_events(message, body[start : run.start()])
        delta = {"type": "text_delta", "text": _unescaped(_TYPED_TEXT.findall(run[0]))}
        event = {"type": "content_block_delta", "index": int(run["index"]), "delta": delta}
        _try_fold(message, event)
        start = run.end()
    _add_events(message, body[start:])
    return message


def _add_events(message: dict[str, Any], body: bytes) -> None:
    """Apply each event of a stream to a message."""
    for server_event in server_events(body):
        event = _json_or_none(server_event.data)
        if not isinstance(event, dict):
            continue
        if server_event.name == "error" or event.get("type") == "error":
            message["error"] = event.get("error", event)
        else:
            _try_fold(message, event)


_DELTA_NAME = b"content_block_delta"


def first_delta_ns(answer: Answer) -> int | None:
    """Return when the chunk arrived in which the first delta of a content block starts, in nanoseconds after the
    request; None if there is no delta.
    """
    before = b""
    for chunk in answer.chunks:
        searched = before + chunk.data
        if _DELTA_NAME in searched:
            return chunk.after_ns
        before = searched[-len(_DELTA_NAME) + 1 :]
    return None


def assemble_any(body: bytes) -> dict[str, Any]:
    """Return the message of a body without headers: a JSON object, server-sent events, or a framed stream."""
    if body.lstrip()[:1] == b"{":
        return assemble({}, body)
    return assemble(_STREAM, body) or assemble(_STREAM, unframe(body))


_STREAM = {"content-type": "text/event-stream"}


def read_response(answer: Answer) -> ResponseFacts:
    """Return the facts of a response, even if only a part of it arrived."""
    if is_framed(answer.headers):
        stream = _skim(unframe(answer.body))
    elif is_stream(answer.headers):
        stream = _skim(answer.body)
    else:
        message = assemble(answer.headers, answer.body) if answer.chunks else {}
        complete = answer.ending == "complete"
        stream = _Stream(
            message, error=message.get("error"), is_complete=complete, has_final_counts=complete
        )
    message, error = stream.message, stream.error
    error_type = (
        error.get("type") if isinstance(error, dict) else _STATUS_ERRORS.get(answer.status or 0)
    )
    if answer.failure:
        error_type = answer.failure.name
    if stream.is_of_agent:  # such a stream has no last event
        stream.is_complete = answer.ending == "complete"
    is_complete = stream.is_complete or (answer.ending == "cancelled" and stream.has_stopped)
    is_exact = is_complete and stream.has_final_counts and not error
    certainty: Certainty = "exact" if is_exact else "lower_bound"
    usage, content = message.get("usage"), blocks(message)
    has_provider_tools = any(is_provider_call(each) or is_provider_result(each) for each in content)
    is_streamed = is_stream(answer.headers) or is_framed(answer.headers)
    starts = _block_starts(answer, len(content)) if has_provider_tools and is_streamed else []
    return ResponseFacts(
        is_message=message.get("role") == "assistant",
        id=_text(message.get("id")),
        model=_text(message.get("model")),
        stop_reason=_text(message.get("stop_reason")),
        usage=usage if isinstance(usage, dict) else None,
        calls=list(stream.calls()),
        block_ids=[each["id"] for each in content if isinstance(each.get("id"), str)],
        outcome=_outcome(answer, bool(error), is_complete),
        error_type=_text(error_type),
        certainty=certainty,
        cache_miss=_cache_miss(message),
        provider_calls=provider_calls(content, stream.inputs, starts) if has_provider_tools else (),
        provider_results=provider_results(content, usage, starts) if has_provider_tools else (),
    )


_BLOCK_START = re.compile(rb'"type"\s*:\s*"content_block_start"')
"""Matches the type of an event that starts a block. Inside of a JSON string, the quotes would be escaped."""


def _block_starts(answer: Answer, blocks: int) -> list[int]:
    """Return when each block of a streamed response started, in nanoseconds after the request.

    This is the arrival of the chunk that contains the start of the block. The list is empty if the number of starts is
    not the number of blocks.
    """
    ends = list(accumulate(len(chunk.data) for chunk in answer.chunks))
    offsets = list(
        _framed_starts(answer.body) if is_framed(answer.headers) else _starts(answer.body)
    )
    if len(offsets) != blocks:
        return []
    return [answer.chunks[bisect_right(ends, offset)].after_ns for offset in offsets]


def _starts(body: bytes) -> Iterator[int]:
    return (found.start() for found in _BLOCK_START.finditer(body))


def _framed_starts(body: bytes) -> Iterator[int]:
    at = 0
    for frame in split_frames(body):
        if _BLOCK_START.search(unframe(frame)):
            yield at + len(frame) - 1  # a frame can only be read when it is complete
        at += len(frame)


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
"""Error types by status, used if the client did not read the body, for example before a retry (docs.anthropic.com,
errors).
"""


def _outcome(answer: Answer, has_error: bool, is_complete: bool) -> AttemptOutcome:
    if answer.status is None:
        return "cancelled" if answer.ending == "cancelled" else "no_response"
    if answer.status >= 400:
        return "http_error"
    if has_error:
        return "stream_error"
    if answer.ending == "cancelled" and not is_complete:
        return "cancelled"
    streamed = is_stream(answer.headers) or is_framed(answer.headers)
    if answer.ending in ("cut", "error") or (streamed and not is_complete):
        return "cut"
    return "ok"


def _cache_miss(message: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the provider's reason for a cache miss, and the number of missed tokens."""
    diagnostics = message.get("diagnostics")
    reason = diagnostics.get("cache_miss_reason") if isinstance(diagnostics, dict) else None
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        return None, None
    missed = reason.get("cache_missed_input_tokens")
    is_count = isinstance(missed, int) and not isinstance(missed, bool) and 0 <= missed <= 10**12
    return reason["type"] or None, missed if is_count else None


@dataclass(slots=True)
class _Stream:
    """The facts of a streamed response, without its texts."""

    message: dict[str, Any] = field(default_factory=dict)
    error: Any = None
    is_complete: bool = False
    """Whether the response was complete."""
    has_final_counts: bool = False
    """Whether the final counts arrived."""
    is_of_agent: bool = False
    """Whether the events are those of a managed agent."""
    inputs: dict[int, list[str]] = field(default_factory=dict)
    """The deltas of the inputs of tool calls, by the index of their block."""

    @property
    def has_stopped(self) -> bool:
        """Whether everything except the last event has arrived.

        A client may stop to read here, because the last event contains nothing (litellm 1.110, through aiohttp).
        """
        return self.has_final_counts and self.message.get("stop_reason") is not None

    def add(self, event: dict[str, Any]) -> None:
        """Add one event of a stream."""
        match event.get("type"):
            case "message_stop":
                self.is_complete = True
            case "completion":
                self.is_complete = event.get("stop_reason") is not None
            case "error":
                self.error = event.get("error") or {"type": "error"}
            case "content_block_delta" if isinstance(partial := _partial(event), str):
                self.inputs.setdefault(event["index"], []).append(partial)
            case "content_block_delta" | "content_block_stop":
                pass  # texts and the ends of blocks contain no facts
            case _ if is_agent_event(event):
                self.is_of_agent = True
            case kind:
                _try_fold(self.message, event)
                if kind == "message_delta":
                    counts = event.get("usage")
                    is_count = isinstance(counts, dict) and counts.get("output_tokens") is not None
                    self.has_final_counts = self.has_final_counts or is_count

    def calls(self) -> Iterator[ToolCall]:
        """Yield the tool calls that the client must run."""
        for index, block in enumerate(blocks(self.message)):
            if block.get("type") == "tool_use":
                text = "".join(deltas) if (deltas := self.inputs.get(index)) else None
                value = block.get("input") if text is None else _parsed(text)
                size = json_bytes(text) or json_bytes(block.get("input"))
                yield ToolCall(str(block.get("id")), str(block.get("name")), value, size)


def _partial(event: Mapping[str, Any]) -> object:
    delta = event.get("delta")
    is_placed = isinstance(event.get("index"), int)
    return delta.get("partial_json") if isinstance(delta, dict) and is_placed else None


def _skim(body: bytes) -> _Stream:
    """Read only the facts of a stream."""
    stream = _Stream()
    for index, data in _joined(_fact_events(body)):
        if index is not None:
            stream.inputs.setdefault(index, []).append(data)
        elif isinstance(event := _json_or_none(data), dict):
            stream.add(event)
    return stream


def _joined(events: Iterable[bytes]) -> Iterator[tuple[int | None, Any]]:
    """Yield consecutive deltas of one tool input as the index of its block and their text, and each other event as None
    and its bytes.
    """
    index, texts = b"", list[bytes]()
    for event in events:
        delta = _TYPED_INPUT.fullmatch(event)
        if texts and (delta is None or delta["index"] != index):
            yield int(index), _unescaped(texts)
            texts.clear()
        if delta is None:
            yield None, event
        else:
            index = delta["index"]
            texts.append(delta["text"])
    if texts:
        yield int(index), _unescaped(texts)


def _unescaped(texts: Sequence[bytes]) -> str:
    text = b"".join(texts).decode("utf-8", "replace")
    unescaped: str = json.loads(f'"{text}"', strict=False)
    return unescaped


_TYPED_INPUT = re.compile(
    rb' ?\{"type":"content_block_delta","index":(?P<index>\d{1,9}),"delta":\{"type":"input_json_delta",'
    rb'"partial_json":"(?P<text>[^"\\]*(?:\\["\\/bfnrt][^"\\]*)*)"\}\s*\}\s*'
)
"""Matches a delta of a tool input in the provider's usual formatting. Most events are deltas, and parsing each of them
as JSON would take longer than everything else that the recorder does. A delta in other formatting is parsed.
"""

_TYPED_TEXT = re.compile(
    rb'"text_delta","text":"([^"\\\x00-\x1f]*(?:\\["\\/bfnrt][^"\\\x00-\x1f]*)*)"\} *\} *\n\n'
)
"""Matches the end of the event of a text delta in the same formatting; group 1 is the text. Deltas with other escapes
are parsed, because a surrogate pair may be split between two of them.
"""
_TEXT_EVENT = (
    rb'event: content_block_delta\ndata: ?\{"type":"content_block_delta","index":%b,"delta":\{"type":'
    + _TYPED_TEXT.pattern.replace(b"(", b"(?:", 1)
)
_TEXT_RUN = re.compile(
    rb"(?:\A|(?<=\n\n))"
    + _TEXT_EVENT % rb"(?P<index>\d{1,9})"
    + rb"(?:%b)*+" % (_TEXT_EVENT % rb"(?P=index)")
)
"""Matches consecutive events with text deltas of one block."""


_STRING = rb'"([^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+)"'
_FIELD = rb'"(?:text|thinking|partial_json|content)"\s*:\s*' + _STRING
DELTA_SHAPE = DeltaShape(
    marker=b'_delta"',
    text=re.compile(rb'_delta"\s*,\s*' + _FIELD),
    field=re.compile(_FIELD),
    index=re.compile(rb'"index"\s*:\s*(\d{1,9})'),
    other_markers=(b'"content_block_delta"', b'"message_delta"', b'"signature_delta"'),
)
"""The form of text deltas. Parsing each delta as JSON would take longer than everything else that the recorder does."""

_DELTA = (
    '"}}\n\nevent: content_block_delta\ndata: '
    '{"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":"'
)
DELTA_PHRASES = tuple(
    json.dumps(_DELTA % (index, kind, key))[1:-1].encode()
    for kind, key in (("text_delta", "text"), ("input_json_delta", "partial_json"))
    for index in (0, 1, 2)
)
"""The bytes between two deltas of a stream, escaped as in a JSON string. The format of compressed journals depends on
them, so they must never change.
"""


def _fact_events(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event, except text deltas, which contain no facts."""
    for event in (b"\n" + body).split(b"\ndata:")[1:]:
        if event.find(b'"text_delta"', 0, 160) < 0:
            yield event.partition(b"\n")[0]


def _try_fold(message: dict[str, Any], event: dict[str, Any]) -> None:
    try:
        fold(message, event)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return


def _parsed(text: str) -> Any:
    """Return the input of a call; its text if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _json_or_none(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _put(message: dict[str, Any], index: int, block: dict[str, Any]) -> None:
    content = message.setdefault("content", [])
    if index != len(content):
        raise IndexError(f"content block {index} after {len(content)} blocks")
    content.append(block)


def _at(message: dict[str, Any], index: int) -> dict[str, Any]:
    block: dict[str, Any] = message["content"][index]
    return block


_TEXT_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "compaction_delta": "content"}


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kind = delta.get("type")
    if kind in _TEXT_DELTAS:
        field = _TEXT_DELTAS[kind]
        block[field] = (block.get(field) or "") + (delta.get(field) or "")
    elif kind == "signature_delta":
        block["signature"] = delta["signature"]
    elif kind == "input_json_delta":
        block["partial_json"] = block.get("partial_json", "") + delta["partial_json"]
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta["citation"]]
    else:
        block.setdefault("unknown_deltas", []).append(delta)


def _close(block: dict[str, Any]) -> None:
    text = block.get("partial_json")
    if text is None:
        return
    parsed = _json_or_none(text) if text else block.get("input", {})
    if parsed is not None:
        block["input"] = parsed
        del block["partial_json"]
