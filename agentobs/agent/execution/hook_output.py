"""Convert the output, HTTP response or return value of a hook to an answer that can be recorded.

Functions that return an answer never raise an exception.
"""

from __future__ import annotations

import json
from typing import Any

from agentobs.agent.hooks.declarations import as_json
from agentobs.agent.hooks.hook_verdict import HookAnswer, Outcome
from agentobs.agent.tools.results import error_text
from agentobs.records.canonical_json import Json

ANSWER_BYTES_MAX = 1_000_000
"""Maximum size of a hook's answer. Our choice: the model has to read the answer."""

DEPTH_MAX = 100
"""Maximum nesting depth of an answer. Our choice: far below the interpreter's stack limit."""

QUOTED_CHARS_MAX = 500
"""How much of an invalid output an error message quotes, in characters. Our choice."""

_CONTROL_CHARACTERS = {
    code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
"""The control characters C0, DEL and C1 (https://www.unicode.org/charts/PDF/U0080.pdf), except line feed and tab."""


class HookUnavailable(Exception):
    """A hook cannot run at all: its program cannot be started, or its server cannot be reached."""


def outcome_answer(outcome: Outcome, reason: str) -> Json:
    """Return an answer with only an outcome and a reason."""
    return {"outcome": outcome, "reason": printable(reason)}


def failed_answer(why: str) -> Json:
    """Return the answer of a hook that failed."""
    return outcome_answer("non_blocking_error", why)


def crashed_answer(error: BaseException) -> Json:
    """Return the answer of a hook that raised an exception."""
    return failed_answer(f"it failed with {excerpt(error_text(error))}")


def answer_from_bytes(data: bytes) -> Json:
    """Parse a JSON object as an answer. Empty data means that the hook does not object."""
    if not data.strip():
        return {"outcome": "success"}
    if len(data) > ANSWER_BYTES_MAX:
        return failed_answer(f"its response is longer than {ANSWER_BYTES_MAX:,} bytes")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except RecursionError:
        return failed_answer("its response is nested too deep")
    except ValueError as error:
        shown = excerpt(data.decode("utf-8", "replace"))
        return failed_answer(f"its response is not JSON ({error}): {shown}")
    if isinstance(value, dict):
        value.pop("usage", None)  # only the requests that agentobs makes for a hook count as usage
    return answer_from_value(value)


def answer_from_value(value: Any) -> Json:
    """Return the answer for a JSON value or a function's result. None means that the hook does not object."""
    if value is None:
        return {"outcome": "success"}
    if isinstance(value, HookAnswer):
        value = value.as_json()
    if not isinstance(value, dict):
        return failed_answer(f"its answer has the type {type(value).__name__}, expected an object")
    if _is_too_deep(value):
        return failed_answer("its response is nested too deep")
    try:
        text = as_json(value)
    except ValueError as error:
        return failed_answer(f"its response is not JSON: {excerpt(str(error))}")
    if len(text) > ANSWER_BYTES_MAX:
        return failed_answer(f"its response is longer than {ANSWER_BYTES_MAX:,} bytes")
    return {"outcome": "success", **_with_printable_texts(json.loads(sendable(text)))}


def sendable(text: str) -> str:
    """Return a text that can be encoded as UTF-8: each lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    """Return a text that can be sent and shown, without control characters except line feed and tab."""
    return sendable(text).translate(_CONTROL_CHARACTERS)


def _with_printable_texts(answer: Json) -> Json:
    """Remove control characters from the reason and the context of an answer; leave input and output unchanged."""
    texts = {
        name: answer[name] for name in ("reason", "context") if isinstance(answer.get(name), str)
    }
    return {**answer, **{name: printable(text) for name, text in texts.items()}}


def excerpt(text: str) -> str:
    """Return a text that is short enough to be quoted in an error message."""
    text = text.strip()
    return printable(text if len(text) <= QUOTED_CHARS_MAX else text[:QUOTED_CHARS_MAX] + "...")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys, because JSON parsers differ in which of the values they use."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object contains a key twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _is_too_deep(value: Any) -> bool:
    """Return whether a value is nested too deeply or contains itself."""
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
