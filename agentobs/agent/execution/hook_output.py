"""Convert a hook's output, response or return value to an answer that can be recorded. Nothing here raises."""

from __future__ import annotations

import json
from typing import Any

from agentobs.agent.hooks.declarations import as_json
from agentobs.agent.hooks.hook_verdict import HookAnswer, Outcome
from agentobs.agent.tools.results import error_text
from agentobs.records.canonical_json import Json

ANSWER_BYTES_MAX = 1_000_000
"""Maximum size of a hook's answer. Our choice: the model has to read it."""

DEPTH_MAX = 100
"""Maximum nesting depth of an answer. Our choice: far below the interpreter's stack limit."""

QUOTED_CHARS_MAX = 500
"""How much of an unusable output is quoted, in characters. Our choice."""


_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""C0, DEL and C1 (https://www.unicode.org/charts/PDF/U0080.pdf)."""


def answer_only(outcome: Outcome, reason: str) -> Json:
    """Return an answer with only an outcome and a reason."""
    return {"outcome": outcome, "reason": plain(reason)}


def failed(why: str) -> Json:
    """Return the answer of a hook that failed."""
    return answer_only("non_blocking_error", why)


def crashed(error: BaseException) -> Json:
    """Return the answer of a hook that raised an exception."""
    return failed(f"it failed with {quoted(error_text(error))}")


def of_bytes(data: bytes) -> Json:
    """Parse a text as an answer, a JSON object. An empty text means no objection."""
    if not data.strip():
        return {"outcome": "success"}
    if len(data) > ANSWER_BYTES_MAX:
        return failed(f"its response is longer than {ANSWER_BYTES_MAX:,} bytes")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        return failed("its response is nested too deep")
    except ValueError as error:
        shown = quoted(data.decode("utf-8", "replace"))
        return failed(f"its response is not JSON ({error}): {shown}")
    if isinstance(value, dict):
        value.pop("usage", None)  # only requests that we made for the hook have usage
    return of_value(value)


def of_value(value: Any) -> Json:
    """Return the answer for a JSON value or a function's result; None means no objection."""
    if value is None:
        return {"outcome": "success"}
    if isinstance(value, HookAnswer):
        value = value.as_json()
    if not isinstance(value, dict):
        return failed(f"its answer is of the type {type(value).__name__}, not an object")
    if _is_deep(value):
        return failed("its response is nested too deep")
    try:
        text = as_json(value)
    except ValueError as error:
        return failed(f"its response is not JSON: {quoted(str(error))}")
    if len(text) > ANSWER_BYTES_MAX:
        return failed(f"its response is longer than {ANSWER_BYTES_MAX:,} bytes")
    return {"outcome": "success", **cleaned(json.loads(sendable(text)))}


def sendable(text: str) -> str:
    """Return text that can be encoded as UTF-8: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(text: str) -> str:
    """Return text that can be sent and shown, without control characters except line feed and tab."""
    return sendable(text).translate(_CONTROLS)


def cleaned(answer: Json) -> Json:
    """Return an answer without control characters in texts for the model; input and output stay unchanged."""
    texts = {
        name: answer[name] for name in ("reason", "context") if isinstance(answer.get(name), str)
    }
    return {**answer, **{name: plain(text) for name, text in texts.items()}}


def quoted(text: str) -> str:
    """Return a text shortened for quoting."""
    text = text.strip()
    return plain(text if len(text) <= QUOTED_CHARS_MAX else text[:QUOTED_CHARS_MAX] + "...")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names, because parsers differ in which one they use."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object contains a key twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested too deeply, or contains itself."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list | tuple)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
        if len(level) > ANSWER_BYTES_MAX:
            return True
    return True
