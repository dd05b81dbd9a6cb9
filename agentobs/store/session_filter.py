"""Session filters: conditions on scores and on numbers of sessions, such as `score.correct < 0.5 and turns > 3`.

A condition on a score holds for a session if the last value of any of its scores with this name satisfies it: a score
of the session itself, of a turn or of a tool call. A session without such a score never satisfies it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from agentobs.errors import UsageError
from agentobs.store.port import Store

FIELDS = ("status", "cost_usd", "turns", "tool_calls", "llm_requests", "interactions", "duration_s")
"""The fields of sessions that conditions can name, besides `score.NAME`."""

_NUMBERS = frozenset(FIELDS) - {"status"}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_CONDITION = re.compile(
    r"""\s*(score\.[A-Za-z0-9_.:-]{1,128}|[a-z_]+)\s*(<=|>=|!=|==|=|<|>)\s*
    ("[^"]*"|'[^']*'|[^\s"']+)\s*""",
    re.VERBOSE,
)
_AND = re.compile(r"and\b\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a filter."""

    field: str
    """`score.NAME`, or one of `FIELDS`."""
    operator: str
    value: Decimal | bool | str

    def holds(self, found: Decimal | bool | str | None) -> bool:
        """Return whether a value satisfies the condition; an unknown value or one of another type does not."""
        if found is None or isinstance(found, str) != isinstance(self.value, str):
            return False
        return _OPERATORS[self.operator](found, self.value)


def parse_filter(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a filter, all of which must hold.

    Args:
        text: conditions such as `score.correct < 0.5`, joined by `and`. The operators are `<`, `<=`, `>`, `>=`, `=` and
            `!=`. A value is a number, `true`, `false`, or a word, which may be in quotation marks.

    Raises:
        UsageError: the text is not a filter.
    """
    found: list[Condition] = []
    at = 0
    while True:
        match = _CONDITION.match(text, at)
        if match is None:
            raise _error(text, f"expected a condition, found {text[at : at + 40]!r}")
        found.append(_condition(text, match[1], match[2].replace("==", "="), match[3]))
        at = match.end()
        if at == len(text):
            return tuple(found)
        joined = _AND.match(text, at)
        if joined is None:
            raise _error(text, f"expected `and`, found {text[at : at + 40]!r}")
        at = joined.end()


def matching_sessions(store: Store, conditions: Sequence[Condition]) -> list[str]:
    """Return the IDs of the sessions that satisfy all conditions, newest first."""
    listed = store.rows("sessions", causes=False).dicts()
    ids = [str(row["session_id"]) for row in listed]
    about_sessions = [each for each in conditions if not each.field.startswith("score.")]
    chosen = {
        str(row["session_id"])
        for row in listed
        if all(each.holds(_value_of(row, each.field)) for each in about_sessions)
    }
    for each in conditions:
        if each.field.startswith("score."):
            name = each.field.removeprefix("score.")
            scores = store.rows("internal/scores_named", name=name).rows
            chosen &= {row[0] for row in scores if each.holds(_score(*row[1:]))}
    return [each for each in ids if each in chosen]


def _condition(text: str, field: str, sign: str, value: str) -> Condition:
    if not field.startswith("score.") and field not in FIELDS:
        raise _error(text, f"there is no field {field[:80]!r}")
    parsed = _parsed(value)
    if isinstance(parsed, str) and sign not in ("=", "!="):
        raise _error(text, f"{sign} needs a number, found {value[:80]!r}")
    if field in _NUMBERS and isinstance(parsed, str):
        raise _error(text, f"{field} is a number, found {value[:80]!r}")
    if field == "status" and not isinstance(parsed, str):
        raise _error(text, f"status is a word such as failed, found {value[:80]!r}")
    return Condition(field, sign, parsed)


def _parsed(value: str) -> Decimal | bool | str:
    if value[0] in "\"'":
        return value[1:-1]
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        number = Decimal(value)
    except InvalidOperation:
        return value
    return number if number.is_finite() else value


def _value_of(row: dict[str, Any], field: str) -> Decimal | str | None:
    if field == "duration_s":
        duration = row["duration_ns"]
        return None if duration is None else Decimal(duration) / 10**9
    value = row[field]
    return value if value is None or isinstance(value, str) else Decimal(value)


def _score(value_type: str, value: float | None, label: str | None) -> Decimal | bool | str | None:
    if value_type == "label":
        return label
    # The shortest decimal number with this value, so that 0.1 equals 0.1.
    return None if value is None else Decimal(repr(value))


def _error(text: str, why: str) -> UsageError:
    return UsageError(
        why,
        where=f"--where {text[:120]!r}",
        todo=f"Join conditions with `and`: score.NAME or one of {', '.join(FIELDS)}, an operator (< <= > >= = !=), and "
        "a number, true, false or a word",
    )
