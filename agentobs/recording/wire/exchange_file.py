"""Exchange files: recorded HTTP exchanges, one JSON object per line, in the format of other tools.

    {"request":  {"method", "path", "headers", "body"},
     "response": {"status", "headers", "body_text"},
     "source":   {...}}

`body` is parsed JSON, a string if it was not JSON, or null; `body_text` is the decoded text of the
response, `base64:...` if it was binary. Such a file has no times and no chunk boundaries. If the
content type of a response is missing, it is inferred from the body.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from agentobs.errors import ForeignError
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, Recording


def read_wire_file(path: Path) -> Recording:
    """Return the exchanges of such a file, as one recording with the name of the file.

    Raises:
        ForeignError: a line does not have this format; the message names it.
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
    """Return the exchange of one line, the `number`th of its file; its times are zero.

    Raises:
        ForeignError: it does not have this format.
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
    return Question(
        _typed(value["method"], str), _typed(value["path"], str), _headers(value["headers"]), data
    )


def _answer(value: dict[str, Any]) -> Answer:
    text = _typed(value["body_text"] or "", str)
    if text.startswith("base64:"):
        data = base64.b64decode(text.removeprefix("base64:"), validate=True)
    else:
        data = text.encode("utf-8", "surrogatepass")
    chunks = (Chunk(data, 0),) if data else ()
    headers = {**_content_type(text), **_headers(value["headers"])}
    return Answer(_typed(value["status"], int), headers, chunks, "complete")


def _content_type(text: str) -> dict[str, str]:
    """Return the content type that a body appears to have: some tools remove the header, and every client depends on
    it.
    """
    if text.startswith(("event:", "data:")):
        return {"content-type": "text/event-stream; charset=utf-8"}
    return {"content-type": "application/json"} if text.startswith(("{", "[")) else {}


def _headers(value: dict[str, str] | None) -> dict[str, str]:
    return {str(name).lower(): str(text) for name, text in (value or {}).items()}


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.40} instead of a {kind.__name__} belongs")
    return value


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
