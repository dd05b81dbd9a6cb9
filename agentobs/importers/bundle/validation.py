"""Validation: check whether a recorder could have written the lines of a bundle, before any line is stored.

A bundle may contain arbitrary data. A fact must have the fields of its table with their types, its session's ID, and no
strings except labels; a timestamp must be small enough for arithmetic. A line of content must have the fields of its
kind. A request body may be stored as a difference from another body, so a few bytes could expand to a terabyte. The
size of each body is therefore computed before any body is rebuilt.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from agentobs.importers.bundle.container import strict
from agentobs.importers.line_files import FAR_NS
from agentobs.recording.journal.segments import Damage, Line
from agentobs.recording.journal.unfinished_attempts import DRAFT_SUFFIX, DRAFTS, MOVED
from agentobs.records.exchanges import Ending
from agentobs.records.facts import DECLARED, TABLES, Export, Pruning
from agentobs.records.labels import REVIEWED_CHARACTERS, is_label
from agentobs.store.fact_columns import fact_columns

LONG = 2**58
"""The limit for a duration, 9 years; a few such durations can be added to a timestamp without overflow. Our choice."""
MANY = 2**40
"""The limit for a count; a million such counts can be added and multiplied by a price without overflow. Our choice."""
BODY_BYTES_MAX = 256 * 1024**2
"""The maximum size of one request. Our choice: the provider accepts 32 MB."""
LABEL_MAX = REVIEWED_CHARACTERS + len(DECLARED)
"""The maximum length of a text: a failure signature with a reviewed label, see `Label.reviewed`."""

CONTENT_FIELDS = (
    "arguments_content", "end_content", "request_content", "response_content", "content",
)  # fmt: skip
"""The fields of facts that may contain content IDs. Exception: `content` of a session's start is the content mode."""
KINDS = frozenset(TABLES.values()) - {TABLES[Pruning], TABLES[Export]} | DRAFTS
"""The allowed kinds of facts: all except prunings, which would delete data, and exports."""


class BadLine(ValueError):
    """A line that a recorder would never write."""


@dataclass(slots=True)
class Facts:
    """Data collected from the facts of a session, to be compared with its other lines."""

    named: set[str] = field(default_factory=set)
    """The content IDs in the facts."""
    attempts: set[str] = field(default_factory=set)
    starts: int = 0


def lines_of(items: Iterable[Line | Damage]) -> Iterator[Line]:
    """Yield the records of a segment file between its first line and its seal, both of which must exist.

    Raises:
        BadLine: a line is damaged, missing, duplicated or belongs to another segment.
    """
    last: Line | None = None
    for number, item in enumerate(items, 1):
        if isinstance(item, Damage):
            raise BadLine(f"byte {item.start}: {item.reason}")
        if last is not None and last.kind == "seal":
            raise BadLine(f"byte {item.start}: data follows its last line")
        if item.sequence != number or (item.kind == "segment") != (number == 1):
            raise BadLine(
                f"byte {item.start}: unexpected record {item.sequence} of kind {item.kind}"
            )
        if item.kind not in ("segment", "seal"):
            yield item
        last = item
    if last is None or last.kind != "seal":
        raise BadLine("its last line is missing")


def check_fact(line: Line, session_id: str, found: Facts) -> None:
    """Validate one fact, and note the content that it refers to.

    Raises:
        BadLine: the fact is invalid, or belongs to another session.
    """
    if line.kind == "lost":
        return
    value = _parsed(line)
    if line.kind not in KINDS:
        raise BadLine(f"record {line.sequence}: kind {line.kind} is not allowed")
    if value.get("session_id") != session_id:
        raise BadLine(f"record {line.sequence}: it belongs to another session")
    if line.kind != MOVED:
        _check_fields(line, value)
    else:
        _check_texts(line, value)
    for name in CONTENT_FIELDS:
        if isinstance(value.get(name), str) and (name, line.kind) != ("content", "session_starts"):
            found.named.add(value[name])
    if line.kind in ("attempts", "attempts_starts"):
        found.attempts.add(value["attempt_id"])
    found.starts += line.kind == "session_starts"


def _parsed(line: Line) -> dict[str, Any]:
    try:
        value = strict(line.payload)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"record {line.sequence}: {_error_text(error)}") from error
    if not isinstance(value, dict):
        raise BadLine(f"record {line.sequence}: not an object")
    return value


def _error_text(error: BaseException) -> str:
    text = getattr(error, "msg", None) or str(error)
    return "it is nested too deeply" if isinstance(error, RecursionError) else text[:LABEL_MAX]


def _check_fields(line: Line, value: Mapping[str, Any]) -> None:
    known = _shape(line.kind.removesuffix(DRAFT_SUFFIX) if line.kind in DRAFTS else line.kind)
    for name, field_value in value.items():
        if name not in known:
            raise BadLine(f"record {line.sequence}: {line.kind} has no field {name[:60]!r}")
        if not known[name].accepts(field_value):
            raise BadLine(f"record {line.sequence}: {name} is not a valid {known[name].kind}")
    for name, shape in known.items():
        if name not in value and shape.is_required:
            raise BadLine(f"record {line.sequence}: {name} is missing in {line.kind}")


def _check_texts(line: Line, value: Mapping[str, Any]) -> None:
    if not all(isinstance(each, str) and is_label(each) for each in value.values()):
        raise BadLine(f"record {line.sequence}: a string that is not a label in {line.kind}")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The values that a field may have."""

    kind: str
    """The column type in SQL."""
    may_be_null: bool
    is_required: bool
    is_valid: Callable[[Any], bool]
    """Returns whether a value other than null is valid."""

    def accepts(self, value: Any) -> bool:
        return self.may_be_null if value is None else self.is_valid(value)


@cache
def _shape(table: str) -> dict[str, _Shape]:
    """Return the valid values of each field of a table."""
    fact = next(fact for fact, name in TABLES.items() if name == table)
    hints = get_type_hints(fact)
    columns = fact_columns(table)
    shapes: dict[str, _Shape] = {}
    for each in fields(fact):
        kind = columns[each.name]
        may_be_null = NoneType in get_args(hints[each.name])
        is_required = each.default is MISSING and each.default_factory is MISSING
        shapes[each.name] = _Shape(kind, may_be_null, is_required, _validator(kind, each.name))
    shapes["session_sequence"] = _Shape("BIGINT", True, False, _is_count)
    return shapes


def _validator(kind: str, name: str) -> Callable[[Any], bool]:
    """Return the function that checks the values of a field, given its column type and its name."""
    if kind.startswith("MAP("):
        inner = kind[4:-1].split(", ")
        key, value = (_validator(each, "") for each in inner)
        return lambda mapping: (
            isinstance(mapping, dict)
            and all(key(k) and (v is None or value(v)) for k, v in mapping.items())
        )
    if name in _DURATIONS:
        return lambda duration: type(duration) is int and 0 <= duration < LONG
    if name.endswith("_ns"):
        return _is_time
    if name == "input_similarity":
        return _is_number
    return {"VARCHAR": _is_word, "BIGINT": _is_count, "BOOLEAN": _is_bool, "DOUBLE": _is_float}[
        kind
    ]


_DURATIONS = frozenset(("duration_ns", "headers_ns", "first_chunk_ns", "approval_wait_ns"))
"""The fields that contain durations; all other fields in nanoseconds contain timestamps."""


def _is_word(value: Any) -> bool:
    """Return whether a value is a label, or could be a reviewed text."""
    return isinstance(value, str) and (
        is_label(value) or (value.isprintable() and len(value) <= LABEL_MAX)
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Return whether a value is a 64-bit integer, such as a similarity hash."""
    return type(value) is int and -(2**63) <= value < 2**63


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MANY


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value < FAR_NS


def _is_float(value: Any) -> bool:
    """Return whether a value is a number that a query can convert to an integer; NaN is rejected."""
    return isinstance(value, int | float) and -FAR_NS < value < FAR_NS


class Contents:
    """Data collected from the content lines of a session, to be compared with each other and with its facts."""

    def __init__(self, session_id: str) -> None:
        """Start without any content."""
        self._session_id = session_id
        self._bodies: dict[str, tuple[str | None, int, int, int]] = {}
        self._known: set[str] = set()

    def check(self, line: Line) -> None:
        """Validate one line of content.

        Raises:
            BadLine: it does not have the fields of its kind, or belongs to another session.
        """
        if line.kind == "pruned":
            raise BadLine(f"record {line.sequence}: pruned content")
        value = _parsed(line)
        try:
            if value["session_id"] != self._session_id:
                raise ValueError("it belongs to another session")
            if not _is_id(value["content_id"]):
                raise ValueError("its content ID is not valid")
            size = _text_bytes(value)
            _CHECKS[line.kind](value)
            if line.kind == "request":
                self._bodies[value["content_id"]] = (
                    value["base"], value["prefix"], value["suffix"], size
                )  # fmt: skip
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            text = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
            raise BadLine(f"record {line.sequence}: {line.kind}: {text[:LABEL_MAX]}") from error
        self._known.add(value["content_id"])
        self._known.add(value["content_id"].rpartition(":")[0])

    def check_consistency(self, facts: Facts) -> None:
        """Validate that all lines are consistent with each other and with the facts.

        Raises:
            BadLine: referenced content is missing, a request is too large, or a request is based on itself.
        """
        crashed = {f"partial:{attempt_id}" for attempt_id in facts.attempts}
        if missing := sorted(facts.named - self._known - crashed):
            raise BadLine(f"content {missing[0]} is missing, but facts reference it")
        sizes: dict[str, int] = {}
        for content_id in self._bodies:
            self._measure(content_id, sizes)

    def _measure(self, content_id: str, sizes: dict[str, int]) -> None:
        """Compute the size of a request, following the chain of requests on which it is based."""
        chain: list[str] = []
        link: str | None = content_id
        while link is not None and link not in sizes:
            if link not in self._bodies or len(chain) > len(self._bodies):
                raise BadLine(f"request {content_id} is based on a request that is missing")
            chain.append(link)
            link = self._bodies[link][0]
        for each in reversed(chain):
            base, prefix, suffix, inserted = self._bodies[each]
            before = sizes[base] if base is not None else 0
            if prefix + suffix > before or prefix + suffix + inserted > BODY_BYTES_MAX:
                raise BadLine(f"request {each} would exceed the size limit")
            sizes[each] = prefix + suffix + inserted


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and is_label(value)


def _text_bytes(value: Mapping[str, Any]) -> int:
    """Return the number of bytes of a line's text."""
    if ("text" in value) == ("base64" in value):
        raise ValueError("it has no text, or two texts")
    if "base64" in value:
        return len(base64.b64decode(value["base64"], validate=True))
    text: str = value["text"]
    return len(text.encode("utf-8", "surrogatepass"))


def _headers(value: Any) -> None:
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ValueError("a header that is not a string")


def _count(value: Any) -> None:
    if type(value) is not int or not 0 <= value < LONG:
        raise ValueError("an invalid count")


def _request(value: Mapping[str, Any]) -> None:
    _headers(value["headers"])
    _count(value["prefix"])
    _count(value["suffix"])
    if not isinstance(value["method"], str) or not isinstance(value["path"], str):
        raise ValueError("a method or a path that is not a string")
    if value["base"] is not None and not _is_id(value["base"]):
        raise ValueError("the request that it is based on is not an ID")


def _chunks(value: Mapping[str, Any]) -> None:
    if value["status"] is not None:
        _count(value["status"])
    _headers(value["headers"])
    for size, after_ns in value["chunks"]:
        _count(size)
        _count(after_ns)


def _response(value: Mapping[str, Any]) -> None:
    _chunks(value)
    _count(value.get("pieces", 0))
    if value["ending"] not in get_args(Ending):
        raise ValueError("an invalid ending")
    failure = value["failure"]
    if failure is not None and [type(each) for each in failure] != [str, str]:
        raise ValueError("an invalid failure")
    if value.get("pieces") and not _is_id(value["pieces_of"]):
        raise ValueError("its chunks belong to no response")


def _json_text(value: Mapping[str, Any]) -> None:
    inner = strict(value["text"].encode("utf-8", "surrogatepass"))
    if not isinstance(inner, dict):
        raise ValueError("not an object")


_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "request": _request,
    "response": _response,
    "partial": _chunks,
    "start": _json_text,
    "end": _json_text,
    "label": _json_text,
    "tool": _json_text,
    "world": _json_text,
    "effect": _json_text,
}
"""The functions that check the fields of each kind of content, except its text."""
