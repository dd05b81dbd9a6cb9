"""Content lines: what was said, as the content files of segments hold it, redacted.

Each function returns the payload of one line. `content_id` is a digest over what was written and what it
belongs to, and the facts name it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from agentobs.recording.bodies import Body
from agentobs.recording.streams import find_in_stream
from agentobs.records.canonical import digest
from agentobs.records.exchanges import (
    Answer,
    ModelExchange,
    SessionCall,
    ToolExchange,
    WorldExchange,
)
from agentobs.redaction import Finding, apply, disjoint, find, redact, redact_named


def request_head(exchange: ModelExchange) -> dict[str, Any]:
    """Return what a request says besides its body, redacted."""
    return {
        "method": exchange.question.method,
        "path": redact(exchange.question.path.encode(), exchange.secrets).decode(),
        "headers": exchange.question.headers,
    }


def request_content(exchange: ModelExchange, body: Body) -> dict[str, Any]:
    """Return the content line of a request: its difference from an earlier one, and what was redacted."""
    return {
        "content_id": body.content_id,
        "session_id": exchange.place.session_id,
        **request_head(exchange),
        "base": body.base,
        "prefix": body.prefix,
        "suffix": body.suffix,
        **_text(body.insert),
        "redactions": _notes(body.redactions),
    }


def response_content(exchange: ModelExchange) -> dict[str, Any]:
    """Return the content line of a response: its bytes, redacted, and how they arrived."""
    answer = exchange.answer
    raw = answer.body
    # What is found in pieces goes first: of two findings in one place it knows better what to write.
    pieces = find_in_stream(raw, exchange.secrets)
    findings = disjoint(pieces + find(raw, known=exchange.secrets))
    written = apply(raw, findings)
    failure = answer.failure
    return {
        "content_id": digest(exchange.attempt_id.encode() + written),
        "session_id": exchange.place.session_id,
        "status": answer.status,
        "headers": answer.headers,
        **_text(written),
        "chunks": _chunks(answer, findings),
        "ending": answer.ending,
        "failure": [failure.name, redact(failure.message.encode(), exchange.secrets).decode()]
        if failure
        else None,
        "redactions": _notes(findings),
    }


def start_content(call: SessionCall) -> dict[str, Any]:
    """Return the content line of a session's start: name, entry, tags and arguments as given, redacted."""
    start = call.start
    given = {
        "name": start.name,
        "entry": start.entry,
        "tags": dict(start.tags),
        "arguments": redact_named(call.arguments),
    }
    text = json.dumps(given, ensure_ascii=False).encode("utf-8", "surrogatepass")
    findings = find(text)
    written = apply(text, findings)
    return {
        "content_id": digest(start.session_id.encode() + written),
        "session_id": start.session_id,
        **_text(written),
        "redactions": _notes(findings),
    }


def tool_content(exchange: ToolExchange) -> dict[str, Any]:
    """Return the content line of a tool call: input and result as one JSON text, redacted."""
    text = json.dumps(
        {"input": exchange.question.input, "result": exchange.answer.content},
        ensure_ascii=False,
        default=repr,
    ).encode("utf-8", "surrogatepass")
    findings = find(text)
    written = apply(text, findings)
    # Agents beside each other may have calls of one id and with one result.
    call = f"{exchange.place.lane} {exchange.place.turn} {exchange.question.tool_use_id}"
    return {
        "content_id": digest(call.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "tool_use_id": exchange.question.tool_use_id,
        "name": exchange.question.name,
        **_text(written),
        "is_error": exchange.answer.is_error,
        "outcome": exchange.answer.outcome,
        "lane": exchange.place.lane,
        "turn": exchange.place.turn,
        **({"followed_by": list(exchange.followed_by)} if exchange.followed_by else {}),
        "redactions": _notes(findings),
    }


def world_content(exchange: WorldExchange) -> dict[str, Any]:
    """Return the content line of a question to the world: question and answer as one JSON text, redacted."""
    question = exchange.question
    text = json.dumps(
        {"asked": question.asked, "answer": exchange.answer}, ensure_ascii=False, default=repr
    ).encode("utf-8", "surrogatepass")
    findings = find(text)
    written = apply(text, findings)
    named = f"{exchange.place.lane} {question.kind} {question.key} {exchange.started_ns} "
    return {
        "content_id": digest(named.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "kind": question.kind,
        "key": redact(question.key.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        ),
        **_text(written),
        "redactions": _notes(findings),
    }


def _chunks(answer: Answer, findings: Sequence[Finding]) -> list[list[int]]:
    """Return [bytes, nanoseconds after the request] of each chunk, as they stand after redaction.

    What takes the place of a secret belongs to the chunk in which the secret begins.
    """
    sizes: list[list[int]] = []
    waiting = list(reversed(findings))
    at = gone = 0
    for chunk in answer.chunks:
        end = at + len(chunk.data)
        size = end - max(at, min(gone, end))
        while waiting and waiting[-1].start < end:
            finding = waiting.pop()
            gone = finding.end
            size += len(finding.written) - (min(gone, end) - finding.start)
        sizes.append([size, chunk.after_ns])
        at = end
    return sizes


def _notes(findings: Sequence[Finding]) -> list[list[Any]]:
    return [[f.kind, f.start, f.end - f.start] for f in findings]


def _text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
