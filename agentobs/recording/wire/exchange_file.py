"""Exchange files: HTTP exchanges that other tools recorded, one JSON object per line.

    {"request":  {"method", "path", "headers", "body"},
     "response": {"status", "headers", "body_text"},
     "source":   {...}}

`body` is parsed JSON, a string if the body was not JSON, or null. `body_text` is the decoded text of the response, or
`base64:...` if it was binary. Such a file contains neither times nor chunk boundaries. If the content type of a
response is missing, it is inferred from the body. Only headers that agentobs records itself are kept.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from agentobs.errors import ForeignError
from agentobs.provider.registry import (
    credentials,
    recorded_request_headers,
    recorded_response_headers,
)
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, Recording


def read_wire_file(path: Path) -> Recording:
    """Return the exchanges of an exchange file, as one recording with the name of the file.

    Raises:
        ForeignError: a line does not have this format; the message contains the line number.
    """
    exchanges: list[ModelExchange] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            exchanges.append(exchange_of(line, number))
        except ForeignError as error:
            raise ForeignError(
                f"line {number} is {error.found}", where=str(path), todo=error.todo
            ) from error
    return Recording("wire", path.stem, None, None, "completed", None, None, 0, tuple(exchanges))


def exchange_of(line: bytes, number: int) -> ModelExchange:
    """Return the exchange in line `number` of a file; its times are zero.

    Raises:
        ForeignError: the line does not have this format.
    """
    try:
        value = json.loads(line.decode("utf-8"))
        question = _question(_typed(value["request"], dict))
        answer = _answer(_typed(value["response"], dict))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignError(
            f"not a recorded exchange: {_why(error)}",
            todo='Each line must be {"request": {...}, "response": {...}}',
        ) from error
    return ModelExchange(
        place=Place("wire"),
        attempt_id=f"{number:032x}",
        started_ns=number,
        headers_ns=None,
        ended_ns=0,
        question=question,
        answer=answer,
        secrets=question.secrets,
    )


def _question(value: dict[str, Any]) -> Question:
    body = value["body"]
    if body is None:
        data = b""
    elif isinstance(body, str):
        data = body.encode("utf-8", "surrogatepass")
    else:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        data = text.encode("utf-8", "surrogatepass")
    headers = _headers(value["headers"])
    return Question(
        _typed(value["method"], str),
        _typed(value["path"], str),
        recorded_request_headers(headers),
        data,
        tuple(
            each.encode("utf-8", "surrogatepass")
            for each in credentials(headers)
            if len(each) >= 16
        ),
    )


def _answer(value: dict[str, Any]) -> Answer:
    text = _typed(value["body_text"] or "", str)
    if text.startswith("base64:"):
        data = base64.b64decode(text.removeprefix("base64:"), validate=True)
    else:
        data = text.encode("utf-8", "surrogatepass")
    chunks = (Chunk(data, 0),) if data else ()
    headers = {**_content_type(text), **recorded_response_headers(_headers(value["headers"]))}
    return Answer(_typed(value["status"], int), headers, chunks, "complete")


def _content_type(text: str) -> dict[str, str]:
    """Return the header for the apparent content type of a body: some tools remove this header, but every client needs
    it.
    """
    if text.startswith(("event:", "data:")):
        return {"content-type": "text/event-stream; charset=utf-8"}
    return {"content-type": "application/json"} if text.startswith(("{", "[")) else {}


def _headers(value: dict[str, str] | None) -> dict[str, str]:
    return {str(name).lower(): str(text) for name, text in (value or {}).items()}


def _typed(value: Any, kind: type) -> Any:
    """Return a value of a type.

    Raises:
        TypeError: the value has another type.
    """
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, got {value!r:.40}")
    return value


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
