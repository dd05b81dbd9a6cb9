"""Responses of the Converse API, complete or as a stream of events: read, and written for scripts and tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentobs.provider.anthropic.cloud_frames import framed, frames, is_framed
from agentobs.provider.bedrock.messages import turn
from agentobs.provider.dialect import Block, Draft, Message, ResponseFacts, ToolCall, json_bytes
from agentobs.records.exchanges import Answer
from agentobs.records.facts import AttemptOutcome


def assemble(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the object of a response body, streamed or not. An error is at `error`."""
    if is_framed(headers) or (not headers and body.lstrip()[:1] != b"{"):
        return _folded(body)
    value = _json_or_none(body)
    if not isinstance(value, dict):
        return {}
    kind = headers.get("x-amzn-errortype") or value.get("__type")
    if "output" not in value and (kind or "message" in value):
        return {**value, "error": _error_name(str(kind or "error"))}
    return value


def _error_name(kind: str) -> str:
    """Return the name in an error type, which may have a prefix or a suffix: `aws#Name`, `Name:http://...`."""
    return kind.partition(":")[0].rpartition("#")[2]


def _folded(body: bytes) -> dict[str, Any]:
    """Return the object that the readable events of a stream add up to."""
    value: dict[str, Any] = {}
    content: list[dict[str, Any]] = []
    for headers, payload in frames(body):
        failed = headers.get(":exception-type") or headers.get(":error-code")
        event = _json_or_none(payload)
        if failed:
            value["error"] = failed
        elif isinstance(event, dict):
            _fold(value, content, headers.get(":event-type", ""), event)
    for block in content:
        if isinstance(text := block.get("toolUse", {}).get("partialInput"), str):
            parsed = _json_or_none(text.encode()) if text else {}
            if parsed is not None:
                del block["toolUse"]["partialInput"]
                block["toolUse"]["input"] = parsed
    return value


def _fold(
    value: dict[str, Any], content: list[dict[str, Any]], kind: str, event: dict[str, Any]
) -> None:
    match kind:
        case "messageStart":
            message = {"role": event.get("role"), "content": content}
            value["output"] = {"message": message}
        case "contentBlockStart":
            start = event.get("start")
            block = _at(content, event)
            if isinstance(start, dict) and isinstance(call := start.get("toolUse"), dict):
                block["toolUse"] = {**call, "partialInput": ""}
            elif isinstance(start, dict):
                block |= start
        case "contentBlockDelta":
            delta = event.get("delta")
            if isinstance(delta, dict):
                _grow(_at(content, event), delta)
        case "messageStop":
            value["stopReason"] = event.get("stopReason")
        case "metadata":
            value |= {k: v for k, v in event.items() if k in ("usage", "metrics", "serviceTier")}
        case _:
            pass


def _at(content: list[dict[str, Any]], event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block of an event; a text block has no start event."""
    index = event.get("contentBlockIndex")
    if not isinstance(index, int) or index >= len(content):
        content.append({})
        return content[-1]
    return content[index]


def _grow(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for kind, part in delta.items():
        if kind == "text":
            block["text"] = block.get("text", "") + str(part)
        elif kind == "toolUse" and isinstance(part, dict):
            call = block.setdefault("toolUse", {})
            call["partialInput"] = call.get("partialInput", "") + str(part.get("input", ""))
        elif kind == "reasoningContent" and isinstance(part, dict):
            reasoning = block.setdefault("reasoningContent", {})
            if "redactedContent" in part:
                reasoning["redactedContent"] = part["redactedContent"]
                continue
            texts = reasoning.setdefault("reasoningText", {"text": ""})
            texts["text"] += str(part.get("text", ""))
            if "signature" in part:
                texts["signature"] = part["signature"]
        else:
            block.setdefault("unknownDeltas", []).append({kind: part})


def message(value: Mapping[str, Any]) -> Message:
    """Return a response that is already parsed JSON."""
    output = value.get("output")
    found = output.get("message") if isinstance(output, dict) else None
    sent = found if isinstance(found, dict) else {}
    read, usage, error = turn(sent), value.get("usage"), value.get("error")
    stop = value.get("stopReason")
    return Message(
        role=read.role,
        blocks=read.blocks,
        raw=sent or value,
        stop_reason=stop if isinstance(stop, str) else None,
        error=str(error) if error else None,
        usage=_with_tier(usage, value) if isinstance(usage, dict) else None,
    )


def _with_tier(usage: dict[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    tier = value.get("serviceTier")
    return {**usage, "serviceTier": tier.get("type")} if isinstance(tier, dict) else usage


def facts(answer: Answer) -> ResponseFacts:
    """Return the facts of a response, even if only a part of it arrived."""
    read = message(assemble(answer.headers, answer.body)) if answer.chunks else Message("other", ())
    is_complete = read.usage is not None and read.stop_reason is not None and not read.error
    if not is_framed(answer.headers):
        is_complete = is_complete and answer.ending == "complete"
    error = answer.failure.name if answer.failure else read.error
    if error is None and answer.status is not None and answer.status >= 400:
        error = _error_name(answer.headers.get("x-amzn-errortype", "")) or None
    calls = [
        ToolCall(str(call.id), call.name, call.value, json_bytes(call.value)) for call in read.calls
    ]
    return ResponseFacts(
        is_message=read.role == "assistant",
        id=None,
        model=None,
        stop_reason=read.stop_reason,
        usage=read.usage,
        calls=calls,
        block_ids=[call.id for call in calls],
        outcome=_outcome(answer, bool(read.error), is_complete),
        error_type=error,
        certainty="exact" if is_complete else "lower_bound",
    )


def _outcome(answer: Answer, has_error: bool, is_complete: bool) -> AttemptOutcome:
    if answer.status is None:
        return "cancelled" if answer.ending == "cancelled" else "no_response"
    if answer.status >= 400:
        return "http_error"
    if has_error:
        return "stream_error"
    if is_complete:
        return "ok"
    if answer.ending == "cancelled":
        return "cancelled"
    is_whole = answer.ending == "complete" and not is_framed(answer.headers)
    return "ok" if is_whole else "cut"


def written(draft: Draft) -> dict[str, Any]:
    """Return a response as an object."""
    stop = draft.stop_reason
    if stop is None and not draft.is_logged:
        stop = "tool_use" if any(block.kind == "call" for block in draft.blocks) else "end_turn"
    tokens = draft.tokens
    usage: dict[str, Any] = {"inputTokens": tokens.input, "outputTokens": tokens.output}
    if tokens.has_cache:
        usage["cacheReadInputTokens"] = tokens.cache_read
        usage["cacheWriteInputTokens"] = tokens.cache_write_5m + tokens.cache_write_1h
    usage["totalTokens"] = sum(usage.values())
    content = [written_block(block) for block in draft.blocks]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop,
        "usage": draft.usage if draft.is_logged else usage,
        "metrics": {"latencyMs": 0},
    }


def written_block(block: Block) -> Mapping[str, Any]:
    """Return a block in the form of the API."""
    if block.raw:
        return block.raw
    if block.kind == "call":
        return {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.value}}
    return {"text": block.text}


def events(draft: Draft, deltas: int) -> Iterator[bytes]:
    """Yield the frames of a streamed response, with each text split into `deltas` parts."""
    return events_of(written(draft), deltas)


def events_of(value: Mapping[str, Any], deltas: int) -> Iterator[bytes]:
    """Yield the frames of a response that is an object, up to the last one whose content is known."""
    message = value.get("output", {}).get("message", {})
    yield _event("messageStart", {"role": message.get("role", "assistant")})
    for index, block in enumerate(message.get("content", [])):
        at = {"contentBlockIndex": index}
        if call := block.get("toolUse"):
            start = {
                key: inner for key, inner in call.items() if key not in ("input", "partialInput")
            }
            yield _event("contentBlockStart", {"start": {"toolUse": start}, **at})
            text = call.get("partialInput", json.dumps(call.get("input")))
            parts: Sequence[dict[str, Any]] = [{"toolUse": {"input": text}}]
        elif reasoning := block.get("reasoningContent"):
            texts = reasoning.get("reasoningText", reasoning)
            parts = [{"reasoningContent": {key: inner}} for key, inner in texts.items()]
        else:
            parts = [{"text": part} for part in _parts(str(block.get("text", "")), deltas)]
        for part in parts:
            yield _event("contentBlockDelta", {"delta": part, **at})
        yield _event("contentBlockStop", at)
    if value.get("stopReason") is not None:
        yield _event("messageStop", {"stopReason": value["stopReason"]})
    if value.get("usage") is not None:
        kept = ("usage", "metrics", "serviceTier")
        yield _event("metadata", {key: value[key] for key in kept if key in value})


def _event(kind: str, value: Mapping[str, Any]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return framed(headers, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _parts(text: str, count: int) -> Iterator[str]:
    ends = [len(text) * part // count for part in range(count + 1)]
    for start, end in pairwise(ends):
        if start < end or not text:
            yield text[start:end]


def _json_or_none(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
