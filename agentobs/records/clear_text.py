"""Clear text: which strings of a fact may stay readable, by field.

Facts can be shared, so a text that a person or a model wrote must not be in them, not even if it is one word, a path or
an e-mail address. A string stays readable if it is

1. a `Label`: a constant, or a text that the program declared as free of content;
2. a name that the program declares: of a session, a tag, a tool in a request, a class, a span, a hook, an agent;
3. a value of a closed set of the provider, such as a stop reason;
4. an ID in a form of agentobs or of a provider, which nobody chooses.

Every other string is replaced by its keyed digest. docs/redaction.md lists the fields of the second group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import Any, get_args

from agentobs.records.facts import (
    Attempt,
    Event,
    Export,
    Gap,
    GitState,
    InteractionEnd,
    InteractionStart,
    Permission,
    Prefix,
    Pruning,
    Score,
    SessionEnd,
    SessionStart,
    SessionTitle,
    SpanEnd,
    SpanStart,
    ToolResult,
    ToolUse,
    UsageRow,
    WorldAnswer,
    Zones,
)
from agentobs.records.labels import Label, constant_label, unchecked
from agentobs.records.usage import Certainty

Rule = Callable[[str, Set[str]], bool]
"""Returns whether a text may stay readable, given the terms of the providers, and the tools and models
that the requests of the session declare."""

_NAME = re.compile(r"[A-Za-z0-9_.:+-]{1,128}\Z")
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}\Z")
_OWN_ID = re.compile(
    r"(?:[a-z0-9]{2,8}:)?[0-9a-f]{16,64}\Z|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z"
    r"|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z|[a-z]\d{0,6}(?:_\d+)?\Z",
    re.IGNORECASE,
)
"""Hexadecimal IDs, digests, UUIDs, a `traceparent`, and a letter with a number."""
_PROVIDER_ID = re.compile(
    r"(?:msg|req|toolu|srvtoolu|mcptoolu|tooluse|msgbatch|file|container|compl|call|chatcmpl|gen|resp|fc)"
    r"[_-](?:[a-z]{2,6}[_-])?[A-Za-z0-9_-]{1,100}\Z"
)
"""IDs of Anthropic, of Bedrock (`msg_bdrk_...`, `tooluse_...`) and of gateways (`call_...`, `gen-...`)."""
_WORDS = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+(?:\.[a-z0-9]+(?:_[a-z0-9]+)+)?\Z")
"""A name in a provider's JSON: at least two words, so that it is not a word of somebody's text."""
_MODEL = re.compile(
    r"(?:[a-z0-9_.-]{1,32}/){0,3}[A-Za-z0-9_.:+-]{1,128}(?:@(?:\d{8}|default|latest))?(?:\[\w{1,8}\])?\Z"
    r"|arn:aws[a-z-]*:bedrock:[A-Za-z0-9:/._-]{1,200}\Z"
)
"""Names of models, on all platforms: a relative name with an optional release, or an ARN of Bedrock."""
_ENTRY = re.compile(r"@?[A-Za-z0-9_./-]{1,96}(?::[A-Za-z0-9_.<>]{1,64})?\Z")
_PLACE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?:@[A-Za-z0-9_.]+:[A-Za-z0-9_.]+)?\Z")


def is_id(text: str) -> bool:
    """Return whether a text is an ID in a form of agentobs or of a provider, which nobody chooses."""
    return _OWN_ID.match(text) is not None or _PROVIDER_ID.match(text) is not None


def is_declared_name(text: str) -> bool:
    """Return whether a text has the form of a name in a program. Paths and e-mail addresses do not."""
    return _NAME.match(text) is not None


def is_class_name(text: str) -> bool:
    """Return whether a text has the form of the name of a class."""
    return _CLASS.match(text) is not None


def class_label(name: str) -> Label:
    """Return the name of a class, which the program declares; the recorder replaces a name that has another form."""
    return constant_label(name) if is_class_name(name) else unchecked(name)


def _id(text: str, _: Set[str]) -> bool:
    return is_id(text)


def _name(text: str, _: Set[str]) -> bool:
    return is_declared_name(text)


def _class(text: str, _: Set[str]) -> bool:
    return _CLASS.match(text) is not None


def _result_type(text: str, _: Set[str]) -> bool:
    """Return whether a text is a class with its module, such as `builtins:dict`."""
    return all(map(is_class_name, text.split(":", 1)))


def _never(_text: str, _: Set[str]) -> bool:
    return False


def _model(text: str, _: Set[str]) -> bool:
    return _MODEL.match(text) is not None and not text.endswith("/")


def _term(text: str, declared: Set[str]) -> bool:
    """Return whether a text is a term of the provider, such as a stop reason or the name of a count."""
    return text in declared or _WORDS.match(text) is not None


def _error(text: str, declared: Set[str]) -> bool:
    """Return whether a text is a type of error: a term of the provider, or a class of an exception."""
    ends = ("Error", "Exception", "Timeout", "Disconnected", "Closed", "Interrupt")
    return _term(text, declared) or (_CLASS.match(text) is not None and text.endswith(ends))


def _tool(text: str, declared: Set[str]) -> bool:
    return text in declared and is_declared_name(text)


def _parameter(text: str, declared: Set[str]) -> bool:
    return _term(text, declared) or _tool(text, declared)


def _span_label(text: str, declared: Set[str]) -> bool:
    is_model = "claude-" in text and _model(text, declared)
    return is_model or is_id(text) or _tool(text, declared) or _error(text, declared)


def _event_text(text: str, declared: Set[str]) -> bool:
    return is_declared_name(text) or _model(text, declared)


def _kept(text: str, _: Set[str]) -> bool:
    return is_id(text) or re.match(r"message:\d+\Z", text) is not None


def _entry(text: str, _: Set[str]) -> bool:
    return _ENTRY.match(text) is not None and not text.startswith("/")


def _signature(text: str, _: Set[str]) -> bool:
    return text.startswith("exception:") and _PLACE.match(text[10:]) is not None


def _note(text: str, declared: Set[str]) -> bool:
    parts = text.split("/")
    return all(
        re.match(r"[a-z_]+\Z", reason) and (_term(name, declared) or name in _NOTED)
        for name, _colon, reason in (part.partition(":") for part in parts)
    )


def _certainty(text: str, _: Set[str]) -> bool:
    return text in get_args(Certainty)


_NOTED = frozenset(("usage", "counts", "unnamed", "platform"))


def _lane(text: str, _: Set[str]) -> bool:
    return all(is_lane_segment(segment) for segment in text.split("/"))


def is_lane_segment(segment: str) -> bool:
    """Return whether a part of a lane is not chosen by anybody: `main`, an ID, a digest, or `kind:key` of the loop."""
    return (
        segment == "main"
        or is_id(segment)
        or re.match(r"\.[0-9a-f]{16}\Z|[a-z]?[0-9a-f]{7,40}\Z|(?:agent-)?\d+\Z", segment)
        is not None
        or re.match(r"agent-[0-9a-f]{2,40}\Z", segment) is not None
        or re.match(r"[a-z_]+:[A-Za-z0-9_.:-]+\Z", segment) is not None
    )


LANE_FIELDS = frozenset(("lane", "reported_lane"))
"""The fields with the name of a lane; a digest replaces only the parts of a name that somebody chose."""

_PLACES: dict[str, Rule] = {
    "lane": _lane,
    "query_source": _term,
}

RULES: dict[type, dict[str, Rule]] = {
    SessionStart: {
        "name": _name,
        "entry": _entry,
        "agentobs_version": _name,
        "sdk_version": _name,
        "python_version": _name,
        "platform": _name,
        "continues_session_id": _id,
        "tags": _name,
        "live_exports": _event_text,
        "source": _name,
    },
    SessionEnd: {"reason": _never, "signature": _signature, "result_type": _result_type},
    Gap: {},
    InteractionStart: _PLACES,
    InteractionEnd: {**_PLACES, "result": _term},
    Attempt: {
        **_PLACES,
        "reported_lane": _lane,
        "method": _term,
        "model_requested": _model,
        "model": _model,
        "error_type": _error,
        "stop_reason": _term,
        "parameters": _parameter,
    },
    UsageRow: {
        "kind": _term,
        "model": _model,
        "service_tier": _term,
        "inference_geo": _term,
        "speed": _term,
        "server_requests": _term,
        "other_counts": _term,
        "note": _note,
        "certainty": _certainty,
        "batch_result_id": _never,
    },
    Prefix: {"miss_reason": _term},
    Zones: {},
    ToolUse: {**_PLACES, "name": _tool},
    ToolResult: {**_PLACES, "tool": _name},
    Event: {
        **_PLACES,
        "kind": _name,
        "label": _event_text,
        "label.compaction_kept": _kept,
        "labels.tool_use_id": _id,
        "labels": _event_text,
        "numbers": _name,
    },
    SpanStart: {**_PLACES, "name": _name, "label": _span_label, "labels": _never, "numbers": _name},
    SpanEnd: {"error_type": _error},
    Permission: {
        **_PLACES,
        "tool": _tool,
        "reason_type": _name,
        "resolver": _name,
        "source": _name,
        "rule": _never,
    },
    WorldAnswer: {**_PLACES, "kind": _term, "key": _id},
    SessionTitle: {"title": _never},
    GitState: {"lane": _lane, "repository": _never, "branch": _never, "directory": _never},
    Score: {"lane": _lane, "name": _name, "label": _never, "comment": _never},
    Pruning: {},
    Export: {},
}
"""The rule of each field that may contain another readable text than an ID."""


def may_stay(kind: type, field: str, text: str, declared: Set[str]) -> bool:
    """Return whether a field of a fact may contain a text.

    Args:
        kind: the class of the fact.
        field: the name of the field.
        text: the text, which is not a `Label`.
        declared: the terms of the providers, and the tools and models that the requests of the session declare.
    """
    rule: Any = RULES[kind].get(field, _id)
    return bool(rule(text, declared))
