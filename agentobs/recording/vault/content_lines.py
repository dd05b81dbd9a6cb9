"""Content lines: what was said, as the content files of segments hold it, redacted.

Most functions return the payload of one line. `content_id` is a digest over what was written and what it
belongs to, and the facts name it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentobs.determinism.callers import digests
from agentobs.determinism.jobs import Job
from agentobs.determinism.values import is_not_kept
from agentobs.recording.vault.body_deltas import Body
from agentobs.recording.vault.stream_secrets import find_in_answer
from agentobs.records.canonical_json import canonical
from agentobs.records.exchanges import (
    Chunk,
    ModelExchange,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
)
from agentobs.redaction import FAILED, FAILED_KIND, Finding, Redactor, apply


def bare(exchange: ModelExchange, redactor: Redactor) -> ModelExchange:
    """Return an exchange whose kept headers hold no secret: content lines and facts alike are made of them, and whoever
    asks or answers may put anything into them.
    """
    question, answer = exchange.question, exchange.answer
    asked = _bare(question.headers, exchange.secrets, redactor)
    answered = _bare(answer.headers, exchange.secrets, redactor)
    if asked is question.headers and answered is answer.headers:
        return exchange
    return replace(
        exchange,
        question=replace(question, headers=asked),
        answer=replace(answer, headers=answered),
    )


def _bare(headers: dict[str, str], secrets: Sequence[bytes], redactor: Redactor) -> dict[str, str]:
    # Nearly always there is nothing to be found, and one look at all of them says so; a rule may want a whole text.
    values = "\n".join(headers.values())
    if not redactor.rules and redactor.redact_text(values, secrets) == values:
        return headers
    return {name: redactor.redact_text(value, secrets) for name, value in headers.items()}


def request_head(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return what a request says besides its body, redacted."""
    return {
        "method": exchange.question.method,
        "path": redactor.redact_text(exchange.question.path, exchange.secrets),
        "headers": exchange.question.headers,
    }


def request_content(exchange: ModelExchange, body: Body, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a request: its difference from an earlier one, and what was redacted."""
    return {
        "content_id": body.content_id,
        "session_id": exchange.place.session_id,
        **request_head(exchange, redactor),
        "base": body.base,
        "prefix": body.prefix,
        "suffix": body.suffix,
        **text_of(body.insert),
        "redactions": _notes(body.redactions),
    }


def response_content(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a response: its bytes, redacted, and how they arrived."""
    answer = exchange.answer
    raw = answer.body
    findings = find_in_answer(raw, exchange.secrets, redactor)
    written = apply(raw, findings)
    failure = answer.failure
    return {
        "content_id": redactor.digest(exchange.attempt_id.encode() + written),
        "session_id": exchange.place.session_id,
        "status": answer.status,
        "headers": answer.headers,
        **text_of(written),
        "chunks": chunk_sizes(answer.chunks, findings),
        "ending": answer.ending,
        "failure": [
            redactor.redact_text(each, exchange.secrets) for each in (failure.name, failure.message)
        ]
        if failure
        else None,
        "redactions": _notes(findings),
        **_origin(exchange, redactor),
    }


def _origin(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return who asked, which is content: a digest of what a function was given can be guessed."""
    origin = exchange.question.origin
    if origin is None:
        return {}
    by = digests(origin, redactor, exchange.secrets)
    return {
        **({"by": list(by)} if by else {}),
        **({"before": origin.before} if origin.before else {}),
        **_job(origin.job),
    }


def _job(job: Job | None) -> dict[str, Any]:
    """Return the task, work item or thread that made a request, which is told by digests of names and by numbers."""
    if job is None:
        return {}
    return {"job": [list(each) for each in job.path], **({"worker": True} if job.is_worker else {})}


def jobs_content(session_id: str, ended: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the content line of the jobs of a session that were over before it: number and nanoseconds since 1970."""
    return {"content_id": jobs_id(session_id), "session_id": session_id, "ended": ended}


def jobs_id(session_id: str) -> str:
    """Return the content id of that line."""
    return f"jobs:{session_id}"


def start_content(call: SessionCall, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a session's start: name, entry, tags and arguments as given, redacted."""
    start = call.start
    given = {
        "name": start.name,
        "entry": start.entry,
        "tags": dict(start.tags),
        "arguments": redactor.redact_named(call.arguments),
        **({"given": dict(call.given)} if call.given else {}),
        **({"obstacle": dict(call.obstacle)} if call.obstacle else {}),
    }
    written, findings = _redacted(given, redactor)
    return {
        "content_id": redactor.digest(start.session_id.encode() + written),
        "session_id": start.session_id,
        **text_of(written),
        "redactions": _notes(findings),
    }


def end_content(
    returned: SessionReturn,
    redactor: Redactor,
    secrets: Sequence[bytes] = (),
    started: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content line of a session's end: why it failed and what it returned, redacted.

    Args:
        returned: the end.
        redactor: finds secrets.
        secrets: the credentials of the session's requests.
        started: the name, tags and arguments of the session, if its start line was written with one of these in it.
    """
    end, result = returned.end, returned.result
    told = {
        **({"started": dict(started)} if started is not None else {}),
        **({"reason": end.reason} if end.reason is not None else {}),
        **({"result": result.value, "type": result.type} if result is not None else {}),
        **({"raised": returned.raised} if returned.raised is not None else {}),
    }
    written, findings = _redacted(told, redactor, secrets)
    return {
        "content_id": redactor.digest(f"{end.session_id} end ".encode() + written),
        "session_id": end.session_id,
        **text_of(written),
        "redactions": _notes(findings),
    }


def started_with(written: bytes, redactor: Redactor, secrets: Sequence[bytes]) -> Any:
    """Return the name, tags and arguments in what was written at the start of a session, without its credentials; None
    if they hold none.
    """
    clean = redactor.redact(written, secrets)
    if not secrets or clean in (written, FAILED):
        return None
    told = json.loads(clean)
    return {key: told[key] for key in ("name", "tags", "arguments") if key in told}


def result_digest(
    returned: SessionReturn, redactor: Redactor, secrets: Sequence[bytes] = ()
) -> str | None:
    """Return a keyed digest of what a session returned, equal for equal values; None if nothing was kept of it."""
    result = returned.result
    if result is None or is_not_kept(result.value):
        return None
    written = redactor.redact_text(canonical(result.value), secrets)
    return redactor.digest(b"result " + written.encode("utf-8", "surrogatepass"))


def tool_content(exchange: ToolExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a tool call: input and result as one JSON text, redacted; with what the model
    asked, where hooks changed that, and what the tool got, where types were changed to fit.
    """
    told = {
        "input": exchange.question.input,
        "result": exchange.answer.content,
        **({"asked": exchange.asked} if exchange.asked is not None else {}),
        **({"ran": _as_json(exchange.ran)} if _is_other(exchange) else {}),
    }
    written, findings = _redacted(told, redactor)
    # Agents beside each other may have calls of one id and with one result.
    call = f"{exchange.place.lane} {exchange.place.turn} {exchange.question.tool_use_id}"
    return {
        "content_id": redactor.digest(call.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "tool_use_id": exchange.question.tool_use_id,
        "name": redactor.redact_text(exchange.question.name),
        **text_of(written),
        "is_error": exchange.answer.is_error,
        "outcome": exchange.answer.outcome,
        "lane": exchange.place.lane,
        "turn": exchange.place.turn,
        **({"followed_by": list(exchange.followed_by)} if exchange.followed_by else {}),
        **({"function": True} if exchange.is_function else {}),
        "redactions": _notes(findings),
    }


def world_content(exchange: WorldExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a question to the world: question and answer as one JSON text, redacted."""
    question = exchange.question
    written, findings = _redacted({"asked": question.asked, "answer": exchange.answer}, redactor)
    named = f"{exchange.place.lane} {question.kind} {question.key} {exchange.started_ns} "
    return {
        "content_id": redactor.digest(named.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "kind": question.kind,
        "key": redactor.redact_text(question.key),
        **text_of(written),
        "redactions": _notes(findings),
    }


def _redacted(
    value: dict[str, Any], redactor: Redactor, secrets: Sequence[bytes] = ()
) -> tuple[bytes, list[Finding]]:
    """Return a value as JSON without secrets; where it cannot be looked through, each of its fields is closed."""
    text = json.dumps(value, ensure_ascii=False, default=repr).encode("utf-8", "surrogatepass")
    findings = redactor.find(text, known=secrets)
    if any(each.kind == FAILED_KIND for each in findings):
        return json.dumps(dict.fromkeys(value, FAILED.decode())).encode(), findings
    return apply(text, findings), findings


def _is_other(exchange: ToolExchange) -> bool:
    return exchange.ran is not None and exchange.ran is not exchange.question.input


def _as_json(value: Any) -> Any:
    """Return what a tool got as JSON can hold it: it is whatever the tool's own types make of the input."""
    try:
        return json.loads(json.dumps(value, default=repr))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def chunk_sizes(chunks: Sequence[Chunk], findings: Sequence[Finding]) -> list[list[int]]:
    """Return [bytes, nanoseconds after the request] of each chunk, as they stand after redaction.

    What takes the place of a secret belongs to the chunk in which the secret begins.
    """
    sizes: list[list[int]] = []
    waiting = list(reversed(findings))
    at = gone = 0
    for chunk in chunks:
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


def text_of(data: bytes) -> dict[str, str]:
    """Return some bytes as a content line holds them: as text where they are UTF-8."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
