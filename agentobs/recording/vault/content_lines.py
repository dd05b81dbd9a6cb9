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
from agentobs.provider.registry import redacted_binary
from agentobs.recording.vault.body_deltas import Body
from agentobs.recording.vault.stream_secrets import find_in_answer
from agentobs.recording.vault.vault import jobs_id
from agentobs.records.canonical_json import canonical
from agentobs.records.effect_facts import Command
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    ObservedEffect,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
)
from agentobs.redaction import FAILED, FAILED_KIND, Finding, Redactor, apply


def with_clean_headers(exchange: ModelExchange, redactor: Redactor) -> ModelExchange:
    """Return an exchange without secrets in its recorded headers.

    Content lines and facts are both created from these headers, and clients and servers may put any text into them.
    """
    question, answer = exchange.question, exchange.answer
    question_headers = _clean_headers(question.headers, exchange.secrets, redactor)
    answer_headers = _clean_headers(answer.headers, exchange.secrets, redactor)
    if question_headers is question.headers and answer_headers is answer.headers:
        return exchange
    return replace(
        exchange,
        question=replace(question, headers=question_headers),
        answer=replace(answer, headers=answer_headers),
    )


def _clean_headers(
    headers: dict[str, str], secrets: Sequence[bytes], redactor: Redactor
) -> dict[str, str]:
    # Headers rarely contain secrets, so all values are searched at once first. If there are rules, each value is
    # searched separately, because a rule may only match a complete value.
    values = "\n".join(headers.values())
    if not redactor.rules and redactor.redact_text(values, secrets) == values:
        return headers
    return {name: redactor.redact_text(value, secrets) for name, value in headers.items()}


def request_metadata(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return method, path and headers of a request, redacted."""
    return {
        "method": exchange.question.method,
        "path": redactor.redact_text(exchange.question.path, exchange.secrets),
        "headers": exchange.question.headers,
    }


def request_content(
    exchange: ModelExchange, body: Body, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content line of a request: its difference from an earlier one, and where secrets were redacted.

    `metadata` is that of `request_metadata`.
    """
    return {
        "content_id": body.content_id,
        "session_id": exchange.place.session_id,
        **metadata,
        "base": body.base,
        "prefix": body.prefix,
        "suffix": body.suffix,
        **text_of(body.insert),
        "redactions": _redaction_entries(body.redactions),
    }


def response_content(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a response: its bytes, redacted, and when they arrived."""
    answer = exchange.answer
    raw = answer.body
    findings: list[Finding] = []
    rewritten = _binary_without_secrets(exchange, redactor)
    if rewritten is None:
        findings = find_in_answer(raw, exchange.secrets, redactor)
        redactions = _redaction_entries(findings)
    else:
        answer, redactions = rewritten
        raw = answer.body
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
        "redactions": redactions,
        **_origin(exchange, redactor),
    }


def _binary_without_secrets(
    exchange: ModelExchange, redactor: Redactor
) -> tuple[Answer, list[list[Any]]] | None:
    """Return a binary stream without its secrets, and the kind of each secret; None for other responses."""
    kinds: list[list[Any]] = []

    def redact(text: bytes) -> bytes:
        found = redactor.find(text, known=exchange.secrets)
        kinds.extend([each.kind, 0, 0] for each in found)
        return apply(text, found)

    answer = redacted_binary(exchange.question.path, exchange.answer, redact)
    return None if answer is None else (answer, kinds)


def _origin(exchange: ModelExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the fields that identify the caller of a request. They are content, because arguments can be guessed."""
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
    """Return the fields of the task, work item or thread that made a request: digests of names, and numbers."""
    if job is None:
        return {}
    return {
        "job": [list(each) for each in job.path],
        **({"is_worker": True} if job.is_worker else {}),
    }


def jobs_content(session_id: str, ended: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the content line of the jobs that ended before their session: number, and nanoseconds since 1970."""
    return {"content_id": jobs_id(session_id), "session_id": session_id, "ended": ended}


def label_content(session_id: str, digest: str, text: str) -> dict[str, Any]:
    """Return the content line of a text that facts contain only as a digest.

    Args:
        session_id: the session of the facts.
        digest: the digest, as facts contain it.
        text: the text, redacted.
    """
    return {
        "content_id": f"label:{session_id}:{digest.rpartition(':')[2]}",
        "session_id": session_id,
        **text_of(json.dumps({"label": text}, ensure_ascii=False).encode("utf-8", "surrogatepass")),
        "redactions": [],
    }


def start_content(call: SessionCall, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a session's start: name, entry point, tags and arguments, redacted."""
    start = call.start
    content = {
        "name": start.name,
        "entry": start.entry,
        "tags": dict(start.tags),
        "arguments": redactor.redact_named(call.arguments),
        **({"ambient": dict(call.ambient)} if call.ambient else {}),
        **({"entry_obstacle": dict(call.entry_obstacle)} if call.entry_obstacle else {}),
    }
    written, findings = _redacted(content, redactor)
    return {
        "content_id": redactor.digest(start.session_id.encode() + written),
        "session_id": start.session_id,
        **text_of(written),
        "redactions": _redaction_entries(findings),
    }


def end_content(
    returned: SessionReturn,
    redactor: Redactor,
    secrets: Sequence[bytes] = (),
    started: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content line of the end of a session: why it failed, and its result, redacted.

    Args:
        returned: the end.
        redactor: finds secrets.
        secrets: the credentials of the session's requests.
        started: the redacted name, tags and arguments, if the start line of the session contains one of `secrets`.
    """
    end, result = returned.end, returned.result
    content = {
        **({"started": dict(started)} if started is not None else {}),
        **({"reason": end.reason} if end.reason is not None else {}),
        **({"result": result.value, "type": result.type} if result is not None else {}),
        **({"exception": returned.exception} if returned.exception is not None else {}),
    }
    written, findings = _redacted(content, redactor, secrets)
    return {
        "content_id": redactor.digest(f"{end.session_id} end ".encode() + written),
        "session_id": end.session_id,
        **text_of(written),
        "redactions": _redaction_entries(findings),
    }


def start_without_credentials(written: bytes, redactor: Redactor, secrets: Sequence[bytes]) -> Any:
    """Return the name, tags and arguments in the start line of a session, without the session's credentials; None if
    they contain no credentials.
    """
    clean = redactor.redact(written, secrets)
    if not secrets or clean in (written, FAILED):
        return None
    start = json.loads(clean)
    return {key: start[key] for key in ("name", "tags", "arguments") if key in start}


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
    """Return the content line of a tool call: input and result as one JSON text, redacted.

    It also contains the input that the model sent, if hooks or a person changed it, and the input that the tool
    received, if types were converted.
    """
    content = {
        "input": exchange.question.input,
        "result": exchange.answer.content,
        **(
            {"requested_input": exchange.requested_input}
            if exchange.requested_input is not None
            else {}
        ),
        **(
            {"executed_input": _json_value(exchange.executed_input)}
            if _has_converted_input(exchange)
            else {}
        ),
    }
    written, findings = _redacted(content, redactor)
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
        "redactions": _redaction_entries(findings),
    }


def world_content(exchange: WorldExchange, redactor: Redactor) -> dict[str, Any]:
    """Return the content line of a question to the world: question and answer as one JSON text, redacted."""
    question = exchange.question
    written, findings = _redacted(
        {"question": question.payload, "answer": exchange.answer}, redactor
    )
    named = f"{exchange.place.lane} {question.kind} {question.key} {exchange.started_ns} "
    return {
        "content_id": redactor.digest(named.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "kind": question.kind,
        "key": redactor.redact_text(question.key),
        **text_of(written),
        "redactions": _redaction_entries(findings),
    }


def effect_content(
    effect: ObservedEffect, redactor: Redactor, secrets: Sequence[bytes]
) -> dict[str, Any]:
    """Return the content line of a command or an MCP call: its content as one JSON text, redacted."""
    fact = effect.fact
    effect_id = fact.command_id if isinstance(fact, Command) else fact.call_id
    written, findings = _redacted(dict(effect.content or {}), redactor, secrets)
    return {
        "content_id": redactor.digest(effect_id.encode() + written),
        "session_id": fact.session_id,
        "effect_id": effect_id,
        **text_of(written),
        "redactions": _redaction_entries(findings),
    }


def _redacted(
    value: dict[str, Any], redactor: Redactor, secrets: Sequence[bytes] = ()
) -> tuple[bytes, list[Finding]]:
    """Return a value as JSON without secrets, and the findings; each field is replaced if it cannot be searched."""
    text = json.dumps(value, ensure_ascii=False, default=repr).encode("utf-8", "surrogatepass")
    findings = redactor.find(text, known=secrets)
    if any(each.kind == FAILED_KIND for each in findings):
        return json.dumps(dict.fromkeys(value, FAILED.decode())).encode(), findings
    return apply(text, findings), findings


def _has_converted_input(exchange: ToolExchange) -> bool:
    return (
        exchange.executed_input is not None
        and exchange.executed_input is not exchange.question.input
    )


def _json_value(value: Any) -> Any:
    """Return the input of a tool as JSON values; the conversion to its types may have produced other objects."""
    try:
        return json.loads(json.dumps(value, default=repr))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def chunk_sizes(chunks: Sequence[Chunk], findings: Sequence[Finding]) -> list[list[int]]:
    """Return for each chunk its size after redaction, in bytes, and its arrival, in nanoseconds after the request.

    The placeholder of a secret belongs to the chunk in which the secret starts.
    """
    sizes: list[list[int]] = []
    waiting = list(reversed(findings))
    at = redacted_until = 0
    for chunk in chunks:
        end = at + len(chunk.data)
        size = end - max(at, min(redacted_until, end))
        while waiting and waiting[-1].start < end:
            finding = waiting.pop()
            redacted_until = finding.end
            size += len(finding.replacement_bytes) - (min(redacted_until, end) - finding.start)
        sizes.append([size, chunk.after_ns])
        at = end
    return sizes


def _redaction_entries(findings: Sequence[Finding]) -> list[list[Any]]:
    return [[f.kind, f.start, f.end - f.start] for f in findings]


def text_of(data: bytes) -> dict[str, str]:
    """Return bytes as a field of a content line: `text` if they are UTF-8, else `base64`."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
