"""Content lines: the redacted content of records, as it is written to the content files of segments.

Most functions return the payload of one line. `content_id` is a digest of the payload and of the record that it
belongs to; facts refer to it.
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
    """Return an exchange without secrets in its kept headers. Content lines and facts are both made from these headers,
    and clients and servers may put anything into them.
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
    # There are hardly ever secrets to find, and one search over all headers shows that; a rule may need the whole text.
    values = "\n".join(headers.values())
    if not redactor.rules and redactor.redact_text(values, secrets) == values:
        return headers
    return {name: redactor.redact_text(value, secrets) for name, value in headers.items()}


def request_head(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the parts of a request other than its body, redacted."""
    return {
        "method": exchange.question.method,
        "path": redactor.redact_text(exchange.question.path, exchange.secrets),
        "headers": exchange.question.headers,
    }


def request_content(exchange: ModelExchange, body: Body, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a request: its difference from an earlier one, and the redacted secrets."""
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
    """Return the content line of a response: its bytes, redacted, and when they arrived."""
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
    """Return the caller of a request, which is content: a digest of an argument can be guessed."""
    origin = exchange.question.origin
    if origin is None:
        return {}
    caller = digests(origin, redactor, exchange.secrets)
    return {
        **({"caller": list(caller)} if caller else {}),
        **({"task_previous": origin.task_previous} if origin.task_previous else {}),
        **_job(origin.job),
    }


def _job(job: Job | None) -> dict[str, Any]:
    """Return the task, work item or thread that made a request, as digests of names and as numbers."""
    if job is None:
        return {}
    return {
        "job": [list(each) for each in job.path],
        **({"is_worker": True} if job.is_worker else {}),
    }


def jobs_content(session_id: str, ended: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the content line of the jobs of a session that ended before it: number and nanoseconds since 1970."""
    return {"content_id": jobs_id(session_id), "session_id": session_id, "ended": ended}


def jobs_id(session_id: str) -> str:
    """Return the content ID of that line."""
    return f"jobs:{session_id}"


def start_content(call: SessionCall, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a session's start: name, entry point, tags and arguments, redacted."""
    start = call.start
    given = {
        "name": start.name,
        "entry": start.entry,
        "tags": dict(start.tags),
        "arguments": redactor.redact_named(call.arguments),
        **({"ambient": dict(call.ambient)} if call.ambient else {}),
        **({"entry_obstacle": dict(call.entry_obstacle)} if call.entry_obstacle else {}),
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
    """Return the content line of a session's end: why it failed and its result, redacted.

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
        **({"exception": returned.exception} if returned.exception is not None else {}),
    }
    written, findings = _redacted(told, redactor, secrets)
    return {
        "content_id": redactor.digest(f"{end.session_id} end ".encode() + written),
        "session_id": end.session_id,
        **text_of(written),
        "redactions": _notes(findings),
    }


def started_with(written: bytes, redactor: Redactor, secrets: Sequence[bytes]) -> Any:
    """Return the name, tags and arguments from the start line of a session, without its credentials; None
    if they contain none.
    """
    clean = redactor.redact(written, secrets)
    if not secrets or clean in (written, FAILED):
        return None
    told = json.loads(clean)
    return {key: told[key] for key in ("name", "tags", "arguments") if key in told}


def result_digest(
    returned: SessionReturn, redactor: Redactor, secrets: Sequence[bytes] = ()
) -> str | None:
    """Return a keyed digest of the result of a session, equal for equal values; None if the result was not kept."""
    result = returned.result
    if result is None or is_not_kept(result.value):
        return None
    written = redactor.redact_text(canonical(result.value), secrets)
    return redactor.digest(b"result " + written.encode("utf-8", "surrogatepass"))


def tool_content(exchange: ToolExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a tool call: input and result as one JSON text, redacted. It also contains the input
    that the model sent, if hooks changed it, and the input that the tool received, if types were converted.
    """
    told = {
        "input": exchange.question.input,
        "result": exchange.answer.content,
        **(
            {"requested_input": exchange.requested_input}
            if exchange.requested_input is not None
            else {}
        ),
        **({"executed_input": _as_json(exchange.executed_input)} if _is_other(exchange) else {}),
    }
    written, findings = _redacted(told, redactor)
    # Concurrent agents may have calls with the same ID and the same result.
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
        **({"inspected_by": list(exchange.inspected_by)} if exchange.inspected_by else {}),
        **({"is_function": True} if exchange.is_function else {}),
        "redactions": _notes(findings),
    }


def world_content(exchange: WorldExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a question to the world: question and answer as one JSON text, redacted."""
    question = exchange.question
    written, findings = _redacted({"question": question.asked, "answer": exchange.answer}, redactor)
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
    """Return a value as JSON without secrets; if it cannot be searched, each of its fields is replaced."""
    text = json.dumps(value, ensure_ascii=False, default=repr).encode("utf-8", "surrogatepass")
    findings = redactor.find(text, known=secrets)
    if any(each.kind == FAILED_KIND for each in findings):
        return json.dumps(dict.fromkeys(value, FAILED.decode())).encode(), findings
    return apply(text, findings), findings


def _is_other(exchange: ToolExchange) -> bool:
    return (
        exchange.executed_input is not None
        and exchange.executed_input is not exchange.question.input
    )


def _as_json(value: Any) -> Any:
    """Return the input of a tool as JSON can hold it; the tool's own types may turn it into any object."""
    try:
        return json.loads(json.dumps(value, default=repr))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def chunk_sizes(chunks: Sequence[Chunk], findings: Sequence[Finding]) -> list[list[int]]:
    """Return [bytes, nanoseconds after the request] of each chunk, after redaction.

    The placeholder of a secret belongs to the chunk in which the secret starts.
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
    """Return bytes as a content line holds them: as text if they are UTF-8."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
