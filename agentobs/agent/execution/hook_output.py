"""Reading: from whatever a hook printed, sent or returned to an answer that can be recorded. Nothing here raises."""

from __future__ import annotations

import json
from typing import Any

from agentobs.agent.hooks.declarations import as_json
from agentobs.agent.hooks.hook_verdict import HookAnswer, Outcome
from agentobs.agent.tools.results import told
from agentobs.records.canonical_json import Json

ANSWER_BYTES_MAX = 1_000_000
"""The longest answer of a hook. Our choice: the model has to read what comes of it."""

DEPTH_MAX = 100
"""How deep an answer may be nested. Our choice: far below what the interpreter's stack bears."""

QUOTED_CHARS_MAX = 500
"""How much of what cannot be used is told, in characters. Our choice."""


_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""C0, DEL and C1 (https://www.unicode.org/charts/PDF/U0080.pdf)."""


def said(outcome: Outcome, reason: str) -> Json:
    """Return an answer that is no more than its outcome and why."""
    return {"outcome": outcome, "reason": plain(reason)}


def failed(why: str) -> Json:
    """Return the answer of a hook that failed."""
    return said("non_blocking_error", why)


def crashed(error: BaseException) -> Json:
    """Return the answer of a hook that raised something."""
    return failed(f"it failed with {quoted(told(error))}")


def of_bytes(data: bytes) -> Json:
    """Return the answer that a text is: a JSON object. An empty one has nothing against what happens."""
    if not data.strip():
        return {"outcome": "success"}
    if len(data) > ANSWER_BYTES_MAX:
        return failed(f"its answer is longer than {ANSWER_BYTES_MAX:,} bytes")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        return failed("its answer is nested too deep")
    except ValueError as error:
        shown = quoted(data.decode("utf-8", "replace"))
        return failed(f"its answer is no JSON ({error}): {shown}")
    if isinstance(value, dict):
        value.pop("usage", None)  # who has asked no model for us has nothing to tell of it
    return of_value(value)


def of_value(value: Any) -> Json:
    """Return the answer that a JSON value is, or a function's result; None has nothing against what happens."""
    if value is None:
        return {"outcome": "success"}
    if isinstance(value, HookAnswer):
        value = value.as_json()
    if not isinstance(value, dict):
        return failed(f"its answer is of the type {type(value).__name__}, and no object")
    if _is_deep(value):
        return failed("its answer is nested too deep")
    try:
        text = as_json(value)
    except ValueError as error:
        return failed(f"its answer is no JSON: {quoted(str(error))}")
    if len(text) > ANSWER_BYTES_MAX:
        return failed(f"its answer is longer than {ANSWER_BYTES_MAX:,} bytes")
    return {"outcome": "success", **cleaned(json.loads(sendable(text)))}


def sendable(text: str) -> str:
    """Return text that can be written as UTF-8: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(text: str) -> str:
    """Return text that can be sent and shown, without control characters but the end of a line and the tab."""
    return sendable(text).translate(_CONTROLS)


def cleaned(answer: Json) -> Json:
    """Return an answer without control characters in what the model is told; an input or output stays as it is."""
    said = {
        name: answer[name] for name in ("reason", "context") if isinstance(answer.get(name), str)
    }
    return {**answer, **{name: plain(text) for name, text in said.items()}}


def quoted(text: str) -> str:
    """Return as much of a text as is worth telling."""
    text = text.strip()
    return plain(text if len(text) <= QUOTED_CHARS_MAX else text[:QUOTED_CHARS_MAX] + "...")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: whoever reads it could take either."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested too deep, or holds itself."""
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
